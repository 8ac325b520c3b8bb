//! Tests of conversion: the contract's cases by id, and properties over arbitrary objects.

mod cases;
mod properties;

use serde_json::{Value, json};

use super::{ConversionError, convert};
use crate::groups::{CORE_V1ALPHA1, CORE_V1BETA1, EXTENSIONS_V1ALPHA1, EXTENSIONS_V1BETA1};

fn hub(object: &Value) -> Value {
    let desired = if object["kind"] == "Sandbox" { CORE_V1BETA1 } else { EXTENSIONS_V1BETA1 };
    convert(object.clone(), desired).expect("converts")
}

fn spoke(object: &Value) -> Value {
    let desired = if object["kind"] == "Sandbox" { CORE_V1ALPHA1 } else { EXTENSIONS_V1ALPHA1 };
    convert(object.clone(), desired).expect("converts")
}

fn sandbox(version: &str, spec: Value) -> Value {
    json!({"apiVersion": version, "kind": "Sandbox", "metadata": {"name": "s", "namespace": "n"}, "spec": spec})
}

fn extension(version: &str, kind: &str, spec: Value) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": "o", "namespace": "n"}, "spec": spec})
}

fn annotated(mut object: Value, key: &str, value: &str) -> Value {
    object["metadata"]["annotations"][key] = value.into();
    object
}
