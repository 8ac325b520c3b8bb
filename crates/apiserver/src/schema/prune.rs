//! Pruning: removes fields that the schema does not declare and returns their paths.

use serde_json::{Map, Value};

use super::Schema;
use crate::status::Path;

/// Fields of ObjectMeta; all others in `metadata` are removed.
const METADATA: &[&str] = &[
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

pub(super) fn object(schema: &Schema, value: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    if let Some(members) = value.as_object_mut() {
        resource(schema, members, &Path::Root, &mut unknown);
    }
    unknown
}

/// Prunes a resource. Every resource has `apiVersion`, `kind` and `metadata`, whether its schema declares them or not.
fn resource(schema: &Schema, members: &mut Map<String, Value>, path: &Path<'_>, unknown: &mut Vec<String>) {
    let mut kept: Vec<(&str, Value)> = Vec::new();
    for key in ["apiVersion", "kind", "metadata"] {
        if let Some(value) = members.remove(key) {
            kept.push((key, value));
        }
    }
    if let Some((_, Value::Object(meta))) = kept.iter_mut().find(|(k, _)| *k == "metadata") {
        let path = path.child("metadata");
        meta.retain(|name, _| {
            let known = METADATA.contains(&name.as_str());
            if !known {
                unknown.push(path.child(name).to_string());
            }
            known
        });
    }
    map(schema, members, path, unknown);
    for (key, value) in kept {
        members.insert(key.to_owned(), value);
    }
}

fn map(schema: &Schema, members: &mut Map<String, Value>, path: &Path<'_>, unknown: &mut Vec<String>) {
    members.retain(|name, value| match schema.member(name) {
        Some(child) => {
            node(child, value, &path.child(name), unknown);
            true
        }
        None if schema.preserve_unknown => true,
        None => {
            unknown.push(path.child(name).to_string());
            false
        }
    });
}

fn node(schema: &Schema, value: &mut Value, path: &Path<'_>, unknown: &mut Vec<String>) {
    match value {
        Value::Object(members) if schema.embedded_resource => resource(schema, members, path, unknown),
        Value::Object(members) => map(schema, members, path, unknown),
        Value::Array(items) => {
            if let Some(child) = &schema.items {
                for (i, item) in items.iter_mut().enumerate() {
                    node(child, item, &path.index(i), unknown);
                }
            }
        }
        _ => {}
    }
}
