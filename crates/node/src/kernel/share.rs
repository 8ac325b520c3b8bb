//! A node's share of the host besides its Pods: the group above them, their network, and the note that tells others of both.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::cgroup::{self, CgroupLayout, HardLimits};
use super::config::KernelConfig;
use super::leftovers::{self, Namespaces, Note, OwnNote, Turn};
use super::net::{self, NodeNetwork, PodNetwork};
use super::supervisor::records::ProcessRecord;
use crate::runtime::RuntimeError;

/// How long processes that have been told to end may keep their group busy.
const GROUP_DEADLINE: Duration = Duration::from_secs(1);

/// Memory left to the rest of the machine whatever Pods do.
const RESERVED_MEMORY: u64 = 512 << 20;

pub(crate) struct HostShare {
    pub(crate) layout: CgroupLayout,
    pub(crate) pod_network: PodNetwork,
    /// As root: addresses and rules of Pods.
    pub(crate) network: Option<NodeNetwork>,
    note: Option<OwnNote>,
    data_dir: PathBuf,
    closed: AtomicBool,
}

impl HostShare {
    /// Clears away what dead nodes left, then puts this one's share in place. What is noted is noted first: whenever this
    /// process dies, the next one finds it.
    pub(crate) fn open(config: &KernelConfig, privileged: bool) -> Result<Self, RuntimeError> {
        let choosing = |source| RuntimeError::Kernel { step: "choosing a network for Pods".to_owned(), source };
        let turn = privileged.then(Turn::take).and_then(|turn| {
            turn.inspect_err(|error| tracing::warn!(%error, "Nodes that start at once may disturb each other")).ok()
        });
        if let Some(turn) = &turn {
            leftovers::sweep(turn);
        }
        let layout = detect_cgroups(config, privileged);
        let pod_network = net::pod_network(&config.data_dir, config.pod_network.as_deref()).map_err(choosing)?;
        let note = turn.as_ref().and_then(|turn| write_note(turn, config, &layout, pod_network));
        let mut share = Self {
            layout: prepare_node_group(layout, config, privileged),
            pod_network,
            network: None,
            note,
            data_dir: config.data_dir.clone(),
            closed: AtomicBool::new(false),
        };
        share.network = open_network(config, pod_network, privileged, share.has_pods());
        Ok(share)
    }

    /// Whether Pods are here, known already or of an earlier process.
    fn has_pods(&self) -> bool {
        fs::read_dir(self.data_dir.join("pods")).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// The group above all Pods.
    pub(crate) fn group(&self) -> cgroup::CgroupPlan {
        self.layout.plan("", no_limits())
    }

    /// Gives everything back, once.
    pub(crate) fn close(&self) {
        if self.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        let turn = self.note.as_ref().and_then(|_| Turn::take().ok());
        let clean = self.remove_group();
        if let Some(network) = &self.network {
            network.close(turn.as_ref());
        }
        // With something left, the note stays for whoever starts next.
        if let Some(note) = self.note.as_ref().filter(|_| clean) {
            note.remove();
        }
    }

    /// Removes the group above all Pods; waits for processes that are about to leave it. Tells whether it is gone.
    fn remove_group(&self) -> bool {
        let group = self.group();
        let deadline = Instant::now() + GROUP_DEADLINE;
        while group.remove().is_err() {
            if Instant::now() >= deadline {
                return false;
            }
            // The kernel gives no event for "the last process left" on v1.
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// What was given back may be another node's by now.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl Drop for HostShare {
    /// For a node that could not be opened; Pods of an earlier process still need what is here.
    fn drop(&mut self) {
        if !self.has_pods() {
            self.close();
        }
    }
}

pub(crate) fn no_limits() -> HardLimits {
    HardLimits { memory_bytes: None, cpu_millis: None, cpu_request_millis: None, pids: None }
}

/// Tells the machine's other nodes what we are about to put on it.
fn write_note(turn: &Turn, config: &KernelConfig, layout: &CgroupLayout, network: PodNetwork) -> Option<OwnNote> {
    let written = ProcessRecord::own().and_then(|process| {
        let note = Note {
            data_dir: config.data_dir.clone(),
            process,
            thrown_away: config.pods_end_with_node,
            table: Some(net::table_name(&config.data_dir)),
            gateway: Some(network.gateway()),
            groups: layout.plan("", no_limits()).folders().map(Path::to_owned).collect(),
            namespaces: Namespaces::own().ok(),
        };
        OwnNote::write(turn, &net::word_of(&config.data_dir), &note)
    });
    written.inspect_err(|error| tracing::warn!(%error, "Nobody will clean up after this node should it be killed")).ok()
}

fn open_network(config: &KernelConfig, network: PodNetwork, privileged: bool, has_pods: bool) -> Option<NodeNetwork> {
    if !privileged {
        return None;
    }
    NodeNetwork::open(&config.data_dir, network, has_pods)
        .inspect_err(|error| {
            tracing::warn!(%error, "Pods get no addresses: the host's packet filter or routes cannot be set up");
        })
        .ok()
}

fn detect_cgroups(config: &KernelConfig, privileged: bool) -> CgroupLayout {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    CgroupLayout::detect(
        &read("/proc/self/mountinfo"),
        &read("/proc/self/cgroup"),
        &net::table_name(&config.data_dir),
        !privileged,
        |folder| fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default(),
    )
}

/// Makes the group above all Pods, capped at the machine's memory less a reserve. A tree we may not write is not used.
fn prepare_node_group(mut layout: CgroupLayout, config: &KernelConfig, privileged: bool) -> CgroupLayout {
    let limits =
        HardLimits { memory_bytes: machine_memory().map(|all| all.saturating_sub(RESERVED_MEMORY)), ..no_limits() };
    // First: a group has the files of a controller only once the group above it passes the controller on.
    if let Some(above) = layout.unified.as_deref().and_then(Path::parent)
        && !layout.unified_controllers.is_empty()
        && let Err(error) = pass_on(above, &layout.subtree_control(), privileged)
    {
        tracing::debug!(%error, group = %above.display(), "Controllers of the unified tree cannot be used");
        layout.unified_controllers.clear();
    }
    let plan = layout.plan_parent(limits, processors());
    if let Err(error) = plan.create() {
        if privileged {
            tracing::warn!(%error, data_dir = %config.data_dir.display(), "Control groups cannot be used; limits are not held");
        }
        return CgroupLayout::default();
    }
    if let Some(unified) = layout.unified.clone()
        && !layout.unified_controllers.is_empty()
        && cgroup::write_control(&unified.join("cgroup.subtree_control"), &layout.subtree_control()).is_err()
    {
        layout.unified_controllers.clear();
    }
    layout
}

/// The group that an engine without privilege moves to, because a group that has processes cannot pass controllers on.
const OWN_GROUP: &str = "agent-sandbox-engine";

/// Times to try: helpers that are being started at the same moment are born in the group.
const ROOM_TRIES: usize = 20;

/// Lets the groups below one use controllers. In a delegated group that is this process's own, it makes room first.
fn pass_on(group: &Path, controllers: &str, privileged: bool) -> std::io::Result<()> {
    let file = group.join("cgroup.subtree_control");
    let mut done = cgroup::write_control(&file, controllers);
    for _ in 0..ROOM_TRIES {
        if privileged || !done.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            break;
        }
        make_room(group)?;
        done = cgroup::write_control(&file, controllers);
        if done.is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    done
}

/// Moves this process and its children one group down. Others that are there are not ours to move.
fn make_room(group: &Path) -> std::io::Result<()> {
    let own = group.join(OWN_GROUP);
    match fs::create_dir(&own) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let this = std::process::id().to_string();
    let is_child = |pid: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("PPid:").is_some_and(|parent| parent.trim() == this))
    };
    for pid in fs::read_to_string(group.join("cgroup.procs"))?.lines().filter(|pid| **pid == this || is_child(pid)) {
        match cgroup::write_control(&own.join("cgroup.procs"), pid) {
            // It has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            done => done?,
        }
    }
    Ok(())
}

fn processors() -> u64 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u64)
}

fn machine_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}
