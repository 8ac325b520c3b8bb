//! A fresh control plane for one part of the benchmark, with our CRDs and fake nodes.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use agent_sandbox_testkit::{ControlPlane, ControlPlaneConfig, FakeNodes};
use anyhow::{Context, bail};
use futures::StreamExt;
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::sync::{Mutex, oneshot};

use crate::{
    objects::{self, api, is_ready},
    subject::{Process, Subject},
};

/// Number of fake nodes; each takes 4,999 Pods.
const NODES: usize = 3;
/// Timeout for every wait of the benchmark.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

pub(crate) struct Environment {
    pub(crate) client: Client,
    // Declared before the control plane, so that the controller ends before its API server.
    pub(crate) process: Option<Process>,
    pub(crate) plane: ControlPlane,
}

impl Environment {
    /// Starts a control plane, and the controller if the subject has one.
    pub(crate) async fn new(subject: &Subject, audit: bool) -> anyhow::Result<Self> {
        let config = ControlPlaneConfig { audit, ..ControlPlaneConfig::default() };
        let plane = ControlPlane::start(config).await?;
        let client = plane.client().await?;
        install_crds(&client).await?;
        plane.add_fake_nodes(FakeNodes { count: NODES, tainted: false }).await?;
        api(&client, "SandboxTemplate").create(&PostParams::default(), &objects::template()).await?;
        let mut environment = Self { client, process: None, plane };
        environment.start(subject).await?;
        Ok(environment)
    }

    /// Starts the controller, waits until it has made a Sandbox Ready, and returns how long that took.
    pub(crate) async fn start(&mut self, subject: &Subject) -> anyhow::Result<Duration> {
        let started = Instant::now();
        self.process = subject.start(&self.plane.kubeconfig(), self.plane.folder())?;
        if self.process.is_some() {
            let ready = Ready::follow(&self.client, "Sandbox").await?;
            let name = format!("probe-{}", std::process::id() as u64 + started.elapsed().subsec_nanos() as u64);
            let waiter = ready.expect(&name).await;
            let sandboxes = api(&self.client, "Sandbox");
            sandboxes.create(&PostParams::default(), &objects::sandbox(&name)).await?;
            within(waiter).await.context("the controller makes no Sandbox Ready; see its log")?;
            sandboxes.delete(&name, &kube::api::DeleteParams::default()).await?;
        }
        Ok(started.elapsed())
    }

    /// Creates the pool, waits until the controller has filled it, and returns how long that took.
    pub(crate) async fn fill_pool(&self, replicas: usize) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let pools = api(&self.client, "SandboxWarmPool");
        pools.create(&PostParams::default(), &objects::pool(replicas)).await?;
        self.wait_for_pool(replicas).await?;
        Ok(started.elapsed())
    }

    pub(crate) async fn wait_for_pool(&self, replicas: usize) -> anyhow::Result<()> {
        let pools = api(&self.client, "SandboxWarmPool");
        let deadline = Instant::now() + LIMIT;
        loop {
            let pool = pools.get(objects::POOL).await?;
            if pool.data["status"]["readyReplicas"].as_u64() == Some(replicas as u64) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("the pool is not full within {LIMIT:?}: {}", pool.data["status"]);
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    pub(crate) fn process(&self) -> anyhow::Result<&Process> {
        self.process.as_ref().context("no controller runs")
    }
}

/// Installs the CRDs without conversion, because no webhook runs here.
async fn install_crds(client: &Client) -> anyhow::Result<()> {
    let crds: Api<DynamicObject> = Api::all_with(client.clone(), &objects::resource("CustomResourceDefinition"));
    let mut names = Vec::new();
    for mut crd in agent_sandbox_api::crd::crds() {
        crd["spec"]["conversion"] = json!({ "strategy": "None" });
        let crd: DynamicObject = serde_json::from_value(crd)?;
        names.push(crd.name_any());
        crds.create(&PostParams::default(), &crd).await?;
    }
    for name in names {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let crd = crds.get(&name).await?;
            let established = crd.data["status"]["conditions"]
                .as_array()
                .is_some_and(|all| all.iter().any(|one| one["type"] == "Established" && one["status"] == "True"));
            if established {
                break;
            }
            if Instant::now() > deadline {
                bail!("CRD {name} is not established");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}

/// Reports when objects of one kind become Ready, from one watch.
#[derive(Clone)]
pub(crate) struct Ready(Waiting);

type Waiting = Arc<Mutex<HashMap<String, oneshot::Sender<Instant>>>>;

impl Ready {
    /// Starts the watch; the server has accepted it when this returns.
    pub(crate) async fn follow(client: &Client, kind: &str) -> anyhow::Result<Self> {
        let ready = Self(Arc::default());
        let api = api(client, kind);
        let listed = api.list(&kube::api::ListParams::default().limit(1)).await?;
        let (accepted, accepting) = oneshot::channel();
        tokio::spawn(follow(
            api,
            kind.to_owned(),
            listed.metadata.resource_version.unwrap_or_default(),
            ready.0.clone(),
            accepted,
        ));
        within(accepting).await?;
        Ok(ready)
    }

    /// A channel that reports when the object is Ready. Call this before the object is created.
    pub(crate) async fn expect(&self, name: &str) -> oneshot::Receiver<Instant> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().await.insert(name.to_owned(), sender);
        receiver
    }
}

async fn follow(
    api: Api<DynamicObject>,
    kind: String,
    mut version: String,
    waiting: Waiting,
    accepted: oneshot::Sender<()>,
) {
    let (parameters, mut accepted) = (WatchParams::default(), Some(accepted));
    // The server ends a watch after some minutes.
    while let Ok(events) = api.watch(&parameters, &version).await {
        if let Some(accepted) = accepted.take() {
            let _ = accepted.send(());
        }
        let mut newest = version.clone();
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let (Ok(WatchEvent::Added(object)) | Ok(WatchEvent::Modified(object))) = event else { continue };
            newest = object.resource_version().unwrap_or_default();
            if is_ready_and_bound(&object, &kind)
                && let Some(waiter) = waiting.lock().await.remove(&object.name_any())
            {
                let _ = waiter.send(Instant::now());
            }
        }
        version = newest;
    }
}

/// Whether an object is Ready; for a claim, its status must also name its Sandbox.
fn is_ready_and_bound(object: &DynamicObject, kind: &str) -> bool {
    is_ready(object) && (kind != "SandboxClaim" || object.data["status"]["sandbox"]["name"].is_string())
}

pub(crate) async fn within<T>(waiting: oneshot::Receiver<T>) -> anyhow::Result<T> {
    tokio::time::timeout(LIMIT, waiting).await.context("too slow")?.context("the watch ended")
}
