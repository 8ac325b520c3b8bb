//! Reads from a Pod object what the index keeps; the rest is skipped during decoding.

use std::net::IpAddr;

use agent_sandbox_api::keys::{self, annotations, labels};
use agent_sandbox_api::sleep::IdlePolicy;
use agent_sandbox_protocol::address::{self, AddressClass};
use kube::api::{ApiResource, Object};
use kube::core::ObjectMeta;
use serde::{Deserialize, Serialize};

use super::{PodFacts, Traffic};

const SANDBOX_GROUP: &str = "agents.x-k8s.io";

/// A Pod without its spec and most of its status: specs are large and there are thousands of them.
pub(crate) type SlimPod = Object<IgnoredSpec, SlimStatus>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct IgnoredSpec {}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SlimStatus {
    #[serde(rename = "podIP")]
    pub(crate) pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pub(crate) pod_ips: Option<Vec<PodIp>>,
    pub(crate) conditions: Option<Vec<Condition>>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PodIp {
    #[serde(default)]
    pub(crate) ip: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Condition {
    #[serde(rename = "type", default)]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) status: String,
}

/// The Pod kind, for `kube`'s dynamic API.
pub(crate) fn resource() -> ApiResource {
    ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&())
}

/// The index entry for this Pod; `None` if it is not a live Pod of a Sandbox.
pub(crate) fn facts(pod: &SlimPod) -> Option<PodFacts> {
    let meta = &pod.metadata;
    let label = |key: &str| meta.labels.as_ref().is_some_and(|labels| labels.contains_key(key));
    let status = pod.status.as_ref()?;
    if !label(labels::SANDBOX_NAME_HASH) || meta.deletion_timestamp.is_some() || !is_ready(status) {
        return None;
    }
    let (sandbox, sandbox_uid) = controlling_sandbox(meta)?;
    let ips = addresses(status);
    if ips.is_empty() {
        return None;
    }
    Some(PodFacts {
        namespace: meta.namespace.clone()?,
        sandbox,
        sandbox_uid,
        pod: meta.name.clone()?,
        pod_uid: meta.uid.clone().unwrap_or_default(),
        ips,
        name_routable: !label(labels::WARM_POOL_SANDBOX),
        // The controller copies valid policies only.
        idle: IdlePolicy::read(|key| meta.annotations.as_ref()?.get(key).map(String::as_str)).ok().flatten(),
        e2b: traffic(meta),
    })
}

/// Who reaches the ports of a sandbox of E2B's clients. Any other word than `public` is the stricter one.
fn traffic(meta: &ObjectMeta) -> Option<Traffic> {
    let value = meta.annotations.as_ref()?.get(annotations::E2B_TRAFFIC)?;
    Some(if value == keys::E2B_PUBLIC { Traffic::Public } else { Traffic::Private })
}

fn is_ready(status: &SlimStatus) -> bool {
    status.conditions.iter().flatten().any(|condition| condition.kind == "Ready" && condition.status == "True")
}

fn controlling_sandbox(meta: &ObjectMeta) -> Option<(String, String)> {
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    (owner.kind == "Sandbox" && group == SANDBOX_GROUP).then(|| (owner.name.clone(), owner.uid.clone()))
}

/// The Pod's addresses without duplicates, the preferred one first, in canonical form. Addresses that no Pod can have
/// are dropped, so that write access to a Pod's status does not give access to the router's network.
fn addresses(status: &SlimStatus) -> Vec<IpAddr> {
    let all = status.pod_ip.iter().chain(status.pod_ips.iter().flatten().map(|entry| &entry.ip));
    let mut ips = Vec::new();
    for ip in all.filter_map(|text| text.parse().ok()).map(address::canonical) {
        let possible = matches!(address::classify(ip), AddressClass::Routable | AddressClass::Loopback);
        if possible && !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    ips
}
