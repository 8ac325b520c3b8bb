//! What the engine puts into its API once: the ready-made template and pool.

use agent_sandbox_api::{
    keys,
    template::{NetworkPolicyManagement, PodMetadata},
    v1beta1::{SandboxTemplate, SandboxWarmPool},
};
use agent_sandbox_client::{self as sdk, ContainerOptions};
use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, api::PostParams};
use std::{collections::BTreeMap, sync::Arc};

/// The name that examples everywhere use; clients of every version find it as a template or as a pool.
pub(crate) const READY_MADE: &str = "python-sandbox-template";
/// Seconds between probes of a sandbox of it; what Kubernetes takes where nothing is said.
const READY_PERIOD: u32 = 10;
/// Remembers that the ready-made objects were created, so that a user who deletes them is not given them again.
const MARKER: &str = "agent-sandbox-ready-made";

/// Creates the ready-made template and its warm pool, the first time only and never over anything of the user's.
pub(crate) async fn ready_made(client: &Client, warm: u32) -> Result<()> {
    let markers: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    if markers.get_opt(MARKER).await?.is_some() {
        return Ok(());
    }
    let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), "default");
    let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), "default");
    let container = ContainerOptions { image: "host".to_owned(), ..ContainerOptions::default() };
    let mut template = sdk::template(READY_MADE, &container);
    let inject = BTreeMap::from([(keys::annotations::INJECT_SANDBOXD.to_owned(), "true".to_owned())]);
    template.spec.pod_template.metadata = Some(Arc::new(PodMetadata { annotations: Some(inject), labels: None }));
    // Our node asks eagerly until the first answer, whatever the period. From then on a second, which clusters need for an early first
    // answer, would only keep a pool busy.
    template.spec.pod_template.spec.make_mut()["containers"][0]["readinessProbe"]["periodSeconds"] =
        READY_PERIOD.into();
    // No policy at all closes a Pod of the embedded node both ways; the default policy would open the way out.
    template.spec.network_policy_management = Some(NetworkPolicyManagement::Unmanaged);
    let pool = sdk::pool(READY_MADE, READY_MADE, warm);
    tokio::try_join!(create_if_absent(&templates, template), create_if_absent(&pools, pool))?;
    let mut marker = ConfigMap::default();
    marker.metadata.name = Some(MARKER.to_owned());
    create_if_absent(&markers, marker).await
}

/// Creates an object unless one of its name is there.
pub(crate) async fn create_if_absent<K>(api: &Api<K>, object: K) -> Result<()>
where
    K: kube::Resource + Clone + serde::Serialize + serde::de::DeserializeOwned + std::fmt::Debug,
{
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        other => Ok(other.map(drop)?),
    }
}
