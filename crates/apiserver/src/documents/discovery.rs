//! Discovery: the served groups, versions and resources, in single documents or aggregated.
//!
//! Everything is computed from the registry's snapshot, so a CRD appears as soon as it is served.

mod aggregated;
mod legacy;

use http::HeaderMap;
use serde_json::{Value, json};

use crate::registry::{Resource, Snapshot, Version, compare_versions};
use crate::table::accept::Clause;

/// A discovery document and its content type.
#[derive(Debug, PartialEq)]
pub struct Document {
    pub content_type: &'static str,
    pub body: Value,
}

/// The document at `path`, or `None` if there is none.
pub fn document(snapshot: &Snapshot, path: &str, headers: &HeaderMap) -> Option<Document> {
    let plain = |body: Value| Some(Document { content_type: "application/json", body });
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    match segments.as_slice() {
        ["api"] => aggregated_or(headers, |core| aggregated::document(snapshot, core), true, legacy::versions),
        ["apis"] => {
            aggregated_or(headers, |core| aggregated::document(snapshot, core), false, || legacy::groups(snapshot))
        }
        ["api", version] => legacy::resources(snapshot, "", version).and_then(plain),
        ["apis", group] => legacy::group(snapshot, group).and_then(plain),
        ["apis", group, version] if !group.is_empty() => legacy::resources(snapshot, group, version).and_then(plain),
        [""] => plain(paths(snapshot)),
        _ => None,
    }
}

fn aggregated_or(
    headers: &HeaderMap,
    aggregate: impl FnOnce(bool) -> Value,
    core: bool,
    plain: impl FnOnce() -> Value,
) -> Option<Document> {
    let wanted =
        Clause::all(headers).into_iter().filter(Clause::is_json).find_map(|clause| match clause.parameter("as") {
            Some("APIGroupDiscoveryList") if clause.parameter("g") == Some("apidiscovery.k8s.io") => match clause
                .parameter("v")
            {
                Some("v2") => {
                    Some(Some(("v2", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")))
                }
                Some("v2beta1") => {
                    Some(Some(("v2beta1", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList")))
                }
                _ => None,
            },
            Some(_) => None,
            None => Some(None),
        });
    let Some((version, content_type)) = wanted.flatten() else {
        return Some(Document { content_type: "application/json", body: plain() });
    };
    let mut body = aggregate(core);
    body["apiVersion"] = format!("apidiscovery.k8s.io/{version}").into();
    Some(Document { content_type, body })
}

/// `GET /`: the served paths.
fn paths(snapshot: &Snapshot) -> Value {
    let mut paths = vec!["/api".to_owned(), "/api/v1".into(), "/apis".into()];
    for (group, versions) in groups(snapshot) {
        paths.push(format!("/apis/{group}"));
        paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
    }
    paths.extend(["/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"].map(str::to_owned));
    json!({"paths": paths})
}

/// Named groups in order of first appearance (built-in ones first), with their versions in order of preference.
fn groups(snapshot: &Snapshot) -> Vec<(&str, Vec<&str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for resource in snapshot.resources().iter().filter(|resource| !resource.group.is_empty()) {
        let at = match groups.iter().position(|(name, _)| *name == resource.group) {
            Some(at) => at,
            None => {
                groups.push((&resource.group, Vec::new()));
                groups.len() - 1
            }
        };
        for version in resource.versions.iter().filter(|version| version.served) {
            if !groups[at].1.contains(&version.name.as_str()) {
                groups[at].1.push(&version.name);
            }
        }
    }
    groups.retain(|(_, versions)| !versions.is_empty());
    for (_, versions) in &mut groups {
        versions.sort_by(|a, b| compare_versions(b, a));
    }
    groups
}

/// The resources of one group and version.
fn served<'a>(
    snapshot: &'a Snapshot,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = (&'a Resource, &'a Version)> {
    snapshot.resources().iter().filter(move |resource| resource.group == group).filter_map(move |resource| {
        let found = resource.versions.iter().find(|candidate| candidate.served && candidate.name == version)?;
        Some((&**resource, found))
    })
}

/// A subresource in discovery.
struct Subresource {
    name: &'static str,
    verbs: &'static [&'static str],
    /// Group, version and kind, if they are not those of the resource itself.
    other: Option<(&'static str, &'static str, &'static str)>,
}

const READ_WRITE: &[&str] = &["get", "patch", "update"];

fn subresources(version: &Version) -> Vec<Subresource> {
    let of = |name, verbs, other| Subresource { name, verbs, other };
    let scale = Some(("autoscaling", "v1", "Scale"));
    let mut found: Vec<Subresource> = version
        .subresources
        .others
        .iter()
        .map(|name| match *name {
            "attach" => of("attach", &["create", "get"], Some(("", "v1", "PodAttachOptions"))),
            "binding" => of("binding", &["create"], Some(("", "v1", "Binding"))),
            "eviction" => of("eviction", &["create"], Some(("policy", "v1", "Eviction"))),
            "exec" => of("exec", &["create", "get"], Some(("", "v1", "PodExecOptions"))),
            "finalize" => of("finalize", &["update"], None),
            "log" => of("log", &["get"], None),
            "portforward" => of("portforward", &["create", "get"], Some(("", "v1", "PodPortForwardOptions"))),
            "scale" => of("scale", READ_WRITE, scale),
            "token" => of("token", &["create"], Some(("authentication.k8s.io", "v1", "TokenRequest"))),
            other => of(other, READ_WRITE, None),
        })
        .collect();
    if version.subresources.scale.is_some() {
        found.push(of("scale", READ_WRITE, scale));
    }
    if version.subresources.status {
        found.push(of("status", READ_WRITE, None));
    }
    found.sort_by_key(|subresource| subresource.name);
    found
}

#[cfg(test)]
mod tests;
