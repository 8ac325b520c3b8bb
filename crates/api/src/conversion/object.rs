//! A Kubernetes object as JSON, with the few accessors conversion needs.

use serde_json::{Map, Value};

use super::ConversionError;

/// A JSON object whose `metadata`, `spec` and `status` are JSON objects or absent.
pub(super) struct Object(Map<String, Value>);

impl Object {
    pub(super) fn new(value: Value) -> Result<Self, ConversionError> {
        let Value::Object(map) = value else {
            return Err(ConversionError::NotAnObject { field: "the converted value" });
        };
        for field in ["metadata", "spec", "status"] {
            if map.get(field).is_some_and(|value| !value.is_object() && !value.is_null()) {
                return Err(ConversionError::NotAnObject { field });
            }
        }
        Ok(Self(map))
    }

    pub(super) fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// A top-level string; empty when it is none.
    pub(super) fn text(&self, key: &str) -> &str {
        self.0.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn set_text(&mut self, key: &str, value: &str) {
        self.0.insert(key.to_owned(), value.into());
    }

    /// The object's name; empty while it has none.
    pub(super) fn name(&self) -> &str {
        self.0.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Value::as_str).unwrap_or_default()
    }

    /// The spec, created when absent.
    pub(super) fn spec(&mut self) -> Result<&mut Map<String, Value>, ConversionError> {
        section(&mut self.0, "spec")
    }

    /// The status, created when absent.
    pub(super) fn status(&mut self) -> Result<&mut Map<String, Value>, ConversionError> {
        section(&mut self.0, "status")
    }

    /// The status, when there is one.
    pub(super) fn existing_status(&mut self) -> Option<&mut Map<String, Value>> {
        self.0.get_mut("status").and_then(Value::as_object_mut)
    }

    pub(super) fn remove_status(&mut self) {
        self.0.remove("status");
    }

    /// Name of the bound Sandbox of a claim; empty when there is none.
    pub(super) fn bound_sandbox(&self) -> &str {
        self.0
            .get("status")
            .and_then(|status| status.get("sandbox"))
            .and_then(|sandbox| sandbox.get("name"))
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.0.get("metadata")?.get("annotations")?.get(key)?.as_str()
    }

    pub(super) fn set_annotation(&mut self, key: &str, value: String) -> Result<(), ConversionError> {
        let metadata = section(&mut self.0, "metadata")?;
        section(metadata, "annotations")?.insert(key.to_owned(), value.into());
        Ok(())
    }

    /// Removes an annotation, and the whole map with the last one: Kubernetes never shows an empty map.
    pub(super) fn remove_annotation(&mut self, key: &str) {
        let Some(metadata) = self.0.get_mut("metadata").and_then(Value::as_object_mut) else { return };
        let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return };
        if annotations.remove(key).is_some() && annotations.is_empty() {
            metadata.remove("annotations");
        }
    }

    /// Removes and returns the state that an earlier conversion wrote; `None` when it is missing or does not parse.
    pub(super) fn take_state(&mut self, key: &str) -> Option<Value> {
        let state = self.annotation(key).and_then(|text| serde_json::from_str::<Value>(text).ok());
        self.remove_annotation(key);
        state.filter(Value::is_object)
    }
}

fn section<'a>(
    map: &'a mut Map<String, Value>,
    key: &'static str,
) -> Result<&'a mut Map<String, Value>, ConversionError> {
    let value = map.entry(key).or_insert_with(|| Value::Object(Map::new()));
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().ok_or(ConversionError::NotAnObject { field: key })
}
