//! Removes the node's resources from the host: those that do not belong to a single Pod.

use std::sync::atomic::Ordering;

use super::{KernelRuntime, create};

impl KernelRuntime {
    /// Removes the cgroup above all Pods and the node's network. They stay while any Pod is left, because it needs
    /// them. Called when dropped; a program that is about to exit calls it itself, because tasks may still hold the
    /// runtime.
    pub fn close(&self) {
        if self.host.is_closed() {
            return;
        }
        self.recording_cancelled.store(true, Ordering::Relaxed);
        self.close_ready();
        self.unmounts.close();
        if self.id_source.has_blocks()
            && let Err(error) = self.ids.lock().release()
        {
            tracing::warn!(%error, "Unused blocks of user ids could not be returned; they stay reserved until the machine restarts");
        }
        // Pods of an earlier process may not have been recovered yet, and some may be in creation.
        let unknown_pods = !self.recovered.load(Ordering::Relaxed) && !self.pod_folders().is_empty();
        if unknown_pods || !self.pods.lock().is_empty() || self.is_making_pods() {
            return;
        }
        if self.config.pods_end_with_node && !self.privileged {
            self.remove_sandbox_files();
        }
        self.storage.close();
        self.host.close();
    }

    /// Removes files of sandboxes, which the caller that deletes the data folder could not: without privilege they
    /// belong to other ids.
    fn remove_sandbox_files(&self) {
        for name in ["layers", "volumes", "pods"] {
            let folder = self.config.data_dir.join(name);
            if let Err(error) = self.storage.remove(&folder) {
                tracing::warn!(%error, folder = %folder.display(), "Files of sandboxes could not be removed");
            }
        }
    }

    fn is_making_pods(&self) -> bool {
        self.pod_locks.lock().values().any(|lock| lock.try_lock().is_err())
    }

    /// Kills every Pod at once and removes everything, in any state: for data folders that are deleted.
    pub fn discard(&self) {
        self.close_ready();
        let all = self.host.node_cgroup();
        let _ = all.kill();
        if let Err(error) = create::remove_cgroup(&all) {
            tracing::warn!(%error, "Cgroups of discarded Pods could not be removed");
        }
        let pods = std::mem::take(&mut *self.pods.lock());
        for pod in pods.values() {
            pod.begin_removal();
            self.release_network(&pod.plan);
        }
        self.recovered.store(true, Ordering::Relaxed);
        if !self.privileged {
            self.remove_sandbox_files();
        }
        self.close();
    }
}

impl Drop for KernelRuntime {
    fn drop(&mut self) {
        self.close();
    }
}
