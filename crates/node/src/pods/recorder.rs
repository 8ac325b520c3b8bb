//! Events about Pods: queued, folded when they repeat, written in the background so that no Pod waits for one. In a rush they
//! wait for a pause: who starts a hundred Pods wants these first, and their events a moment later.

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

/// Events waiting to be written; more are dropped, with a line in the log.
const QUEUE: usize = 1024;
/// Events are written once none has come for this long,
const PAUSE: Duration = Duration::from_millis(50);
/// or the oldest has waited for this long, or so many wait.
const PATIENCE: Duration = Duration::from_secs(2);
const PILE: usize = QUEUE / 2;
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
    at: Timestamp,
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
        let (reason, message) = (reason.to_owned(), message.into());
        let record = Record { about, severity, reason, message, at: Timestamp::now() };
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
    let mut pile = Vec::new();
    while gather(&mut waiting, &mut pile).await {
        for record in pile.drain(..) {
            write(&client, &node_name, &mut written, record).await;
        }
    }
}

/// Fills the pile until there is a pause or no time to wait for one; false at the end. Bad news are somebody's answer already:
/// they end the waiting.
async fn gather(waiting: &mut mpsc::Receiver<Record>, pile: &mut Vec<Record>) -> bool {
    let Some(first) = waiting.recv().await else { return false };
    let latest = Instant::now() + PATIENCE;
    let mut urgent = first.severity == Severity::Warning;
    pile.push(first);
    while !urgent && pile.len() < PILE {
        let pause = latest.min(Instant::now() + PAUSE);
        let Ok(Some(next)) = timeout_at(pause, waiting.recv()).await else { break };
        urgent = next.severity == Severity::Warning;
        pile.push(next);
    }
    true
}

async fn write(client: &kube::Client, node_name: &str, written: &mut HashMap<Key, Written>, record: Record) {
    let key = (record.about.uid.clone(), record.reason.clone(), record.message.clone());
    let namespace = record.about.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
    if written.len() > REMEMBERED {
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
