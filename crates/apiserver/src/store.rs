//! Objects at rest: one collection per resource in memory, one writer that makes batches durable before anyone sees
//! them, and a bounded history per collection that watches replay.
//!
//! A write goes through three places. The *sequencer* (one short lock) checks it against the latest state, gives it the
//! next version and queues it. The *writer* (one thread) takes everything queued, makes it durable in one transaction,
//! then publishes it. The *collections* hold only published state, and serve every read. So nobody ever reads what a
//! power cut could take back, and two writers of one object are ordered without waiting for the disk.

use std::{collections::HashMap, sync::Arc};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

mod collection;
mod object;
mod sequencer;
mod writer;

pub use collection::{Collection, Event, EventKind, Expired};
pub use object::{Draft, ObjectKey, OwnerRef, Stored};
pub use sequencer::{Change, CommitError, Expect, LatestView, Write};

use sequencer::Sequencer;

/// Called with the collection's name and the event.
type Observer = Box<dyn Fn(&Arc<str>, &Event) + Send + Sync>;

/// All collections, and the way to change them.
pub struct Store {
    collections: RwLock<HashMap<Arc<str>, Arc<Collection>>>,
    /// Everything up to here is durable and published.
    committed: watch::Sender<u64>,
    sequencer: Sequencer,
    /// Told about every published event, in order.
    observers: RwLock<Vec<Observer>>,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Store {
    /// A store that forgets everything when it is dropped.
    pub fn in_memory() -> std::io::Result<Arc<Self>> {
        Self::start(1, HashMap::new(), writer::Backing::Memory)
    }

    fn start(
        last_version: u64,
        collections: HashMap<Arc<str>, Arc<Collection>>,
        backing: writer::Backing,
    ) -> std::io::Result<Arc<Self>> {
        let store = Arc::new(Self {
            collections: RwLock::new(collections),
            committed: watch::channel(last_version).0,
            sequencer: Sequencer::new(last_version),
            observers: RwLock::default(),
            writer: Mutex::default(),
        });
        let thread = writer::spawn(&store, backing)?;
        *store.writer.lock() = Some(thread);
        Ok(store)
    }

    /// The version of the newest published write.
    pub fn version(&self) -> u64 {
        *self.committed.borrow()
    }

    /// Waits until `version` is published.
    pub async fn reached(&self, version: u64) {
        let mut committed = self.committed.subscribe();
        // The sender lives as long as this store, so waiting cannot fail.
        let _ = committed.wait_for(|now| *now >= version).await;
    }

    /// The collection of a resource, made on first use.
    pub fn collection(&self, storage: &Arc<str>) -> Arc<Collection> {
        if let Some(found) = self.collections.read().get(storage) {
            return found.clone();
        }
        let mut all = self.collections.write();
        all.entry(storage.clone()).or_insert_with(|| Arc::new(Collection::new(self.version()))).clone()
    }

    /// Every collection that exists, with its name.
    pub fn collections(&self) -> Vec<(Arc<str>, Arc<Collection>)> {
        self.collections.read().iter().map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    /// The published object.
    pub fn get(&self, storage: &Arc<str>, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.collection(storage).get(key)
    }

    /// The newest object, published or still on its way to the disk. Base every change on this one.
    pub fn latest(&self, storage: &Arc<str>, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.sequencer.latest(self, storage, key)
    }

    /// Makes one change durable and published; returns what is now stored (for a delete: the last state, with the
    /// version of its deletion).
    pub async fn commit(&self, write: Write) -> Result<Arc<Stored>, CommitError> {
        self.commit_checked(write, |_| Ok(())).await
    }

    /// Like [`commit`](Self::commit), with a check of other objects' latest state in the same step.
    pub async fn commit_checked(
        &self,
        write: Write,
        check: impl FnOnce(&LatestView<'_>) -> Result<(), CommitError>,
    ) -> Result<Arc<Stored>, CommitError> {
        self.sequencer.submit(self, write, check)?.await.unwrap_or_else(|_| Err(CommitError::Closed))
    }

    /// Waits until everything sequenced so far is durable. An answer that was decided on queued state waits for this
    /// before it is given.
    pub async fn settle(&self) -> Result<(), CommitError> {
        match self.sequencer.barrier() {
            None => Ok(()),
            Some(done) => done.await.unwrap_or(Err(CommitError::Closed)),
        }
    }

    /// Calls `observer` for each published event, on the writer's thread: it must be quick and must not block.
    pub fn observe(&self, observer: impl Fn(&Arc<str>, &Event) + Send + Sync + 'static) {
        self.observers.write().push(Box::new(observer));
    }

    /// Refuses further writes, lets queued ones finish, and ends the writer.
    pub fn close(&self) {
        self.sequencer.close();
        if let Some(thread) = self.writer.lock().take() {
            let _ = thread.join();
        }
    }

    fn publish(&self, storage: &Arc<str>, event: Event) {
        for observer in self.observers.read().iter() {
            observer(storage, &event);
        }
        self.collection(storage).publish(event);
    }
}
