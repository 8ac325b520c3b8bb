//! `sandboxwarmpools.extensions.agents.x-k8s.io`

use serde_json::{Value, json};

use super::{Names, Version, schema};
use crate::groups;

const DESCRIPTION: &str = "SandboxWarmPool keeps a number of Sandboxes ready for claims.";

pub(super) fn definition() -> Value {
    let names = Names {
        group: groups::EXTENSIONS,
        kind: groups::SANDBOX_WARM_POOL,
        plural: "sandboxwarmpools",
        singular: "sandboxwarmpool",
        short: "swp",
    };
    let mut v1beta1 = spec();
    v1beta1["required"] = json!(["sandboxTemplateRef"]);
    v1beta1["properties"]["replicas"]["default"] = 1.into();
    let mut v1alpha1 = spec();
    v1alpha1["required"] = json!(["replicas", "sandboxTemplateRef"]);
    let mut v1beta1_status = status();
    v1beta1_status["properties"]["observedGeneration"] = schema::observed_generation();
    let version = |spec, status| Version {
        spec,
        status: Some(status),
        columns: columns(),
        scale: true,
        description: DESCRIPTION,
    };
    super::definition(&names, version(v1beta1, v1beta1_status), version(v1alpha1, status()))
}

fn spec() -> Value {
    json!({
        "type": "object",
        "properties": {
            "replicas": {
                "description": "How many unclaimed Sandboxes to keep.",
                "type": "integer",
                "format": "int32",
                "minimum": 0,
            },
            "sandboxTemplateRef": schema::described(
                schema::name_ref(),
                "The SandboxTemplate, of the same namespace, to make them from.",
            ),
            "updateStrategy": {
                "description": "What becomes of waiting Sandboxes when the template changes.",
                "type": "object",
                "properties": {
                    "type": schema::described(
                        schema::enumeration(&["Recreate", "OnReplenish"], "OnReplenish"),
                        "When the template changes, Recreate replaces waiting Sandboxes, OnReplenish makes only later \
                         ones new.",
                    ),
                },
            },
        },
    })
}

fn status() -> Value {
    let count = |description: &str| json!({ "description": description, "type": "integer", "format": "int32" });
    json!({
        "type": "object",
        "properties": {
            "replicas": count("Unclaimed Sandboxes that exist."),
            "readyReplicas": count("Those that are Ready."),
            "selector": schema::described(schema::text(), "Label selector of the Sandboxes, for autoscalers."),
        },
    })
}

fn columns() -> Vec<Value> {
    vec![
        schema::column("Ready", "integer", ".status.readyReplicas"),
        schema::column("Desired", "integer", ".spec.replicas"),
        schema::age_column(),
    ]
}
