//! Object storage: one in-memory collection per resource, one writer thread that makes each batch durable before it
//! becomes visible, and a bounded history per collection that watches replay.
//!
//! A write passes three stages. The *sequencer* (one short lock) checks it against the latest state, assigns the next
//! version and queues it. The *writer* (one thread) takes the whole queue, commits it in one transaction and then
//! publishes it. The *collections* hold only published state and serve every read. Therefore a read never returns data
//! that a power failure could undo, and two writes to one object are ordered without waiting for the disk.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

mod codec;
mod collection;
mod file;
mod intern;
mod object;
mod projection;
mod sequencer;
mod writer;

pub use collection::{Collection, Event, EventKind, Expired};
pub use file::FileError;
pub use object::{Draft, Facts, ObjectKey, OwnerRef, Stored};
pub use sequencer::{Change, CommitError, Expect, LatestView, Write};

use crate::registry::Resource;
pub(crate) use intern::intern;
use projection::Projection;
use sequencer::Sequencer;

/// Called with the collection's name, the event and the phase.
type Observer = Box<dyn Fn(&Arc<str>, &Event, PublishPhase) + Send + Sync>;

/// When an observer is called relative to publication. Observers are called in both phases of every event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishPhase {
    /// Reads do not show the change yet. State that must be consistent once readers see the change is updated here.
    BeforePublish,
    /// Reads show the change, so tasks woken from here observe it.
    AfterPublish,
}

/// All collections, and the write path that changes them.
pub struct Store {
    collections: RwLock<HashMap<Arc<str>, Arc<Collection>>>,
    /// Every version up to this one is durable and published.
    committed: watch::Sender<u64>,
    sequencer: Sequencer,
    /// Called for every published event, in order.
    observers: RwLock<Vec<Observer>>,
    writer: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Store {
    /// A store without a file: its contents are lost when it is dropped.
    pub fn in_memory() -> std::io::Result<Arc<Self>> {
        Self::start(1, 1, HashMap::new(), Box::new(writer::InMemory))
    }

    /// Opens the store in `folder`, which this process keeps locked until the store is closed. First, `learn` is called
    /// with each object of the collection named `first` (the CRDs); after that, `resource` resolves the names of all
    /// collections.
    pub fn open(
        folder: &Path,
        fsync: bool,
        first: &str,
        mut learn: impl FnMut(&[u8]) -> Result<(), String>,
        resource: impl Fn(&str) -> Option<Arc<Resource>> + Sync,
    ) -> Result<Arc<Self>, FileError> {
        let (file, loaded) = file::DataFile::open(folder, fsync)?;
        let path = folder.join("objects.db");
        let corrupt = |why| FileError::Corrupt { file: path.clone(), why };
        for row in loaded.rows.iter().filter(|r| r.storage == first) {
            let json = codec::decode(&row.data).map_err(|why| corrupt(format!("row {}: {why}", row.id)))?;
            learn(&json).map_err(corrupt)?;
        }
        let next_row = loaded.rows.iter().map(|r| r.id).max().unwrap_or(0) + 1;
        let objects = restore(loaded.rows, &resource).map_err(corrupt)?;
        let mut collections: HashMap<Arc<str>, BTreeMap<ObjectKey, Arc<Stored>>> = HashMap::new();
        for (storage, object) in objects {
            collections.entry(storage).or_default().insert(object.key.clone(), Arc::new(object));
        }
        let collections = collections
            .into_iter()
            .map(|(storage, objects)| (storage, Arc::new(Collection::loaded(loaded.last_version, objects))))
            .collect();
        Self::start(loaded.last_version, next_row, collections, Box::new(file))
            .map_err(|source| FileError::Io { path: folder.to_owned(), source })
    }

    fn start(
        last_version: u64,
        next_row: i64,
        collections: HashMap<Arc<str>, Arc<Collection>>,
        backend: Box<dyn writer::Backend>,
    ) -> std::io::Result<Arc<Self>> {
        let store = Arc::new(Self {
            collections: RwLock::new(collections),
            committed: watch::channel(last_version).0,
            sequencer: Sequencer::new(last_version),
            observers: RwLock::default(),
            writer: Mutex::default(),
        });
        store.sequencer.set_next_row(next_row);
        let thread = writer::spawn(&store, backend)?;
        *store.writer.lock() = Some(thread);
        Ok(store)
    }

    /// The version of the newest published write.
    pub fn version(&self) -> u64 {
        *self.committed.borrow()
    }

    /// Waits until `version` is published.
    pub async fn wait_for_version(&self, version: u64) {
        let mut committed = self.committed.subscribe();
        // The sender lives as long as this store, so waiting cannot fail.
        let _ = committed.wait_for(|now| *now >= version).await;
    }

    /// The collection of a resource, created on first use.
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

    /// The newest state of an object, published or still queued for the disk. Every change is computed from this state.
    pub fn latest(&self, storage: &Arc<str>, key: &ObjectKey) -> Option<Arc<Stored>> {
        self.sequencer.latest(self, storage, key)
    }

    /// Reads the newest state of several objects at one moment, between two writes.
    pub fn inspect<T>(&self, read: impl FnOnce(&LatestView<'_>) -> T) -> T {
        self.sequencer.inspect(self, read)
    }

    /// Makes one change durable and publishes it. Returns the stored object; for a delete, the last state with the
    /// version of the deletion.
    pub async fn commit(&self, write: Write) -> Result<Arc<Stored>, CommitError> {
        self.commit_checked(write, |_| Ok(())).await
    }

    /// Like [`commit`](Self::commit), and runs `check` on the latest state of other objects in the same atomic step.
    pub async fn commit_checked(
        &self,
        write: Write,
        check: impl FnOnce(&LatestView<'_>) -> Result<(), CommitError>,
    ) -> Result<Arc<Stored>, CommitError> {
        self.sequencer.submit(self, write, check)?.await.unwrap_or_else(|_| Err(CommitError::Closed))
    }

    /// Waits until every write sequenced so far is durable. A response that depends on queued state calls this before
    /// it is sent.
    pub async fn flush(&self) -> Result<(), CommitError> {
        match self.sequencer.barrier() {
            None => Ok(()),
            Some(done) => done.await.unwrap_or(Err(CommitError::Closed)),
        }
    }

    /// Registers an observer that is called for each event before and after publication. It runs on the writer thread,
    /// so it must be quick and must not block.
    pub fn observe(&self, observer: impl Fn(&Arc<str>, &Event, PublishPhase) + Send + Sync + 'static) {
        self.observers.write().push(Box::new(observer));
    }

    /// Refuses further writes, waits for queued ones to finish, and joins the writer thread.
    pub fn close(&self) {
        self.sequencer.close();
        if let Some(thread) = self.writer.lock().take() {
            let _ = thread.join();
        }
    }

    fn publish(&self, storage: &Arc<str>, event: Event) {
        let observers = self.observers.read();
        observers.iter().for_each(|observer| observer(storage, &event, PublishPhase::BeforePublish));
        self.collection(storage).publish(event.clone());
        observers.iter().for_each(|observer| observer(storage, &event, PublishPhase::AfterPublish));
    }
}

/// Parses stored rows on up to eight threads: with many objects, this takes most of the start-up time.
fn restore(
    rows: Vec<file::Row>,
    resource: &(impl Fn(&str) -> Option<Arc<Resource>> + Sync),
) -> Result<Vec<(Arc<str>, Stored)>, String> {
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(8);
    let mut chunks: Vec<Vec<file::Row>> = (0..workers).map(|_| Vec::new()).collect();
    for (i, row) in rows.into_iter().enumerate() {
        chunks[i % workers].push(row);
    }
    let restore_chunk = |rows: Vec<file::Row>| {
        let mut known: HashMap<String, (Arc<Resource>, Projection)> = HashMap::new();
        let mut out = Vec::with_capacity(rows.len());
        for row in rows {
            if !known.contains_key(&row.storage) {
                // A CRD is deleted only after its objects, so every stored object has a defined resource.
                let found = resource(&row.storage)
                    .ok_or_else(|| format!("row {} belongs to {}, which is not defined", row.id, row.storage))?;
                let projection = Projection::for_facts(&found);
                known.insert(row.storage.clone(), (found, projection));
            }
            let (resource, projection) = &known[&row.storage];
            let json = codec::decode(&row.data).map_err(|why| format!("row {}: {why}", row.id))?;
            let object = Stored::restore(resource, projection, row.id, row.version, &json)?;
            out.push((resource.storage.clone(), object));
        }
        Ok::<_, String>(out)
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = chunks.into_iter().map(|rows| scope.spawn(|| restore_chunk(rows))).collect();
        let mut all = Vec::new();
        for handle in handles {
            all.extend(handle.join().map_err(|_| "a row could not be read".to_owned())??);
        }
        Ok(all)
    })
}
