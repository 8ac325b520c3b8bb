//! Orders writes: checks each against the latest state, assigns its version and queues it for the writer.

use std::{collections::HashMap, sync::Arc};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::{
    Store,
    collection::{Event, EventKind},
    object::{Draft, ObjectKey, Stored},
};

/// Why a write was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    #[error("the object does not exist")]
    Missing,
    #[error("the object exists already")]
    Exists,
    /// Another write came first. Holds the current object.
    #[error("the object has changed")]
    Changed(Arc<Stored>),
    /// A check of other objects refused the write.
    #[error(transparent)]
    Refused(Box<crate::status::ApiError>),
    #[error("{0}")]
    Storage(Arc<str>),
    #[error("the server is shutting down")]
    Closed,
}

/// Precondition: the state that a write was computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Absent,
    Version(u64),
}

pub enum Change {
    Put(Draft),
    Delete,
}

pub struct Write {
    pub storage: Arc<str>,
    pub key: ObjectKey,
    pub expect: Expect,
    pub change: Change,
    /// False for objects that may be lost in a power failure (events): their batch need not be synced to disk.
    pub durable: bool,
}

pub(super) type Ack = oneshot::Sender<Result<Arc<Stored>, CommitError>>;

/// A sequenced write that is not published yet.
pub(super) struct Pending {
    pub(super) storage: Arc<str>,
    pub(super) event: Event,
    pub(super) durable: bool,
    pub(super) ack: Option<Ack>,
}

/// The writer's next task.
pub(super) enum Work {
    Batch(Vec<Pending>, Vec<oneshot::Sender<Result<(), CommitError>>>),
    Closed,
}

pub(super) struct Sequencer {
    queue: Mutex<Queue>,
    ready: Condvar,
}

struct Queue {
    next_version: u64,
    next_row: i64,
    /// Newest state of objects with unpublished writes.
    overlay: HashMap<(Arc<str>, ObjectKey), Queued>,
    pending: Vec<Pending>,
    barriers: Vec<oneshot::Sender<Result<(), CommitError>>>,
    closed: bool,
}

struct Queued {
    version: u64,
    object: Option<Arc<Stored>>,
}

/// Read access to the latest state of any object, for checks that must hold at the moment a write is sequenced.
pub struct LatestView<'a> {
    queue: &'a Queue,
    store: &'a Store,
}

impl LatestView<'_> {
    pub fn get(&self, storage: &Arc<str>, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.queue.latest(self.store, storage, key)
    }

    /// True if any queued, not yet published object of any collection matches.
    pub fn any_queued(&self, mut matches: impl FnMut(&Arc<str>, &Stored) -> bool) -> bool {
        self.queue.overlay.iter().any(|((storage, _), q)| q.object.as_ref().is_some_and(|o| matches(storage, o)))
    }

    /// Calls `take` for the latest state of every object of a collection in one namespace.
    pub fn for_each(&self, storage: &Arc<str>, namespace: &str, mut take: impl FnMut(&Arc<Stored>)) {
        let here = |(of, key): &&(Arc<str>, ObjectKey)| of == storage && &*key.namespace == namespace;
        let queued: HashMap<&ObjectKey, &Queued> =
            self.queue.overlay.iter().filter(|(id, _)| here(id)).map(|((_, key), state)| (key, state)).collect();
        self.store.collection(storage).scan(namespace, None, |object| {
            if !queued.contains_key(&object.key) {
                take(object);
            }
            true
        });
        queued.values().filter_map(|state| state.object.as_ref()).for_each(take);
    }

    /// True if the newest state of this object is still queued.
    pub fn is_queued(&self, storage: &Arc<str>, key: &ObjectKey) -> bool {
        self.queue.overlay.contains_key(&(storage.clone(), key.clone()))
    }
}

impl Queue {
    fn latest(&self, store: &Store, storage: &Arc<str>, key: &ObjectKey) -> Option<Arc<Stored>> {
        if !self.overlay.is_empty()
            && let Some(queued) = self.overlay.get(&(storage.clone(), key.clone()))
        {
            return queued.object.clone();
        }
        store.get(storage, key)
    }
}

impl Sequencer {
    pub(super) fn new(last_version: u64) -> Self {
        Self {
            queue: Mutex::new(Queue {
                next_version: last_version + 1,
                next_row: 1,
                overlay: HashMap::new(),
                pending: Vec::new(),
                barriers: Vec::new(),
                closed: false,
            }),
            ready: Condvar::new(),
        }
    }

    /// Sets the first free row number.
    pub(super) fn set_next_row(&self, row: i64) {
        self.queue.lock().next_row = row;
    }

    /// True if no write is queued.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.lock().pending.is_empty()
    }

    pub(super) fn latest(&self, store: &Store, storage: &Arc<str>, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.queue.lock().latest(store, storage, key)
    }

    pub(super) fn inspect<T>(&self, store: &Store, read: impl FnOnce(&LatestView<'_>) -> T) -> T {
        let queue = self.queue.lock();
        read(&LatestView { queue: &queue, store })
    }

    pub(super) fn submit(
        &self,
        store: &Store,
        write: Write,
        check: impl FnOnce(&LatestView<'_>) -> Result<(), CommitError>,
    ) -> Result<oneshot::Receiver<Result<Arc<Stored>, CommitError>>, CommitError> {
        let mut queue = self.queue.lock();
        if queue.closed {
            return Err(CommitError::Closed);
        }
        let current = queue.latest(store, &write.storage, &write.key);
        match (write.expect, &current) {
            (Expect::Absent, None) => {}
            (Expect::Absent, Some(_)) => return Err(CommitError::Exists),
            (Expect::Version(_), None) => return Err(CommitError::Missing),
            (Expect::Version(v), Some(now)) if now.version != v => return Err(CommitError::Changed(now.clone())),
            (Expect::Version(_), Some(_)) => {}
        }
        check(&LatestView { queue: &queue, store })?;
        let event = queue.sequence(write.change, current);
        let object = (event.kind != EventKind::Deleted).then(|| event.object.clone());
        queue.overlay.insert((write.storage.clone(), write.key), Queued { version: event.version(), object });
        let (ack, done) = oneshot::channel();
        queue.pending.push(Pending { storage: write.storage, event, durable: write.durable, ack: Some(ack) });
        drop(queue);
        self.ready.notify_one();
        Ok(done)
    }

    /// A receiver that resolves once everything queued now is durable; `None` if nothing is queued.
    pub(super) fn barrier(&self) -> Option<oneshot::Receiver<Result<(), CommitError>>> {
        let mut queue = self.queue.lock();
        if queue.overlay.is_empty() || queue.closed {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        queue.barriers.push(sender);
        drop(queue);
        self.ready.notify_one();
        Some(receiver)
    }

    pub(super) fn close(&self) {
        self.queue.lock().closed = true;
        self.ready.notify_one();
    }

    /// Takes the whole queue; blocks while it is empty.
    pub(super) fn take(&self) -> Work {
        let mut queue = self.queue.lock();
        while queue.pending.is_empty() && queue.barriers.is_empty() {
            if queue.closed {
                return Work::Closed;
            }
            self.ready.wait(&mut queue);
        }
        Work::Batch(std::mem::take(&mut queue.pending), std::mem::take(&mut queue.barriers))
    }

    /// Removes overlay entries whose writes are now published, and announces the new committed version.
    pub(super) fn mark_published(&self, store: &Store, batch: &[Pending]) {
        let mut queue = self.queue.lock();
        for pending in batch {
            let id = (pending.storage.clone(), pending.event.object.key.clone());
            if queue.overlay.get(&id).is_some_and(|q| q.version == pending.event.version()) {
                queue.overlay.remove(&id);
            }
        }
        if let Some(last) = batch.last() {
            store.committed.send_replace(last.event.version());
        }
    }

    /// After a failed batch, fails it and all later queued writes, which were computed from its results.
    pub(super) fn fail_all(&self, batch: Vec<Pending>, why: &Arc<str>) {
        let later = {
            let mut queue = self.queue.lock();
            queue.overlay.clear();
            for barrier in queue.barriers.drain(..) {
                let _ = barrier.send(Err(CommitError::Storage(why.clone())));
            }
            std::mem::take(&mut queue.pending)
        };
        for ack in batch.into_iter().chain(later).filter_map(|p| p.ack) {
            let _ = ack.send(Err(CommitError::Storage(why.clone())));
        }
    }
}

impl Queue {
    fn sequence(&mut self, change: Change, current: Option<Arc<Stored>>) -> Event {
        let version = self.next_version;
        self.next_version += 1;
        match (change, current) {
            (Change::Put(draft), Some(previous)) => {
                let object = Arc::new(draft.into_stored(previous.row, version));
                Event { kind: EventKind::Modified, object, previous: Some(previous) }
            }
            (Change::Put(draft), None) => {
                let row = self.next_row;
                self.next_row += 1;
                Event { kind: EventKind::Added, object: Arc::new(draft.into_stored(row, version)), previous: None }
            }
            (Change::Delete, Some(previous)) => {
                let object = Arc::new(previous.at_version(version));
                Event { kind: EventKind::Deleted, object, previous: Some(previous) }
            }
            (Change::Delete, None) => unreachable!("a delete expects a version, so the object exists"),
        }
    }
}
