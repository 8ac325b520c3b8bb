//! The NetworkPolicy of a template: the user's rules, or a default that admits only the router and allows only traffic
//! to the Internet.

use agent_sandbox_api::{keys::labels, names, v1beta1::SandboxTemplate};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};

/// The policy's spec as the controller writes it.
pub fn desired_spec(template: &SandboxTemplate) -> Value {
    let (ingress, egress) = match &template.spec.network_policy {
        Some(rules) => {
            (json!(rules.ingress.as_deref().unwrap_or_default()), json!(rules.egress.as_deref().unwrap_or_default()))
        }
        None => (default_ingress(), default_egress()),
    };
    json!({
        "podSelector": { "matchLabels": { labels::TEMPLATE_REF_HASH: names::name_hash(template.name()) } },
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    })
}

fn default_ingress() -> Value {
    json!([{
        "from": [{
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "agent-sandbox-system" } },
            "podSelector": { "matchLabels": { "app": "sandbox-router" } },
        }],
    }])
}

/// Public addresses only. This blocks cluster DNS, which is why Pods of such templates get public resolvers.
fn default_egress() -> Value {
    json!([{
        "to": [
            { "ipBlock": { "cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"] } },
            { "ipBlock": { "cidr": "::/0", "except": ["fc00::/7", "fe80::/10"] } },
        ],
    }])
}

/// The stored spec in the form that [`with_defaults`] gives ours, so that the two compare equal when they mean the
/// same.
pub(super) fn stored_spec(policy: &NetworkPolicy) -> Value {
    with_defaults(json!(policy.spec))
}

/// The spec with the API server's defaults: a port without a protocol is TCP; absent rules are empty.
pub(super) fn with_defaults(mut spec: Value) -> Value {
    for direction in ["ingress", "egress"] {
        if spec.get(direction).is_none_or(Value::is_null) {
            spec[direction] = json!([]);
        }
        for rule in spec[direction].as_array_mut().into_iter().flatten() {
            for port in rule.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                if port.get("protocol").is_none_or(Value::is_null) {
                    port["protocol"] = "TCP".into();
                }
            }
        }
    }
    spec
}
