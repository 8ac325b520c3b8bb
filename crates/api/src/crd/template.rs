//! `sandboxtemplates.extensions.agents.x-k8s.io`

use serde_json::{Value, json};

use super::kubernetes::Schemas;
use super::{Names, Version, schema};
use crate::groups;

const DESCRIPTION: &str = "SandboxTemplate is what Sandboxes of pools and claims are made from.";

pub(super) fn definition(kubernetes: &Schemas) -> Value {
    let names = Names {
        group: groups::EXTENSIONS,
        kind: groups::SANDBOX_TEMPLATE,
        plural: "sandboxtemplates",
        singular: "sandboxtemplate",
        short: "sandboxtemplate",
    };
    let mut v1beta1 = spec(kubernetes);
    v1beta1["properties"]["volumeClaimTemplatesPolicy"] = schema::described(
        injection_policy(),
        "Whether claims may bring volumes, new ones only or also in place of the template's.",
    );
    let version = |spec| Version { spec, status: None, columns: vec![], scale: false, description: DESCRIPTION };
    super::definition(&names, version(v1beta1), version(spec(kubernetes)))
}

fn spec(kubernetes: &Schemas) -> Value {
    let rules = |name| json!({ "type": "array", "items": kubernetes.expand(name) });
    let mut spec = json!({
        "type": "object",
        "required": ["podTemplate"],
        "properties": {
            "volumeClaimTemplates": schema::volume_claim_templates(kubernetes),
            "service": schema::service(),
            "networkPolicy": {
                "description": "Rules for the Pods' traffic; absent means the secure default.",
                "type": "object",
                "properties": {
                    "ingress": rules("NetworkPolicyIngressRule"),
                    "egress": rules("NetworkPolicyEgressRule"),
                },
            },
            "networkPolicyManagement": schema::described(
                schema::enumeration(&["Managed", "Unmanaged"], "Managed"),
                "Managed writes a NetworkPolicy for the template's Pods, Unmanaged leaves that to you.",
            ),
            "envVarsInjectionPolicy": schema::described(
                injection_policy(),
                "Whether claims may bring environment variables, new ones only or also in place of the template's.",
            ),
        },
    });
    spec["properties"]["podTemplate"] = schema::pod_template(kubernetes);
    spec
}

fn injection_policy() -> Value {
    schema::enumeration(&["Allowed", "Overrides", "Disallowed"], "Disallowed")
}
