//! Unaggregated discovery: versions, groups, the resources of a group version.

use base64::Engine as _;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{groups as all_groups, served, subresources};
use crate::registry::{Resource, Snapshot, Version};

/// `GET /api`.
pub(super) fn versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// `GET /apis`.
pub(super) fn groups(snapshot: &Snapshot) -> Value {
    let groups: Vec<Value> = all_groups(snapshot).iter().map(|(name, versions)| describe(name, versions)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `GET /apis/{group}`.
pub(super) fn group(snapshot: &Snapshot, wanted: &str) -> Option<Value> {
    let found = all_groups(snapshot);
    let (name, versions) = found.iter().find(|(name, _)| *name == wanted)?;
    let mut group = describe(name, versions);
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Some(group)
}

fn describe(name: &str, versions: &[&str]) -> Value {
    let list: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    json!({"name": name, "preferredVersion": list[0], "versions": list})
}

/// `GET /apis/{group}/{version}`.
pub(super) fn resources(snapshot: &Snapshot, group: &str, version: &str) -> Option<Value> {
    let mut entries = Vec::new();
    for (resource, served) in served(snapshot, group, version) {
        entries.push(entry(resource, served));
        entries.extend(subresources(served).iter().map(|subresource| {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, subresource.name),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": subresource.verbs,
            });
            if let Some((group, version, kind)) = subresource.other {
                entry["group"] = group.into();
                entry["version"] = version.into();
                entry["kind"] = kind.into();
            }
            entry
        }));
    }
    if entries.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}))
}

fn entry(resource: &Resource, version: &Version) -> Value {
    let mut entry = Map::new();
    entry.insert("name".into(), resource.plural.as_str().into());
    entry.insert("singularName".into(), resource.singular.as_str().into());
    entry.insert("namespaced".into(), resource.namespaced.into());
    entry.insert("kind".into(), resource.kind.as_str().into());
    entry.insert("verbs".into(), version.verbs.into());
    if !resource.short_names.is_empty() {
        entry.insert("shortNames".into(), resource.short_names.clone().into());
    }
    if !resource.categories.is_empty() {
        entry.insert("categories".into(), resource.categories.clone().into());
    }
    // Reviews are not stored.
    if version.verbs != ["create"] {
        entry.insert("storageVersionHash".into(), storage_hash(resource).into());
    }
    Value::Object(entry)
}

/// A hash that differs between servers that store a kind in different versions.
fn storage_hash(resource: &Resource) -> String {
    let slash = if resource.storage_version.contains('/') { "" } else { "/" };
    let text = format!("{slash}{}/{}", resource.storage_version, resource.kind);
    base64::engine::general_purpose::STANDARD.encode(&Sha256::digest(text.as_bytes())[..8])
}
