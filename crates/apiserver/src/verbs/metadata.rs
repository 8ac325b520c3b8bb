//! Object metadata: timestamps, generated names, finalizers.

use jiff::Timestamp;
use rand::RngExt as _;
use serde_json::{Map, Value};

use crate::status::{ApiError, FieldError};

/// The current time in Kubernetes' format: whole seconds, UTC.
pub(crate) fn now() -> String {
    stamp(Timestamp::now())
}

pub(crate) fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The metadata of an object; added if it is missing.
pub(crate) fn meta_mut(object: &mut Value) -> Result<&mut Map<String, Value>, ApiError> {
    let root = object.as_object_mut().ok_or_else(|| ApiError::bad_request("the object must be a JSON object"))?;
    let meta = root.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if meta.is_null() {
        *meta = Value::Object(Map::new());
    }
    meta.as_object_mut().ok_or_else(|| ApiError::bad_request("metadata must be an object"))
}

pub(crate) fn meta_text<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"][key].as_str().unwrap_or_default()
}

/// Kubernetes' alphabet for generated names: no vowels and no characters that look alike.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const GENERATED_MAX: usize = 63;
const GENERATED_SUFFIX: usize = 5;

pub(crate) fn generate_name(prefix: &str) -> String {
    let room = GENERATED_MAX - GENERATED_SUFFIX;
    let mut name: String = prefix.chars().take(room).collect();
    let mut random = rand::rng();
    for _ in 0..GENERATED_SUFFIX {
        name.push(NAME_ALPHABET[random.random_range(0..NAME_ALPHABET.len())] as char);
    }
    name
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

pub(crate) fn is_deleting(object: &Value) -> bool {
    object["metadata"].get("deletionTimestamp").is_some_and(|t| !t.is_null())
}

/// An error if finalizers were added to an object that is being deleted.
pub(crate) fn check_new_finalizers(old: &Value, new: &Value) -> Option<FieldError> {
    if !is_deleting(old) {
        return None;
    }
    let before = finalizers(old);
    let added: Vec<String> =
        finalizers(new).into_iter().filter(|f| !before.contains(f)).map(|f| format!("{f:?}")).collect();
    (!added.is_empty()).then(|| {
        FieldError::forbidden(
            "metadata.finalizers",
            format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            ),
        )
    })
}
