//! `sandboxes.agents.x-k8s.io`

use serde_json::{Value, json};

use super::kubernetes::Schemas;
use super::{Names, Version, schema};
use crate::groups;

const DESCRIPTION: &str = "Sandbox is one isolated, stateful, singleton computer with a stable name.";

pub(super) fn definition(kubernetes: &Schemas) -> Value {
    let names = Names {
        group: groups::CORE,
        kind: groups::SANDBOX,
        plural: "sandboxes",
        singular: "sandbox",
        short: "sandbox",
    };
    let mut v1beta1 = spec(kubernetes);
    v1beta1["properties"]["operatingMode"] = schema::described(
        schema::enumeration(&["Running", "Suspended"], "Running"),
        "Suspended removes the Pod and keeps name and storage; Running brings it back.",
    );
    let mut v1alpha1 = spec(kubernetes);
    v1alpha1["properties"]["replicas"] = json!({
        "description": "1 runs the Sandbox, 0 suspends it.",
        "type": "integer",
        "format": "int32",
        "minimum": 0,
        "maximum": 1,
        "default": 1,
    });
    let mut v1beta1_status = status();
    v1beta1_status["properties"]["nodeName"] = schema::described(schema::text(), "The node that runs the Pod.");
    let mut v1alpha1_status = status();
    v1alpha1_status["properties"]["replicas"] =
        json!({ "description": "1 while it should run, else 0.", "type": "integer", "format": "int32", "minimum": 0 });
    super::definition(
        &names,
        Version {
            spec: v1beta1,
            status: Some(v1beta1_status),
            columns: vec![schema::ready_column(), schema::reason_column(), schema::age_column()],
            scale: false,
            description: DESCRIPTION,
        },
        Version {
            spec: v1alpha1,
            status: Some(v1alpha1_status),
            columns: vec![],
            scale: true,
            description: DESCRIPTION,
        },
    )
}

/// The fields of both versions. The immutability rule is in both, because an edit through v1alpha1 would be stored too,
/// without any effect on the volumes.
fn spec(kubernetes: &Schemas) -> Value {
    let mut spec = json!({
        "type": "object",
        "required": ["podTemplate"],
        "properties": {
            "volumeClaimTemplates": schema::volume_claim_templates(kubernetes),
            "service": schema::service(),
            "shutdownTime": schema::described(schema::time(), "When the Sandbox ends."),
            "shutdownPolicy": schema::described(
                schema::enumeration(&["Delete", "Retain"], "Retain"),
                "At shutdownTime, Delete removes the Sandbox with everything it owns; Retain removes its Pod and \
                 Service only.",
            ),
        },
        "x-kubernetes-validations": [{
            "rule": "has(self.volumeClaimTemplates) == has(oldSelf.volumeClaimTemplates) && \
                (!has(self.volumeClaimTemplates) || self.volumeClaimTemplates == oldSelf.volumeClaimTemplates)",
            "message": "volumeClaimTemplates is immutable",
        }],
    });
    spec["properties"]["podTemplate"] = schema::pod_template(kubernetes);
    spec
}

fn status() -> Value {
    json!({
        "type": "object",
        "properties": {
            "conditions": schema::conditions(),
            "service": schema::described(schema::text(), "The headless Service's name."),
            "serviceFQDN": schema::described(schema::text(), "The Service's DNS name."),
            "selector": schema::described(schema::text(), "Label selector of the Pod."),
            "podIPs": schema::described(schema::text_list(), "Addresses of the Pod."),
        },
    })
}
