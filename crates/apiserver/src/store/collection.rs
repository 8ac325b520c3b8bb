//! The published objects of one resource, its recent history, and who waits for changes.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Bound,
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};

use super::object::{ObjectKey, Stored};
use crate::selectors::Filter;

/// Events a collection keeps for watches to replay. A client that is further behind gets 410 and lists again.
const HISTORY_EVENTS: usize = 8192;
/// Bytes of superseded objects that the history of one collection may keep alive.
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
    /// The new state; for a deletion the last state, with the deletion's version.
    pub object: Arc<Stored>,
    /// The state before.
    pub previous: Option<Arc<Stored>>,
}

impl Event {
    pub fn version(&self) -> u64 {
        self.object.version
    }
}

/// The history no longer reaches back to the version asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// The oldest version from which changes are still known.
    pub oldest: u64,
}

/// Events of one object that may wait for a slow watch before it is cut off.
const NAMED_QUEUE: usize = 256;

pub struct Collection {
    inner: RwLock<Inner>,
    any: watch::Sender<u64>,
    /// Watches of a single object are told directly: thousands of clients waiting for their own claim must not all wake
    /// for each other's.
    named: Mutex<Named>,
}

#[derive(Default)]
struct Named {
    senders: HashMap<ObjectKey, Vec<mpsc::Sender<Event>>>,
    /// Watches that ended are looked for when there are this many: each new watch must not look at all others.
    sweep_at: usize,
}

impl Named {
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
    /// Changes after this version are all in `history`.
    floor: u64,
    /// The newest event.
    version: u64,
}

impl Collection {
    pub(super) fn new(version: u64) -> Self {
        Self::loaded(version, BTreeMap::new())
    }

    pub(super) fn loaded(version: u64, objects: BTreeMap<ObjectKey, Arc<Stored>>) -> Self {
        Self {
            inner: RwLock::new(Inner { objects, history: VecDeque::new(), history_bytes: 0, floor: version, version }),
            any: watch::channel(version).0,
            named: Mutex::default(),
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

    /// Objects of one namespace (or of all when empty) after `after`, in order, while `take` says so.
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

    /// All objects of a namespace (or of all when empty).
    pub fn list(&self, namespace: &str) -> Vec<Arc<Stored>> {
        let mut out = Vec::new();
        self.scan(namespace, None, |object| {
            out.push(object.clone());
            true
        });
        out
    }

    /// The matching objects, and the version up to which they are complete.
    pub fn list_with_version(&self, filter: &Filter) -> (u64, Vec<Arc<Stored>>) {
        let inner = self.inner.read();
        let matching = |object: &&Arc<Stored>| filter.matches(object);
        let objects = match filter.only() {
            Some(key) => inner.objects.get(&key).into_iter().filter(matching).cloned().collect(),
            None => inner.objects.values().filter(matching).cloned().collect(),
        };
        (inner.version, objects)
    }

    /// The collection as it was at `version`, by undoing what came after.
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

    /// The version of the newest event published here; wakes when there is a newer one. Read events with
    /// [`since`](Self::since).
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.any.subscribe()
    }

    /// The events of one object from now on. The channel closes when the receiver falls too far behind.
    pub fn subscribe_object(&self, key: &ObjectKey) -> mpsc::Receiver<Event> {
        let (sender, receiver) = mpsc::channel(NAMED_QUEUE);
        let mut named = self.named.lock();
        if named.senders.len() >= named.sweep_at {
            named.sweep();
        }
        let senders = named.senders.entry(key.clone()).or_default();
        senders.retain(|s| !s.is_closed());
        senders.push(sender);
        receiver
    }

    /// The version of the newest event published here.
    pub fn version(&self) -> u64 {
        *self.any.borrow()
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
            inner.remember(event.clone());
        }
        self.any.send_replace(version);
        if let Some(senders) = self.named.lock().senders.get_mut(&key) {
            senders.retain(|s| s.try_send(event.clone()).is_ok());
        }
    }
}

impl Inner {
    fn remember(&mut self, event: Event) {
        self.history_bytes += weight(&event);
        self.history.push_back(event);
        while self.history.len() > HISTORY_EVENTS || self.history_bytes > HISTORY_BYTES {
            let Some(dropped) = self.history.pop_front() else { break };
            self.history_bytes -= weight(&dropped);
            self.floor = dropped.version();
        }
    }
}

/// What an event keeps alive that the collection itself does not.
fn weight(event: &Event) -> usize {
    let previous = event.previous.as_ref().map_or(0, |p| p.own_len());
    let gone = if event.kind == EventKind::Deleted { event.object.own_len() } else { 0 };
    previous + gone + 128
}
