//! The published objects of one resource, its recent history, and the subscriptions to its changes.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Bound,
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};

use super::object::{ObjectKey, Stored};
use crate::selectors::Filter;

/// Maximum number of events kept for watches to replay. A client that is further behind gets 410 and lists again.
const HISTORY_EVENTS: usize = 8192;
/// Maximum bytes of superseded objects that the history of one collection keeps alive.
const HISTORY_BYTES: usize = 16 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Added,
    Modified,
    Deleted,
}

/// One change, as published.
#[derive(Debug, Clone)]
pub struct Event {
    pub kind: EventKind,
    /// The new state. For a deletion, the last state with the version of the deletion.
    pub object: Arc<Stored>,
    /// The state before.
    pub previous: Option<Arc<Stored>>,
}

impl Event {
    pub fn version(&self) -> u64 {
        self.object.version
    }
}

/// The history no longer reaches back to the requested version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// The oldest version whose later changes are all still in the history.
    pub oldest: u64,
}

/// Capacity of the event queue of a single-object watch. A watch that falls further behind is closed.
const OBJECT_WATCH_QUEUE: usize = 256;

pub struct Collection {
    inner: RwLock<Inner>,
    newest_version: watch::Sender<u64>,
    /// Watches of a single object receive their events directly: thousands of clients that each watch their own claim
    /// must not all wake for every change of the collection.
    object_watches: Mutex<ObjectWatches>,
}

#[derive(Default)]
struct ObjectWatches {
    senders: HashMap<ObjectKey, Vec<mpsc::Sender<Event>>>,
    /// Number of watched objects at which closed watches are swept out, so that a new watch need not scan all others.
    sweep_at: usize,
}

impl ObjectWatches {
    fn sweep(&mut self) {
        self.senders.retain(|_, senders| {
            senders.retain(|s| !s.is_closed());
            !senders.is_empty()
        });
        self.sweep_at = 64.max(2 * self.senders.len());
    }
}

struct Inner {
    objects: BTreeMap<ObjectKey, Arc<Stored>>,
    history: VecDeque<Event>,
    history_bytes: usize,
    /// All changes after this version are in `history`.
    floor: u64,
    /// Version of the newest event.
    version: u64,
}

impl Collection {
    pub(super) fn new(version: u64) -> Self {
        Self::loaded(version, BTreeMap::new())
    }

    pub(super) fn loaded(version: u64, objects: BTreeMap<ObjectKey, Arc<Stored>>) -> Self {
        Self {
            inner: RwLock::new(Inner { objects, history: VecDeque::new(), history_bytes: 0, floor: version, version }),
            newest_version: watch::channel(version).0,
            object_watches: Mutex::default(),
        }
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.inner.read().objects.get(key).cloned()
    }

    pub fn len(&self) -> usize {
        self.inner.read().objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `take` for the objects of one namespace (of all namespaces if empty) after the key `after`, in order,
    /// until it returns false.
    pub fn scan(&self, namespace: &str, after: Option<&ObjectKey>, mut take: impl FnMut(&Arc<Stored>) -> bool) {
        let inner = self.inner.read();
        let first;
        let from = match after {
            Some(key) => Bound::Excluded(key),
            None if namespace.is_empty() => Bound::Unbounded,
            None => {
                first = ObjectKey::new(namespace, "");
                Bound::Included(&first)
            }
        };
        for (key, object) in inner.objects.range::<ObjectKey, _>((from, Bound::Unbounded)) {
            if !namespace.is_empty() && &*key.namespace != namespace {
                break;
            }
            if !take(object) {
                break;
            }
        }
    }

    /// All objects of a namespace, or of all namespaces if empty.
    pub fn list(&self, namespace: &str) -> Vec<Arc<Stored>> {
        let mut out = Vec::new();
        self.scan(namespace, None, |object| {
            out.push(object.clone());
            true
        });
        out
    }

    /// The matching objects, and the version that the list reflects.
    pub fn list_with_version(&self, filter: &Filter) -> (u64, Vec<Arc<Stored>>) {
        let inner = self.inner.read();
        let matching = |object: &&Arc<Stored>| filter.matches(object);
        let objects = match filter.only() {
            Some(key) => inner.objects.get(&key).into_iter().filter(matching).cloned().collect(),
            None => inner.objects.values().filter(matching).cloned().collect(),
        };
        (inner.version, objects)
    }

    /// The collection as it was at `version`, computed by undoing later events.
    pub fn snapshot_at(&self, version: u64) -> Result<BTreeMap<ObjectKey, Arc<Stored>>, Expired> {
        let inner = self.inner.read();
        if version < inner.floor {
            return Err(Expired { oldest: inner.floor });
        }
        let mut objects = inner.objects.clone();
        for event in inner.history.iter().rev().take_while(|e| e.version() > version) {
            match &event.previous {
                Some(previous) => objects.insert(event.object.key.clone(), previous.clone()),
                None => objects.remove(&event.object.key),
            };
        }
        Ok(objects)
    }

    /// Up to `limit` events after `version`, oldest first.
    pub fn since(&self, version: u64, limit: usize) -> Result<Vec<Event>, Expired> {
        let inner = self.inner.read();
        if version < inner.floor {
            return Err(Expired { oldest: inner.floor });
        }
        let start = inner.history.partition_point(|e| e.version() <= version);
        Ok(inner.history.range(start..).take(limit).cloned().collect())
    }

    /// A receiver of the version of the newest event in this collection, notified of each newer one. Read the events
    /// with [`since`](Self::since).
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest_version.subscribe()
    }

    /// Subscribes to the events of one object from now on. The channel closes if the receiver falls too far behind.
    pub fn subscribe_object(&self, key: &ObjectKey) -> mpsc::Receiver<Event> {
        let (sender, receiver) = mpsc::channel(OBJECT_WATCH_QUEUE);
        let mut watches = self.object_watches.lock();
        if watches.senders.len() >= watches.sweep_at {
            watches.sweep();
        }
        let senders = watches.senders.entry(key.clone()).or_default();
        senders.retain(|s| !s.is_closed());
        senders.push(sender);
        receiver
    }

    /// The version of the newest event in this collection.
    pub fn version(&self) -> u64 {
        *self.newest_version.borrow()
    }

    pub(super) fn publish(&self, event: Event) {
        let version = event.version();
        let key = event.object.key.clone();
        {
            let mut inner = self.inner.write();
            match event.kind {
                EventKind::Deleted => inner.objects.remove(&key),
                EventKind::Added | EventKind::Modified => inner.objects.insert(key.clone(), event.object.clone()),
            };
            inner.version = version;
            inner.push_history(event.clone());
        }
        self.newest_version.send_replace(version);
        if let Some(senders) = self.object_watches.lock().senders.get_mut(&key) {
            senders.retain(|s| s.try_send(event.clone()).is_ok());
        }
    }
}

impl Inner {
    fn push_history(&mut self, event: Event) {
        self.history_bytes += retained_bytes(&event);
        self.history.push_back(event);
        while self.history.len() > HISTORY_EVENTS || self.history_bytes > HISTORY_BYTES {
            let Some(dropped) = self.history.pop_front() else { break };
            self.history_bytes -= retained_bytes(&dropped);
            self.floor = dropped.version();
        }
    }
}

/// Bytes that an event keeps alive and the collection itself does not.
fn retained_bytes(event: &Event) -> usize {
    let previous = event.previous.as_ref().map_or(0, |p| p.own_len());
    let gone = if event.kind == EventKind::Deleted { event.object.own_len() } else { 0 };
    previous + gone + 128
}
