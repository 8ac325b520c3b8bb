//! A simulated kubelet and scheduler: Pods get a node, an address and a Ready condition; deleted ones go.
//!
//! It only speaks the API, as the real ones do, so it works on any cluster. Nothing runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

/// A Pod that carries this annotation stays Pending until it is removed.
const HOLD: &str = "testkit/hold";

#[derive(Clone, Debug)]
pub struct KubeletConfig {
    /// Pods are spread over these in turn.
    pub nodes: Vec<String>,
    /// Time from creation to Ready.
    pub startup: Duration,
    /// How many Pods are brought up at once.
    pub concurrency: usize,
}

impl Default for KubeletConfig {
    fn default() -> Self {
        Self { nodes: vec!["node-1".into(), "node-2".into()], startup: Duration::ZERO, concurrency: 64 }
    }
}

/// Runs until dropped.
pub struct Kubelet {
    stop: CancellationToken,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Kubelet {
    /// Annotation that keeps a Pod Pending.
    pub const HOLD: &str = HOLD;

    pub fn start(client: Client, config: KubeletConfig) -> Self {
        let stop = CancellationToken::new();
        tokio::spawn(run(client, config, stop.clone()));
        Self { stop }
    }
}

async fn run(client: Client, config: KubeletConfig, stop: CancellationToken) {
    let next = Arc::new(AtomicU32::new(1));
    let permits = Arc::new(tokio::sync::Semaphore::new(config.concurrency));
    let tasks = TaskTracker::new();
    let pods = watcher(Api::<Pod>::all(client.clone()), watcher::Config::default()).default_backoff().applied_objects();
    pin_mut!(pods);
    while let Some(event) = tokio::select! { event = pods.next() => event, () = stop.cancelled() => None } {
        let Ok(pod) = event else { continue };
        let (client, config, next, permits) = (client.clone(), config.clone(), next.clone(), permits.clone());
        tasks.spawn(async move {
            let Ok(_permit) = permits.acquire_owned().await else { return };
            if let Err(error) = tend(&client, &config, &next, &pod).await {
                debug!(pod = pod.name_any(), %error, "Simulated kubelet will look again");
            }
        });
    }
}

/// Brings one Pod a step further.
async fn tend(client: &Client, config: &KubeletConfig, next: &AtomicU32, pod: &Pod) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let name = pod.name_any();
    if pod.metadata.deletion_timestamp.is_some() {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        return match api.delete(&name, &now).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error),
        };
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    if phase != "Pending" || pod.annotations().contains_key(HOLD) {
        return Ok(());
    }
    if !config.startup.is_zero() {
        tokio::time::sleep(config.startup).await;
    }
    let number = next.fetch_add(1, Ordering::Relaxed);
    let node = &config.nodes[number as usize % config.nodes.len()];
    if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
        bind(client, pod, node).await?;
    }
    let [_, a, b, c] = number.to_be_bytes();
    let ip = format!("10.{a}.{b}.{c}");
    let now = jiff::Timestamp::now();
    let condition = |type_: &str| json!({ "type": type_, "status": "True", "lastTransitionTime": format!("{now:.0}") });
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
    let status = json!({ "metadata": { "uid": pod.uid() }, "status": {
        "phase": "Running",
        "startTime": format!("{now:.0}"),
        "podIP": ip,
        "podIPs": [{ "ip": ip }],
        "conditions": conditions,
    } });
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.map(drop)
}

/// Puts a Pod on a node as a scheduler does.
async fn bind(client: &Client, pod: &Pod, node: &str) -> Result<(), kube::Error> {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": { "name": name, "uid": pod.uid() },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let request = http::Request::post(format!("/api/v1/namespaces/{namespace}/pods/{name}/binding"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(&binding).map_err(kube::Error::SerdeError)?)
        .map_err(kube::Error::HttpError)?;
    match client.request_text(request).await {
        Ok(_) => Ok(()),
        // Somebody bound it already.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        // An API without the binding subresource.
        Err(kube::Error::Api(status)) if [404, 405].contains(&status.code) => {
            let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            let node = json!({ "metadata": { "uid": pod.uid() }, "spec": { "nodeName": node } });
            api.patch(&name, &PatchParams::default(), &Patch::Merge(node)).await.map(drop)
        }
        Err(error) => Err(error),
    }
}
