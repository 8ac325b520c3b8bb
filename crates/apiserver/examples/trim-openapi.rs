//! Writes `data/kubernetes-schemas.json`: the schemas (types, defaults, merge keys) of the built-in kinds, taken from
//! the OpenAPI documents of the Go module `k8s.io/kubernetes`, without descriptions.
//!
//! Usage: `cargo run -p agent-sandbox-apiserver --example trim-openapi -- <module>/api/openapi-spec/v3`.
//! One schema per line, sorted, so that a change of Kubernetes version is a readable diff.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

use serde_json::Value;

/// Group versions whose kinds the embedded API serves.
const DOCUMENTS: [&str; 14] = [
    "api__v1",
    "apis__apiextensions.k8s.io__v1",
    "apis__apps__v1",
    "apis__authentication.k8s.io__v1",
    "apis__authorization.k8s.io__v1",
    "apis__coordination.k8s.io__v1",
    "apis__discovery.k8s.io__v1",
    "apis__events.k8s.io__v1",
    "apis__networking.k8s.io__v1",
    "apis__node.k8s.io__v1",
    "apis__policy__v1",
    "apis__rbac.authorization.k8s.io__v1",
    "apis__scheduling.k8s.io__v1",
    "apis__storage.k8s.io__v1",
];

fn main() -> io::Result<()> {
    let source = env::args().nth(1).ok_or_else(|| io::Error::other("usage: trim-openapi <openapi-spec/v3 folder>"))?;
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/kubernetes-schemas.json");
    fs::write(target, render(&collect(Path::new(&source))?))
}

fn collect(folder: &Path) -> io::Result<BTreeMap<String, Value>> {
    let mut schemas = BTreeMap::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(folder.join(format!("{document}_openapi.json")))?;
        let mut parsed: Value = serde_json::from_str(&text)?;
        if let Some(Value::Object(found)) = parsed.pointer_mut("/components/schemas").map(Value::take) {
            for (name, mut schema) in found {
                strip_descriptions(&mut schema);
                schemas.entry(name).or_insert(schema);
            }
        }
    }
    Ok(schemas)
}

/// Removes every `description` that is a string; a property named `description` is an object and stays.
fn strip_descriptions(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|key, member| !(key == "description" && member.is_string()));
            members.values_mut().for_each(strip_descriptions);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_descriptions),
        _ => {}
    }
}

fn render(schemas: &BTreeMap<String, Value>) -> String {
    let mut out = String::from("{\n");
    for (index, (name, schema)) in schemas.iter().enumerate() {
        let comma = if index + 1 == schemas.len() { "" } else { "," };
        writeln!(out, "{}:{schema}{comma}", Value::from(name.as_str())).expect("writing to a string cannot fail");
    }
    out.push_str("}\n");
    out
}
