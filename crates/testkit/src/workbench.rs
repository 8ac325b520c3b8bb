//! What every test of claims, pools and Sandboxes needs: a cluster, a kubelet, a recorded client with weather, and short ways to make
//! objects and to wait for them.

use std::{collections::BTreeSet, time::Duration};

use agent_sandbox_api::{
    conditions::{ConditionType, is_true},
    owners,
    v1beta1::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use agent_sandbox_apiserver::serve::{Listener, ListenerConfig};
use futures::future::join_all;
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{Cluster, Kubelet, KubeletConfig, Recorder, Weather, eventually_within};

/// A burst on two slow cores takes its time.
pub const BURST: Duration = Duration::from_secs(120);

/// A cluster with a kubelet, and the client that the controller under test is to use.
pub struct Workbench {
    pub cluster: Cluster,
    /// What the controller's client has sent.
    pub writes: Recorder,
    /// What becomes of its requests.
    pub weather: Weather,
    controllers: Client,
    _kubelet: Kubelet,
}

/// The API over TLS, with a kubeconfig for whoever connects.
pub struct Served {
    pub kubeconfig: std::path::PathBuf,
    _listener: Listener,
    _folder: tempfile::TempDir,
}

impl Workbench {
    pub async fn start() -> anyhow::Result<Self> {
        let cluster = Cluster::start().await?;
        let kubelet = Kubelet::start(cluster.client(), KubeletConfig::default());
        let (recorded, writes) = cluster.recorded_client();
        let (controllers, weather) = Weather::wrap(recorded);
        Ok(Self { cluster, writes, weather, controllers, _kubelet: kubelet })
    }

    /// The client for the controller.
    pub fn controllers(&self) -> Client {
        self.controllers.clone()
    }

    /// Opens the API to other processes.
    pub async fn serve(&self) -> anyhow::Result<Served> {
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        let config = ListenerConfig { kubeconfig: Some(kubeconfig.clone()), ..ListenerConfig::default() };
        let listener = self.cluster.api.listen(config).await?;
        Ok(Served { kubeconfig, _listener: listener, _folder: folder })
    }

    /// Objects of the namespace `default`, for the user.
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
        let template: SandboxTemplate = from(json!({ "metadata": { "name": name }, "spec": spec }));
        self.api().create(&PostParams::default(), &template).await.expect("created");
    }

    pub async fn pool(&self, name: &str, template: &str, replicas: i32) {
        let spec = json!({ "sandboxTemplateRef": { "name": template }, "replicas": replicas });
        let pool: SandboxWarmPool = from(json!({ "metadata": { "name": name }, "spec": spec }));
        self.api().create(&PostParams::default(), &pool).await.expect("created");
    }

    pub async fn pool_ready(&self, name: &str, replicas: i32) {
        eventually_within(BURST, &format!("pool {name} has {replicas} ready"), || async {
            let pool: SandboxWarmPool = self.api().get(name).await.expect("there");
            let ready = pool.status.as_ref().and_then(|status| status.ready_replicas);
            if ready == Some(replicas) { Ok(()) } else { Err(pool.status) }
        })
        .await;
    }

    pub async fn claim(&self, name: &str, pool: &str) -> SandboxClaim {
        let claim: SandboxClaim =
            from(json!({ "metadata": { "name": name }, "spec": { "warmPoolRef": { "name": pool } } }));
        self.api().create(&PostParams::default(), &claim).await.expect("created")
    }

    /// Makes many claims at once: `<prefix>-0` and so on.
    pub async fn claims(&self, prefix: &str, number: usize, pool: &str) {
        let make = |index| async move { self.claim(&format!("{prefix}-{index}"), pool).await };
        join_all((0..number).map(make)).await;
    }

    pub async fn ready(&self, name: &str) -> SandboxClaim {
        eventually_within(BURST, &format!("claim {name} is Ready"), || async {
            let claim: SandboxClaim = self.api().get(name).await.expect("there");
            if is_true(claim.condition(ConditionType::Ready)) { Ok(claim) } else { Err(claim.status) }
        })
        .await
    }

    /// Makes many claims at once and waits for all of them.
    pub async fn burst(&self, number: usize, pool: &str) -> Vec<SandboxClaim> {
        self.claims("c", number, pool).await;
        eventually_within(BURST, "all claims are Ready", || async {
            let claims = self.list::<SandboxClaim>().await;
            let ready = claims.iter().filter(|claim| is_true(claim.condition(ConditionType::Ready))).count();
            if ready == number { Ok(claims) } else { Err(ready) }
        })
        .await
    }

    /// Invariant 1, and nothing lost: every claim is Ready with exactly one Sandbox of its own, every Sandbox is a claim's or a pool's,
    /// and the pools have this many members in all.
    pub async fn one_each(&self, members: usize) -> Result<(), String> {
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

/// An object from its JSON.
pub fn from<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("valid")
}
