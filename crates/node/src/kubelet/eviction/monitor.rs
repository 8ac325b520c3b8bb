//! Monitors the disk usage of Pods and of the machine, and evicts Pods.
//!
//! Walking a Pod's files is expensive, and a Pod can hardly have grown by more than the usage of the whole disk has. So
//! the monitor reads the file system's usage often and measures a Pod only when the disk's growth since the Pod's last
//! measurement could have taken it past a limit, and every few minutes anyway. The same goes for inodes, where the file
//! system counts them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::kubelet::actor::{ActorHandle, Message};
use crate::kubelet::context::NodeContext;
use crate::kubelet::eviction::{self, DiskSpace, Scarce, StoragePolicy};
use crate::kubelet::manager::PodRegistry;
use crate::kubelet::model::PodFailure;
use crate::kubelet::registration::Health;

/// The task that monitors the disk.
pub(crate) struct DiskMonitor {
    pub(crate) node: Arc<NodeContext>,
    pub(crate) registry: PodRegistry,
    pub(crate) data_dir: PathBuf,
    pub(crate) policy: StoragePolicy,
    pub(crate) health: watch::Sender<Health>,
    pub(crate) measured: HashMap<String, Measured>,
}

/// Result of a Pod's last measurement.
pub(crate) struct Measured {
    at: Instant,
    /// Bytes of the whole file system that were in use at that time.
    disk_used: u64,
    inodes_used: u64,
    /// Bytes and inodes that an eviction would free.
    evictable: u64,
    inodes: u64,
    /// Bytes and inodes the Pod could still use before it reaches a limit.
    headroom: u64,
    inode_headroom: u64,
}

impl DiskMonitor {
    pub(crate) async fn run(mut self) {
        loop {
            tokio::time::sleep(self.policy.check_every).await;
            self.check().await;
        }
    }

    /// Checks the free space, measures the Pods that are due, evicts, and publishes the disk pressure.
    async fn check(&mut self) {
        let space = match rustix::fs::statvfs(&self.data_dir) {
            Ok(found) => DiskSpace {
                free: found.f_bavail.saturating_mul(found.f_frsize),
                total: found.f_blocks.saturating_mul(found.f_frsize),
                free_inodes: found.f_favail,
                inodes: found.f_files,
            },
            Err(error) => {
                debug!(%error, "Could not read the free space of the disk");
                return;
            }
        };
        let shortage = eviction::shortage(space, &self.policy);
        let pods: Vec<(String, Arc<ActorHandle>)> =
            self.registry.read().iter().map(|(uid, handle)| (uid.clone(), Arc::clone(handle))).collect();
        self.measured.retain(|uid, _| pods.iter().any(|(known, _)| known == uid));
        for (uid, handle) in &pods {
            if !handle.view.borrow().ending && self.is_due(uid, space, shortage.is_some()) {
                self.measure(uid, handle, space).await;
            }
        }
        if let Some(reason) = &shortage {
            self.evict_largest(&pods, reason).await;
        }
        let shortage = shortage.map(|(_, reason)| reason);
        self.health.send_if_modified(|health| {
            let changed = health.disk_pressure.is_some() != shortage.is_some();
            if changed {
                health.disk_pressure.clone_from(&shortage);
            }
            changed
        });
    }

    fn is_due(&self, uid: &str, space: DiskSpace, under_pressure: bool) -> bool {
        let Some(last) = self.measured.get(uid) else { return true };
        let grown = space.used().saturating_sub(last.disk_used);
        let more_inodes = space.used_inodes().saturating_sub(last.inodes_used);
        under_pressure
            || grown >= last.headroom
            || more_inodes >= last.inode_headroom
            || last.at.elapsed() >= self.policy.sweep_every
    }

    async fn measure(&mut self, uid: &str, handle: &ActorHandle, space: DiskSpace) {
        let limits = Arc::clone(&handle.view.borrow().storage);
        let Ok(mut usage) = self.node.runtime.storage_usage(uid).await else { return };
        for (volume, key) in limits.persistent() {
            if let Ok(found) = self.node.runtime.volume_usage(key).await {
                usage.volumes.push((volume.to_owned(), found.bytes));
                usage.inodes = usage.inodes.saturating_add(found.inodes);
            }
        }
        let inode_limit = eviction::inode_limit(space, &self.policy);
        if let Some(message) = limits.exceeded(&usage).or_else(|| eviction::too_many_inodes(&usage, inode_limit)) {
            self.evict(uid, handle, message).await;
        }
        let found = Measured {
            at: Instant::now(),
            disk_used: space.used(),
            inodes_used: space.used_inodes(),
            inodes: usage.inodes,
            headroom: limits.headroom(&usage),
            inode_headroom: inode_limit.saturating_sub(usage.inodes),
            evictable: eviction::evictable(&limits, &usage),
        };
        self.measured.insert(uid.to_owned(), found);
    }

    /// Evicts the Pod that has written the most; the next check shows whether that freed enough.
    async fn evict_largest(&mut self, pods: &[(String, Arc<ActorHandle>)], (scarce, reason): &(Scarce, String)) {
        let (size, unit): (fn(&Measured) -> u64, _) = match scarce {
            Scarce::Bytes => (|m| m.evictable, "bytes"),
            Scarce::Inodes => (|m| m.inodes, "files and folders"),
        };
        let size = |uid: &str| self.measured.get(uid).map_or(0, size);
        let candidates = pods.iter().filter(|(_, handle)| !handle.view.borrow().ending);
        let Some((uid, handle)) = candidates.max_by_key(|(uid, _)| size(uid)).filter(|(uid, _)| size(uid) > 0) else {
            return;
        };
        let message = format!(
            "The node was low on disk space ({reason}) and this Pod had written the most: {} {unit}",
            size(uid)
        );
        self.evict(uid, handle, message).await;
    }

    async fn evict(&self, uid: &str, handle: &ActorHandle, message: String) {
        warn!(uid, pod = handle.name, message, "Evicting a Pod");
        let failure = PodFailure { reason: eviction::EVICTED.to_owned(), message };
        let _ = handle.inbox.send(Message::Fail(failure)).await;
    }
}
