//! `sandboxclaims.extensions.agents.x-k8s.io`

use serde_json::{Value, json};

use super::kubernetes::Schemas;
use super::{Names, Version, schema};
use crate::groups;

const DESCRIPTION: &str =
    "SandboxClaim asks for one Sandbox: a warm one of a pool when there is one, a new one otherwise.";

pub(super) fn definition(kubernetes: &Schemas) -> Value {
    let names = Names {
        group: groups::EXTENSIONS,
        kind: groups::SANDBOX_CLAIM,
        plural: "sandboxclaims",
        singular: "sandboxclaim",
        short: "sandboxclaim",
    };
    let mut v1beta1 = spec();
    v1beta1["required"] = json!(["warmPoolRef"]);
    v1beta1["properties"]["warmPoolRef"] =
        schema::described(schema::name_ref(), "The SandboxWarmPool, of the same namespace, to be served from.");
    v1beta1["properties"]["volumeClaimTemplates"] = schema::volume_claim_templates(kubernetes);
    let mut v1alpha1 = spec();
    v1alpha1["required"] = json!(["sandboxTemplateRef"]);
    v1alpha1["properties"]["sandboxTemplateRef"] =
        schema::described(schema::name_ref(), "The SandboxTemplate, of the same namespace, to be made from.");
    v1alpha1["properties"]["warmpool"] = json!({
        "description": "A pool's name, or default for any pool of the template, or none for a new Sandbox.",
        "type": "string",
        "default": "default",
    });
    let mut v1beta1_status = status();
    v1beta1_status["properties"]["sandbox"]["properties"]["serviceFQDN"] =
        schema::described(schema::text(), "The DNS name of its Service; absent when it has none.");
    super::definition(
        &names,
        Version {
            spec: v1beta1,
            status: Some(v1beta1_status),
            columns: vec![
                schema::ready_column(),
                schema::column("Sandbox", "string", ".status.sandbox.name"),
                schema::reason_column(),
                schema::age_column(),
            ],
            scale: false,
            description: DESCRIPTION,
        },
        Version { spec: v1alpha1, status: Some(status()), columns: vec![], scale: false, description: DESCRIPTION },
    )
}

fn spec() -> Value {
    json!({
        "type": "object",
        "properties": {
            "lifecycle": {
                "description": "When the claim ends, and how.",
                "type": "object",
                "properties": {
                    "shutdownTime": schema::described(schema::time(), "When the claim ends."),
                    "ttlSecondsAfterFinished": {
                        "description": "Seconds from the end of the Sandbox's Pod to the end of the claim.",
                        "type": "integer",
                        "format": "int32",
                        "minimum": 0,
                    },
                    "shutdownPolicy": schema::described(
                        schema::enumeration(&["Delete", "DeleteForeground", "Retain"], "Retain"),
                        "Delete removes the claim and with it the Sandbox, DeleteForeground keeps it visible until \
                         both are gone, Retain removes the Sandbox only.",
                    ),
                },
            },
            "additionalPodMetadata": schema::described(
                schema::pod_metadata(),
                "Labels and annotations added to the Pod.",
            ),
            "env": {
                "description": "Environment variables to add, where the template allows it; any entry means a new \
                    Sandbox.",
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["name", "value"],
                    "properties": {
                        "name": schema::described(schema::text(), "The variable."),
                        "value": schema::described(schema::text(), "Its value."),
                        "containerName": schema::described(
                            schema::text(),
                            "The container it is for; absent, the first one.",
                        ),
                    },
                },
            },
        },
    })
}

fn status() -> Value {
    json!({
        "type": "object",
        "properties": {
            "conditions": schema::conditions(),
            "sandbox": {
                "description": "The Sandbox that serves the claim.",
                "type": "object",
                "properties": {
                    "name": schema::described(schema::text(), "Its name."),
                    "podIPs": schema::described(schema::text_list(), "Addresses of its Pod."),
                },
            },
        },
    })
}
