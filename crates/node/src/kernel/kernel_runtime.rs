//! The runtime that uses the kernel directly: keeps the table of Pods, and turns calls of the kubelet half into calls
//! to supervisors.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::broadcast;

use crate::kernel::config::KernelConfig;
use crate::kernel::host::cgroup::PodUsage;
use crate::kernel::host::ids::{IdBlocks, IdSource};
use crate::kernel::host::resources::{self, HostResources};
use crate::kernel::image::ImageStore;
use crate::kernel::net::{AddressPool, NodeNetwork, pasta};
use crate::kernel::storage::deferred_unmounts::DeferredUnmounts;
use crate::kernel::storage::layers;
use crate::kernel::storage::sealed::SealedLayers;
use crate::kernel::storage::snapshots::Snapshots;
use crate::kernel::storage::termination_message;
use crate::kernel::storage::{self, Storage};
use crate::kernel::supervisor::plan::VethPlan;
use crate::kernel::supervisor::protocol::Call;
use crate::kernel::supervisor::records;
use crate::kernel::supervisor::spawner::Spawner;
use crate::runtime::{
    AttachRequest, ContainerSpec, ContainerState, ExecRequest, ExecSession, PodRules, PodRuntime, PodSandbox,
    PodSandboxSpec, PodState, RuntimeError, RuntimeEvent, StorageMechanism, StorageUsage, Volume, VolumeKey,
    VolumeRequest, VolumeUsage, Weakness,
};

mod close;
mod create;
mod deferred_sync;
mod images;
mod limits;
mod pod;
mod ready;
mod recover;
mod remove;
mod sessions;
mod snapshots;
mod start_limiter;
mod table_watch;
mod uplink;

pub use snapshots::{SnapshotRequest, SnapshotTaken};

use deferred_sync::Unsynced;
use pod::Pod;
use ready::ReadyPool;
use start_limiter::StartLimiter;

/// Number of events buffered for a slow receiver before it has to compare states instead.
const EVENT_BUFFER: usize = 4_096;

/// Runs Pods with the kernel of this machine.
pub struct KernelRuntime {
    config: KernelConfig,
    privileged: bool,
    host: HostResources,
    spawner: tokio::sync::Mutex<Option<Spawner>>,
    ready: ReadyPool,
    storage: Arc<Storage>,
    unmounts: Arc<DeferredUnmounts>,
    sealed: SealedLayers,
    snapshots: Snapshots,
    /// Held while records that name sealed layers are written, and while those that none names are removed.
    sealed_lock: Arc<tokio::sync::Mutex<()>>,
    /// This runtime, for background tasks.
    this: Weak<Self>,
    ids: Mutex<IdBlocks>,
    id_source: IdSource,
    unsynced: Mutex<Unsynced>,
    start_limiter: StartLimiter,
    images: ImageStore,
    addresses: Mutex<AddressPool>,
    pods: PodTable,
    /// The Pod that uses each storage key: two Pods of one owner at a time must not share a writable layer.
    storage_users: Mutex<HashMap<String, String>>,
    /// Locks that keep Pods of an owner from starting while its layers are sealed or copied, by owner.
    owner_locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Locks that serialise creation and removal, by Pod uid.
    pod_locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    events: broadcast::Sender<RuntimeEvent>,
    /// Whether Pods of an earlier process have been recovered.
    recovered: AtomicBool,
    weaknesses: Vec<Weakness>,
    /// Path of `pasta`, which connects Pods of an unprivileged node.
    pasta: Option<PathBuf>,
    follows_addresses: AtomicBool,
    /// Ends the threads that record copied folders.
    recording_cancelled: Arc<AtomicBool>,
}

/// All Pods by uid; shared with the tasks that read from supervisors.
type PodTable = Arc<Mutex<HashMap<String, Arc<Pod>>>>;

impl KernelRuntime {
    /// Prepares the data folder, detects what this host supports, and starts the spawner. Running Pods are found again
    /// by [`PodRuntime::list`].
    pub async fn open(config: KernelConfig) -> Result<Arc<Self>, RuntimeError> {
        let step = |name: &'static str| move |source: io::Error| RuntimeError::Kernel { step: name.to_owned(), source };
        prepare_data_dir(&config.data_dir).map_err(step("preparing the data folder"))?;
        raise_open_file_limit();
        let privileged = rustix::process::geteuid().is_root();
        let images_dir = config.image_dir.clone().unwrap_or_else(|| config.data_dir.join("images"));
        let (host_paths, aliases, mirrors) =
            (config.host_paths.clone(), config.image_aliases.clone(), config.registry_mirrors.clone());
        let open = move || ImageStore::open(&images_dir, &host_paths, aliases, mirrors, privileged);
        // Three slow and independent steps run at the same time: the image store, the spawner, and the host's
        // resources.
        let images = tokio::task::spawn_blocking(open);
        let helper = config.helper.clone();
        let spawner = tokio::task::spawn_blocking(move || Spawner::start(&helper));
        let id_source = IdSource::find(&config, privileged);
        let ids = id_source.open_blocks(&config).map_err(step("reading id blocks"))?;
        let host = HostResources::open(&config, privileged)?;
        let spawner = spawner
            .await
            .map_err(|_| RuntimeError::Timeout("starting the spawner"))?
            .map_err(step("starting the spawner"))?;
        if let Some(Err(error)) = host.network.as_ref().map(|network| network.with_nft_socket(|fd| spawner.hold(fd))) {
            tracing::debug!(%error, "The exit of this process will wait for nftables");
        }
        let images = images
            .await
            .map_err(|_| RuntimeError::Timeout("preparing images"))?
            .map_err(step("preparing the image store"))?;
        let storage = Arc::new(Storage::new(&config.data_dir, privileged, id_source.file_access().clone()));
        let pasta = pasta::program().filter(|_| !privileged);
        let networked = host.network.is_some() || pasta.is_some();
        let open_to_root = host.network.as_ref().and_then(|network| network.open_to_root());
        let weaknesses = create::weaknesses(&host.layout, &id_source, networked, open_to_root, &storage);
        let runtime = Arc::new_cyclic(|this| Self {
            privileged,
            addresses: Mutex::new(AddressPool::new(host.pod_network)),
            host,
            spawner: tokio::sync::Mutex::new(Some(spawner)),
            ready: ReadyPool::default(),
            storage,
            unmounts: DeferredUnmounts::new(),
            sealed: SealedLayers::new(&config.data_dir),
            snapshots: Snapshots::new(&config.data_dir),
            sealed_lock: Arc::default(),
            owner_locks: Mutex::default(),
            this: this.clone(),
            ids: Mutex::new(ids),
            id_source,
            unsynced: Mutex::default(),
            start_limiter: StartLimiter::new(),
            images,
            pods: PodTable::default(),
            storage_users: Mutex::new(HashMap::new()),
            pod_locks: Mutex::new(HashMap::new()),
            events: broadcast::Sender::new(EVENT_BUFFER),
            recovered: AtomicBool::new(false),
            weaknesses,
            pasta,
            follows_addresses: AtomicBool::new(false),
            recording_cancelled: Arc::default(),
            config,
        });
        if runtime.config.prepare_host {
            let preparing = Arc::clone(&runtime);
            // In the background.
            tokio::spawn(async move { drop(preparing.images.host().await) });
        }
        let sweeping = Arc::clone(&runtime);
        // In the background: layers that an earlier node was making when it died.
        tokio::spawn(async move {
            if let Err(error) = sweeping.sweep_sealed_layers().await {
                tracing::warn!(%error, "Unused layers of snapshots could not be removed");
            }
        });
        runtime.watch_table();
        // Addresses of running Pods are known only once they have been recovered.
        if runtime.pod_folders().is_empty() {
            runtime.refill();
        }
        Ok(runtime)
    }

    fn pod(&self, uid: &str) -> Result<Arc<Pod>, RuntimeError> {
        self.pods.lock().get(uid).cloned().ok_or_else(|| RuntimeError::UnknownPod(uid.to_owned()))
    }

    fn layers_dir(&self) -> PathBuf {
        self.config.data_dir.join("layers")
    }

    /// The folder of an owner's copies of host folders.
    fn copies_dir(&self, owner: &str) -> PathBuf {
        self.config.copies_dir.clone().unwrap_or_else(|| self.layers_dir().join(owner))
    }

    fn owner_lock(&self, owner: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.owner_locks.lock();
        // Those that no task holds or waits for.
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(owner.to_owned()).or_default())
    }

    fn pod_lock(&self, uid: &str) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.pod_locks.lock().entry(uid.to_owned()).or_default())
    }
}

/// Raises the limit of open files: each Pod needs descriptors, and the default soft limit is meant for programs that
/// use `select`.
fn raise_open_file_limit() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit) {
            tracing::debug!(%error, "The limit of open files could not be raised");
        }
    }
}

/// The empty folder over which containers mount their root.
fn stage_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("stage")
}

fn prepare_data_dir(dir: &Path) -> io::Result<()> {
    let folders = ["pods", "layers", "images", "volumes", "sealed", "snapshots"].map(|name| dir.join(name));
    for path in [dir.to_owned(), stage_dir(dir)].into_iter().chain(folders) {
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
    }
    if rustix::process::geteuid().is_root() {
        // Layers are mounted for sandboxes, whose root must be able to enter the folder.
        fs::set_permissions(dir.join("images"), fs::Permissions::from_mode(0o755))?;
    }
    for name in ["pods", "layers", "volumes", "sealed"] {
        crate::topdir::set_topdir_flag(&dir.join(name));
    }
    Ok(())
}

#[async_trait]
impl PodRuntime for KernelRuntime {
    /// Continues if the caller is cancelled: a half-created Pod has a supervisor that would otherwise be unknown.
    async fn create_pod(&self, spec: PodSandboxSpec) -> Result<PodSandbox, RuntimeError> {
        const STEP: &str = "making a Pod";
        let this = self.this.upgrade().ok_or(RuntimeError::Timeout(STEP))?;
        let lock = self.pod_lock(&spec.uid);
        let work = async move {
            let _guard = lock.lock().await;
            if let Ok(pod) = this.pod(&spec.uid) {
                return Ok(pod.sandbox.clone());
            }
            create::check_supported(&spec, this.privileged)?;
            let _permit = this.start_limiter.acquire().await;
            this.make_pod(spec).await
        };
        tokio::spawn(work).await.map_err(|_| RuntimeError::Timeout(STEP))?
    }

    async fn start_container(&self, pod: &str, spec: ContainerSpec) -> Result<ContainerState, RuntimeError> {
        let pod = self.pod(pod)?;
        let _permit = self.start_limiter.acquire().await;
        self.make_container(&pod, spec).await
    }

    async fn signal_container(&self, pod: &str, container: &str, signal: i32) -> Result<(), RuntimeError> {
        let call = Call::Signal { container: container.to_owned(), signal };
        self.pod(pod)?.supervisor.call(call, &[]).await.map(drop)
    }

    async fn kill_container(&self, pod: &str, container: &str) -> Result<(), RuntimeError> {
        let call = Call::Kill { container: container.to_owned() };
        self.pod(pod)?.supervisor.call(call, &[]).await.map(drop)
    }

    async fn remove_pod(&self, uid: &str) -> Result<(), RuntimeError> {
        let lock = self.pod_lock(uid);
        let guard = lock.lock().await;
        let pod = self.pod(uid).ok();
        if let Some(pod) = &pod {
            pod.begin_removal();
            pod.shut_down().await;
        }
        // A Pod whose supervisor died before this node started is known only by its folder.
        let saved = match &pod {
            Some(pod) => Some((pod.plan.clone(), pod.storage_key.clone())),
            None => create::SavedPlan::read(&self.pod_dir(uid)).map(|saved| (saved.plan, saved.storage_key)),
        };
        self.remove_remains(uid, pod.as_deref()).await?;
        if let Some((plan, storage_key)) = saved {
            self.end_network(pod.clone(), plan).await;
            if storage_key == uid {
                let step = |source| RuntimeError::Kernel { step: "saving id blocks".to_owned(), source };
                self.ids.lock().forget(uid).map_err(step)?;
            }
            self.storage_users.lock().retain(|kept, holder| *kept != storage_key || holder != uid);
        }
        // Last, because a caller that does not find the Pod any more may forget its owner.
        self.pods.lock().remove(uid);
        drop(guard);
        self.pod_locks.lock().remove(uid);
        Ok(())
    }

    async fn delete_owner_storage(&self, owner: &str) -> Result<(), RuntimeError> {
        let holder = self.storage_users.lock().get(owner).cloned();
        if let Some(uid) = holder {
            if !self.pod(&uid).is_ok_and(|pod| pod.is_being_removed()) {
                return Err(RuntimeError::Refused(format!("a Pod of owner {owner} still exists")));
            }
            // An earlier removal may have been cancelled; a second removal waits for the first and completes it.
            self.remove_pod(&uid).await?;
        }
        let step = |source| RuntimeError::Kernel { step: "removing kept layers".to_owned(), source };
        let folder = self.layers_dir().join(layers::single_component(owner).map_err(step)?);
        let storage = Arc::clone(&self.storage);
        {
            let _layers = self.sealed_lock.lock().await;
            tokio::task::spawn_blocking(move || storage.remove(&folder))
                .await
                .map_err(|_| RuntimeError::Timeout("removing kept layers"))?
                .map_err(step)?;
        }
        self.ids.lock().forget(owner).map_err(step)?;
        self.sweep_sealed_layers().await.map(drop)
    }

    async fn kept_owners(&self) -> Result<Vec<String>, RuntimeError> {
        let mut owners: Vec<String> = self.ids.lock().owners().map(str::to_owned).collect();
        if let Ok(entries) = fs::read_dir(self.layers_dir()) {
            owners.extend(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()));
        }
        owners.sort_unstable();
        owners.dedup();
        Ok(owners)
    }

    async fn exec(&self, pod: &str, container: &str, request: ExecRequest) -> Result<ExecSession, RuntimeError> {
        sessions::exec(&self.pod(pod)?.supervisor, container, request).await
    }

    async fn attach(&self, pod: &str, container: &str, request: AttachRequest) -> Result<ExecSession, RuntimeError> {
        sessions::attach(self.pod(pod)?, container, request).await
    }

    async fn dial(&self, pod: &str, port: u16) -> Result<TcpStream, RuntimeError> {
        sessions::dial(&*self.pod(pod)?, port).await
    }

    async fn set_rules(&self, pod: &str, rules: PodRules) -> Result<(), RuntimeError> {
        const STEP: &str = "writing network rules";
        let pod = self.pod(pod)?;
        if let Some(reason) = self.egress_proxy().err().filter(|_| rules.by_domain) {
            if let Some(pasta) = self.pasta.clone() {
                let closed = PodRules { egress: Vec::new(), by_domain: false, ..rules };
                self.set_uplink_rules(&pod, closed, pasta).await?;
            }
            return Err(RuntimeError::Refused(format!("egress rules cannot be enforced: {reason}")));
        }
        if let Some(pasta) = self.pasta.clone() {
            return self.set_uplink_rules(&pod, rules, pasta).await;
        }
        // A Pod with loopback only is always closed.
        let (Some(network), Some(veth)) = (&self.host.network, &pod.plan.veth) else { return Ok(()) };
        if network.is_closed_already(veth, &rules) {
            return Ok(());
        }
        let this = self.this.upgrade().ok_or(RuntimeError::Timeout(STEP))?;
        let work = move || {
            let _guard = pod.rules_lock.lock();
            match (&this.host.network, &pod.plan.veth) {
                (Some(network), Some(veth)) if !pod.is_being_removed() => {
                    let written = network.set_rules(veth, pod.plan.address, &rules);
                    if written.is_err() && rules.by_domain {
                        // A kernel that lacks what such rules need: nothing leaves the Pod.
                        let closed = PodRules { egress: Vec::new(), by_domain: false, ..rules };
                        network.set_rules(veth, pod.plan.address, &closed)?;
                    }
                    written
                }
                _ => Ok(()),
            }
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| RuntimeError::Timeout(STEP))?
            .map_err(|source| RuntimeError::Kernel { step: STEP.to_owned(), source })
    }

    fn egress_proxy(&self) -> Result<SocketAddrV4, String> {
        match &self.host.network {
            Some(network) => Ok(network.proxy()),
            None if self.privileged => Err("Pods have no network on this host".to_owned()),
            None => Err("this node runs without root; domain rules need a node that runs as root".to_owned()),
        }
    }

    async fn open_ports(&self, pod: &str, pairs: Vec<((Ipv4Addr, u16), Duration)>) -> Result<(), RuntimeError> {
        self.change_open_ports(pod, move |network, veth| network.open_ports(veth, &pairs)).await
    }

    async fn close_ports(&self, pod: &str, pairs: Vec<(Ipv4Addr, u16)>) -> Result<(), RuntimeError> {
        self.change_open_ports(pod, move |network, veth| network.close_ports(veth, &pairs)).await
    }

    async fn ensure_volume(&self, request: VolumeRequest) -> Result<Volume, RuntimeError> {
        let path = self.volume_path(&request.key);
        let (storage, privileged) = (Arc::clone(&self.storage), self.privileged);
        let work = move || -> io::Result<Volume> {
            let mechanism = storage.ensure(&path, request.limit_bytes)?;
            storage::set_volume_permissions(&path, request.group.filter(|_| privileged))?;
            Ok(Volume { path, mechanism })
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| RuntimeError::Timeout("making a volume"))?
            .map_err(|source| RuntimeError::Kernel { step: "making a volume".to_owned(), source })
    }

    async fn remove_volume(&self, key: &VolumeKey) -> Result<(), RuntimeError> {
        let path = self.volume_path(key);
        let storage = Arc::clone(&self.storage);
        tokio::task::spawn_blocking(move || storage.remove(&path))
            .await
            .map_err(|_| RuntimeError::Timeout("removing a volume"))?
            .map_err(|source| RuntimeError::Kernel { step: "removing a volume".to_owned(), source })
    }

    async fn storage_usage(&self, pod: &str) -> Result<StorageUsage, RuntimeError> {
        let layers = self.layers_dir().join(&self.pod(pod)?.storage_key);
        let volumes = self.pod_dir(pod).join("volumes");
        // Those that are not beside the layers.
        let copies = self.config.copies_dir.clone();
        let storage = Arc::clone(&self.storage);
        tokio::task::spawn_blocking(move || {
            let mut inodes = 0;
            let mut used = usage_by_name(&storage, &layers, &mut inodes);
            used.extend(copies.iter().flat_map(|copies| usage_by_name(&storage, copies, &mut inodes)));
            StorageUsage {
                layers: used,
                volumes: usage_by_name(&storage, &volumes, &mut inodes),
                layer_mechanism: weakest_mechanism(&layers),
                inodes,
            }
        })
        .await
        .map_err(|_| RuntimeError::Timeout("measuring storage"))
    }

    async fn volume_usage(&self, key: &VolumeKey) -> Result<VolumeUsage, RuntimeError> {
        let path = self.volume_path(key);
        let storage = Arc::clone(&self.storage);
        let usage = tokio::task::spawn_blocking(move || storage.usage(&path))
            .await
            .map_err(|_| RuntimeError::Timeout("measuring a volume"))?;
        Ok(VolumeUsage { bytes: usage.bytes, inodes: usage.inodes })
    }

    async fn termination_message(&self, pod: &str, container: &str, max_bytes: usize) -> Vec<u8> {
        let Ok(pod) = self.pod(pod) else { return Vec::new() };
        let layer = self.layers_dir().join(&pod.storage_key).join(container);
        let (dir, container) = (pod.plan.dir.clone(), container.to_owned());
        let read = move || {
            let mut message =
                records::read_message(&dir, &container).or_else(|_| termination_message::read(&layer, max_bytes))?;
            message.drain(..message.len().saturating_sub(max_bytes));
            io::Result::Ok(message)
        };
        tokio::task::spawn_blocking(read).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    async fn list(&self) -> Result<Vec<PodState>, RuntimeError> {
        self.recover().await
    }

    async fn state(&self, pod: &str) -> Result<Option<PodState>, RuntimeError> {
        Ok(self.pod(pod).ok().map(|pod| pod.state()))
    }

    fn events(&self) -> broadcast::Receiver<RuntimeEvent> {
        self.events.subscribe()
    }

    fn memory_limit(&self, pod: &str, container: &str) -> Option<u64> {
        let pod = self.pod(pod).ok()?;
        let of_pod = self.pod_limits(&pod.plan.spec.limits).memory_bytes;
        [of_pod, pod.memory_limit_of(container)].into_iter().flatten().min()
    }

    fn weaknesses(&self) -> Vec<Weakness> {
        self.weaknesses.clone()
    }

    fn dns_address(&self) -> Option<IpAddr> {
        self.host.network.as_ref().map(|network| network.gateway().into())
    }

    fn reaches_addresses(&self) -> bool {
        self.host.network.is_some()
    }

    fn resolver(&self) -> Option<IpAddr> {
        let forwarded = self.pasta.as_ref().map(|_| self.host.pod_network.gateway().into());
        self.dns_address().or(forwarded)
    }

    fn pod_network(&self) -> Option<(IpAddr, u8)> {
        Some((self.host.pod_network.base.into(), self.host.pod_network.prefix))
    }

    fn pod_dir(&self, pod: &str) -> PathBuf {
        self.config.data_dir.join("pods").join(pod)
    }
}

impl KernelRuntime {
    /// Changes what is open for a Pod with rules by domain, unless it is being removed.
    async fn change_open_ports(
        &self,
        pod: &str,
        change: impl FnOnce(&NodeNetwork, &VethPlan) -> io::Result<()> + Send + 'static,
    ) -> Result<(), RuntimeError> {
        const STEP: &str = "opening ports";
        let pod = self.pod(pod)?;
        let this = self.this.upgrade().ok_or(RuntimeError::Timeout(STEP))?;
        let work = move || {
            let _guard = pod.rules_lock.lock();
            match (&this.host.network, &pod.plan.veth) {
                (Some(network), Some(veth)) if !pod.is_being_removed() => change(network, veth),
                _ => Ok(()),
            }
        };
        let done = tokio::task::spawn_blocking(work).await.map_err(|_| RuntimeError::Timeout(STEP))?;
        done.map_err(|source| RuntimeError::Kernel { step: STEP.to_owned(), source })
    }

    fn volume_path(&self, key: &VolumeKey) -> PathBuf {
        match key {
            VolumeKey::PodEphemeral { pod, name } => self.pod_dir(pod).join("volumes").join(name),
            VolumeKey::Persistent { name } => self.config.data_dir.join("volumes").join(name),
        }
    }
}

/// Bytes of each folder; their inodes are added up.
fn usage_by_name(storage: &Storage, folder: &Path, inodes: &mut u64) -> Vec<(String, u64)> {
    let mut measure = |path: PathBuf| {
        let used = storage.usage(&path);
        *inodes += used.inodes;
        Some((path.file_name()?.to_str()?.to_owned(), used.bytes))
    };
    folders_in(folder).filter_map(&mut measure).collect()
}

/// Only folders: loop files are next to them.
fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// Whether any layer of an owner is a mounted loop file.
fn has_mounts(layers: &Path) -> bool {
    folders_in(layers).any(|path| storage::mechanism_of(&path) == StorageMechanism::LoopFile)
}

/// The mechanism that limits all layers of an owner: `Measured` if any of them is only measured.
fn weakest_mechanism(layers: &Path) -> StorageMechanism {
    let mut found = folders_in(layers).map(|path| storage::mechanism_of(&path));
    let Some(first) = found.next() else { return StorageMechanism::Measured };
    found.fold(first, |weakest, other| match (weakest, other) {
        (StorageMechanism::Measured, _) | (_, StorageMechanism::Measured) => StorageMechanism::Measured,
        (same, _) => same,
    })
}

impl KernelRuntime {
    /// Resource usage of every running Pod.
    pub fn usage(&self) -> Vec<PodUsage> {
        let pods: Vec<_> = self.pods.lock().values().cloned().collect();
        let read = |pod: &Arc<Pod>| {
            let state = pod.state();
            let running = state.containers.into_iter().filter(|container| container.exit.is_none());
            let containers: Vec<_> = running
                .map(|container| {
                    let group = format!("{}/{}", pod.plan.group, container.name);
                    (container.name, self.host.layout.plan(&group, resources::no_limits()))
                })
                .collect();
            PodUsage::read(&state.namespace, &state.name, &pod.plan.cgroup, &containers)
        };
        pods.iter().map(read).collect()
    }
}
