//! Validation of the metadata that every object has.

use serde_json::Value;

use super::names;
use crate::status::{FieldError, Path};

/// Maximum total size of all annotations of an object.
const MAX_ANNOTATIONS: usize = 256 << 10;

/// Validation errors of labels, annotations, owner references and finalizers.
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

/// Validates the keys and values of a label map, of an object or of a selector.
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
    for owner in value.as_array().into_iter().flatten() {
        for key in ["apiVersion", "kind", "name", "uid"] {
            if owner[key].as_str().is_none_or(str::is_empty) {
                let why = if key == "apiVersion" { "version must not be empty" } else { "must not be empty" };
                errors.push(FieldError::invalid_str(path.child(key), "", why));
            }
        }
        if owner["controller"] == true {
            let text = |key: &str| owner[key].as_str().unwrap_or_default();
            controllers.push(format!("{}/{}", text("kind"), text("name")));
        }
    }
    if controllers.len() > 1 {
        errors.push(FieldError::shown(
            path,
            references(value),
            format!(
                "Only one reference can have Controller set to true. Found \"true\" in references for {}",
                controllers.join(" and ")
            ),
        ));
    }
}

/// Owner references as JSON, with members in the order in which Kubernetes writes them.
fn references(value: &Value) -> String {
    let one = |owner: &Value| {
        let members = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"];
        let members = members.iter().filter_map(|key| Some(format!("{key:?}:{}", owner.get(key)?)));
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    };
    format!("[{}]", value.as_array().into_iter().flatten().map(one).collect::<Vec<_>>().join(","))
}

/// Finalizers without a domain that are not Kubernetes' own, with their indexes.
pub fn unqualified_finalizers(object: &Value) -> Vec<(usize, &str)> {
    let list = object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).enumerate();
    list.filter(|(_, name)| !name.contains('/') && !matches!(*name, "orphan" | "foregroundDeletion" | "kubernetes"))
        .collect()
}

/// Refuses unqualified finalizers. Not called for custom kinds, which only warn, and leases, which accept them.
pub fn check_finalizer_names(object: &Value) -> Vec<FieldError> {
    let why = "name is neither a standard finalizer name nor is it fully qualified";
    unqualified_finalizers(object)
        .into_iter()
        .map(|(i, name)| FieldError::invalid_str(format!("metadata.finalizers[{i}]"), name, why))
        .collect()
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

/// The error for metadata that Kubernetes could not even decode, in the words of its decoder.
pub fn wrong_type(object: &Value) -> Option<String> {
    let meta = object.get("metadata").filter(|meta| !meta.is_null())?;
    let Some(members) = meta.as_object() else {
        return Some(unmarshal(meta, "metadata", "v1.ObjectMeta").replace("ObjectMeta.", ""));
    };
    for name in ["name", "generateName", "namespace", "uid", "resourceVersion"] {
        if let Some(value) = members.get(name).filter(|value| !value.is_string() && !value.is_null()) {
            return Some(unmarshal(value, &format!("metadata.{name}"), "string"));
        }
    }
    for name in ["labels", "annotations"] {
        let path = format!("metadata.{name}");
        match members.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::Object(map)) => {
                if let Some(value) = map.values().find(|value| !value.is_string() && !value.is_null()) {
                    return Some(unmarshal(value, &path, "string"));
                }
            }
            Some(other) => return Some(unmarshal(other, &path, "map[string]string")),
        }
    }
    None
}

fn unmarshal(value: &Value, path: &str, wanted: &str) -> String {
    let found = match value {
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) | Value::Null => "object",
    };
    format!("json: cannot unmarshal {found} into Go struct field ObjectMeta.{path} of type {wanted}")
}
