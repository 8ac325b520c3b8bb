//! OpenAPI v3: an index, and one document per group version.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{Document, builtin, definition_name};
use crate::registry::{Resource, Snapshot, Version};

/// The URL of each group version's document. It contains the document's hash, so clients can cache it indefinitely.
pub(super) fn index(snapshot: &Snapshot) -> Value {
    let mut paths = Map::new();
    for (group, version) in group_versions(snapshot) {
        let path = if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
        if let Some(document) = group_version(snapshot, &group, &version) {
            let hash = Document::new(document.to_string()).tag;
            paths.insert(path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}));
        }
    }
    json!({"paths": paths})
}

fn group_versions(snapshot: &Snapshot) -> BTreeSet<(String, String)> {
    let resources = snapshot.resources().iter();
    resources
        .flat_map(|resource| {
            let served = resource.versions.iter().filter(|version| version.served);
            served.map(|version| (resource.group.clone(), version.name.clone()))
        })
        .collect()
}

pub(super) fn group_version(snapshot: &Snapshot, group: &str, version: &str) -> Option<Value> {
    let (mut paths, mut schemas) = (Map::new(), BTreeMap::new());
    for resource in snapshot.resources().iter().filter(|resource| resource.group == group) {
        let Some(served) = resource.versions.iter().find(|candidate| candidate.served && candidate.name == version)
        else {
            continue;
        };
        add_schemas(resource, served, &mut schemas);
        add_paths(resource, served, &mut paths);
    }
    if paths.is_empty() {
        return None;
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

/// Adds the definition of a resource's kind and all definitions that it refers to.
pub(super) fn add_schemas(resource: &Resource, version: &Version, schemas: &mut BTreeMap<String, Value>) {
    match &version.openapi {
        Some(schema) => {
            schemas.extend(builtin::closure([builtin::object_meta()]));
            let name = definition_name(&resource.group, &version.name, &resource.kind);
            schemas.insert(name, custom(resource, version, schema));
        }
        None => {
            schemas.extend(builtin::closure(builtin::definition_of(&resource.group, &version.name, &resource.kind)))
        }
    }
}

/// A CRD's schema with the fields that every object has and its group, version and kind.
fn custom(resource: &Resource, version: &Version, schema: &str) -> Value {
    let mut schema: Value = serde_json::from_str(schema).unwrap_or_else(|_| json!({}));
    schema["x-kubernetes-group-version-kind"] =
        json!([{"group": resource.group, "version": version.name, "kind": resource.kind}]);
    let reference = format!("#/components/schemas/{}", builtin::object_meta());
    let properties = &mut schema["properties"];
    if properties.is_null() {
        *properties = json!({});
    }
    for member in ["apiVersion", "kind"] {
        if properties[member].is_null() {
            properties[member] = json!({"type": "string"});
        }
    }
    properties["metadata"] = json!({"allOf": [{"$ref": reference}], "default": {}});
    schema
}

fn add_paths(resource: &Resource, version: &Version, paths: &mut Map<String, Value>) {
    let root = match resource.group.as_str() {
        "" => format!("/api/{}", version.name),
        group => format!("/apis/{group}/{}", version.name),
    };
    let collection = match resource.namespaced {
        true => format!("{root}/namespaces/{{namespace}}/{}", resource.plural),
        false => format!("{root}/{}", resource.plural),
    };
    let kind = json!({"group": resource.group, "version": version.name, "kind": resource.kind});
    let operations = |of: &[(&str, &str, &str)]| -> Map<String, Value> {
        let served = of.iter().filter(|(verb, ..)| version.verbs.contains(verb));
        served.map(|(_, method, action)| ((*method).to_owned(), operation(action, &kind))).collect()
    };
    let on_collection = operations(&[("list", "get", "list"), ("create", "post", "post")]);
    let on_object = operations(&[
        ("get", "get", "get"),
        ("update", "put", "put"),
        ("patch", "patch", "patch"),
        ("delete", "delete", "delete"),
    ]);
    if !on_object.is_empty() {
        paths.insert(format!("{collection}/{{name}}"), Value::Object(on_object));
    }
    if !on_collection.is_empty() {
        paths.insert(collection, Value::Object(on_collection));
    }
}

fn operation(action: &str, kind: &Value) -> Value {
    let query = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let mut operation = json!({
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind,
        "responses": {"200": {"description": "OK"}},
    });
    match action {
        "post" | "put" | "patch" => {
            operation["parameters"] = json!([query("dryRun"), query("fieldManager"), query("fieldValidation")]);
        }
        "delete" => operation["parameters"] = json!([query("dryRun")]),
        _ => {}
    }
    operation
}
