//! Kubernetes Events (`events.k8s.io/v1`), sent in the background: a pass never waits for one.
//!
//! The queue is bounded. When the API cannot keep up, events are dropped and a debug message is logged.

use std::sync::Arc;

use agent_sandbox_api::groups;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::{
    api_client::{ApiClient, Lane, Request},
    cache::{Cached, Key, Kind},
};

/// Maximum number of queued events: enough for a burst of several hundred claims.
const CAPACITY: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub regarding: Regarding,
    pub severity: Severity,
    pub reason: &'static str,
    pub action: &'static str,
    pub note: String,
    /// Reporting controller, such as `sandbox-controller`.
    pub controller: &'static str,
}

/// The object an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regarding {
    kind: Kind,
    key: Key,
    uid: String,
    resource_version: String,
}

impl Event {
    pub fn regarding<K: Cached>(object: &K) -> Regarding {
        Regarding {
            kind: K::KIND_OF,
            key: object.key(),
            uid: object.uid().to_owned(),
            resource_version: object.resource_version().to_owned(),
        }
    }

    fn request(&self, instance: &str, at: Timestamp) -> Request {
        let Regarding { kind, key, uid, resource_version } = &self.regarding;
        let name = format!("{}.{:x}", key.name, at.as_nanosecond());
        let body: Value = json!({
            "metadata": { "name": name, "namespace": &*key.namespace },
            "eventTime": format!("{at:.6}"),
            "reportingController": self.controller,
            "reportingInstance": instance,
            "action": self.action,
            "reason": self.reason,
            "note": self.note.chars().take(1024).collect::<String>(),
            "type": format!("{:?}", self.severity),
            "regarding": {
                "apiVersion": kind.group_version(),
                "kind": kind.name(),
                "name": &*key.name,
                "namespace": &*key.namespace,
                "uid": uid,
                "resourceVersion": resource_version,
            },
        });
        Request::create(Kind::Event, key.sibling(name), body)
    }
}

/// The sending side of the event queue.
#[derive(Clone, Default)]
pub struct Events(Option<mpsc::Sender<Event>>);

impl Events {
    /// A handle that drops all events.
    pub fn disabled() -> Self {
        Self(None)
    }

    /// The sending side, and the receiver for [`deliver`].
    pub fn channel() -> (Self, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        (Self(Some(sender)), receiver)
    }

    pub fn emit(&self, event: Event) {
        if let Some(sender) = &self.0
            && let Err(error) = sender.try_send(event)
        {
            debug!(%error, "Dropped an event");
        }
    }
}

/// Sends queued events until every [`Events`] handle is gone.
pub async fn deliver(api: Arc<dyn ApiClient>, mut queue: mpsc::Receiver<Event>, instance: String) {
    while let Some(event) = queue.recv().await {
        let request = event.request(&instance, Timestamp::now());
        if let Err(error) = api.send(Lane::Core, &request).await {
            warn!(%error, reason = event.reason, group = groups::CORE, "Could not send an event");
        }
    }
}
