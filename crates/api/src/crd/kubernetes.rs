//! Kubernetes' own schemas, expanded for use inside a CRD.

use serde_json::{Map, Value, json};

const TRIMMED: &str = include_str!("../../data/kubernetes.json");

/// Pattern of a quantity in Kubernetes.
const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// The trimmed schemas, by short name.
pub(super) struct Schemas(Map<String, Value>);

impl Schemas {
    pub(super) fn load() -> Self {
        Self(serde_json::from_str(TRIMMED).expect("data/kubernetes.json is written by the generator and tested"))
    }

    /// A schema with every reference replaced by what it refers to, as structural schemas must be.
    pub(super) fn expand(&self, name: &str) -> Value {
        match name {
            "Quantity" => json!({
                "anyOf": [{ "type": "integer" }, { "type": "string" }],
                "pattern": QUANTITY_PATTERN,
                "x-kubernetes-int-or-string": true,
            }),
            "IntOrString" => json!({
                "anyOf": [{ "type": "integer" }, { "type": "string" }],
                "x-kubernetes-int-or-string": true,
            }),
            "Time" => super::schema::time(),
            // Metadata of a generic ephemeral volume's claim: Kubernetes uses only labels and annotations of it.
            "ObjectMeta" => super::schema::pod_metadata(),
            _ => self.resolve(self.0.get(name).unwrap_or(&Value::Null)),
        }
    }

    fn resolve(&self, schema: &Value) -> Value {
        match schema {
            Value::Object(map) => {
                let mut out = match map.get("$ref").and_then(Value::as_str) {
                    Some(name) => self.expand(name),
                    None => json!({}),
                };
                for (key, value) in map.iter().filter(|(key, _)| *key != "$ref") {
                    out[key] = match key.as_str() {
                        "properties" => value.as_object().map_or(Value::Null, |properties| {
                            properties.iter().map(|(name, property)| (name.clone(), self.resolve(property))).collect()
                        }),
                        "items" | "additionalProperties" => self.resolve(value),
                        _ => value.clone(),
                    };
                }
                out
            }
            other => other.clone(),
        }
    }
}
