//! SandboxTemplate: v1alpha1 has no field for `volumeClaimTemplatesPolicy`; an annotation represents it there.

use serde_json::{Value, json};

use super::ConversionError;
use super::object::Object;
use crate::groups::{EXTENSIONS_V1ALPHA1, SANDBOX_TEMPLATE};
use crate::keys::annotations::{V1ALPHA1_TEMPLATE_STATE, V1BETA1_VOLUME_POLICY};
use crate::template::InjectionPolicy;

const POLICY: &str = "volumeClaimTemplatesPolicy";

/// v1alpha1 → v1beta1.
pub(super) fn to_hub(object: &mut Object) -> Result<(), ConversionError> {
    let policy = object.annotation(V1BETA1_VOLUME_POLICY).map(str::to_owned);
    let spec = object.spec()?;
    spec.remove(POLICY);
    if let Some(policy) = policy {
        if !InjectionPolicy::ALL.iter().any(|known| known.as_str() == policy) {
            return Err(ConversionError::InvalidVolumePolicy(policy));
        }
        spec.insert(POLICY.to_owned(), policy.into());
        object.remove_annotation(V1BETA1_VOLUME_POLICY);
    }
    // The content is never read; the annotation's presence tells that the object was written through v1alpha1.
    let state = json!({ "apiVersion": EXTENSIONS_V1ALPHA1, "kind": SANDBOX_TEMPLATE });
    object.set_annotation(V1ALPHA1_TEMPLATE_STATE, state.to_string())
}

/// v1beta1 → v1alpha1.
pub(super) fn from_hub(object: &mut Object) -> Result<(), ConversionError> {
    object.remove_annotation(V1ALPHA1_TEMPLATE_STATE);
    let policy = object.spec()?.remove(POLICY);
    match policy.as_ref().and_then(Value::as_str) {
        Some(policy) if !policy.is_empty() => object.set_annotation(V1BETA1_VOLUME_POLICY, policy.to_owned())?,
        _ => object.remove_annotation(V1BETA1_VOLUME_POLICY),
    }
    Ok(())
}
