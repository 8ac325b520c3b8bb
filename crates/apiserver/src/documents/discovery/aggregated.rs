//! Aggregated discovery: one document for `/api` and one for `/apis`, which saves clients a request per group version.

use serde_json::{Value, json};

use super::{groups, served, subresources};
use crate::registry::{Resource, Snapshot, Version};

/// The core group, or all named groups. The caller sets the `apiVersion` that the client requested.
pub(super) fn document(snapshot: &Snapshot, core: bool) -> Value {
    let listed = if core { vec![("", vec!["v1"])] } else { groups(snapshot) };
    let items: Vec<Value> = listed
        .iter()
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions.iter().map(|version| describe(snapshot, group, version)).collect();
            let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "metadata": {}, "items": items})
}

fn describe(snapshot: &Snapshot, group: &str, version: &str) -> Value {
    let resources: Vec<Value> =
        served(snapshot, group, version).map(|(resource, served)| entry(resource, served)).collect();
    json!({"version": version, "resources": resources, "freshness": "Current"})
}

fn entry(resource: &Resource, version: &Version) -> Value {
    let own = || json!({"group": resource.group, "version": version.name, "kind": resource.kind});
    let nested: Vec<Value> = subresources(version)
        .iter()
        .map(|subresource| {
            let kind = match subresource.other {
                Some((group, version, kind)) => json!({"group": group, "version": version, "kind": kind}),
                None => own(),
            };
            json!({"subresource": subresource.name, "responseKind": kind, "verbs": subresource.verbs})
        })
        .collect();
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": own(),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": version.verbs,
    });
    for (member, list) in [("shortNames", &resource.short_names), ("categories", &resource.categories)] {
        if !list.is_empty() {
            entry[member] = list.clone().into();
        }
    }
    if !nested.is_empty() {
        entry["subresources"] = nested.into();
    }
    entry
}
