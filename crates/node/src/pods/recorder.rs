//! Events about Pods: queued, folded when they repeat, written in the background so that no Pod waits for one.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;
use tracing::{debug, warn};

/// Events waiting to be written; more are dropped, with a line in the log.
const QUEUE: usize = 1024;
/// A repeated event is written again at most this often.
const REPEAT_EVERY: Duration = Duration::from_secs(10);
/// Repetitions are remembered for this many distinct events.
const REMEMBERED: usize = 4096;

/// Whether an event is bad news.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Severity {
    Normal,
    Warning,
}

#[derive(Debug)]
struct Record {
    about: ObjectReference,
    severity: Severity,
    reason: String,
    message: String,
}

/// Where events go. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: mpsc::Sender<Record>,
}

impl Recorder {
    /// A recorder and the task that writes; the caller owns the task.
    pub fn new(client: kube::Client, node_name: String) -> (Self, impl Future<Output = ()> + Send) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        (Self { queue }, write_all(client, node_name, waiting))
    }

    /// Queues an event about a Pod. Never waits.
    pub fn pod(&self, pod: &Pod, severity: Severity, reason: &str, message: impl Into<String>) {
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            uid: pod.metadata.uid.clone(),
            resource_version: None,
            field_path: None,
        };
        self.about(about, severity, reason, message);
    }

    /// Queues an event about anything.
    pub fn about(&self, about: ObjectReference, severity: Severity, reason: &str, message: impl Into<String>) {
        let record = Record { about, severity, reason: reason.to_owned(), message: message.into() };
        if let Err(error) = self.queue.try_send(record) {
            warn!(%error, "Dropped an event");
        }
    }
}

/// An event that was already written.
struct Written {
    name: String,
    count: i32,
    last: Timestamp,
    pending: i32,
}

type Key = (Option<String>, String, String);

async fn write_all(client: kube::Client, node_name: String, mut waiting: mpsc::Receiver<Record>) {
    let mut written: HashMap<Key, Written> = HashMap::new();
    while let Some(record) = waiting.recv().await {
        let now = Timestamp::now();
        let key = (record.about.uid.clone(), record.reason.clone(), record.message.clone());
        let namespace = record.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        if written.len() > REMEMBERED {
            written.clear();
        }
        match written.get_mut(&key) {
            Some(before) => repeat(&api, before, now).await,
            None => {
                let event = event(&record, &node_name, &namespace, now);
                let name = event.metadata.name.clone().unwrap_or_default();
                if let Err(error) = api.create(&PostParams::default(), &event).await {
                    debug!(%error, reason = record.reason, "Could not write an event");
                    continue;
                }
                written.insert(key, Written { name, count: 1, last: now, pending: 0 });
            }
        }
    }
}

async fn repeat(api: &Api<Event>, before: &mut Written, now: Timestamp) {
    before.pending += 1;
    if Duration::try_from(now.duration_since(before.last)).is_ok_and(|since| since < REPEAT_EVERY) {
        return;
    }
    before.count += std::mem::take(&mut before.pending);
    before.last = now;
    let patch = json!({"count": before.count, "lastTimestamp": Time(now)});
    if let Err(error) = api.patch(&before.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        debug!(%error, "Could not repeat an event");
    }
}

fn event(record: &Record, node_name: &str, namespace: &str, now: Timestamp) -> Event {
    let subject = record.about.name.as_deref().unwrap_or("unknown");
    let name = format!("{subject}.{:016x}", rand::random::<u64>());
    Event {
        metadata: ObjectMeta { name: Some(name), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() },
        involved_object: record.about.clone(),
        reason: Some(record.reason.clone()),
        message: Some(record.message.chars().take(1024).collect()),
        type_: Some(if record.severity == Severity::Normal { "Normal" } else { "Warning" }.to_owned()),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: Some("kubelet".to_owned()), host: Some(node_name.to_owned()) }),
        reporting_component: Some("kubelet".to_owned()),
        reporting_instance: Some(node_name.to_owned()),
        ..Event::default()
    }
}
