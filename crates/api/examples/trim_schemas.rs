//! Trims Kubernetes' own OpenAPI to the schemas that our CRDs embed:
//! `trim_schemas <api/openapi-spec/v3> > data/kubernetes.json`.
//!
//! Kept: types, formats, required keys, list and map types, and the defaults that an API server sets. Dropped:
//! descriptions, strategic-merge patch hints, and the zero values that OpenAPI shows for required fields and for
//! structs, which are not defaults of a CRD.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value};

/// Root schemas of our CRDs, by file.
const ROOTS: [(&str, &[&str]); 2] = [
    ("api__v1_openapi.json", &["io.k8s.api.core.v1.PodSpec", "io.k8s.api.core.v1.PersistentVolumeClaimSpec"]),
    (
        "apis__networking.k8s.io__v1_openapi.json",
        &["io.k8s.api.networking.v1.NetworkPolicyIngressRule", "io.k8s.api.networking.v1.NetworkPolicyEgressRule"],
    ),
];

/// Defaults that Kubernetes computes by reference. CRD generators do not emit them, so stored objects lack them too.
const COMPUTED_DEFAULTS: [(&str, &str); 2] =
    [("AzureDiskVolumeSource", "cachingMode"), ("AzureDiskVolumeSource", "kind")];

/// Schemas that `crd::kubernetes` writes by hand instead of copying.
const OPAQUE: [&str; 4] = ["Quantity", "IntOrString", "Time", "ObjectMeta"];

const DROPPED: [&str; 4] =
    ["description", "x-kubernetes-patch-merge-key", "x-kubernetes-patch-strategy", "x-kubernetes-unions"];

fn main() -> anyhow::Result<()> {
    let folder = std::env::args().nth(1).ok_or_else(|| anyhow::anyhow!("usage: trim_schemas <api/openapi-spec/v3>"))?;
    let mut trimmed = BTreeMap::new();
    for (file, roots) in ROOTS {
        let text = std::fs::read_to_string(Path::new(&folder).join(file))?;
        let document: Value = serde_json::from_str(&text)?;
        let schemas =
            document["components"]["schemas"].as_object().ok_or_else(|| anyhow::anyhow!("{file}: no schemas"))?;
        let mut pending: Vec<String> = roots.iter().map(ToString::to_string).collect();
        let mut seen = BTreeSet::new();
        while let Some(full) = pending.pop() {
            let name = short(&full);
            if !seen.insert(full.clone()) || OPAQUE.contains(&name) {
                continue;
            }
            let schema = schemas.get(&full).ok_or_else(|| anyhow::anyhow!("{file}: no schema {full}"))?;
            trimmed.insert(name.to_owned(), trim(name, schema, &mut pending));
        }
    }
    print_one_per_line(&trimmed)
}

/// Returns the schema without the dropped keys, and adds the names of the schemas it refers to to `pending`.
fn trim(owner: &str, schema: &Value, pending: &mut Vec<String>) -> Value {
    let Some(schema) = schema.as_object() else { return schema.clone() };
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let mut out = Map::new();
    for (key, value) in schema {
        match key.as_str() {
            key if DROPPED.contains(&key) => {}
            "default" if value.as_object().is_some_and(Map::is_empty) => {}
            "$ref" | "allOf" => {
                let target = value.as_str().or_else(|| value[0]["$ref"].as_str()).unwrap_or_default();
                let full = target.rsplit('/').next().unwrap_or_default();
                pending.push(full.to_owned());
                out.insert("$ref".to_owned(), short(full).into());
            }
            "properties" => {
                let properties = value.as_object().into_iter().flatten().map(|(name, property)| {
                    let mut property = trim(owner, property, pending);
                    let no_default = required.contains(&name.as_str()) || COMPUTED_DEFAULTS.contains(&(owner, name));
                    if let (true, Some(property)) = (no_default, property.as_object_mut()) {
                        property.remove("default");
                    }
                    (name.clone(), property)
                });
                out.insert(key.clone(), Value::Object(properties.collect()));
            }
            "items" | "additionalProperties" => {
                let mut element = trim(owner, value, pending);
                if let Some(element) = element.as_object_mut() {
                    element.remove("default");
                }
                out.insert(key.clone(), element);
            }
            _ => {
                out.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(out)
}

fn short(full: &str) -> &str {
    full.rsplit('.').next().unwrap_or(full)
}

/// Prints one schema per line, so that an upgrade of Kubernetes gives a readable diff.
#[expect(clippy::print_stdout, reason = "the output of this program")]
fn print_one_per_line(schemas: &BTreeMap<String, Value>) -> anyhow::Result<()> {
    let lines: Vec<String> = schemas
        .iter()
        .map(|(name, schema)| Ok(format!("{}:{}", serde_json::to_string(name)?, serde_json::to_string(schema)?)))
        .collect::<anyhow::Result<_>>()?;
    println!("{{\n{}\n}}", lines.join(",\n"));
    Ok(())
}
