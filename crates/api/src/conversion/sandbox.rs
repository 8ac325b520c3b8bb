//! Sandbox: `replicas` 0 or 1 on one side, `operatingMode` on the other.

use serde_json::{Value, json};

use super::ConversionError;
use super::object::Object;
use crate::groups::{CORE_V1ALPHA1, SANDBOX};
use crate::keys::annotations::V1ALPHA1_SANDBOX_STATE;
use crate::v1beta1::OperatingMode;

/// v1alpha1 → v1beta1.
///
/// The state holds only what the conversion back needs, in a form that upstream reads too. Upstream stores the whole
/// object, which would double the object's size and reach the size limit of annotations.
pub(super) fn to_hub(object: &mut Object) -> Result<(), ConversionError> {
    object.remove_annotation(V1ALPHA1_SANDBOX_STATE);
    let spec = object.spec()?;
    let replicas = spec.remove("replicas").filter(|replicas| !replicas.is_null());
    let mode = match replicas.as_ref().and_then(Value::as_i64) {
        Some(0) => OperatingMode::Suspended,
        _ => OperatingMode::Running,
    };
    spec.insert("operatingMode".to_owned(), mode.as_str().into());
    if let Some(status) = object.existing_status() {
        status.remove("replicas");
        status.remove("nodeName");
        if status.is_empty() {
            object.remove_status();
        }
    }

    let saved_spec = replicas.map_or_else(|| json!({}), |replicas| json!({ "replicas": replicas }));
    let state = json!({
        "apiVersion": CORE_V1ALPHA1,
        "kind": SANDBOX,
        "spec": saved_spec,
        "status": { "replicas": running(mode) },
    });
    object.set_annotation(V1ALPHA1_SANDBOX_STATE, state.to_string())
}

/// v1beta1 → v1alpha1.
pub(super) fn from_hub(object: &mut Object) -> Result<(), ConversionError> {
    let state = object.take_state(V1ALPHA1_SANDBOX_STATE);
    let spec = object.spec()?;
    let mode = spec.remove("operatingMode");
    let mode = OperatingMode::from_wire(mode.as_ref().and_then(Value::as_str).unwrap_or_default());
    let replicas = match mode {
        OperatingMode::Suspended => Some(0),
        OperatingMode::Running if saved_without_replicas(state.as_ref()) => None,
        OperatingMode::Running => Some(1),
    };
    match replicas {
        Some(replicas) => spec.insert("replicas".to_owned(), replicas.into()),
        None => spec.remove("replicas"),
    };
    let status = object.status()?;
    status.remove("nodeName");
    status.insert("replicas".to_owned(), running(mode).into());
    Ok(())
}

/// True when the object was written through v1alpha1 without `replicas`, which is then absent again in v1alpha1.
fn saved_without_replicas(state: Option<&Value>) -> bool {
    let Some(spec) = state.and_then(|state| state.get("spec")).and_then(Value::as_object) else { return false };
    spec.get("replicas").is_none_or(Value::is_null)
}

/// The value of `status.replicas` in v1alpha1: the number of wanted Pods, derived from the mode. A saved status is not
/// used, because it would stay at the value of the last v1alpha1 write.
fn running(mode: OperatingMode) -> i32 {
    match mode {
        OperatingMode::Running => 1,
        OperatingMode::Suspended => 0,
    }
}
