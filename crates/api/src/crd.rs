//! The CustomResourceDefinitions as data.
//!
//! `make manifests` renders them into `deploy/crds/`; the embedded engine loads the same values. Embedded Pod and PVC
//! schemas come from Kubernetes' own OpenAPI (`data/kubernetes.json`, made by `make generate`), so that nothing of a
//! Pod spec is pruned and server-side apply knows the keys of its lists.

mod claim;
mod kubernetes;
mod pool;
mod sandbox;
mod schema;
mod snapshot;
mod template;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use crate::groups;

/// Name of the conversion webhook's Service in the CRDs, unless an installation configures another.
pub const WEBHOOK_SERVICE: &str = "agent-sandbox-webhook-service";
/// Namespace of the conversion webhook's Service.
pub const WEBHOOK_NAMESPACE: &str = "agent-sandbox-system";
/// URL path of the conversion webhook.
pub const WEBHOOK_PATH: &str = "/convert";

/// All four definitions, the core one first.
pub fn crds() -> Vec<Value> {
    let kubernetes = kubernetes::Schemas::load();
    vec![
        sandbox::definition(&kubernetes),
        claim::definition(&kubernetes),
        template::definition(&kubernetes),
        pool::definition(),
    ]
}

/// The definitions of kinds that only engines with our node have.
pub fn engine_crds() -> Vec<Value> {
    vec![snapshot::definition()]
}

/// What distinguishes one kind's definition from another's.
struct Names {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    singular: &'static str,
    short: &'static str,
}

/// What distinguishes one version from another.
struct Version {
    spec: Value,
    status: Option<Value>,
    columns: Vec<Value>,
    scale: bool,
    description: &'static str,
}

/// Builds one CRD. Large values are moved into their places, here and in the kinds' own modules, because `json!` would
/// copy them at every level.
fn definition(names: &Names, v1beta1: Version, v1alpha1: Version) -> Value {
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{}.{}", names.plural, names.group) },
        "spec": {
            "group": names.group,
            "names": {
                "kind": names.kind,
                "listKind": format!("{}List", names.kind),
                "plural": names.plural,
                "singular": names.singular,
                "shortNames": [names.short],
            },
            "scope": "Namespaced",
            "conversion": {
                "strategy": "Webhook",
                "webhook": {
                    "conversionReviewVersions": ["v1", "v1beta1"],
                    "clientConfig": {
                        "service": { "name": WEBHOOK_SERVICE, "namespace": WEBHOOK_NAMESPACE, "path": WEBHOOK_PATH },
                    },
                },
            },
        },
    });
    let versions = vec![version(names, groups::V1BETA1, v1beta1), version(names, groups::V1ALPHA1, v1alpha1)];
    definition["spec"]["versions"] = versions.into();
    definition
}

fn version(names: &Names, name: &str, version: Version) -> Value {
    let mut properties = json!({
        "apiVersion": schema::text(),
        "kind": schema::text(),
        "metadata": { "type": "object" },
    });
    properties["spec"] = version.spec;
    let mut subresources = json!({});
    if let Some(status) = version.status {
        properties["status"] = status;
        subresources["status"] = json!({});
    }
    if version.scale {
        subresources["scale"] = json!({
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        });
    }
    let mut out = json!({
        "name": name,
        "served": true,
        "storage": name == groups::V1BETA1,
        "schema": {
            "openAPIV3Schema": {
                "description": version.description,
                "type": "object",
                "required": ["spec"],
            },
        },
    });
    out["schema"]["openAPIV3Schema"]["properties"] = properties;
    if name == groups::V1ALPHA1 {
        let (group, kind) = (names.group, names.kind);
        out["deprecated"] = true.into();
        out["deprecationWarning"] =
            format!("{group}/v1alpha1 {kind} is deprecated; use {group}/v1beta1 {kind} instead").into();
    }
    if !version.columns.is_empty() {
        out["additionalPrinterColumns"] = version.columns.into();
    }
    if subresources.as_object().is_some_and(|subresources| !subresources.is_empty()) {
        out["subresources"] = subresources;
    }
    out
}
