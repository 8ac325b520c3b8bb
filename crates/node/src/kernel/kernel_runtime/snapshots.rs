//! Snapshots of the files of a sandbox: its writable layers, as they are at one moment. Layers of a sandbox that does not
//! run are sealed, which copies nothing; those of a running one are copied, the last part while it is frozen.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pod::Pod;
use super::{KernelRuntime, folders_in};
use crate::changes::Marks;
use crate::kernel::host::cgroup::FrozenGroup;
use crate::kernel::storage::sealed::{Below, HeldLayers, NewLayer, SealedLayers};
use crate::kernel::storage::snapshots::{ContainerLayers, SnapshotRecord, Snapshots};
use crate::kernel::storage::{self, DiskSpace, Storage, copy_tree, layers};
use crate::runtime::{RuntimeError, StorageMechanism};

/// Maximum number of layers below a writable one. The kernel mounts 500, and every failing look-up of a name asks each.
const MAX_LAYERS: usize = 40;

/// Names the files of a sandbox and the snapshot to take of them.
#[derive(Debug, Clone)]
pub struct SnapshotRequest {
    pub namespace: String,
    /// The snapshot's name in the namespace.
    pub name: String,
    /// The uid of the object that asks for it. A repeated request with the same uid returns the same snapshot.
    pub uid: String,
    /// The owner of the layers, as in [`crate::runtime::PodSandboxSpec::owner`].
    pub owner: String,
}

/// A snapshot that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotTaken {
    /// Bytes on disk of all its layers, those that it shares with others included.
    pub bytes: u64,
    /// How long the sandbox was frozen; `None` if nothing of it ran.
    pub frozen: Option<Duration>,
}

/// What the work on one snapshot needs, in a thread of its own.
struct Work {
    request: SnapshotRequest,
    layers_dir: PathBuf,
    storage: Arc<Storage>,
    sealed: SealedLayers,
    /// Not held while files are copied: every start of a container takes it.
    sealed_lock: Arc<tokio::sync::Mutex<()>>,
    snapshots: Snapshots,
    marks: Marks,
}

/// The layers of a snapshot that no record names yet.
#[derive(Default)]
struct Layers {
    containers: BTreeMap<String, ContainerLayers>,
    held: Vec<HeldLayers>,
}

impl KernelRuntime {
    /// Whether this node keeps writable layers of an owner.
    pub fn keeps_layers_of(&self, owner: &str) -> bool {
        layers::single_component(owner).is_ok_and(|owner| self.layers_dir().join(owner).is_dir())
    }

    /// The attributes that overlayfs writes on this node.
    pub(super) fn marks(&self) -> Marks {
        if self.privileged { Marks::Trusted } else { Marks::User }
    }

    /// Takes a snapshot. It is on disk when this returns; a node that dies before has the old state.
    pub async fn take_snapshot(self: &Arc<Self>, request: SnapshotRequest) -> Result<SnapshotTaken, RuntimeError> {
        const STEP: &str = "taking a snapshot";
        if !self.privileged && self.id_source.has_blocks() {
            return Err(RuntimeError::Refused(
                "snapshots need a node that runs as root: without root, the files of each sandbox belong to user ids that no other sandbox has"
                    .to_owned(),
            ));
        }
        let failed = |source| RuntimeError::Kernel { step: STEP.to_owned(), source };
        let this = Arc::clone(self);
        // Goes on if the caller is cancelled: a sandbox is never left frozen, nor a layer half sealed.
        let work = async move {
            // No Pod of this owner starts or is created meanwhile.
            let lock = this.owner_lock(&request.owner);
            let _guard = lock.lock().await;
            if let Some(shortage) = DiskSpace::of(&this.config.data_dir).map(DiskSpace::shortage).map_err(failed)? {
                return Err(RuntimeError::Exhausted { what: "disk space", advice: shortage });
            }
            let user = this.storage_users.lock().get(&request.owner).cloned();
            let pod = match user.map(|uid| this.pod(&uid)) {
                None => None,
                Some(Ok(pod)) if !pod.is_being_removed() => Some(pod),
                Some(_) => return Err(failed(in_between())),
            };
            if pod.is_none() {
                for layer in folders_in(&this.layers_dir().join(&request.owner)) {
                    let name = layer.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    this.unmounts.release_layer(&layers::key(&request.owner, &name)).await;
                }
            }
            let work = Work {
                request,
                layers_dir: this.layers_dir(),
                storage: Arc::clone(&this.storage),
                sealed: this.sealed.clone(),
                sealed_lock: Arc::clone(&this.sealed_lock),
                snapshots: this.snapshots.clone(),
                marks: this.marks(),
            };
            let taken = tokio::task::spawn_blocking(move || work.take(pod.as_deref())).await;
            let taken = taken.map_err(|_| RuntimeError::Timeout(STEP))?;
            if taken.is_err()
                && let Err(error) = this.sweep_sealed_layers().await
            {
                tracing::warn!(%error, "The layers of a snapshot that failed are kept until the next sweep");
            }
            taken
        };
        tokio::spawn(work).await.map_err(|_| RuntimeError::Timeout(STEP))?
    }

    /// All snapshots that this node keeps: namespace, name and uid of the object that each was taken for.
    pub fn snapshots(&self) -> Result<Vec<[String; 3]>, RuntimeError> {
        let failed = |source| RuntimeError::Kernel { step: "listing snapshots".to_owned(), source };
        self.snapshots.all().map_err(failed)
    }

    /// Removes a snapshot that was taken for the object with this uid. Layers that sandboxes or other snapshots use stay.
    pub async fn remove_snapshot(self: &Arc<Self>, namespace: &str, name: &str, uid: &str) -> Result<(), RuntimeError> {
        let failed = |source| RuntimeError::Kernel { step: "removing a snapshot".to_owned(), source };
        self.snapshots.remove(namespace, name, uid).map_err(failed)?;
        self.sweep_sealed_layers().await.map(drop)
    }

    /// Removes the layers that neither a sandbox nor a snapshot uses; returns their number.
    pub(super) async fn sweep_sealed_layers(&self) -> Result<usize, RuntimeError> {
        const STEP: &str = "removing unused layers";
        let _layers = self.sealed_lock.lock().await;
        let (sealed, snapshots, storage) = (self.sealed.clone(), self.snapshots.clone(), Arc::clone(&self.storage));
        let layers_dir = self.layers_dir();
        let work = move || -> io::Result<usize> {
            if sealed.all()?.is_empty() {
                return Ok(0);
            }
            let mut used = snapshots.used_layers()?;
            used.extend(SealedLayers::used_by_layers(&layers_dir, |layer| storage.make_readable(layer))?);
            sealed.sweep(&used, &storage)
        };
        let swept = tokio::task::spawn_blocking(work).await.map_err(|_| RuntimeError::Timeout(STEP))?;
        swept.map_err(|source| RuntimeError::Kernel { step: STEP.to_owned(), source })
    }
}

impl Work {
    fn take(&self, pod: Option<&Pod>) -> Result<SnapshotTaken, RuntimeError> {
        let request = &self.request;
        let failed = |source| RuntimeError::Kernel { step: "taking a snapshot".to_owned(), source };
        let record = self.snapshots.read(&request.namespace, &request.name).map_err(failed)?;
        if let Some(record) = record.filter(|record| record.uid == request.uid) {
            return Ok(SnapshotTaken { bytes: self.bytes(&record), frozen: None });
        }
        let folder = self.layers_dir.join(layers::single_component(&request.owner).map_err(failed)?);
        let mut layers: Vec<PathBuf> = folders_in(&folder).collect();
        {
            let _layers = self.sealed_lock.blocking_lock();
            layers.iter().try_for_each(|layer| self.storage.make_readable(layer)).map_err(failed)?;
        }
        layers.retain(|layer| layer.join(layers::MARK).exists());
        if layers.is_empty() && pod.is_some() {
            return Err(failed(in_between()));
        }
        if layers.is_empty() {
            return Err(RuntimeError::Refused(
                "the sandbox has no files on this node: it has never been started here".to_owned(),
            ));
        }
        for layer in &layers {
            let _layers = self.sealed_lock.blocking_lock();
            self.sealed.complete(layer, &self.storage).map_err(failed)?;
            let below = Below::read(layer).map_err(failed)?;
            let depth = below.layers.len();
            let adds_layer =
                || Ok(pod.is_some() || !self.sealed.is_unchanged(layer, &below, self.marks).map_err(failed)?);
            if depth >= MAX_LAYERS && adds_layer()? {
                return Err(RuntimeError::Refused(format!(
                    "the sandbox has {depth} layers from earlier snapshots, the most that are mounted; create a fork of one of them, or a new sandbox"
                )));
            }
        }
        let (Layers { containers, held }, frozen) = match pod {
            None => (self.seal(&layers).map_err(failed)?, None),
            Some(pod) => self.copy(&layers, pod)?,
        };
        let record = SnapshotRecord { uid: request.uid.clone(), containers };
        {
            let _layers = self.sealed_lock.blocking_lock();
            self.snapshots.write(&request.namespace, &request.name, &record).map_err(failed)?;
            drop(held);
        }
        Ok(SnapshotTaken { bytes: self.bytes(&record), frozen })
    }

    /// Seals the layers of a sandbox of which nothing is mounted. Of one that has changed nothing since it was sealed, the
    /// snapshot has the layers below it.
    fn seal(&self, layers: &[PathBuf]) -> io::Result<Layers> {
        let mut found = Layers::default();
        for layer in layers {
            let below = Below::read(layer)?;
            if self.sealed.is_unchanged(layer, &below, self.marks)? {
                found.held.push(self.sealed.hold(below.layers.clone()));
                insert(&mut found.containers, layer, below.layers)?;
                continue;
            }
            let below = match storage::mechanism_of(layer) {
                // A file system of its own cannot be a part of the folder with the sealed layers.
                StorageMechanism::LoopFile => {
                    let (new, _) = self.begin_copy(layer, &mut found.held)?;
                    let mut below = Below::read(layer)?;
                    below.layers.insert(0, new);
                    below
                }
                StorageMechanism::ProjectQuota | StorageMechanism::Measured => {
                    let _layers = self.sealed_lock.blocking_lock();
                    let below = self.sealed.seal(layer, self.marks, &self.storage)?;
                    found.held.push(self.sealed.hold(below.layers.clone()));
                    below
                }
            };
            insert(&mut found.containers, layer, below.layers)?;
        }
        Ok(found)
    }

    /// Copies the layers of a running sandbox: first while it runs, then what changed meanwhile while it is frozen.
    fn copy(&self, layers: &[PathBuf], pod: &Pod) -> Result<(Layers, Option<Duration>), RuntimeError> {
        let failed =
            |source| RuntimeError::Kernel { step: "copying the files of a running sandbox".to_owned(), source };
        if pod.plan.cgroup.unified.is_none() {
            return Err(RuntimeError::Refused(
                "this host has no cgroup in which the node may freeze a running sandbox; suspend it first".to_owned(),
            ));
        }
        let mut found = Layers::default();
        let mut copies = Vec::new();
        for layer in layers {
            copies.push((layer, self.begin_copy(layer, &mut found.held).map_err(failed)?));
        }
        let group = FrozenGroup::freeze(&pod.plan.cgroup)
            .map_err(|source| RuntimeError::Kernel { step: "freezing the sandbox".to_owned(), source })?;
        let began = Instant::now();
        let updated = copies.iter_mut().try_for_each(|(_, (_, copy))| copy.update());
        group.thaw().map_err(failed)?;
        let frozen = began.elapsed();
        updated.map_err(failed)?;
        for (layer, (id, _)) in copies {
            rustix::fs::syncfs(std::fs::File::open(self.sealed.path(&id).map_err(failed)?).map_err(failed)?)
                .map_err(|errno| failed(errno.into()))?;
            let mut below = Below::read(layer).map_err(failed)?.layers;
            below.insert(0, id);
            insert(&mut found.containers, layer, below).map_err(failed)?;
        }
        Ok((found, Some(frozen)))
    }

    /// Copies the files of a writable layer into a new sealed one. That one and those below are held from now on.
    fn begin_copy(&self, layer: &Path, held: &mut Vec<HeldLayers>) -> io::Result<(String, copy_tree::TreeCopy)> {
        held.push(self.sealed.hold(Below::read(layer)?.layers));
        let NewLayer { id, held: new } =
            self.sealed.create(&SealedLayers::describe(layer, self.marks)?, &self.storage)?;
        held.push(new);
        let copy = copy_tree::TreeCopy::take(&layer.join("upper"), &self.sealed.upper(&id)?, self.marks)?;
        Ok((id, copy))
    }

    fn bytes(&self, record: &SnapshotRecord) -> u64 {
        let ids = record.containers.values().flat_map(|container| &container.layers);
        ids.filter_map(|id| self.sealed.path(id).ok()).map(|path| self.storage.usage(&path).bytes).sum()
    }
}

/// The error while a sandbox is neither running nor suspended; a later attempt succeeds.
fn in_between() -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, "the sandbox is just starting or stopping")
}

fn insert(containers: &mut BTreeMap<String, ContainerLayers>, layer: &Path, layers: Vec<String>) -> io::Result<()> {
    let digest = std::fs::read_to_string(layer.join(layers::MARK))?;
    let name = layer.file_name().unwrap_or_default().to_string_lossy().into_owned();
    containers.insert(name, ContainerLayers { digest, layers });
    Ok(())
}
