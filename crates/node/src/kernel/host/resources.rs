//! What a node holds of the host besides its Pods: the cgroup above all Pods, the Pods' network, and the record that
//! tells the machine's other nodes about both.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::kernel::config::KernelConfig;
use crate::kernel::host::cgroup::{self, CgroupLayout, HardLimits};
use crate::kernel::host::node_registry::{self, MachineLock, Namespaces, NodeRecord, RegisteredNode};
use crate::kernel::host::process::ProcessRecord;
use crate::kernel::net::{self, NodeNetwork, PodNetwork};
use crate::runtime::RuntimeError;

/// Timeout for removing the node's cgroup while processes that were told to exit are still in it.
const CGROUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Memory that Pods together can never use: it stays with the rest of the machine.
pub(crate) const RESERVED_MEMORY: u64 = 512 << 20;

pub(crate) struct HostResources {
    pub(crate) layout: CgroupLayout,
    pub(crate) pod_network: PodNetwork,
    /// Addresses and packet filter rules of Pods; only as root.
    pub(crate) network: Option<NodeNetwork>,
    registration: Option<RegisteredNode>,
    data_dir: PathBuf,
    closed: AtomicBool,
}

impl HostResources {
    /// Cleans up after dead nodes, then sets up this node's resources. The record is written before the resources
    /// exist, so that the next node finds them whenever this process dies.
    pub(crate) fn open(config: &KernelConfig, privileged: bool) -> Result<Self, RuntimeError> {
        let choosing = |source| RuntimeError::Kernel { step: "choosing a network for Pods".to_owned(), source };
        let lock = privileged.then(MachineLock::acquire).and_then(|lock| {
            let warn = |error: &std::io::Error| {
                tracing::warn!(%error, "Nodes that start at the same time may disturb each other: they cannot be locked");
            };
            lock.inspect_err(warn).ok()
        });
        if let Some(lock) = &lock {
            node_registry::clean_up_dead_nodes(lock);
        }
        let layout = detect_cgroups(config, privileged);
        let pod_network = net::pod_network(&config.data_dir, config.pod_network.as_deref()).map_err(choosing)?;
        let registration = lock.as_ref().and_then(|lock| register_node(lock, config, &layout, pod_network));
        let mut resources = Self {
            layout: create_node_cgroup(layout, config, privileged),
            pod_network,
            network: None,
            registration,
            data_dir: config.data_dir.clone(),
            closed: AtomicBool::new(false),
        };
        resources.network = open_network(config, pod_network, privileged, resources.has_pods());
        Ok(resources)
    }

    /// Whether there are Pods, of this process or of an earlier one.
    fn has_pods(&self) -> bool {
        fs::read_dir(self.data_dir.join("pods")).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// The cgroup above all Pods.
    pub(crate) fn node_cgroup(&self) -> cgroup::CgroupPlan {
        self.layout.plan("", no_limits())
    }

    /// Removes everything again. Further calls do nothing.
    pub(crate) fn close(&self) {
        if self.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        let lock = self.registration.as_ref().and_then(|_| MachineLock::acquire().ok());
        let clean = self.remove_node_cgroup();
        if let Some(network) = &self.network {
            network.close(lock.as_ref());
        }
        // If something is left, the record stays, and the next node that starts cleans up.
        if let Some(registration) = self.registration.as_ref().filter(|_| clean) {
            registration.remove();
        }
    }

    /// Removes the cgroup above all Pods, waiting for processes that are about to leave it. Returns whether it is gone.
    fn remove_node_cgroup(&self) -> bool {
        let group = self.node_cgroup();
        let deadline = Instant::now() + CGROUP_TIMEOUT;
        while group.remove().is_err() {
            if Instant::now() >= deadline {
                return false;
            }
            // The kernel gives no event for "the last process left" on v1.
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// True after `close`: other nodes may use the same names and addresses from then on.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl Drop for HostResources {
    /// For a node that failed to open. Pods of an earlier process still need these resources.
    fn drop(&mut self) {
        if !self.has_pods() {
            self.close();
        }
    }
}

pub(crate) fn no_limits() -> HardLimits {
    HardLimits { memory_bytes: None, cpu_millis: None, cpu_request_millis: None, pids: None }
}

/// Records for the machine's other nodes what this node is about to create on the host.
fn register_node(
    lock: &MachineLock,
    config: &KernelConfig,
    layout: &CgroupLayout,
    network: PodNetwork,
) -> Option<RegisteredNode> {
    let written = ProcessRecord::own().and_then(|process| {
        let record = NodeRecord {
            data_dir: config.data_dir.clone(),
            process,
            ephemeral: config.pods_end_with_node,
            table: Some(node_registry::resource_name(&config.data_dir)),
            gateway: Some(network.gateway()),
            groups: layout.plan("", no_limits()).folders().map(Path::to_owned).collect(),
            namespaces: Namespaces::own().ok(),
        };
        RegisteredNode::write(lock, &node_registry::node_id(&config.data_dir), &record)
    });
    let warn = |error: &std::io::Error| {
        tracing::warn!(%error, "No other node will clean up if this node is killed: it cannot be registered");
    };
    written.inspect_err(warn).ok()
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
        &node_registry::resource_name(&config.data_dir),
        !privileged,
        |folder| fs::read_to_string(folder.join("cgroup.controllers")).unwrap_or_default(),
    )
}

/// Creates the cgroup above all Pods, capped at the machine's memory less a reserve. A hierarchy that cannot be written
/// is not used.
fn create_node_cgroup(mut layout: CgroupLayout, config: &KernelConfig, privileged: bool) -> CgroupLayout {
    let limits =
        HardLimits { memory_bytes: machine_memory().map(|all| all.saturating_sub(RESERVED_MEMORY)), ..no_limits() };
    // This comes first: a cgroup has a controller's files only once its parent enables the controller.
    if let Some(above) = layout.unified.as_deref().and_then(Path::parent)
        && !layout.unified_controllers.is_empty()
        && let Err(error) = enable_controllers(above, &layout.subtree_control(), privileged)
    {
        tracing::debug!(%error, group = %above.display(), "Controllers of the unified cgroup hierarchy cannot be used");
        layout.unified_controllers.clear();
    }
    let plan = layout.plan_parent(limits, processors());
    if let Err(error) = plan.create() {
        if privileged {
            tracing::warn!(%error, data_dir = %config.data_dir.display(), "Cgroups cannot be used; limits are not enforced");
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

/// The cgroup that an unprivileged engine moves to, because a cgroup that has processes cannot enable controllers for
/// its children.
const ENGINE_CGROUP: &str = "agent-sandbox-engine";

/// Attempts to move the engine: helpers that are being started at the same moment are still in the parent cgroup.
const MOVE_ATTEMPTS: usize = 20;

/// Enables controllers for the children of a cgroup. In a delegated cgroup that this process is in, the process moves
/// to a child first.
fn enable_controllers(group: &Path, controllers: &str, privileged: bool) -> std::io::Result<()> {
    let file = group.join("cgroup.subtree_control");
    let mut done = cgroup::write_control(&file, controllers);
    for _ in 0..MOVE_ATTEMPTS {
        if privileged || !done.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            break;
        }
        move_engine_down(group)?;
        done = cgroup::write_control(&file, controllers);
        if done.is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    done
}

/// Moves this process and its children one cgroup down. Processes of others are left where they are.
fn move_engine_down(group: &Path) -> std::io::Result<()> {
    let own = group.join(ENGINE_CGROUP);
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
            // The process has exited meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            done => done?,
        }
    }
    Ok(())
}

pub(crate) fn processors() -> u64 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u64)
}

pub(crate) fn machine_memory() -> Option<u64> {
    memory_line(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")
}

/// Bytes in a line of /proc/meminfo.
fn memory_line(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// CPU time in microseconds and bytes of memory that the whole machine uses.
pub fn machine_usage() -> Option<(u64, u64)> {
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let used = memory_line(&memory, "MemTotal:")?.saturating_sub(memory_line(&memory, "MemAvailable:")?);
    let ticks = busy_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
    Some((ticks * TICK_MICROS, used))
}

/// Length of a tick in /proc (`USER_HZ` is 100 on every architecture that Rust supports but alpha).
const TICK_MICROS: u64 = 10_000;

/// Ticks that all processors together spent on something, from /proc/stat: all columns but idle and iowait. Time of
/// guests is part of `user` and `nice` already.
fn busy_ticks(text: &str) -> Option<u64> {
    let columns = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks = columns.split_whitespace().map(str::parse::<u64>).collect::<Result<Vec<_>, _>>().ok()?;
    Some(ticks.iter().take(8).enumerate().filter(|(column, _)| !matches!(column, 3 | 4)).map(|(_, ticks)| ticks).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_usage() {
        let text = "cpu  100 20 30 4000 500 6 7 8 90 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy_ticks(text), Some(100 + 20 + 30 + 6 + 7 + 8));
        assert_eq!(busy_ticks("intr 1\n"), None);
        assert_eq!(memory_line("MemTotal:        2048 kB\nMemFree: 1 kB\n", "MemTotal:"), Some(2 << 20));
    }
}
