//! Disk use of Pods and of the machine: measured when it can have changed, and acted upon.
//!
//! Walking a Pod's files is dear and a Pod can hardly have grown by more than the whole disk has filled. So the file system
//! is asked often, and a Pod is measured only when the growth since its last measurement could have taken it past a limit,
//! and every few minutes anyway.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::manager::Registry;
use crate::evict::{self, Space, StoragePolicy};
use crate::pods::actor::{Handle, Message};
use crate::pods::model::Verdict;
use crate::pods::shared::Shared;
use crate::register::Health;

/// Watches the disk for as long as it is polled.
pub(super) struct Monitor {
    pub(super) shared: Arc<Shared>,
    pub(super) registry: Registry,
    pub(super) data_dir: PathBuf,
    pub(super) policy: StoragePolicy,
    pub(super) health: watch::Sender<Health>,
    pub(super) measured: HashMap<String, Measured>,
}

/// What was found at the last measurement of a Pod.
pub(super) struct Measured {
    at: Instant,
    /// Bytes of the whole file system in use then.
    disk_used: u64,
    /// Bytes that an eviction would free.
    evictable: u64,
    /// How much the Pod could still grow before it meets a limit.
    headroom: u64,
}

impl Monitor {
    pub(super) async fn run(mut self) {
        loop {
            tokio::time::sleep(self.policy.check_every).await;
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let space = match rustix::fs::statvfs(&self.data_dir) {
            Ok(found) => Space {
                free: found.f_bavail.saturating_mul(found.f_frsize),
                total: found.f_blocks.saturating_mul(found.f_frsize),
            },
            Err(error) => {
                debug!(%error, "The disk could not be asked for its free space");
                return;
            }
        };
        let short = evict::shortage(space, &self.policy);
        let pods: Vec<(String, Arc<Handle>)> =
            self.registry.read().iter().map(|(uid, handle)| (uid.clone(), Arc::clone(handle))).collect();
        self.measured.retain(|uid, _| pods.iter().any(|(known, _)| known == uid));
        for (uid, handle) in &pods {
            if !handle.view.borrow().ending && self.is_due(uid, space, short.is_some()) {
                self.measure(uid, handle, space).await;
            }
        }
        if let Some(why) = &short {
            self.evict_largest(&pods, why).await;
        }
        self.health.send_if_modified(|health| {
            let changed = health.disk_pressure.is_some() != short.is_some();
            if changed {
                health.disk_pressure.clone_from(&short);
            }
            changed
        });
    }

    fn is_due(&self, uid: &str, space: Space, short: bool) -> bool {
        let Some(last) = self.measured.get(uid) else { return true };
        let grown = space.used().saturating_sub(last.disk_used);
        short || grown >= last.headroom || last.at.elapsed() >= self.policy.sweep_every
    }

    async fn measure(&mut self, uid: &str, handle: &Handle, space: Space) {
        let limits = Arc::clone(&handle.view.borrow().storage);
        let Ok(mut usage) = self.shared.runtime.storage_usage(uid).await else { return };
        for (volume, key) in limits.persistent() {
            if let Ok(bytes) = self.shared.runtime.volume_usage(key).await {
                usage.volumes.push((volume.to_owned(), bytes));
            }
        }
        if let Some(message) = limits.exceeded(&usage) {
            self.evict(uid, handle, message).await;
        }
        let found = Measured {
            at: Instant::now(),
            disk_used: space.used(),
            headroom: limits.headroom(&usage),
            evictable: evict::evictable(&limits, &usage),
        };
        self.measured.insert(uid.to_owned(), found);
    }

    /// The largest writer makes room; the next look tells whether that was enough.
    async fn evict_largest(&mut self, pods: &[(String, Arc<Handle>)], why: &str) {
        let size = |uid: &str| self.measured.get(uid).map_or(0, |m| m.evictable);
        let candidates = pods.iter().filter(|(_, handle)| !handle.view.borrow().ending);
        let Some((uid, handle)) = candidates.max_by_key(|(uid, _)| size(uid)).filter(|(uid, _)| size(uid) > 0) else {
            return;
        };
        let message =
            format!("The node was low on disk space ({why}) and this Pod had written the most: {} bytes", size(uid));
        self.evict(uid, handle, message).await;
    }

    async fn evict(&self, uid: &str, handle: &Handle, message: String) {
        warn!(uid, pod = handle.name, message, "Evicting a Pod");
        let verdict = Verdict { reason: evict::EVICTED.to_owned(), message };
        let _ = handle.inbox.send(Message::End(verdict)).await;
    }
}
