//! The schemas of built-in kinds, without descriptions, from Kubernetes' own OpenAPI documents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::Value;
use serde_json::value::RawValue;

const TEXT: &str = include_str!("../../../data/kubernetes-schemas.json");

/// Each schema is kept as text and parsed on use, so that a server without OpenAPI requests does not pay for it.
static SCHEMAS: LazyLock<BTreeMap<&'static str, &'static RawValue>> =
    LazyLock::new(|| serde_json::from_str(TEXT).expect("the data file is generated and tested"));

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

pub(super) fn object_meta() -> &'static str {
    OBJECT_META
}

pub(crate) fn schema(name: &str) -> Option<Value> {
    SCHEMAS.get(name).and_then(|raw| serde_json::from_str(raw.get()).ok())
}

/// The full name of a kind's definition. Names end with the kind, so only few definitions have to be parsed.
pub(crate) fn definition_of(group: &str, version: &str, kind: &str) -> Option<&'static str> {
    let ending = format!(".{kind}");
    SCHEMAS.keys().copied().filter(|name| name.ends_with(&ending)).find(|name| {
        let raw = schema(name).unwrap_or_default();
        let mut kinds = raw["x-kubernetes-group-version-kind"].as_array().into_iter().flatten();
        kinds.any(|k| k["group"] == group && k["version"] == version && k["kind"] == kind)
    })
}

/// The named definitions and all definitions that they refer to.
pub(super) fn closure<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let mut open: Vec<String> = names.into_iter().map(str::to_owned).collect();
    while let Some(name) = open.pop() {
        if found.contains_key(&name) {
            continue;
        }
        if let Some(schema) = schema(&name) {
            let mut references = BTreeSet::new();
            collect_references(&schema, &mut references);
            open.extend(references);
            found.insert(name, schema);
        }
    }
    found
}

fn collect_references(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            if let Some(name) = members.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next()) {
                into.insert(name.to_owned());
            }
            members.values().for_each(|member| collect_references(member, into));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, into)),
        _ => {}
    }
}
