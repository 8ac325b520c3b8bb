//! Making Pods and containers: ids, groups, folders, layers, then the supervisor's part.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::cgroup::{self, CgroupLayout, CgroupPlan, Controller, HardLimits};
use super::super::ids::{Block, IdSource};
use super::super::net::NodeNetwork;
use super::super::net::egress::TUN;
use super::super::oci;
use super::super::plan::{ContainerPlan, GroundPlan, PodPlan};
use super::super::share::no_limits;
use super::super::storage::{DiskSpace, Storage};
use super::super::supervisor::records;
use super::super::termination;
use super::super::wire::{self, Answer, Begin};
use super::*;
use crate::runtime::{Limits, Mount, MountSource, NetworkMode, RuntimeHandler, WeaknessKind};

/// How long a dying process may keep its group busy.
const GROUP_DEADLINE: Duration = Duration::from_secs(10);

/// What is weaker on this host than on a fully equipped one.
pub(super) fn weaknesses(layout: &CgroupLayout, ids: &IdSource, networked: bool, storage: &Storage) -> Vec<Weakness> {
    let mut list = Vec::new();
    if let IdSource::Caller { why } = ids {
        list.push(shared_uid(why));
    }
    if !networked {
        list.push(Weakness {
            kind: WeaknessKind::NoEgress,
            message: format!(
                "sandboxes have no network besides what the node forwards: install pasta (package passt) and let users open {TUN}, or run as root with nftables"
            ),
        });
    }
    if !layout.holds(Controller::Memory) || !layout.holds(Controller::Cpu) {
        list.push(Weakness {
            kind: WeaknessKind::LimitNotEnforced,
            message: "memory and CPU limits are not held: no control group of this host can be written".to_owned(),
        });
    }
    if !storage.holds_limits() {
        list.push(Weakness {
            kind: WeaknessKind::StorageMeasuredOnly,
            message:
                "disk limits are measured, not held: that needs root, and either a file system with project quotas or mkfs.ext4 (package e2fsprogs) and loop devices"
                    .to_owned(),
        });
    }
    list
}

/// A Pod under the caller's own id, and why it is.
fn shared_uid(why: &str) -> Weakness {
    Weakness {
        kind: WeaknessKind::SharedUid,
        message: format!("sandboxes run under your own user id, all of them alike: {why}; or run as root"),
    }
}

/// Kills and removes a group; waits for the last dying process.
pub(super) fn remove_group(group: &CgroupPlan) -> io::Result<()> {
    let deadline = Instant::now() + GROUP_DEADLINE;
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

/// What this node cannot do is named, never left out in silence.
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
    /// The key under which a Pod's ids and layers are kept: its owner, unless another Pod of that owner is still here.
    fn take_keeper(&self, spec: &PodSandboxSpec) -> String {
        let mut holders = self.holders.lock();
        match holders.get(&spec.owner) {
            Some(holder) if *holder != spec.uid => {
                holders.insert(spec.uid.clone(), spec.uid.clone());
                spec.uid.clone()
            }
            _ => {
                holders.insert(spec.owner.clone(), spec.uid.clone());
                spec.owner.clone()
            }
        }
    }

    /// Without privilege: the one id there is.
    pub(super) fn own_ids(&self) -> IdMode {
        IdMode::Single { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    fn ids_of(&self, keeper: &str) -> Result<IdMode, RuntimeError> {
        let known = self.ids.lock().has(keeper);
        match &self.source {
            IdSource::Caller { why } if known => return Err(lost_ids(keeper, why)),
            IdSource::Caller { .. } => return Ok(self.own_ids()),
            _ if self.is_older_than_blocks(keeper) => return Ok(self.own_ids()),
            _ => {}
        }
        let block = self.ids.lock().block_of(keeper);
        match block.map_err(saving_ids)? {
            Block::Has { first, fresh } => {
                if fresh {
                    self.sync_ids();
                }
                self.source.mode(first).ok_or_else(|| lost_ids(keeper, "/etc/subuid or /etc/subgid has changed"))
            }
            // Better under the caller's own id than not at all; the Pod says so.
            Block::None if !self.privileged => Ok(self.own_ids()),
            Block::None => Err(no_ids_left()),
        }
    }

    /// Whether an owner has files, and no block, of the time when the caller had none to give: they would no longer be its own.
    pub(super) fn is_older_than_blocks(&self, keeper: &str) -> bool {
        let subordinate = matches!(self.source, IdSource::Subordinate { .. });
        subordinate && !self.ids.lock().has(keeper) && self.layers_dir().join(keeper).exists()
    }

    fn hard_limits(&self, limits: &Limits, of_pod: bool) -> HardLimits {
        if !self.config.walls.limits {
            return no_limits();
        }
        let defaults = &self.config.defaults;
        HardLimits {
            memory_bytes: limits.memory_bytes.or(if of_pod { defaults.memory_bytes } else { None }),
            cpu_millis: limits.cpu_millis.or(if of_pod { defaults.cpu_millis } else { None }),
            cpu_request_millis: limits.cpu_request_millis,
            pids: limits.pids.or(of_pod.then_some(defaults.pids)),
        }
    }

    fn take_address(&self) -> Result<std::net::Ipv4Addr, RuntimeError> {
        self.addresses.lock().take().ok_or_else(|| RuntimeError::Exhausted {
            what: "Pod address",
            advice: "delete sandboxes that are no longer needed, or choose a larger Pod network".to_owned(),
        })
    }

    /// What a Pod can stand on.
    pub(super) fn plan_ground(&self, ids: IdMode, routed: bool) -> Result<GroundPlan, RuntimeError> {
        let group = format!("pod-{:016x}", rand::random::<u64>());
        let mut cgroup = self.share.layout.plan(&group, no_limits());
        if let Some(unified) = &cgroup.unified
            && !self.share.layout.unified_controllers.is_empty()
        {
            // Containers' groups below this one use the controllers too.
            let file = unified.join("cgroup.subtree_control");
            cgroup.settings.push(cgroup::Setting { file, value: self.share.layout.subtree_control(), optional: false });
        }
        Ok(GroundPlan {
            ids,
            supervisor_group: self.share.layout.supervisor_group(&cgroup),
            address: self.take_address()?,
            veth: self.share.network.as_ref().filter(|_| routed).map(NodeNetwork::cable),
            group,
            cgroup,
            ends_with_node: self.config.pods_end_with_node,
            walls: self.config.walls,
        })
    }

    /// Makes a Pod that does not exist yet.
    pub(super) async fn make_pod(&self, spec: PodSandboxSpec) -> Result<PodSandbox, RuntimeError> {
        self.check_room(&spec).await?;
        let uid = spec.uid.clone();
        let keeper = self.take_keeper(&spec);
        let made = self.try_make_pod(spec, &keeper).await;
        if made.is_err() {
            self.holders.lock().remove(&keeper);
            if let Err(error) = self.remove_remains(&uid, None).await {
                tracing::warn!(pod = uid, %error, "Remains of a Pod that could not be made stay behind");
            }
        }
        self.refill();
        made
    }

    /// Refuses what this machine cannot hold: no room on the disk, or, when asked to be strict, limits that would only be
    /// wishes.
    async fn check_room(&self, spec: &PodSandboxSpec) -> Result<(), RuntimeError> {
        if self.config.strict_limits
            && let Some(weak) = self.weaknesses.iter().find(|weak| weak.kind == WeaknessKind::LimitNotEnforced)
        {
            return Err(RuntimeError::Refused(format!("{} (strict limits are asked for)", weak.message)));
        }
        let step = |source| RuntimeError::Kernel { step: "looking at the disk".to_owned(), source };
        let look = || DiskSpace::of(&self.config.data_dir).map(DiskSpace::shortage).map_err(step);
        if look()?.is_none() {
            return Ok(());
        }
        let storage = Arc::clone(&self.storage);
        let _ = tokio::task::spawn_blocking(move || storage.empty_trash()).await;
        let Some(shortage) = look()? else { return Ok(()) };
        let largest = self.largest_writer().await;
        let largest =
            largest.map_or_else(String::new, |(name, bytes)| format!("; {name} has written most, {} MiB", bytes >> 20));
        tracing::warn!(pod = spec.uid, shortage, "No room for a Pod");
        Err(RuntimeError::Exhausted {
            what: "disk space",
            advice: format!("{shortage} in {}{largest}", self.config.data_dir.display()),
        })
    }

    /// The Pod whose layers and volumes take up most, and how much.
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

    async fn try_make_pod(&self, spec: PodSandboxSpec, keeper: &str) -> Result<PodSandbox, RuntimeError> {
        if let Some(ready) = self.take_ready(&spec, keeper) {
            if ready.ground.ids.has_block() {
                let (first, _) = ready.ground.ids.host_range();
                self.ids.lock().assign(keeper, first).map_err(saving_ids)?;
                self.sync_ids();
            }
            let plan = self.plan_pod(spec, ready.ground);
            return self.start_pod(plan, keeper, ready.control).await;
        }
        let ground = self.plan_ground(self.ids_of(keeper)?, spec.network == NetworkMode::Routed)?;
        let began = async {
            let control = self.spawn_supervisor().await?;
            let file = wire::memory_file(&ground)?;
            wire::send(&control, &Begin::Ground { answer: false }, &[file.as_fd()])?;
            Ok(control)
        };
        match began.await {
            Ok(control) => self.start_pod(self.plan_pod(spec, ground), keeper, control).await,
            Err(source) => {
                self.addresses.lock().give_back(ground.address);
                Err(RuntimeError::Kernel { step: "starting the supervisor".to_owned(), source })
            }
        }
    }

    fn plan_pod(&self, spec: PodSandboxSpec, ground: GroundPlan) -> PodPlan {
        let limits = self.share.layout.plan(&ground.group, self.hard_limits(&spec.limits, true)).settings;
        PodPlan {
            dir: self.pod_dir(&spec.uid),
            limits,
            stage: stage_dir(&self.config.data_dir),
            images_dir: self.images.dir().to_owned(),
            weaknesses: self.weaknesses_of(ground.ids),
            ground,
            spec,
        }
    }

    /// The host's, and those of this Pod alone.
    fn weaknesses_of(&self, ids: IdMode) -> Vec<Weakness> {
        let mut list = self.weaknesses.clone();
        if !ids.has_block() && self.source.has_blocks() {
            list.push(shared_uid(
                "your subordinate ids are all in use, or the sandbox is older than they are; add more to /etc/subuid and /etc/subgid",
            ));
        }
        list
    }

    async fn start_pod(&self, plan: PodPlan, keeper: &str, control: OwnedFd) -> Result<PodSandbox, RuntimeError> {
        let made = self.settle_pod(&plan, keeper, control).await;
        if made.is_err() {
            self.release_network(&plan);
        }
        made
    }

    async fn settle_pod(&self, plan: &PodPlan, keeper: &str, control: OwnedFd) -> Result<PodSandbox, RuntimeError> {
        let step = |name: &'static str| move |source: io::Error| RuntimeError::Kernel { step: name.to_owned(), source };
        fs::create_dir_all(&plan.dir).map_err(step("making the Pod's folder"))?;
        let file = plan.dir.join("plan.json");
        records::replace(&file, &SavedPlan { plan: plan.clone(), keeper: keeper.to_owned() })
            .map_err(step("saving the Pod's plan"))?;
        let file = wire::memory_file(plan).map_err(step("writing the Pod's plan"))?;
        wire::send(&control, &Begin::Pod, &[file.as_fd()]).map_err(step("handing over the Pod's plan"))?;
        let (link, ready) =
            self.listen(&plan.spec.uid, &plan.cgroup, control).map_err(step("watching the supervisor"))?;
        match link.wait(ready).await? {
            (Answer::Ready(sandbox), _) => {
                let pod = Pod::new(plan.clone(), sandbox.clone(), link, keeper.to_owned(), Vec::new());
                self.pods.lock().insert(sandbox.uid.clone(), Arc::new(pod));
                Ok(sandbox)
            }
            _ => Err(RuntimeError::Protocol("a supervisor's first word was not about its Pod".to_owned())),
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
        let wanted = layers::Wanted {
            owner: &pod.keeper,
            container: &spec.name,
            digest: &spec.image.digest,
            limit: spec.limits.layer_bytes,
            root,
        };
        self.unmounts.settle(&layers::key(&pod.keeper, &spec.name)).await;
        let layer =
            layers::ensure(&self.layers_dir(), wanted, &self.storage).map_err(step("making the writable layer"))?;
        self.sync_mark(layer.join(layers::MARK));
        if let Some(target) = spec.termination_message_path.take() {
            let path = termination::create(&layer).map_err(step("making the termination message file"))?;
            let source = MountSource::Data { path, sub_path: None };
            spec.mounts.push(Mount { source, target, read_only: false });
        }
        let group = format!("{}/{}", pod.plan.group, spec.name);
        let (own, of_pod) = (self.hard_limits(&spec.limits, false), self.hard_limits(&pod.plan.spec.limits, true));
        let cgroup = match convention {
            // A runtime that makes groups makes them in every tree, and counts there.
            Some(convention) if !convention.own_groups => self.share.layout.plan(&group, own),
            _ => {
                // Other runtimes have processes on the host, too.
                let own_processes =
                    convention.is_none() && self.config.walls.pid_namespace && !pod.plan.spec.share_processes;
                self.share.layout.plan_below(&pod.plan.cgroup, &group, own, of_pod, own_processes)
            }
        };
        let plan = ContainerPlan {
            id: uuid::Uuid::new_v4().simple().to_string(),
            layer,
            cgroup,
            walls: self.config.walls,
            spec,
        };
        let file = wire::memory_file(&plan).map_err(step("writing the container's plan"))?;
        match pod.link.call(Call::Start, &[file.as_fd()]).await? {
            (Answer::Started(state), sockets) => {
                if let Some(socket) = sockets.into_iter().next() {
                    pod.keep_socket(socket);
                }
                Ok(pod.note_started(state))
            }
            _ => Err(RuntimeError::Protocol("a start was not answered with a state".to_owned())),
        }
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

/// An owner's files belong to ids that can no longer be had.
fn lost_ids(keeper: &str, why: &str) -> RuntimeError {
    RuntimeError::Refused(format!("the user ids that the files of {keeper} belong to cannot be used: {why}"))
}

pub(super) fn no_ids_left() -> RuntimeError {
    RuntimeError::Exhausted {
        what: "block of user ids",
        advice: "delete sandboxes that are no longer needed, or widen the range".to_owned(),
    }
}

/// A Pod's plan as saved for the next node process.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct SavedPlan {
    pub(super) plan: PodPlan,
    pub(super) keeper: String,
}

impl SavedPlan {
    /// What was saved in a Pod's folder, if anything.
    pub(super) fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(dir.join("plan.json")).ok()?).ok()
    }
}
