//! A simulated kubelet and scheduler: Pods get a node, an address and a Ready condition; deleted Pods are removed.
//!
//! It uses only the Kubernetes API, as the real ones do, so it works on any cluster. It starts no processes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, pin_mut};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use kube::{
    Client,
    api::{ListParams, WatchEvent, WatchParams},
    client::Body,
    core::request::Request,
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

/// A Pod that carries this annotation stays Pending until it is removed.
const HOLD: &str = "testkit/hold";

#[derive(Clone, Debug)]
pub struct KubeletConfig {
    /// Names of the nodes; Pods are assigned to them in turn.
    pub nodes: Vec<String>,
    /// Time from creation to Ready.
    pub startup: Duration,
    /// Maximum number of Pods that are started concurrently.
    pub concurrency: usize,
}

impl Default for KubeletConfig {
    fn default() -> Self {
        Self { nodes: vec!["node-1".into(), "node-2".into()], startup: Duration::ZERO, concurrency: 64 }
    }
}

/// The fields of a Pod that the simulation reads: decoding the rest would cost more than the whole simulation.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Pod {
    metadata: PodMetadata,
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodMetadata {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
    deletion_timestamp: Option<IgnoredAny>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    node_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodStatus {
    phase: Option<String>,
}

#[derive(Deserialize)]
struct PodList {
    metadata: ListMetadata,
    items: Vec<Pod>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
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

/// Delay before listing again after the API failed.
const RETRY: Duration = Duration::from_millis(200);

async fn run(client: Client, config: KubeletConfig, stop: CancellationToken) {
    let node = Arc::new(Node {
        permits: tokio::sync::Semaphore::new(config.concurrency),
        client,
        config,
        next: AtomicU32::new(1),
        tasks: TaskTracker::new(),
    });
    let watching = async {
        loop {
            if let Err(error) = node.clone().follow().await {
                debug!(%error, "Simulated kubelet will list again");
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    tokio::select! {
        () = watching => {}
        () = stop.cancelled() => {}
    }
}

struct Node {
    client: Client,
    config: KubeletConfig,
    next: AtomicU32,
    permits: tokio::sync::Semaphore,
    tasks: TaskTracker,
}

impl Node {
    /// Lists all Pods, then watches them until the API ends the watch.
    async fn follow(self: Arc<Self>) -> Result<(), kube::Error> {
        let requests = Request::new("/api/v1/pods");
        let list = requests.list(&ListParams::default()).map_err(kube::Error::BuildRequest)?;
        let list: PodList = self.client.request(list).await?;
        list.items.into_iter().for_each(|pod| self.clone().spawn_advance(pod));
        let mut version = list.metadata.resource_version;
        loop {
            let watch = requests.watch(&WatchParams::default(), &version).map_err(kube::Error::BuildRequest)?;
            let events = self.client.request_events::<Pod>(watch).await?;
            pin_mut!(events);
            while let Some(event) = events.next().await {
                match event? {
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                        version.clone_from(&pod.metadata.resource_version);
                        self.clone().spawn_advance(pod);
                    }
                    WatchEvent::Deleted(pod) => version = pod.metadata.resource_version,
                    WatchEvent::Bookmark(bookmark) => version = bookmark.metadata.resource_version,
                    WatchEvent::Error(status) => return Err(kube::Error::Api(status)),
                }
            }
        }
    }

    fn spawn_advance(self: Arc<Self>, pod: Pod) {
        let node = self.clone();
        self.tasks.spawn(async move {
            let Ok(_permit) = node.permits.acquire().await else { return };
            if let Err(error) = node.advance(&pod).await {
                debug!(pod = pod.metadata.name, %error, "Simulated kubelet could not update a Pod");
            }
        });
    }

    /// Advances one Pod: deletes it, or makes it Running and Ready.
    async fn advance(&self, pod: &Pod) -> Result<(), kube::Error> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.metadata.namespace, pod.metadata.name);
        if pod.metadata.deletion_timestamp.is_some() {
            // A Pod that is already gone is fine: `send` ignores the status.
            self.send(Method::DELETE, &path, &json!({ "gracePeriodSeconds": 0 })).await?;
            return Ok(());
        }
        let phase = pod.status.phase.as_deref().unwrap_or("Pending");
        if phase != "Pending" || pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(HOLD)) {
            return Ok(());
        }
        if !self.config.startup.is_zero() {
            tokio::time::sleep(self.config.startup).await;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let node = &self.config.nodes[number as usize % self.config.nodes.len()];
        if pod.spec.node_name.is_none() {
            self.bind(pod, &path, node).await?;
        }
        let [_, a, b, c] = number.to_be_bytes();
        let ip = format!("10.{a}.{b}.{c}");
        let now = jiff::Timestamp::now();
        let condition =
            |type_: &str| json!({ "type": type_, "status": "True", "lastTransitionTime": format!("{now:.0}") });
        let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition);
        let status = json!({ "metadata": { "uid": pod.metadata.uid }, "status": {
            "phase": "Running",
            "startTime": format!("{now:.0}"),
            "podIP": ip,
            "podIPs": [{ "ip": ip }],
            "conditions": conditions,
        } });
        self.send(Method::PATCH, &format!("{path}/status"), &status).await?;
        Ok(())
    }

    /// Binds a Pod to a node as a scheduler does.
    async fn bind(&self, pod: &Pod, path: &str, node: &str) -> Result<(), kube::Error> {
        let (name, uid) = (&pod.metadata.name, &pod.metadata.uid);
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": { "name": name, "uid": uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let status = self.send(Method::POST, &format!("{path}/binding"), &binding).await?;
        // Fallback for an API without the binding subresource. A conflict is different: the Pod is already bound.
        if [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED].contains(&status) {
            let node = json!({ "metadata": { "uid": uid }, "spec": { "nodeName": node } });
            self.send(Method::PATCH, path, &node).await?;
        }
        Ok(())
    }

    /// Sends a write and ignores the response body: the watch reports the change anyway.
    async fn send(&self, method: Method, path: &str, body: &Value) -> Result<StatusCode, kube::Error> {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, kind)
            .body(Body::from(body.to_string().into_bytes()))
            .map_err(kube::Error::HttpError)?;
        let response = self.client.send(request).await?;
        let status = response.status();
        // The body is read to its end, so that the connection can be reused.
        response.into_body().collect().await?;
        Ok(status)
    }
}
