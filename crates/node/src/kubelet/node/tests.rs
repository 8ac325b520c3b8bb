//! Tests of the node with the embedded API and a fake runtime: what it writes, calls and cleans up.

use std::time::Duration;

use agent_sandbox_apiserver::{ApiServer, Config};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node as NodeObject, PersistentVolumeClaim, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};

use super::*;
use crate::kubelet::fake_runtime::{Behaviour, FakeRuntime};
use crate::kubelet::status::condition;
use crate::runtime::{ImageConfig, PodRuntime};

mod dependencies;
mod eviction;
mod lifecycle;
mod steady;

/// An API, a node and its fake runtime.
struct Fixture {
    client: kube::Client,
    runtime: Arc<FakeRuntime>,
    node: NodeHandle,
    storage: crate::kubelet::eviction::StoragePolicy,
    _api: ApiServer,
}

const LIMIT: Duration = Duration::from_secs(20);

impl Fixture {
    async fn open() -> Self {
        Self::open_with(Default::default()).await
    }

    async fn open_with(storage: crate::kubelet::eviction::StoragePolicy) -> Self {
        let api = ApiServer::open(Config::default()).await.unwrap();
        let runtime = FakeRuntime::new();
        let command = vec!["serve".to_owned()];
        runtime.image("app:1", ImageConfig { entrypoint: command, ..ImageConfig::default() });
        let client = api.client();
        let node = start(&client, &runtime, storage).await;
        Self { client, runtime, node, storage, _api: api }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn create(&self, name: &str, spec: Value) -> Pod {
        self.create_with(name, json!({}), spec).await
    }

    async fn create_with(&self, name: &str, metadata: Value, spec: Value) -> Pod {
        let mut metadata = metadata;
        metadata["name"] = name.into();
        let pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap()
    }

    /// Waits until a Pod satisfies a predicate; panics with its status when it does not.
    async fn until(&self, name: &str, what: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
        let seen = await_condition(self.pods(), name, |pod: Option<&Pod>| pod.is_some_and(&wanted));
        match tokio::time::timeout(LIMIT, seen).await {
            Ok(pod) => pod.unwrap().unwrap(),
            Err(_) => {
                let pod = self.pods().get_opt(name).await.unwrap();
                let status = serde_json::to_string_pretty(&pod.map(|p| p.status)).unwrap();
                panic!("{name} is not {what}: {status}\ncalls: {:?}", self.runtime.calls());
            }
        }
    }

    async fn until_ready(&self, name: &str) -> Pod {
        self.until(name, "ready", is_ready).await
    }

    async fn until_phase(&self, name: &str, phase: &str) -> Pod {
        self.until(name, phase, |p| p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(phase)).await
    }

    async fn until_waiting(&self, name: &str, reason: &str) -> Pod {
        self.until(name, reason, |p| waiting_reason(p).as_deref() == Some(reason)).await
    }

    async fn until_gone(&self, name: &str) {
        let gone = await_condition(self.pods(), name, |pod: Option<&Pod>| pod.is_none());
        tokio::time::timeout(LIMIT, gone).await.expect("the Pod goes").unwrap();
    }

    /// Waits for a call of the fake runtime.
    async fn until_called(&self, wanted: &str) {
        let called = async {
            while !self.runtime.calls().iter().any(|c| c == wanted) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let in_time = tokio::time::timeout(LIMIT, called).await;
        assert!(in_time.is_ok(), "{wanted} is not among {:?}", self.runtime.calls());
    }

    /// Waits for an event with this reason; returns its message.
    async fn until_event(&self, reason: &str) -> String {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let look = async {
            loop {
                let list = events.list(&ListParams::default()).await.unwrap();
                if let Some(event) = list.items.into_iter().find(|e| e.reason.as_deref() == Some(reason)) {
                    return event.message.unwrap_or_default();
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(LIMIT, look).await.unwrap_or_else(|_| panic!("no event {reason}"))
    }

    /// Stops the node and starts another with the same runtime.
    async fn restart(&mut self) {
        self.node.shutdown().await;
        self.node = start(&self.client, &self.runtime, self.storage).await;
    }
}

async fn start(
    client: &kube::Client,
    runtime: &Arc<FakeRuntime>,
    storage: crate::kubelet::eviction::StoragePolicy,
) -> NodeHandle {
    let options = NodeOptions {
        node_name: "n1".to_owned(),
        data_dir: runtime.folder(),
        sandboxd: Some("/opt/sandboxd".into()),
        backoff: BackoffPolicy {
            initial: Duration::from_millis(300),
            maximum: Duration::from_secs(1),
            reset_after: Duration::from_secs(600),
        },
        storage,
        ..NodeOptions::default()
    };
    Node::start(client.clone(), runtime.clone(), runtime.clone(), options).await.unwrap()
}

fn is_ready(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|s| condition(s, "Ready")).is_some_and(|c| c.status == "True")
}

fn waiting_reason(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    status.state.as_ref()?.waiting.as_ref()?.reason.clone()
}

fn restarts(pod: &Pod) -> i32 {
    pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].restart_count
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap()
}

fn app() -> Value {
    json!({"containers": [{"name": "main", "image": "app:1"}]})
}
