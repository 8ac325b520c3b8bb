//! SandboxWarmPool: `replicas` is required in v1alpha1, and its status has no `observedGeneration`.

use serde_json::{Value, json};

use super::ConversionError;
use super::object::Object;
use crate::groups::{EXTENSIONS_V1ALPHA1, SANDBOX_WARM_POOL};
use crate::keys::annotations::V1ALPHA1_POOL_STATE;

/// v1alpha1 → v1beta1.
pub(super) fn to_hub(object: &mut Object) -> Result<(), ConversionError> {
    if let Some(status) = object.existing_status() {
        status.remove("observedGeneration");
    }
    // The content is never read; the annotation's presence tells that the object was written through v1alpha1.
    let state = json!({ "apiVersion": EXTENSIONS_V1ALPHA1, "kind": SANDBOX_WARM_POOL });
    object.set_annotation(V1ALPHA1_POOL_STATE, state.to_string())
}

/// v1beta1 → v1alpha1.
pub(super) fn from_hub(object: &mut Object) -> Result<(), ConversionError> {
    object.remove_annotation(V1ALPHA1_POOL_STATE);
    let spec = object.spec()?;
    if spec.get("replicas").is_none_or(Value::is_null) {
        spec.insert("replicas".to_owned(), 1.into());
    }
    if let Some(status) = object.existing_status() {
        status.remove("observedGeneration");
    }
    Ok(())
}
