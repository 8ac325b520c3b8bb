//! OpenAPI v2: everything in one JSON document, for older tools.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::v3;
use crate::registry::Snapshot;

pub(super) fn document(snapshot: &Snapshot) -> Value {
    let mut schemas = BTreeMap::new();
    for resource in snapshot.resources() {
        for version in resource.versions.iter().filter(|version| version.served) {
            v3::add_schemas(resource, version, &mut schemas);
        }
    }
    schemas.values_mut().for_each(downgrade);
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": {},
        "definitions": schemas,
    })
}

/// Converts v3 schemas to v2: references get another prefix, and keywords that v2 lacks are removed.
fn downgrade(value: &mut Value) {
    match value {
        Value::Object(members) => {
            // v3 wraps a reference in allOf so that a default can stand beside it.
            if let Some([reference]) = members.get("allOf").and_then(Value::as_array).map(Vec::as_slice)
                && let Some(target) = reference.get("$ref").cloned()
            {
                members.remove("allOf");
                members.insert("$ref".into(), target);
            }
            if let Some(Value::String(path)) = members.get_mut("$ref") {
                *path = path.replace("#/components/schemas/", "#/definitions/");
            }
            for unknown in ["oneOf", "anyOf", "not", "nullable"] {
                // A property of that name is an object with a type; the keyword is a list or a boolean.
                if members.get(unknown).is_some_and(|member| !member.is_object() || unknown == "not") {
                    members.remove(unknown);
                }
            }
            members.values_mut().for_each(downgrade);
        }
        Value::Array(items) => items.iter_mut().for_each(downgrade),
        _ => {}
    }
}
