//! Objects at rest: one collection per resource in memory, one writer that makes batches durable before anyone sees
//! them, and a bounded history per collection that watches replay.
//!
//! A write goes through three places. The *sequencer* (one short lock) checks it against the latest state, gives it the
//! next version and queues it. The *writer* (one thread) takes everything queued, makes it durable in one transaction,
//! then publishes it. The *collections* hold only published state, and serve every read. So nobody ever reads what a
//! power cut could take back, and two writers of one object are ordered without waiting for the disk.

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
mod object;
mod peek;
mod sequencer;
mod shared;
mod writer;

pub use collection::{Collection, Event, EventKind, Expired};
pub use file::FileError;
pub use object::{Draft, Facts, ObjectKey, OwnerRef, Stored};
pub use sequencer::{Change, CommitError, Expect, LatestView, Write};

use crate::registry::Resource;
use peek::Wanted;
use sequencer::Sequencer;
pub(crate) use shared::share as share_text;

/// Called with the collection's name and the event.
type Observer = Box<dyn Fn(&Arc<str>, &Event, Moment) + Send + Sync>;

/// When an observer is called: it is called at both moments of every event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Nobody can see the change yet: what others rely on once they see it is noted now.
    BeforeShown,
    /// Reads show the change: whoever is woken now finds it.
    Shown,
}

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
        Self::start(1, 1, HashMap::new(), Box::new(writer::Memory))
    }

    /// A store in a folder, which this process holds until the store is closed. `resource` knows the resources; it is
    /// asked after `first` was given everything of the collection it names.
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
            let json = codec::unpack(&row.data).map_err(|why| corrupt(format!("row {}: {why}", row.id)))?;
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
        backing: Box<dyn writer::Backing>,
    ) -> std::io::Result<Arc<Self>> {
        let store = Arc::new(Self {
            collections: RwLock::new(collections),
            committed: watch::channel(last_version).0,
            sequencer: Sequencer::new(last_version),
            observers: RwLock::default(),
            writer: Mutex::default(),
        });
        store.sequencer.set_next_row(next_row);
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

    /// Calls `observer` for each published event, before and after it is shown, on the writer's thread: it must be quick and must not
    /// block.
    pub fn observe(&self, observer: impl Fn(&Arc<str>, &Event, Moment) + Send + Sync + 'static) {
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
        let observers = self.observers.read();
        observers.iter().for_each(|observer| observer(storage, &event, Moment::BeforeShown));
        self.collection(storage).publish(event.clone());
        observers.iter().for_each(|observer| observer(storage, &event, Moment::Shown));
    }
}

/// Parses stored rows, on all cores: this is most of what a start with many objects takes.
fn restore(
    rows: Vec<file::Row>,
    resource: &(impl Fn(&str) -> Option<Arc<Resource>> + Sync),
) -> Result<Vec<(Arc<str>, Stored)>, String> {
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(8);
    let mut shares: Vec<Vec<file::Row>> = (0..workers).map(|_| Vec::new()).collect();
    for (i, row) in rows.into_iter().enumerate() {
        shares[i % workers].push(row);
    }
    let share = |rows: Vec<file::Row>| {
        let mut known: HashMap<String, (Arc<Resource>, Wanted)> = HashMap::new();
        let mut out = Vec::with_capacity(rows.len());
        for row in rows {
            if !known.contains_key(&row.storage) {
                // Objects of a resource nobody serves any longer cannot exist: their CRD waits for them.
                let found = resource(&row.storage)
                    .ok_or_else(|| format!("row {} belongs to {}, which is not defined", row.id, row.storage))?;
                let wanted = Wanted::for_facts(&found);
                known.insert(row.storage.clone(), (found, wanted));
            }
            let (resource, wanted) = &known[&row.storage];
            let json = codec::unpack(&row.data).map_err(|why| format!("row {}: {why}", row.id))?;
            let object = Stored::restore(resource, wanted, row.id, row.version, &json)?;
            out.push((resource.storage.clone(), object));
        }
        Ok::<_, String>(out)
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = shares.into_iter().map(|rows| scope.spawn(|| share(rows))).collect();
        let mut all = Vec::new();
        for handle in handles {
            all.extend(handle.join().map_err(|_| "a row could not be read".to_owned())??);
        }
        Ok(all)
    })
}
