//! The documents contain what kubectl looks for, and every reference resolves.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use crate::registry::Registry;

fn parsed(path: &str) -> Value {
    let document = document(&Registry::default().snapshot(), path).unwrap_or_else(|| panic!("no document at {path}"));
    serde_json::from_str(&document.body).unwrap()
}

fn references(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            into.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
            members.values().for_each(|member| references(member, into));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, into)),
        _ => {}
    }
}

#[test]
fn every_document_in_the_index_exists_and_is_complete() {
    let index = parsed("/openapi/v3");
    let paths = index["paths"].as_object().unwrap();
    assert!(paths.contains_key("api/v1") && paths.contains_key("apis/apps/v1"));
    for entry in paths.values() {
        let url = entry["serverRelativeURL"].as_str().unwrap();
        let (path, hash) = url.split_once("?hash=").unwrap();
        let document = document(&Registry::default().snapshot(), path).unwrap();
        assert_eq!(document.tag, hash, "{path}");
        let body: Value = serde_json::from_str(&document.body).unwrap();
        let mut found = BTreeSet::new();
        references(&body, &mut found);
        for reference in found {
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(body["components"]["schemas"].get(name).is_some(), "{path}: {reference} does not resolve");
        }
    }
}

#[test]
fn the_pod_patch_operation_has_the_field_validation_parameter() {
    let core = parsed("/openapi/v3/api/v1");
    let patch = &core["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Pod");
    assert!(patch["parameters"].as_array().unwrap().iter().any(|parameter| parameter["name"] == "fieldValidation"));
    let pod = &core["components"]["schemas"]["io.k8s.api.core.v1.Pod"];
    assert_eq!(pod["x-kubernetes-group-version-kind"][0]["kind"], "Pod");
}

#[test]
fn openapi_v2_has_no_dangling_references() {
    let whole = parsed("/openapi/v2");
    let mut found = BTreeSet::new();
    references(&whole, &mut found);
    for reference in found {
        let name = reference.strip_prefix("#/definitions/").unwrap();
        assert!(whole["definitions"].get(name).is_some(), "{reference} does not resolve");
    }
    assert_eq!(definition_name("agents.x-k8s.io", "v1", "Sandbox"), "io.x-k8s.agents.v1.Sandbox");
}
