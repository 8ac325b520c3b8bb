//! Defaults and validation of persistent volumes, claims and storage classes.

use agent_sandbox_api::quantity::Quantity;
use serde_json::{Value, json};

use super::{default_to, items, text};
use crate::status::{FieldError, Path};

const MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

pub(super) fn claim_defaults(object: &mut Value) {
    default_to(object, "spec", json!({}));
    default_to(&mut object["spec"], "volumeMode", "Filesystem");
    default_to(&mut object["spec"], "resources", json!({}));
}

pub(super) fn volume_defaults(object: &mut Value) {
    default_to(object, "spec", json!({}));
    default_to(&mut object["spec"], "volumeMode", "Filesystem");
    default_to(&mut object["spec"], "persistentVolumeReclaimPolicy", "Retain");
}

pub(super) fn class_defaults(object: &mut Value) {
    default_to(object, "reclaimPolicy", "Delete");
    default_to(object, "volumeBindingMode", "Immediate");
}

pub(super) fn validate_claim(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let path = Path::Root.child("spec");
    let modes = path.child("accessModes");
    if items(spec, "accessModes").next().is_none() {
        errors.push(FieldError::required(modes, "at least 1 access mode is required"));
    }
    for mode in items(spec, "accessModes") {
        if !mode.as_str().is_some_and(|m| MODES.contains(&m)) {
            errors.push(FieldError::not_supported(modes, mode, MODES));
        }
    }
    let resources = path.child("resources");
    let requests = resources.child("requests");
    match spec["resources"]["requests"].get("storage") {
        None => errors.push(FieldError::required(resources.key("storage"), "")),
        Some(amount) if Quantity::of_json(amount).is_none_or(|q| q <= Quantity::ZERO) => {
            errors.push(FieldError::invalid(requests.key("storage"), amount, "must be greater than zero"));
        }
        Some(_) => {}
    }
    if !matches!(text(spec, "volumeMode"), "Filesystem" | "Block") {
        errors.push(FieldError::not_supported(path.child("volumeMode"), &spec["volumeMode"], &["Block", "Filesystem"]));
    }
}

pub(super) fn validate_claim_update(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    let immutable_fields = |object: &Value| {
        let mut spec = object["spec"].clone();
        if let Some(members) = spec.as_object_mut() {
            members.remove("resources");
            members.remove("volumeAttributesClassName");
            // Binding sets the volume name once.
            if text(&old["spec"], "volumeName").is_empty() {
                members.remove("volumeName");
            }
            if old["spec"].get("storageClassName").is_none() {
                members.remove("storageClassName");
            }
        }
        spec
    };
    if immutable_fields(old) != immutable_fields(new) {
        errors.push(FieldError::forbidden(
            "spec",
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        ));
    }
    let asked =
        |object: &Value| Quantity::of_json(&object["spec"]["resources"]["requests"]["storage"]).unwrap_or_default();
    if asked(new) < asked(old) {
        errors.push(FieldError::forbidden(
            "spec.resources.requests.storage",
            "field can not be less than status.capacity",
        ));
    }
}
