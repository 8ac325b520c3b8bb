//! Making Pods and containers: ids, groups, folders, layers, then the supervisor's part.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::super::cgroup::{self, CgroupLayout, CgroupPlan, Controller, HardLimits};
use super::super::ids::Block;
use super::super::plan::{ContainerPlan, PodPlan};
use super::super::supervisor::records;
use super::super::wire::{self, Answer};
use super::*;
use crate::runtime::{Limits, NetworkMode, RuntimeHandler, WeaknessKind};

/// How long a dying process may keep its group busy.
const GROUP_DEADLINE: Duration = Duration::from_secs(10);

/// Memory left to the rest of the machine whatever Pods do.
const RESERVED_MEMORY: u64 = 512 << 20;

/// Name of the group that holds all Pods of a data folder.
pub(super) fn node_group(data_dir: &Path) -> String {
    let hash = Sha256::digest(data_dir.as_os_str().as_encoded_bytes());
    let short: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("agent-sandbox-{short}")
}

/// A Pod's group, relative to the node's.
pub(super) fn pod_group(uid: &str) -> String {
    format!("pod-{uid}")
}

pub(super) fn no_limits() -> HardLimits {
    HardLimits { memory_bytes: None, cpu_millis: None, cpu_request_millis: None, pids: None }
}

/// Makes the group above all Pods, capped at the machine less a reserve. A tree we may not write is not used.
pub(super) fn prepare_node_group(mut layout: CgroupLayout, config: &KernelConfig, privileged: bool) -> CgroupLayout {
    let limits =
        HardLimits { memory_bytes: machine_memory().map(|all| all.saturating_sub(RESERVED_MEMORY)), ..no_limits() };
    let plan = layout.plan("", limits);
    if let Err(error) = plan.create() {
        if privileged {
            tracing::warn!(%error, data_dir = %config.data_dir.display(), "Control groups cannot be used; limits are not held");
        }
        return CgroupLayout::default();
    }
    if let Some(unified) = layout.unified.clone()
        && !layout.unified_controllers.is_empty()
    {
        let control = layout.subtree_control();
        let parent = unified.parent().map(|parent| parent.join("cgroup.subtree_control"));
        let enabled = parent
            .map_or(Ok(()), |file| cgroup::write_control(&file, &control))
            .and_then(|()| cgroup::write_control(&unified.join("cgroup.subtree_control"), &control));
        if enabled.is_err() {
            layout.unified_controllers.clear();
        }
    }
    layout
}

fn machine_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// What is weaker on this host than on a fully equipped one.
pub(super) fn weaknesses(layout: &CgroupLayout, privileged: bool, networked: bool) -> Vec<Weakness> {
    let mut list = Vec::new();
    if !privileged {
        list.push(Weakness {
            kind: WeaknessKind::SharedUid,
            message: "all sandboxes run under your own user id; run as root for a block of ids each".to_owned(),
        });
    }
    if !networked {
        list.push(Weakness {
            kind: WeaknessKind::NoEgress,
            message: "sandboxes have no network besides what the node forwards; addresses need root and nftables"
                .to_owned(),
        });
    }
    if !layout.holds(Controller::Memory) || !layout.holds(Controller::Cpu) {
        list.push(Weakness {
            kind: WeaknessKind::LimitNotEnforced,
            message: "memory and CPU limits are not held: no control group of this host can be written".to_owned(),
        });
    }
    list
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
pub(super) fn check_supported(spec: &PodSandboxSpec) -> Result<(), RuntimeError> {
    if spec.share_processes {
        return Err(RuntimeError::Refused("shareProcessNamespace is not supported by this node".to_owned()));
    }
    let RuntimeHandler::Oci { handler, program } = &spec.handler else { return Ok(()) };
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = Path::new(program).is_absolute() && Path::new(program).exists()
        || std::env::split_paths(&folders).any(|folder| folder.join(program).exists());
    if !found {
        return Err(RuntimeError::MissingProgram { handler: handler.clone(), program: program.clone() });
    }
    Err(RuntimeError::Refused(format!(
        "runtime class handler {handler} ({program}) cannot be used by this node; leave runtimeClassName out for the built-in isolation"
    )))
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

    fn ids_of(&self, keeper: &str) -> Result<IdMode, RuntimeError> {
        if !self.privileged {
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            return Ok(IdMode::Single { uid, gid });
        }
        let mut ids = self.ids.lock();
        match ids.block_of(keeper) {
            Ok(Block::Has { first, fresh }) => {
                if fresh && let Ok(file) = ids.file_of(keeper) {
                    sync_later(file);
                }
                Ok(IdMode::Block { first })
            }
            Ok(Block::None) => Err(RuntimeError::Exhausted {
                what: "block of user ids",
                advice: "delete sandboxes that are no longer needed, or widen the range".to_owned(),
            }),
            Err(source) => Err(RuntimeError::Kernel { step: "saving id blocks".to_owned(), source }),
        }
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

    fn plan_pod(&self, spec: PodSandboxSpec, keeper: &str) -> Result<PodPlan, RuntimeError> {
        let mut cgroup = self.layout.plan(&pod_group(&spec.uid), self.hard_limits(&spec.limits, true));
        if let Some(unified) = &cgroup.unified
            && !self.layout.unified_controllers.is_empty()
        {
            // Containers' groups below this one use the controllers too.
            let file = unified.join("cgroup.subtree_control");
            cgroup.settings.push(cgroup::Setting { file, value: self.layout.subtree_control(), optional: false });
        }
        Ok(PodPlan {
            dir: self.pod_dir(&spec.uid),
            ids: self.ids_of(keeper)?,
            address: self.take_address()?,
            veth: self.network.as_ref().filter(|_| spec.network == NetworkMode::Routed).map(NodeNetwork::cable),
            cgroup,
            images_dir: self.images.dir().to_owned(),
            weaknesses: self.weaknesses.clone(),
            ends_with_node: self.config.pods_end_with_node,
            walls: self.config.walls,
            spec,
        })
    }

    /// Makes a Pod that does not exist yet.
    pub(super) async fn make_pod(&self, spec: PodSandboxSpec) -> Result<PodSandbox, RuntimeError> {
        let uid = spec.uid.clone();
        let keeper = self.take_keeper(&spec);
        let made = self.try_make_pod(spec, &keeper).await;
        if made.is_err() {
            self.holders.lock().remove(&keeper);
            if let Err(error) = self.remove_remains(&uid, None).await {
                tracing::warn!(pod = uid, %error, "Remains of a Pod that could not be made stay behind");
            }
        }
        made
    }

    async fn try_make_pod(&self, spec: PodSandboxSpec, keeper: &str) -> Result<PodSandbox, RuntimeError> {
        let plan = self.plan_pod(spec, keeper)?;
        let made = self.start_pod(plan.clone(), keeper).await;
        if made.is_err() {
            self.release_network(&plan);
        }
        made
    }

    async fn start_pod(&self, plan: PodPlan, keeper: &str) -> Result<PodSandbox, RuntimeError> {
        let step = |name: &'static str| move |source: io::Error| RuntimeError::Kernel { step: name.to_owned(), source };
        fs::create_dir_all(&plan.dir).map_err(step("making the Pod's folder"))?;
        let file = plan.dir.join("plan.json");
        records::replace(&file, &SavedPlan { plan: plan.clone(), keeper: keeper.to_owned() })
            .map_err(step("saving the Pod's plan"))?;
        let control = self.spawn_supervisor(&plan).await.map_err(step("starting the supervisor"))?;
        let link = self.listen(&plan.spec.uid, &plan.cgroup, control).map_err(step("watching the supervisor"))?;
        let (link, ready) = link;
        match link.wait(ready).await? {
            (Answer::Ready(sandbox), _) => {
                let pod = Pod::new(plan, sandbox.clone(), link, keeper.to_owned(), Vec::new());
                self.pods.lock().insert(sandbox.uid.clone(), Arc::new(pod));
                Ok(sandbox)
            }
            _ => Err(RuntimeError::Protocol("a supervisor's first word was not about its Pod".to_owned())),
        }
    }

    /// Starts a container in a Pod.
    pub(super) async fn make_container(&self, pod: &Pod, spec: ContainerSpec) -> Result<ContainerState, RuntimeError> {
        if spec.command.is_empty() {
            return Err(RuntimeError::Refused(format!("container {} has no command", spec.name)));
        }
        let step = |name: &'static str| move |source: io::Error| RuntimeError::Kernel { step: name.to_owned(), source };
        let root = self.privileged.then(|| pod.plan.ids.host_range().0);
        let layer = layers::ensure(&self.layers_dir(), &pod.keeper, &spec.name, &spec.image.digest, root)
            .map_err(step("making the writable layer"))?;
        sync_later(layer.join(layers::MARK));
        let group = format!("{}/{}", pod_group(&pod.sandbox.uid), spec.name);
        let plan = ContainerPlan {
            id: uuid::Uuid::new_v4().simple().to_string(),
            layer,
            cgroup: self.layout.plan(&group, self.hard_limits(&spec.limits, false)),
            walls: self.config.walls,
            spec,
        };
        let file = wire::memory_file(&plan).map_err(step("writing the container's plan"))?;
        match pod.link.call(Call::Start, &[file.as_fd()]).await? {
            (Answer::Started(state), _) => Ok(pod.note_started(state)),
            _ => Err(RuntimeError::Protocol("a start was not answered with a state".to_owned())),
        }
    }

    async fn spawn_supervisor(&self, plan: &PodPlan) -> io::Result<std::os::fd::OwnedFd> {
        let mut spawner = self.spawner.lock().await;
        if let Some(running) = spawner.as_ref() {
            match running.spawn(wire::memory_file(plan)?) {
                Ok(control) => return Ok(control),
                Err(error) => tracing::warn!(%error, "The spawner is gone; starting another"),
            }
        }
        let fresh = Spawner::start(&self.config.helper)?;
        let control = fresh.spawn(wire::memory_file(plan)?);
        *spawner = Some(fresh);
        control
    }
}

/// Writes a record through to the disk without keeping the Pod waiting: what it says is needed after a loss of power only,
/// and then together with files of the Pod that take longer to get there.
fn sync_later(file: std::path::PathBuf) {
    tokio::task::spawn_blocking(move || {
        if let Err(error) = records::sync(&file)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, file = %file.display(), "A record may not survive a loss of power");
        }
    });
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
