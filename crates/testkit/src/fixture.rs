//! Fixture for tests of the controller: a cluster, a simulated kubelet, a client that records requests and injects
//! faults, and helpers that create objects and wait for them.

use std::{collections::BTreeSet, time::Duration};

use agent_sandbox_api::{
    conditions::{ConditionType, is_true},
    owners,
    v1beta1::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use agent_sandbox_apiserver::{Listener, ListenerConfig};
use futures::future::join_all;
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{Cluster, FaultInjector, Kubelet, KubeletConfig, Recorder, eventually_within};

/// Deadline for a burst of claims; generous, because two slow cores may run it.
pub const BURST_TIMEOUT: Duration = Duration::from_secs(120);

/// A cluster with a simulated kubelet, and the client for the controller under test.
pub struct ControllerFixture {
    pub cluster: Cluster,
    /// Requests that the controller's client has sent.
    pub writes: Recorder,
    /// Faults for the controller's client.
    pub faults: FaultInjector,
    controller_client: Client,
    _kubelet: Kubelet,
}

/// The API served over TLS, with a kubeconfig for other processes.
pub struct ServedApi {
    pub kubeconfig: std::path::PathBuf,
    _listener: Listener,
    _folder: tempfile::TempDir,
}

impl ControllerFixture {
    pub async fn start() -> anyhow::Result<Self> {
        let cluster = Cluster::start().await?;
        let kubelet = Kubelet::start(cluster.client(), KubeletConfig::default());
        let (recorded, writes) = cluster.recorded_client();
        let (controller_client, faults) = FaultInjector::wrap(recorded);
        Ok(Self { cluster, writes, faults, controller_client, _kubelet: kubelet })
    }

    /// The client for the controller under test.
    pub fn controller_client(&self) -> Client {
        self.controller_client.clone()
    }

    /// Serves the API to other processes.
    pub async fn serve(&self) -> anyhow::Result<ServedApi> {
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        let config = ListenerConfig { kubeconfig: Some(kubeconfig.clone()), ..ListenerConfig::default() };
        let listener = self.cluster.api.listen(config).await?;
        Ok(ServedApi { kubeconfig, _listener: listener, _folder: folder })
    }

    /// Objects of the namespace `default`, with a client that is neither recorded nor subject to faults.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.cluster.client(), "default")
    }

    pub async fn list<K>(&self) -> Vec<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        self.api::<K>().list(&ListParams::default()).await.expect("lists").items
    }

    pub async fn template(&self, name: &str) {
        let spec = json!({ "podTemplate": { "spec": { "containers": [{ "name": "main", "image": "busybox" }] } } });
        let template: SandboxTemplate = from_json(json!({ "metadata": { "name": name }, "spec": spec }));
        self.api().create(&PostParams::default(), &template).await.expect("created");
    }

    pub async fn pool(&self, name: &str, template: &str, replicas: i32) {
        let spec = json!({ "sandboxTemplateRef": { "name": template }, "replicas": replicas });
        let pool: SandboxWarmPool = from_json(json!({ "metadata": { "name": name }, "spec": spec }));
        self.api().create(&PostParams::default(), &pool).await.expect("created");
    }

    pub async fn pool_ready(&self, name: &str, replicas: i32) {
        eventually_within(BURST_TIMEOUT, &format!("pool {name} has {replicas} ready"), || async {
            let pool: SandboxWarmPool = self.api().get(name).await.expect("there");
            let ready = pool.status.as_ref().and_then(|status| status.ready_replicas);
            if ready == Some(replicas) { Ok(()) } else { Err(pool.status) }
        })
        .await;
    }

    pub async fn claim(&self, name: &str, pool: &str) -> SandboxClaim {
        let claim: SandboxClaim =
            from_json(json!({ "metadata": { "name": name }, "spec": { "warmPoolRef": { "name": pool } } }));
        self.api().create(&PostParams::default(), &claim).await.expect("created")
    }

    /// Creates many claims concurrently: `<prefix>-0` and so on.
    pub async fn claims(&self, prefix: &str, number: usize, pool: &str) {
        let make = |index| async move { self.claim(&format!("{prefix}-{index}"), pool).await };
        join_all((0..number).map(make)).await;
    }

    pub async fn ready(&self, name: &str) -> SandboxClaim {
        eventually_within(BURST_TIMEOUT, &format!("claim {name} is Ready"), || async {
            let claim: SandboxClaim = self.api().get(name).await.expect("there");
            if is_true(claim.condition(ConditionType::Ready)) { Ok(claim) } else { Err(claim.status) }
        })
        .await
    }

    /// Creates many claims concurrently and waits until all are Ready.
    pub async fn burst(&self, number: usize, pool: &str) -> Vec<SandboxClaim> {
        self.claims("c", number, pool).await;
        eventually_within(BURST_TIMEOUT, "all claims are Ready", || async {
            let claims = self.list::<SandboxClaim>().await;
            let ready = claims.iter().filter(|claim| is_true(claim.condition(ConditionType::Ready))).count();
            if ready == number { Ok(claims) } else { Err(ready) }
        })
        .await
    }

    /// Checks invariant 1 and that nothing is lost: every claim is Ready with exactly one Sandbox of its own, every
    /// Sandbox is owned by a claim or a pool, and all pools together have `members` members.
    pub async fn check_one_sandbox_per_claim(&self, members: usize) -> Result<(), String> {
        let sandboxes = self.list::<Sandbox>().await;
        let mut published = BTreeSet::new();
        for claim in self.list::<SandboxClaim>().await {
            if !is_true(claim.condition(ConditionType::Ready)) {
                return Err(format!("{} is not Ready: {:?}", claim.name(), claim.conditions()));
            }
            let controlled: Vec<&str> = sandboxes
                .iter()
                .filter(|sandbox| owners::owning_claim(&sandbox.metadata).is_some_and(|owner| owner.uid == claim.uid()))
                .map(|sandbox| sandbox.name())
                .collect();
            if controlled != [claim.bound_sandbox().unwrap_or_default()] {
                return Err(format!("{} says {:?} and controls {controlled:?}", claim.name(), claim.bound_sandbox()));
            }
            if !published.insert(controlled[0].to_owned()) {
                return Err(format!("{} serves two claims", controlled[0]));
            }
        }
        let of_pools = sandboxes.iter().filter(|sandbox| owners::owning_pool(&sandbox.metadata).is_some()).count();
        if (sandboxes.len(), of_pools) != (published.len() + members, members) {
            return Err(format!("{} Sandboxes, {of_pools} of pools, {} claimed", sandboxes.len(), published.len()));
        }
        Ok(())
    }
}

/// Decodes an object from JSON.
pub fn from_json<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("valid")
}
