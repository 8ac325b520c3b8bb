//! The ready-made template and warm pool, which a new engine creates once.

use agent_sandbox_api::{
    keys,
    template::{NetworkPolicyManagement, PodMetadata},
    v1beta1::{SandboxTemplate, SandboxWarmPool},
};
use agent_sandbox_client::{self as sdk, ContainerOptions};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

/// Name of the template and of the pool. Upstream's examples use it; clients claim it as a template or as a pool, by
/// version.
pub const NAME: &str = "python-sandbox-template";
/// Period of the template's readiness probe in seconds: the Kubernetes default.
const PROBE_PERIOD: u32 = 10;
/// ConfigMap in kube-system that records that the objects were created: a user who deletes them does not get them
/// again.
const MARKER: &str = "agent-sandbox-ready-made";

/// Number of sandboxes that the pool keeps warm unless told otherwise.
const WARM: u32 = 2;

/// Creates the template and its warm pool of `warm` sandboxes, the first time only. Later only the pool's size is
/// changed, if one is given. Returns false if there is no pool any more that could be changed.
pub async fn install(client: &Client, warm: Option<u32>) -> Result<bool, kube::Error> {
    let markers: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), "default");
    let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), "default");
    if markers.get_opt(MARKER).await?.is_some() {
        let Some(warm) = warm else { return Ok(true) };
        let patch = Patch::Merge(json!({"spec": {"replicas": warm}}));
        return match pools.patch(NAME, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            other => other.map(|_| true),
        };
    }
    let container = ContainerOptions { image: "host".to_owned(), ..ContainerOptions::default() };
    let mut template = sdk::template(NAME, &container);
    let inject = BTreeMap::from([(keys::annotations::INJECT_SANDBOXD.to_owned(), "true".to_owned())]);
    template.spec.pod_template.metadata = Some(Arc::new(PodMetadata { annotations: Some(inject), labels: None }));
    // The embedded node probes eagerly until the first success, whatever the period. A period of a second, which
    // clusters need for an early first success, would afterwards only cost processor time in idle pools.
    template.spec.pod_template.spec.make_mut()["containers"][0]["readinessProbe"]["periodSeconds"] =
        PROBE_PERIOD.into();
    // The embedded node closes a Pod that no policy selects in both directions; the default policy would allow egress.
    template.spec.network_policy_management = Some(NetworkPolicyManagement::Unmanaged);
    let pool = sdk::pool(NAME, NAME, warm.unwrap_or(WARM));
    tokio::try_join!(create_if_absent(&templates, template), create_if_absent(&pools, pool))?;
    let mut marker = ConfigMap::default();
    marker.metadata.name = Some(MARKER.to_owned());
    create_if_absent(&markers, marker).await?;
    Ok(true)
}

/// Creates an object unless one of its name exists.
pub(crate) async fn create_if_absent<K>(api: &Api<K>, object: K) -> Result<(), kube::Error>
where
    K: kube::Resource + Clone + serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
{
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        other => other.map(drop),
    }
}
