//! Behaviour of whole passes against an API in memory: what is written, what is left alone, what the status says.

mod adoption;
mod conditions;
mod economy;
mod edges;
mod egress;
mod expiry;
mod lifecycle;
mod metadata;
mod sleep;
mod suspend;
mod transitions;
mod volumes_and_services;

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{conditions::ConditionType, owners, v1beta1::SandboxStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::{
    api_client::{ApiError, Request, Verb},
    cache::{Cached, Meta, Pod, Pvc, Sandbox, Service},
    serving::{events::Event, metrics::Metrics},
    testing::fake_api::{FakeApi, FakeClock, Fault},
};

pub(super) const NAME: &str = "my-sandbox";
/// FNV-1a of [`NAME`].
pub(super) const HASH: &str = "374de8f5";
pub(super) const TRACKING: &str = "agents.x-k8s.io/sandbox-name-hash";
pub(super) const POD_NAME: &str = "agents.x-k8s.io/pod-name";

/// A controller for Sandboxes on an API in memory.
pub(super) struct SandboxFixture {
    pub(super) api: Arc<FakeApi>,
    pub(super) clock: Arc<FakeClock>,
    pub(super) store: Arc<Store>,
    pub(super) reconciler: SandboxReconciler,
    pub(super) metrics: Arc<Metrics>,
    pub(super) events: mpsc::Receiver<Event>,
    cursor: usize,
}

impl SandboxFixture {
    pub(super) fn new() -> Self {
        Self::with(Settings::default(), Tracing::default())
    }

    pub(super) fn with(settings: Settings, tracing: Tracing) -> Self {
        let clock = FakeClock::new();
        let api = FakeApi::new(clock.clone());
        Self::on(api, settings, tracing)
    }

    /// Another controller process on the same API.
    pub(super) fn on(api: Arc<FakeApi>, settings: Settings, tracing: Tracing) -> Self {
        let clock = api.clock.clone();
        let store = Store::new(vec![route], false);
        let (events, queue) = Events::channel();
        let metrics = Arc::new(Metrics::with_store(&store));
        let reconciler = SandboxReconciler::new(
            store.clone(),
            api.clone(),
            clock.clone(),
            events,
            metrics.clone(),
            settings,
            tracing,
        );
        Self { api, clock, store, reconciler, metrics, events: queue, cursor: 0 }
    }

    pub(super) fn sync(&mut self) {
        self.api.deliver_events(&self.store, &mut self.cursor, usize::MAX);
    }

    /// Delivers all watch events and runs one pass.
    pub(super) async fn pass(&mut self) -> Result<Next, ReconcileError> {
        self.sync();
        self.reconciler.reconcile(&key()).await
    }

    /// Passes until nothing is written any more.
    pub(super) async fn converge(&mut self) {
        for _ in 0..20 {
            self.api.take_writes();
            let _ = self.pass().await;
            if self.api.take_writes().is_empty() {
                return;
            }
        }
        panic!("the Sandbox does not converge");
    }

    pub(super) fn create(&self, sandbox: Value) {
        self.api.create(Kind::Sandbox, sandbox);
    }

    pub(super) fn sandbox(&self) -> Sandbox {
        self.api.typed(&key()).expect("the Sandbox exists")
    }

    pub(super) fn status(&self) -> SandboxStatus {
        self.sandbox().status.expect("a status was written")
    }

    pub(super) fn pod(&self) -> Pod {
        self.pod_named(NAME).expect("the Pod exists")
    }

    pub(super) fn pod_named(&self, name: &str) -> Option<Pod> {
        self.api.typed(&key().sibling(name))
    }

    pub(super) fn service(&self) -> Option<Service> {
        self.api.typed(&key())
    }

    pub(super) fn pvc(&self, name: &str) -> Option<Pvc> {
        self.api.typed(&key().sibling(name))
    }

    pub(super) fn condition(&self, type_: ConditionType) -> Option<(String, String, String)> {
        self.sandbox().condition(type_).map(said)
    }

    pub(super) fn ready(&self) -> (String, String, String) {
        self.condition(ConditionType::Ready).expect("Ready is always there")
    }

    /// What a kubelet reports of a running Pod.
    pub(super) fn pod_runs(&self, name: &str) {
        self.api.edit(Kind::Pod, &key().sibling(name), running());
    }

    pub(super) fn count(&self, kind: Kind) -> usize {
        self.api.list(kind).len()
    }
}

pub(super) fn running() -> Value {
    json!({
        "spec": { "nodeName": "node-1" },
        "status": {
            "phase": "Running",
            "podIPs": [{ "ip": "10.0.0.5" }, { "ip": "fd00::5" }],
            "conditions": [
                { "type": "PodScheduled", "status": "True" },
                { "type": "Ready", "status": "True" },
            ],
        },
    })
}

pub(super) fn said(condition: &Condition) -> (String, String, String) {
    (condition.status.clone(), condition.reason.clone(), condition.message.clone())
}

pub(super) fn words(status: &str, reason: &str, message: &str) -> (String, String, String) {
    (status.to_owned(), reason.to_owned(), message.to_owned())
}

pub(super) fn key() -> Key {
    Key::new("default", NAME)
}

/// A minimal Sandbox.
pub(super) fn minimal() -> Value {
    json!({
        "metadata": { "name": NAME },
        "spec": { "podTemplate": { "spec": { "containers": [{ "name": "main", "image": "busybox" }] } } },
    })
}

/// A minimal Sandbox with changes.
pub(super) fn with(change: Value) -> Value {
    let mut sandbox = minimal();
    crate::testing::fake_api::merge(&mut sandbox, &change);
    sandbox
}

/// A controller reference to another owner.
pub(super) fn foreign_owner() -> Value {
    json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "other", "uid": "other-uid", "controller": true }])
}

/// A Pod of the given name without an owner.
pub(super) fn unowned_pod(name: &str, labels: Value) -> Value {
    json!({ "metadata": { "name": name, "labels": labels }, "spec": { "containers": [{ "name": "main", "image": "users-own" }] } })
}

pub(super) fn label_of(pod: &Pod, key: &str) -> Option<String> {
    Cached::label(pod, key).map(str::to_owned)
}

pub(super) fn annotation_of(pod: &Pod, key: &str) -> Option<String> {
    Cached::annotation(pod, key).map(str::to_owned)
}

pub(super) fn is_owned(metadata: &Meta, sandbox: &Sandbox) -> bool {
    owners::ownership(metadata, sandbox.uid()) == owners::Ownership::Owned
}

pub(super) fn is_create(kind: Kind) -> impl Fn(&Request) -> bool {
    move |request| request.kind == kind && matches!(request.verb, Verb::Create { .. })
}

pub(super) fn is_delete(kind: Kind) -> impl Fn(&Request) -> bool {
    move |request| request.kind == kind && matches!(request.verb, Verb::Delete { .. })
}

pub(super) fn is_patch(kind: Kind) -> impl Fn(&Request) -> bool {
    move |request| request.kind == kind && matches!(request.verb, Verb::Patch { .. })
}

pub(super) fn is_status(request: &Request) -> bool {
    matches!(request.verb, Verb::PatchStatus { .. })
}

pub(super) fn broken() -> Fault {
    Fault::Refuse(ApiError::Forbidden { message: "quota exceeded".into() })
}

pub(super) fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}
