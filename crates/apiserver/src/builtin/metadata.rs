//! Validation of the metadata that every object has.

use serde_json::Value;

use super::names;
use crate::status::{FieldError, Path};

/// All annotations of an object together.
const MAX_ANNOTATIONS: usize = 256 << 10;

/// What is wrong with labels, annotations, owner references and finalizers.
pub fn validate(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let meta = &object["metadata"];
    let path = Path::Root.child("metadata");
    labels(&meta["labels"], &path.child("labels"), &mut errors);
    annotations(&meta["annotations"], &path.child("annotations"), &mut errors);
    owners(&meta["ownerReferences"], &path.child("ownerReferences"), &mut errors);
    finalizers(&meta["finalizers"], &path.child("finalizers"), &mut errors);
    errors
}

/// Keys and values of a label map, here or in a selector.
pub fn labels(value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        for why in names::qualified_name(key) {
            errors.push(FieldError::invalid_str(path, key, why));
        }
        match value.as_str() {
            Some(text) => {
                for why in names::label_value(text) {
                    errors.push(FieldError::invalid_str(path, text, why));
                }
            }
            None => errors.push(FieldError::wrong_type(path.child(key), value, "string")),
        }
    }
}

fn annotations(value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut total = 0;
    for (key, value) in value.as_object().into_iter().flatten() {
        for why in names::qualified_name(&key.to_ascii_lowercase()) {
            errors.push(FieldError::invalid_str(path, key, why));
        }
        match value.as_str() {
            Some(text) => total += key.len() + text.len(),
            None => errors.push(FieldError::wrong_type(path.child(key), value, "string")),
        }
    }
    if total > MAX_ANNOTATIONS {
        errors.push(FieldError::too_long(path, MAX_ANNOTATIONS));
    }
}

fn owners(value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut controllers = Vec::new();
    for (i, owner) in value.as_array().into_iter().flatten().enumerate() {
        let at = path.index(i);
        for key in ["apiVersion", "kind", "name", "uid"] {
            if owner[key].as_str().is_none_or(str::is_empty) {
                errors.push(FieldError::required(at.child(key), "must not be empty"));
            }
        }
        if owner["controller"] == true {
            controllers.push(owner["kind"].as_str().unwrap_or_default());
        }
    }
    if controllers.len() > 1 {
        errors.push(FieldError::invalid(
            path,
            value,
            format!(
                "Only one reference can have Controller set to true. Found \"true\" in references for {}",
                controllers.join(" and ")
            ),
        ));
    }
}

fn finalizers(value: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (i, item) in value.as_array().into_iter().flatten().enumerate() {
        let Some(name) = item.as_str() else {
            errors.push(FieldError::wrong_type(path.index(i), item, "string"));
            continue;
        };
        for why in names::qualified_name(name) {
            errors.push(FieldError::invalid_str(path.index(i), name, why));
        }
    }
    let all: Vec<&str> = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if all.contains(&"orphan") && all.contains(&"foregroundDeletion") {
        errors.push(FieldError::invalid(
            path,
            value,
            "finalizer orphan and finalizer foregroundDeletion cannot be both set",
        ));
    }
}
