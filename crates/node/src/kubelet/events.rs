//! Records events about Pods: queued, aggregated when they repeat, and written in the background so that no Pod waits
//! for a write. While many Pods start at once, Normal events wait for a quiet period, so that the starts are not slowed
//! down.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, warn};

/// Maximum number of queued events; more are dropped with a log message.
const QUEUE_CAPACITY: usize = 1024;
/// Events are written when no new event has arrived for this time,
const QUIET_PERIOD: Duration = Duration::from_millis(50);
/// or when the oldest has waited for this time, or when `MAX_BATCH` events are queued.
const MAX_DELAY: Duration = Duration::from_secs(2);
const MAX_BATCH: usize = QUEUE_CAPACITY / 2;
/// Minimum interval between two writes of a repeated event.
const REPEAT_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of distinct events whose repetitions are counted.
const MAX_REMEMBERED: usize = 4096;

/// Reason of events, and of container states, about processes that were killed for lack of memory.
pub const OOM_KILLED: &str = "OOMKilled";

/// The type of an event.
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
    at: Timestamp,
}

/// Sends events to the writer task. Cheap to clone.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    queue: mpsc::Sender<Record>,
}

impl EventRecorder {
    /// A recorder and the future that writes the events; the caller owns the task.
    pub fn new(client: kube::Client, node_name: String) -> (Self, impl Future<Output = ()> + Send) {
        let (queue, queued) = mpsc::channel(QUEUE_CAPACITY);
        (Self { queue }, write_all(client, node_name, queued))
    }

    /// Queues an event about a Pod. Never blocks.
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

    /// Queues an event about any object.
    pub fn about(&self, about: ObjectReference, severity: Severity, reason: &str, message: impl Into<String>) {
        let (reason, message) = (reason.to_owned(), message.into());
        let record = Record { about, severity, reason, message, at: Timestamp::now() };
        if let Err(error) = self.queue.try_send(record) {
            warn!(%error, "Dropped an event");
        }
    }
}

/// An event that was written, to count its repetitions.
struct Written {
    name: String,
    count: i32,
    last: Timestamp,
    pending: i32,
}

type Key = (Option<String>, String, String);

async fn write_all(client: kube::Client, node_name: String, mut queued: mpsc::Receiver<Record>) {
    let mut written: HashMap<Key, Written> = HashMap::new();
    let mut batch = Vec::new();
    while next_batch(&mut queued, &mut batch).await {
        for record in batch.drain(..) {
            write(&client, &node_name, &mut written, record).await;
        }
    }
}

/// Collects the next batch of events; false when the queue is closed. A Warning ends the batch at once, because a user
/// is likely to be waiting for it.
async fn next_batch(queued: &mut mpsc::Receiver<Record>, batch: &mut Vec<Record>) -> bool {
    let Some(first) = queued.recv().await else { return false };
    let latest = Instant::now() + MAX_DELAY;
    let mut urgent = first.severity == Severity::Warning;
    batch.push(first);
    while !urgent && batch.len() < MAX_BATCH {
        let deadline = latest.min(Instant::now() + QUIET_PERIOD);
        let Ok(Some(next)) = timeout_at(deadline, queued.recv()).await else { break };
        urgent = next.severity == Severity::Warning;
        batch.push(next);
    }
    true
}

async fn write(client: &kube::Client, node_name: &str, written: &mut HashMap<Key, Written>, record: Record) {
    let key = (record.about.uid.clone(), record.reason.clone(), record.message.clone());
    let namespace = record.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    if written.len() > MAX_REMEMBERED {
        written.clear();
    }
    if let Some(before) = written.get_mut(&key) {
        return repeat(&api, before, record.at).await;
    }
    let event = event(&record, node_name, &namespace);
    let name = event.metadata.name.clone().unwrap_or_default();
    match api.create(&PostParams::default(), &event).await {
        Ok(_) => drop(written.insert(key, Written { name, count: 1, last: record.at, pending: 0 })),
        Err(error) => debug!(%error, reason = record.reason, "Could not write an event"),
    }
}

async fn repeat(api: &Api<Event>, before: &mut Written, now: Timestamp) {
    before.pending += 1;
    if Duration::try_from(now.duration_since(before.last)).is_ok_and(|since| since < REPEAT_INTERVAL) {
        return;
    }
    before.count += std::mem::take(&mut before.pending);
    before.last = now;
    let patch = json!({"count": before.count, "lastTimestamp": Time(now)});
    if let Err(error) = api.patch(&before.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        debug!(%error, "Could not repeat an event");
    }
}

fn event(record: &Record, node_name: &str, namespace: &str) -> Event {
    let subject = record.about.name.as_deref().unwrap_or("unknown");
    let name = format!("{subject}.{:016x}", rand::random::<u64>());
    Event {
        metadata: ObjectMeta { name: Some(name), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() },
        involved_object: record.about.clone(),
        reason: Some(record.reason.clone()),
        message: Some(record.message.chars().take(1024).collect()),
        type_: Some(if record.severity == Severity::Normal { "Normal" } else { "Warning" }.to_owned()),
        count: Some(1),
        first_timestamp: Some(Time(record.at)),
        last_timestamp: Some(Time(record.at)),
        source: Some(EventSource { component: Some("kubelet".to_owned()), host: Some(node_name.to_owned()) }),
        reporting_component: Some("kubelet".to_owned()),
        reporting_instance: Some(node_name.to_owned()),
        ..Event::default()
    }
}
