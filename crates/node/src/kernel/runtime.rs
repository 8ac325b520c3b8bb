//! The runtime itself: books of Pods, and the calls of the kubelet half turned into supervisors' work.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::broadcast;

use super::config::KernelConfig;
use super::ids::{IdBlocks, IdSource};
use super::images::ImageStore;
use super::layers;
use super::net::{AddressPool, egress};
use super::plan::IdMode;
use super::share::HostShare;
use super::spawner::Spawner;
use super::storage::{self, Storage};
use super::termination;
use super::unmounts::Unmounts;
use super::usage::PodUsage;
use super::wire::Call;
use crate::runtime::{
    AttachRequest, ContainerSpec, ContainerState, ExecRequest, ExecSession, PodRules, PodRuntime, PodSandbox,
    PodSandboxSpec, PodState, RuntimeError, RuntimeEvent, StorageMechanism, StorageUsage, Volume, VolumeKey,
    VolumeRequest, Weakness,
};

mod close;
mod create;
mod durable;
mod gate;
mod images;
mod pod;
mod ready;
mod recover;
mod remove;
mod sessions;
mod way_out;

use durable::Unsynced;
use gate::Gate;
use pod::Pod;
use ready::ReadyPool;

/// Events kept for a slow receiver before it has to compare states instead.
const EVENT_BUFFER: usize = 4_096;

/// Runs Pods with the kernel of this machine.
pub struct KernelRuntime {
    config: KernelConfig,
    privileged: bool,
    share: HostShare,
    spawner: tokio::sync::Mutex<Option<Spawner>>,
    ready: ReadyPool,
    storage: Arc<Storage>,
    unmounts: Arc<Unmounts>,
    /// Ourselves, for work in the background.
    this: Weak<Self>,
    ids: Mutex<IdBlocks>,
    source: IdSource,
    unsynced: Mutex<Unsynced>,
    gate: Gate,
    images: ImageStore,
    addresses: Mutex<AddressPool>,
    pods: Books,
    /// Which Pod uses what is kept for an owner: two Pods of one owner at a time must not share a writable layer.
    holders: Mutex<HashMap<String, String>>,
    /// One creation or removal of a Pod at a time.
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    events: broadcast::Sender<RuntimeEvent>,
    /// Whether Pods of an earlier node process have been looked for.
    recovered: AtomicBool,
    weaknesses: Vec<Weakness>,
    /// The program that gives Pods a way out where we cannot.
    pasta: Option<PathBuf>,
    follows_addresses: AtomicBool,
}

/// All Pods by uid; shared with the tasks that listen to supervisors.
type Books = Arc<Mutex<HashMap<String, Arc<Pod>>>>;

impl KernelRuntime {
    /// Prepares the data folder, finds out what this host can do, and starts the spawner. Running Pods are found again by
    /// [`PodRuntime::list`].
    pub async fn open(config: KernelConfig) -> Result<Arc<Self>, RuntimeError> {
        let step = |name: &'static str| move |source: io::Error| RuntimeError::Kernel { step: name.to_owned(), source };
        prepare_data_dir(&config.data_dir).map_err(step("preparing the data folder"))?;
        allow_many_files();
        let privileged = rustix::process::geteuid().is_root();
        let images_dir = config.image_dir.clone().unwrap_or_else(|| config.data_dir.join("images"));
        let (host_paths, aliases, mirrors) =
            (config.host_paths.clone(), config.image_aliases.clone(), config.registry_mirrors.clone());
        let open = move || ImageStore::open(&images_dir, &host_paths, aliases, mirrors, privileged);
        // Three long pieces of work that need nothing of each other: files to look at, a program to copy, tables to make.
        let images = tokio::task::spawn_blocking(open);
        let helper = config.helper.clone();
        let spawner = tokio::task::spawn_blocking(move || Spawner::start(&helper));
        let source = IdSource::find(&config, privileged);
        let ids = source.open_blocks(&config).map_err(step("reading id blocks"))?;
        let share = HostShare::open(&config, privileged)?;
        let spawner = spawner
            .await
            .map_err(|_| RuntimeError::Timeout("starting the spawner"))?
            .map_err(step("starting the spawner"))?;
        if let Some(Err(error)) = share.network.as_ref().map(|network| network.lend_channel(|fd| spawner.hold(fd))) {
            tracing::debug!(%error, "The end of this process will wait for the packet filter");
        }
        let images = images
            .await
            .map_err(|_| RuntimeError::Timeout("preparing images"))?
            .map_err(step("preparing the image store"))?;
        let storage = Arc::new(Storage::new(&config.data_dir, privileged, source.hands().clone()));
        let pasta = egress::program().filter(|_| !privileged);
        let networked = share.network.is_some() || pasta.is_some();
        let weaknesses = create::weaknesses(&share.layout, &source, networked, &storage);
        let runtime = Arc::new_cyclic(|this| Self {
            privileged,
            addresses: Mutex::new(AddressPool::new(share.pod_network)),
            share,
            spawner: tokio::sync::Mutex::new(Some(spawner)),
            ready: ReadyPool::default(),
            storage,
            unmounts: Unmounts::new(),
            this: this.clone(),
            ids: Mutex::new(ids),
            source,
            unsynced: Mutex::default(),
            gate: Gate::new(),
            images,
            pods: Books::default(),
            holders: Mutex::new(HashMap::new()),
            turns: Mutex::new(HashMap::new()),
            events: broadcast::Sender::new(EVENT_BUFFER),
            recovered: AtomicBool::new(false),
            weaknesses,
            pasta,
            follows_addresses: AtomicBool::new(false),
            config,
        });
        if runtime.config.prepare_host {
            let warming = Arc::clone(&runtime);
            // Nobody waits for it here.
            tokio::spawn(async move { drop(warming.images.host().await) });
        }
        // Addresses of Pods that still run are known only once they have been found again.
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

    fn turn(&self, uid: &str) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.turns.lock().entry(uid.to_owned()).or_default())
    }
}

/// Each Pod keeps descriptors of ours open, and the limit that shells give programs is meant for programs that use `select`.
fn allow_many_files() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit) {
            tracing::debug!(%error, "The limit of open files stays as it is");
        }
    }
}

/// What containers build their trees over.
fn stage_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("stage")
}

fn prepare_data_dir(dir: &Path) -> io::Result<()> {
    let folders = ["pods", "layers", "images", "volumes"].map(|name| dir.join(name));
    for path in [dir.to_owned(), stage_dir(dir)].into_iter().chain(folders) {
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
    }
    if rustix::process::geteuid().is_root() {
        // Layers are mounted for sandboxes, whose root must be able to enter them.
        fs::set_permissions(dir.join("images"), fs::Permissions::from_mode(0o755))?;
    }
    for name in ["pods", "layers", "volumes"] {
        crate::spread::unrelated(&dir.join(name));
    }
    Ok(())
}

#[async_trait]
impl PodRuntime for KernelRuntime {
    /// Goes on when the caller gives up: a Pod that is half made has a supervisor that nobody would know of.
    async fn create_pod(&self, spec: PodSandboxSpec) -> Result<PodSandbox, RuntimeError> {
        const STEP: &str = "making a Pod";
        let this = self.this.upgrade().ok_or(RuntimeError::Timeout(STEP))?;
        let turn = self.turn(&spec.uid);
        let work = async move {
            let _turn = turn.lock().await;
            if let Ok(pod) = this.pod(&spec.uid) {
                return Ok(pod.sandbox.clone());
            }
            create::check_supported(&spec, this.privileged)?;
            let _entry = this.gate.enter().await;
            this.make_pod(spec).await
        };
        tokio::spawn(work).await.map_err(|_| RuntimeError::Timeout(STEP))?
    }

    async fn start_container(&self, pod: &str, spec: ContainerSpec) -> Result<ContainerState, RuntimeError> {
        let pod = self.pod(pod)?;
        let _entry = self.gate.enter().await;
        self.make_container(&pod, spec).await
    }

    async fn signal_container(&self, pod: &str, container: &str, signal: i32) -> Result<(), RuntimeError> {
        let call = Call::Signal { container: container.to_owned(), signal };
        self.pod(pod)?.link.call(call, &[]).await.map(drop)
    }

    async fn kill_container(&self, pod: &str, container: &str) -> Result<(), RuntimeError> {
        let call = Call::Kill { container: container.to_owned() };
        self.pod(pod)?.link.call(call, &[]).await.map(drop)
    }

    async fn remove_pod(&self, uid: &str) -> Result<(), RuntimeError> {
        let turn = self.turn(uid);
        let guard = turn.lock().await;
        let pod = self.pod(uid).ok();
        if let Some(pod) = &pod {
            pod.begin_removal();
            pod.shut_down().await;
        }
        // A Pod whose supervisor died before this node started is known by its folder only.
        let saved = match &pod {
            Some(pod) => Some((pod.plan.clone(), pod.keeper.clone())),
            None => create::SavedPlan::read(&self.pod_dir(uid)).map(|saved| (saved.plan, saved.keeper)),
        };
        self.remove_remains(uid, pod.as_deref()).await?;
        if let Some((plan, keeper)) = saved {
            self.end_network(pod.clone(), plan).await;
            if keeper == uid {
                let step = |source| RuntimeError::Kernel { step: "saving id blocks".to_owned(), source };
                self.ids.lock().forget(uid).map_err(step)?;
            }
            self.holders.lock().retain(|kept, holder| *kept != keeper || holder != uid);
        }
        // Last: whoever no longer finds the Pod may forget its owner.
        self.pods.lock().remove(uid);
        drop(guard);
        self.turns.lock().remove(uid);
        Ok(())
    }

    async fn forget_owner(&self, owner: &str) -> Result<(), RuntimeError> {
        let holder = self.holders.lock().get(owner).cloned();
        if let Some(uid) = holder {
            if !self.pod(&uid).is_ok_and(|pod| pod.is_being_removed()) {
                return Err(RuntimeError::Refused(format!("a Pod of owner {owner} still exists")));
            }
            // Whoever began to remove it may have been stopped half-way; a second removal waits for the first and ends it.
            self.remove_pod(&uid).await?;
        }
        let step = |source| RuntimeError::Kernel { step: "removing kept layers".to_owned(), source };
        let folder = self.layers_dir().join(layers::one_name(owner).map_err(step)?);
        let storage = Arc::clone(&self.storage);
        tokio::task::spawn_blocking(move || storage.remove(&folder))
            .await
            .map_err(|_| RuntimeError::Timeout("removing kept layers"))?
            .map_err(step)?;
        self.ids.lock().forget(owner).map_err(step)
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
        sessions::exec(&self.pod(pod)?.link, container, request).await
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
        if let Some(pasta) = self.pasta.clone() {
            return self.set_way_out(&pod, rules, pasta).await;
        }
        // Loopback only: closed by nature.
        let (Some(network), Some(veth)) = (&self.share.network, &pod.plan.veth) else { return Ok(()) };
        if network.is_closed_already(veth, &rules) {
            return Ok(());
        }
        let this = self.this.upgrade().ok_or(RuntimeError::Timeout(STEP))?;
        let work = move || {
            let _turn = pod.rules_turn.lock();
            match (&this.share.network, &pod.plan.veth) {
                (Some(network), Some(veth)) if !pod.is_being_removed() => {
                    network.set_rules(veth, pod.plan.address, &rules)
                }
                _ => Ok(()),
            }
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| RuntimeError::Timeout(STEP))?
            .map_err(|source| RuntimeError::Kernel { step: STEP.to_owned(), source })
    }

    async fn ensure_volume(&self, request: VolumeRequest) -> Result<Volume, RuntimeError> {
        let path = self.volume_path(&request.key);
        let (storage, privileged) = (Arc::clone(&self.storage), self.privileged);
        let work = move || -> io::Result<Volume> {
            let mechanism = storage.ensure(&path, request.limit_bytes)?;
            storage::open_to_all(&path, request.group.filter(|_| privileged))?;
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
        let layers = self.layers_dir().join(&self.pod(pod)?.keeper);
        let volumes = self.pod_dir(pod).join("volumes");
        let storage = Arc::clone(&self.storage);
        tokio::task::spawn_blocking(move || StorageUsage {
            layers: usage_by_name(&storage, &layers),
            volumes: usage_by_name(&storage, &volumes),
            layer_mechanism: weakest_mechanism(&layers),
        })
        .await
        .map_err(|_| RuntimeError::Timeout("measuring storage"))
    }

    async fn volume_usage(&self, key: &VolumeKey) -> Result<u64, RuntimeError> {
        let path = self.volume_path(key);
        let storage = Arc::clone(&self.storage);
        tokio::task::spawn_blocking(move || storage.usage(&path))
            .await
            .map_err(|_| RuntimeError::Timeout("measuring a volume"))
    }

    async fn termination_message(&self, pod: &str, container: &str, max_bytes: usize) -> Vec<u8> {
        let Ok(pod) = self.pod(pod) else { return Vec::new() };
        let layer = self.layers_dir().join(&pod.keeper).join(container);
        let read = tokio::task::spawn_blocking(move || termination::read(&layer, max_bytes)).await;
        read.ok().and_then(Result::ok).unwrap_or_default()
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

    fn weaknesses(&self) -> Vec<Weakness> {
        self.weaknesses.clone()
    }

    fn dns_address(&self) -> Option<IpAddr> {
        self.share.network.as_ref().map(|network| network.gateway().into())
    }

    fn reaches_addresses(&self) -> bool {
        self.share.network.is_some()
    }

    fn resolver(&self) -> Option<IpAddr> {
        let forwarded = self.pasta.as_ref().map(|_| self.share.pod_network.gateway().into());
        self.dns_address().or(forwarded)
    }

    fn pod_network(&self) -> Option<(IpAddr, u8)> {
        Some((self.share.pod_network.base.into(), self.share.pod_network.prefix))
    }

    fn pod_dir(&self, pod: &str) -> PathBuf {
        self.config.data_dir.join("pods").join(pod)
    }
}

impl KernelRuntime {
    fn volume_path(&self, key: &VolumeKey) -> PathBuf {
        match key {
            VolumeKey::PodEphemeral { pod, name } => self.pod_dir(pod).join("volumes").join(name),
            VolumeKey::Persistent { name } => self.config.data_dir.join("volumes").join(name),
        }
    }
}

fn usage_by_name(storage: &Storage, folder: &Path) -> Vec<(String, u64)> {
    folders_in(folder).filter_map(|path| Some((path.file_name()?.to_str()?.to_owned(), storage.usage(&path)))).collect()
}

/// Folders and nothing else: the files some of them are kept in lie beside them.
fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// Whether any layer of an owner is a file system of its own.
fn has_mounts(layers: &Path) -> bool {
    folders_in(layers).any(|path| storage::mechanism_of(&path) == StorageMechanism::LoopFile)
}

/// What holds all layers of an owner: measured as soon as one of them is.
fn weakest_mechanism(layers: &Path) -> StorageMechanism {
    let mut found = folders_in(layers).map(|path| storage::mechanism_of(&path));
    let Some(first) = found.next() else { return StorageMechanism::Measured };
    found.fold(first, |weakest, other| match (weakest, other) {
        (StorageMechanism::Measured, _) | (_, StorageMechanism::Measured) => StorageMechanism::Measured,
        (same, _) => same,
    })
}

impl KernelRuntime {
    /// What every running Pod uses now.
    pub fn usage(&self) -> Vec<PodUsage> {
        let pods: Vec<_> = self.pods.lock().values().cloned().collect();
        let read = |pod: &Arc<Pod>| PodUsage::read(&pod.plan.spec.namespace, &pod.plan.spec.name, &pod.plan.cgroup);
        pods.iter().map(read).collect()
    }
}
