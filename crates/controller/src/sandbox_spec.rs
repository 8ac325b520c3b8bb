//! From a template to a Sandbox's spec: the secure defaults, and the check whether a Sandbox still matches its
//! template.

use agent_sandbox_api::{
    Opaque,
    keys::labels,
    names,
    quantity::Quantity,
    template::{NetworkPolicyManagement, VolumeClaimTemplate},
    v1beta1::SandboxTemplate,
};
use serde_json::{Value, json};

use crate::cache::Sandbox;

/// Public DNS resolvers: the default network policy blocks the cluster's own.
const NAMESERVERS: [&str; 2] = ["8.8.8.8", "1.1.1.1"];

/// The template's Pod spec with secure defaults for what the user left unset: no service account token, and DNS
/// resolvers that the default network policy allows.
pub fn secure_pod_spec(template: &SandboxTemplate) -> Opaque {
    let mut spec = template.spec.pod_template.spec.clone();
    let unset = |spec: &Value, key: &str| spec.get(key).is_none_or(Value::is_null);
    if unset(&spec, "automountServiceAccountToken") {
        spec.make_mut()["automountServiceAccountToken"] = false.into();
    }
    let managed = template.network_policy_management() == NetworkPolicyManagement::Managed;
    let default_policy = managed && template.spec.network_policy.is_none();
    if default_policy && (unset(&spec, "dnsPolicy") || spec["dnsPolicy"] == "") {
        let spec = spec.make_mut();
        spec["dnsPolicy"] = "None".into();
        spec["dnsConfig"] = json!({ "nameservers": NAMESERVERS });
    }
    spec
}

/// The hash that a Sandbox made from this template carries.
pub fn template_hash(template: &SandboxTemplate) -> String {
    names::blueprint_hash(&template.spec.pod_template, template.volume_claim_templates(), template.spec.service)
}

/// How a Sandbox is compared with its template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareBy {
    /// By the hash in its labels: this controller wrote them.
    Hash,
    /// By everything: any client may have written the labels.
    FullSpec,
}

/// Compares Sandboxes with a template whose hashes are computed once.
pub struct StalenessCheck<'a> {
    template: &'a SandboxTemplate,
    name_hash: String,
    hash: String,
}

impl<'a> StalenessCheck<'a> {
    pub fn new(template: &'a SandboxTemplate) -> Self {
        Self { template, name_hash: names::name_hash(template.name()), hash: template_hash(template) }
    }

    /// Whether a Sandbox differs from what the current template would create.
    pub fn is_stale(&self, sandbox: &Sandbox, compare_by: CompareBy) -> bool {
        if sandbox.label(labels::TEMPLATE_REF_HASH) != Some(&self.name_hash) {
            return true;
        }
        if compare_by == CompareBy::Hash && sandbox.label(labels::TEMPLATE_HASH) == Some(&self.hash) {
            return false;
        }
        let template = self.template;
        let same = same_json(&sandbox.spec.pod_template.spec, &secure_pod_spec(template), false)
            && same_volumes(sandbox.volume_claim_templates(), template.volume_claim_templates())
            && sandbox.spec.service == template.spec.service;
        !same
    }
}

/// Equal in number, order, name and spec; labels and annotations are ignored.
fn same_volumes(one: &[VolumeClaimTemplate], other: &[VolumeClaimTemplate]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|(a, b)| a.name() == b.name() && same_json(&a.spec, &b.spec, false))
}

/// Semantically equal: null, empty lists and empty maps equal absent fields, and quantities compare by value.
fn same_json(one: &Value, other: &Value, quantity: bool) -> bool {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let covers = |a: &serde_json::Map<String, Value>, b: &serde_json::Map<String, Value>| {
                a.iter().filter(|(_, value)| !is_empty(value)).all(|(key, value)| {
                    let quantity = quantity || is_quantity_key(key);
                    b.get(key).is_some_and(|other| same_json(value, other, quantity))
                })
            };
            covers(a, b) && covers(b, a)
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_json(a, b, quantity))
        }
        (a, b) if a == b => true,
        (a, b) if is_empty(a) && is_empty(b) => true,
        (a, b) => quantity && matches!((Quantity::of_json(a), Quantity::of_json(b)), (Some(a), Some(b)) if a == b),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Fields below which a Pod or PVC spec holds quantities.
fn is_quantity_key(key: &str) -> bool {
    matches!(key, "limits" | "requests" | "overhead" | "sizeLimit" | "divisor")
}

#[cfg(test)]
mod tests;
