//! Creates Pods and containers: ids, cgroups, folders and layers, then the supervisor's part.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pod::Pod;
use super::{KernelRuntime, limits, stage_dir};
use crate::changes::{CopyInfo, Marks};
use crate::kernel::container::oci;
use crate::kernel::host::cgroup::{self, CgroupLayout, CgroupPlan, Controller};
use crate::kernel::host::ids::{Block, IdSource};
use crate::kernel::net::NodeNetwork;
use crate::kernel::net::pasta::TUN;
use crate::kernel::storage::{DiskSpace, Storage, atomic_file, copies, layers, termination_message};
use crate::kernel::supervisor::plan::{ContainerPlan, IdMode, PodBasePlan, PodPlan};
use crate::kernel::supervisor::protocol::{self, Call, Response, Setup};
use crate::kernel::supervisor::spawner::Spawner;
use crate::kernel::sys;
use crate::runtime::{
    ContainerSpec, ContainerState, Limits, Mount, MountSource, NetworkMode, PodRuntime, PodSandbox, PodSandboxSpec,
    RuntimeError, RuntimeHandler, Weakness, WeaknessKind,
};

/// Timeout for removing a cgroup while processes in it are still dying.
const CGROUP_TIMEOUT: Duration = Duration::from_secs(10);

/// What this host cannot enforce, compared to a fully equipped one.
pub(super) fn weaknesses(
    layout: &CgroupLayout,
    ids: &IdSource,
    networked: bool,
    open_to_root: Option<&str>,
    storage: &Storage,
) -> Vec<Weakness> {
    let mut list = Vec::new();
    if let IdSource::Caller { why } = ids {
        list.push(shared_uid(why));
    }
    if !matches!(ids, IdSource::Root) {
        list.push(Weakness {
            kind: WeaknessKind::SharedUserLimits,
            message: "inotify instances, timers and message queues of all sandboxes count for your own user: each sandbox may use a quarter of them; run as root for limits of their own".to_owned(),
        });
    }
    if !networked {
        list.push(Weakness {
            kind: WeaknessKind::NoEgress,
            message: format!(
                "sandboxes have no network besides what the node forwards: install pasta (package passt) and let users open {TUN}, or run as root with nftables"
            ),
        });
    }
    if let Some(why) = open_to_root {
        list.push(Weakness {
            kind: WeaknessKind::OpenToRoot,
            message: format!(
                "other programs of root on this machine can connect to sandboxes (other users cannot): {why}"
            ),
        });
    }
    if !layout.supports(Controller::Memory) || !layout.supports(Controller::Cpu) {
        list.push(Weakness {
            kind: WeaknessKind::LimitNotEnforced,
            message: "memory and CPU limits are not enforced: no cgroup of this host can be written".to_owned(),
        });
    }
    if !storage.enforces_limits() {
        list.push(Weakness {
            kind: WeaknessKind::StorageMeasuredOnly,
            message:
                "disk limits are measured, not enforced: that needs root, and either a file system with project quotas or mkfs.ext4 (package e2fsprogs) and loop devices"
                    .to_owned(),
        });
    }
    if sys::landlock_version().is_err() {
        list.push(Weakness {
            kind: WeaknessKind::NoLandlock,
            message: "the kernel has no Landlock, or it is disabled; the other mechanisms are in place".to_owned(),
        });
    }
    list
}

/// The weakness of a Pod under the caller's own id, with the reason.
fn shared_uid(why: &str) -> Weakness {
    Weakness {
        kind: WeaknessKind::SharedUid,
        message: format!("all sandboxes run under your own user id: {why}; or run as root"),
    }
}

/// Kills and removes a cgroup; waits for the last dying process.
pub(super) fn remove_cgroup(group: &CgroupPlan) -> io::Result<()> {
    let deadline = Instant::now() + CGROUP_TIMEOUT;
    let mut pause = Duration::from_micros(200);
    loop {
        match group.remove() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                group.kill()?;
                // The kernel gives no event for "the last process left" on v1; the wait doubles up to 20 ms.
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

/// Rejects what this node does not support, instead of ignoring it silently.
pub(super) fn check_supported(spec: &PodSandboxSpec, privileged: bool) -> Result<(), RuntimeError> {
    let RuntimeHandler::Oci { handler, program } = &spec.handler else { return Ok(()) };
    if oci::find_program(program).is_none() {
        return Err(RuntimeError::MissingProgram { handler: handler.clone(), program: program.clone() });
    }
    if !privileged {
        return Err(RuntimeError::Refused(format!(
            "runtime class handler {handler} ({program}) needs a node that runs as root; leave runtimeClassName out for the built-in isolation"
        )));
    }
    Ok(())
}

impl KernelRuntime {
    /// The key for a Pod's ids and layers: its owner, unless another Pod of that owner still exists.
    fn claim_storage_key(&self, spec: &PodSandboxSpec) -> String {
        let mut storage_users = self.storage_users.lock();
        match storage_users.get(&spec.owner) {
            Some(user) if *user != spec.uid => {
                storage_users.insert(spec.uid.clone(), spec.uid.clone());
                spec.uid.clone()
            }
            _ => {
                storage_users.insert(spec.owner.clone(), spec.uid.clone());
                spec.owner.clone()
            }
        }
    }

    /// Without privilege: the caller's own id.
    pub(super) fn caller_ids(&self) -> IdMode {
        IdMode::Single { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    /// Whether a new Pod gets the caller's own id although there are blocks: with another it could not write to folders of
    /// the caller.
    pub(super) fn needs_callers_id(&self, spec: &PodSandboxSpec) -> bool {
        spec.writes_host_paths && !self.privileged
    }

    fn ids_for(&self, spec: &PodSandboxSpec, storage_key: &str) -> Result<IdMode, RuntimeError> {
        let known = self.ids.lock().has(storage_key);
        match &self.id_source {
            IdSource::Caller { why } if known => return Err(ids_unavailable(storage_key, why)),
            IdSource::Caller { .. } => return Ok(self.caller_ids()),
            _ if self.predates_id_blocks(storage_key) => return Ok(self.caller_ids()),
            _ if self.needs_callers_id(spec) && !known => return Ok(self.caller_ids()),
            _ => {}
        }
        let block = self.ids.lock().block_of(storage_key);
        match block.map_err(saving_ids)? {
            Block::Has { first, fresh } => {
                if fresh {
                    self.sync_ids();
                }
                self.id_source
                    .mode(first)
                    .ok_or_else(|| ids_unavailable(storage_key, "/etc/subuid or /etc/subgid has changed"))
            }
            // A Pod under the caller's own id is better than none; it reports the weakness.
            Block::None if !self.privileged => Ok(self.caller_ids()),
            Block::None => Err(no_ids_left()),
        }
    }

    /// Whether an owner has files, but no block, from before the caller had subordinate ids: with a block, they would
    /// no longer belong to the Pod.
    pub(super) fn predates_id_blocks(&self, storage_key: &str) -> bool {
        let subordinate = matches!(self.id_source, IdSource::Subordinate { .. });
        subordinate && !self.ids.lock().has(storage_key) && self.layers_dir().join(storage_key).exists()
    }

    fn take_address(&self) -> Result<std::net::Ipv4Addr, RuntimeError> {
        self.addresses.lock().take().ok_or_else(|| RuntimeError::Exhausted {
            what: "Pod address",
            advice: "delete sandboxes that are no longer needed, or choose a larger Pod network".to_owned(),
        })
    }

    /// Plans the base of a Pod.
    pub(super) fn plan_base(&self, ids: IdMode, routed: bool) -> Result<PodBasePlan, RuntimeError> {
        let group = format!("pod-{:016x}", rand::random::<u64>());
        let mut cgroup = self.host.layout.plan(&group, self.pod_limits(&Limits::default()));
        if let Some(unified) = &cgroup.unified
            && !self.host.layout.unified_controllers.is_empty()
        {
            // Containers' cgroups below this one use the controllers too.
            let file = unified.join("cgroup.subtree_control");
            cgroup.settings.push(cgroup::Setting { file, value: self.host.layout.subtree_control(), optional: false });
        }
        Ok(PodBasePlan {
            ids,
            supervisor_group: self.host.layout.supervisor_group(&cgroup),
            address: self.take_address()?,
            veth: self.host.network.as_ref().filter(|_| routed).map(NodeNetwork::new_veth),
            group,
            cgroup,
            ends_with_node: self.config.pods_end_with_node,
            isolation: self.config.isolation,
        })
    }

    /// Creates a Pod that does not exist yet.
    pub(super) async fn make_pod(&self, spec: PodSandboxSpec) -> Result<PodSandbox, RuntimeError> {
        self.check_room(&spec).await?;
        let uid = spec.uid.clone();
        let storage_key = {
            let lock = self.owner_lock(&spec.owner);
            let _guard = lock.lock().await;
            self.claim_storage_key(&spec)
        };
        let made = self.try_make_pod(spec, &storage_key).await;
        if made.is_err() {
            self.storage_users.lock().remove(&storage_key);
            if let Err(error) = self.remove_remains(&uid, None).await {
                tracing::warn!(pod = uid, %error, "A Pod could not be created, and its folders could not be removed");
            }
        }
        self.refill();
        made
    }

    /// Rejects a Pod if the disk is nearly full or, in strict mode, if limits cannot be enforced.
    async fn check_room(&self, spec: &PodSandboxSpec) -> Result<(), RuntimeError> {
        if self.config.strict_limits
            && let Some(weak) = self.weaknesses.iter().find(|weak| weak.kind == WeaknessKind::LimitNotEnforced)
        {
            return Err(RuntimeError::Refused(format!("{} (strict limits are asked for)", weak.message)));
        }
        let step = |source| RuntimeError::Kernel { step: "looking at the disk".to_owned(), source };
        let disk_shortage = || DiskSpace::of(&self.config.data_dir).map(DiskSpace::shortage).map_err(step);
        if disk_shortage()?.is_none() {
            return Ok(());
        }
        let storage = Arc::clone(&self.storage);
        let _ = tokio::task::spawn_blocking(move || storage.empty_trash()).await;
        let Some(shortage) = disk_shortage()? else { return Ok(()) };
        let largest = self.largest_writer().await;
        let largest =
            largest.map_or_else(String::new, |(name, bytes)| format!("; {name} has written most, {} MiB", bytes >> 20));
        tracing::warn!(pod = spec.uid, shortage, "The disk is too full for a new Pod");
        Err(RuntimeError::Exhausted {
            what: "disk space",
            advice: format!("{shortage} in {}{largest}", self.config.data_dir.display()),
        })
    }

    /// The Pod whose layers and volumes use the most space, and how much.
    async fn largest_writer(&self) -> Option<(String, u64)> {
        let pods: Vec<_> = self.pods.lock().values().cloned().collect();
        let mut largest = None;
        for pod in pods {
            let Ok(usage) = self.storage_usage(&pod.sandbox.uid).await else { continue };
            let bytes = usage.layers.iter().chain(&usage.volumes).map(|(_, bytes)| bytes).sum::<u64>();
            if largest.as_ref().is_none_or(|(_, most)| bytes > *most) {
                largest = Some((format!("{}/{}", pod.plan.spec.namespace, pod.plan.spec.name), bytes));
            }
        }
        largest
    }

    async fn try_make_pod(&self, spec: PodSandboxSpec, storage_key: &str) -> Result<PodSandbox, RuntimeError> {
        if let Some(ready) = self.take_ready(&spec, storage_key) {
            if ready.base.ids.has_block() {
                let (first, _) = ready.base.ids.host_range();
                self.ids.lock().assign(storage_key, first).map_err(saving_ids)?;
                self.sync_ids();
            }
            let plan = self.plan_pod(spec, ready.base);
            return self.start_pod(plan, storage_key, ready.control).await;
        }
        let base = self.plan_base(self.ids_for(&spec, storage_key)?, spec.network == NetworkMode::Routed)?;
        let began = async {
            let control = self.spawn_supervisor().await?;
            let file = protocol::memory_file(&base)?;
            protocol::send(&control, &Setup::Base { answer: false }, &[file.as_fd()])?;
            Ok(control)
        };
        match began.await {
            Ok(control) => self.start_pod(self.plan_pod(spec, base), storage_key, control).await,
            Err(source) => {
                self.addresses.lock().give_back(base.address);
                Err(RuntimeError::Kernel { step: "starting the supervisor".to_owned(), source })
            }
        }
    }

    fn plan_pod(&self, spec: PodSandboxSpec, base: PodBasePlan) -> PodPlan {
        let limits = self.host.layout.plan(&base.group, self.pod_limits(&spec.limits)).settings;
        PodPlan {
            dir: self.pod_dir(&spec.uid),
            limits: limits::changes(&base.cgroup.settings, limits),
            stage: stage_dir(&self.config.data_dir),
            images_dir: self.images.dir().to_owned(),
            weaknesses: self.weaknesses_of(base.ids),
            base,
            spec,
        }
    }

    /// The host's weaknesses, and those of this Pod alone.
    fn weaknesses_of(&self, ids: IdMode) -> Vec<Weakness> {
        let mut list = self.weaknesses.clone();
        if !ids.has_block() && self.id_source.has_blocks() {
            list.push(shared_uid(
                "it writes to a folder of yours, or your subordinate ids are all in use, or the sandbox is older than they are; show folders read-only, or add more ids to /etc/subuid and /etc/subgid",
            ));
        }
        list
    }

    async fn start_pod(&self, plan: PodPlan, storage_key: &str, control: OwnedFd) -> Result<PodSandbox, RuntimeError> {
        let made = self.try_start_pod(&plan, storage_key, control).await;
        if made.is_err() {
            self.release_network(&plan);
        }
        made
    }

    async fn try_start_pod(
        &self,
        plan: &PodPlan,
        storage_key: &str,
        control: OwnedFd,
    ) -> Result<PodSandbox, RuntimeError> {
        let step = |name: &'static str| move |source: io::Error| RuntimeError::Kernel { step: name.to_owned(), source };
        fs::create_dir_all(&plan.dir).map_err(step("making the Pod's folder"))?;
        let file = plan.dir.join("plan.json");
        atomic_file::replace(&file, &SavedPlan { plan: plan.clone(), storage_key: storage_key.to_owned() })
            .map_err(step("saving the Pod's plan"))?;
        let file = protocol::memory_file(plan).map_err(step("writing the Pod's plan"))?;
        protocol::send(&control, &Setup::Pod, &[file.as_fd()]).map_err(step("handing over the Pod's plan"))?;
        let (client, ready) =
            self.listen(&plan.spec.uid, &plan.cgroup, control).map_err(step("watching the supervisor"))?;
        match client.wait(ready).await? {
            (Response::Ready(sandbox), _) => {
                let pod = Pod::new(plan.clone(), sandbox.clone(), client, storage_key.to_owned(), Vec::new());
                self.pods.lock().insert(sandbox.uid.clone(), Arc::new(pod));
                Ok(sandbox)
            }
            _ => Err(RuntimeError::Protocol("a supervisor's first response was not about its Pod".to_owned())),
        }
    }

    /// Starts a container in a Pod.
    pub(super) async fn make_container(
        &self,
        pod: &Pod,
        mut spec: ContainerSpec,
    ) -> Result<ContainerState, RuntimeError> {
        if spec.command.is_empty() {
            return Err(RuntimeError::Refused(format!("container {} has no command", spec.name)));
        }
        let step = |name: &'static str| move |source: io::Error| RuntimeError::Kernel { step: name.to_owned(), source };
        let convention = oci::Convention::of_handler(&pod.plan.spec.handler);
        let root = self.privileged.then(|| match convention {
            Some(convention) if !convention.user_namespace => 0,
            _ => pod.plan.ids.host_range().0,
        });
        let snapshot = pod.plan.spec.snapshot.as_ref();
        let origin = snapshot.map(|snapshot| format!("{}@{}", snapshot.name, snapshot.restored_at));
        let wanted = layers::LayerRequest {
            owner: &pod.storage_key,
            container: &spec.name,
            digest: &spec.image.digest,
            limit: spec.limits.layer_bytes,
            root,
            origin: origin.as_deref(),
        };
        self.unmounts.release_layer(&layers::key(&pod.storage_key, &spec.name)).await;
        let lowers = || match snapshot {
            Some(snapshot) => {
                let namespace = &pod.plan.spec.namespace;
                let found = self.snapshots.layers_for(namespace, &snapshot.name, &spec.name, &spec.image.digest)?;
                self.sealed.lowers(&found, self.marks()).map(|_| found)
            }
            None => Ok(Vec::new()),
        };
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::InvalidInput => RuntimeError::Refused(source.to_string()),
            _ => RuntimeError::Kernel { step: "making the writable layer".to_owned(), source },
        };
        let layer = {
            let _sealed = self.sealed_lock.lock().await;
            layers::ensure(&self.layers_dir(), wanted, &self.storage, &self.sealed, lowers).map_err(failed)?
        };
        let sealed = self.sealed.lowers(&layer.below.layers, self.marks()).map_err(failed)?;
        let layer = layer.folder;
        self.sync_mark(layer.join(layers::MARK));
        let copies = self.make_copies(pod, &spec).await?;
        if convention.is_none() {
            termination_message::remove(&layer).map_err(step("removing an earlier termination message"))?;
        } else if let Some(target) = spec.termination_message_path.take() {
            let path = termination_message::create(&layer).map_err(step("making the termination message file"))?;
            let source = MountSource::Data { path, sub_path: None };
            spec.mounts.push(Mount { source, target, read_only: false });
        }
        let group = format!("{}/{}", pod.plan.group, spec.name);
        let (own, of_pod) = (self.container_limits(&spec.limits), self.pod_limits(&pod.plan.spec.limits));
        let cgroup = match convention {
            // An OCI runtime that manages cgroups creates them in every hierarchy, and counts there.
            Some(convention) if !convention.cgroups_managed_by_node => self.host.layout.plan(&group, own),
            _ => {
                // OCI runtimes have processes on the host, too.
                let own_processes =
                    convention.is_none() && self.config.isolation.pid_namespace && !pod.plan.spec.share_processes;
                self.host.layout.plan_below(&pod.plan.cgroup, &group, own, of_pod, own_processes)
            }
        };
        let plan = ContainerPlan {
            id: uuid::Uuid::new_v4().simple().to_string(),
            layer,
            sealed,
            copies,
            cgroup,
            isolation: self.config.isolation,
            spec,
        };
        pod.note_memory_limit(&plan.spec.name, own.memory_bytes);
        let file = protocol::memory_file(&plan).map_err(step("writing the container's plan"))?;
        match pod.supervisor.call(Call::Start, &[file.as_fd()]).await? {
            (Response::Started(state), sockets) => {
                if let Some(socket) = sockets.into_iter().next() {
                    pod.keep_socket(socket);
                }
                Ok(pod.note_started(state))
            }
            _ => Err(RuntimeError::Protocol("a start was not answered with the container's state".to_owned())),
        }
    }

    /// The folders of the copies that a container mounts, by volume.
    async fn make_copies(&self, pod: &Pod, spec: &ContainerSpec) -> Result<BTreeMap<String, PathBuf>, RuntimeError> {
        const STEP: &str = "making a copy of a folder";
        let mut made = BTreeMap::new();
        for mount in &spec.mounts {
            let MountSource::Copy { path, volume, private } = &mount.source else { continue };
            let now = jiff::Timestamp::now();
            let info = CopyInfo {
                source: path.clone(),
                namespace: pod.plan.spec.namespace.clone(),
                pod: pod.plan.spec.name.clone(),
                volume: volume.clone(),
                private: *private,
                marks: if pod.plan.ids.is_privileged() { Marks::Trusted } else { Marks::User },
                began: (now.as_second(), now.subsec_nanosecond().unsigned_abs()),
            };
            let (base, container) = (self.copies_dir(&pod.storage_key), spec.name.clone());
            let (storage, cancelled) = (Arc::clone(&self.storage), Arc::clone(&self.recording_cancelled));
            let work = move || copies::ensure(&base, &container, info, &storage, &cancelled);
            let folder = tokio::task::spawn_blocking(work).await.map_err(|_| RuntimeError::Timeout(STEP))?;
            let folder = folder.map_err(|source| RuntimeError::Kernel { step: STEP.to_owned(), source })?;
            made.insert(volume.clone(), folder);
        }
        Ok(made)
    }

    pub(super) async fn spawn_supervisor(&self) -> io::Result<OwnedFd> {
        let mut spawner = self.spawner.lock().await;
        if let Some(running) = spawner.as_ref() {
            match running.spawn() {
                Ok(control) => return Ok(control),
                Err(error) => tracing::warn!(%error, "The spawner is gone; starting another"),
            }
        }
        let fresh = Spawner::start(&self.config.helper)?;
        let control = fresh.spawn();
        *spawner = Some(fresh);
        control
    }
}

fn saving_ids(source: io::Error) -> RuntimeError {
    RuntimeError::Kernel { step: "saving id blocks".to_owned(), source }
}

/// The error when an owner's files belong to ids that are not available any more.
fn ids_unavailable(storage_key: &str, why: &str) -> RuntimeError {
    RuntimeError::Refused(format!("the user ids that the files of {storage_key} belong to cannot be used: {why}"))
}

pub(super) fn no_ids_left() -> RuntimeError {
    RuntimeError::Exhausted {
        what: "block of user ids",
        advice: "delete sandboxes that are no longer needed, or widen the range".to_owned(),
    }
}

/// A Pod's plan, saved for the next node process.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct SavedPlan {
    pub(super) plan: PodPlan,
    #[serde(rename = "keeper")]
    pub(super) storage_key: String,
}

impl SavedPlan {
    /// The plan saved in a Pod's folder, if any.
    pub(super) fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(dir.join("plan.json")).ok()?).ok()
    }
}
