//! Giving back to the host what is not any Pod's own.

use std::sync::atomic::Ordering;

use super::{KernelRuntime, create};

impl KernelRuntime {
    /// Gives the host back what is not any Pod's: the group above all Pods and the node's network. While a Pod is left they stay,
    /// because it needs them. Called when dropped; a program that is about to exit calls it, because tasks may hold on to the runtime.
    pub fn close(&self) {
        if self.share.is_closed() {
            return;
        }
        self.close_ready();
        self.unmounts.close();
        if self.source.has_blocks()
            && let Err(error) = self.ids.lock().release()
        {
            tracing::warn!(%error, "Unused blocks of user ids stay ours until the machine restarts");
        }
        // Pods of an earlier process may not have been looked for yet, and some may be in the making.
        let unknown_pods = !self.recovered.load(Ordering::Relaxed) && !self.pod_folders().is_empty();
        if unknown_pods || !self.pods.lock().is_empty() || self.is_making_pods() {
            return;
        }
        if self.config.pods_end_with_node && !self.privileged {
            self.throw_away();
        }
        self.storage.close();
        self.share.close();
    }

    /// Removes what whoever throws the folder away could not: without privilege files of sandboxes belong to others, or are closed.
    fn throw_away(&self) {
        for name in ["layers", "volumes", "pods"] {
            let folder = self.config.data_dir.join(name);
            if let Err(error) = self.storage.remove(&folder) {
                tracing::warn!(%error, folder = %folder.display(), "Files of sandboxes stay behind");
            }
        }
    }

    fn is_making_pods(&self) -> bool {
        self.turns.lock().values().any(|turn| turn.try_lock().is_err())
    }

    /// Ends every Pod at once and gives everything back, whatever state it is in: for folders that are thrown away.
    pub fn discard(&self) {
        self.close_ready();
        let all = self.share.group();
        let _ = all.kill();
        if let Err(error) = create::remove_group(&all) {
            tracing::warn!(%error, "Control groups of discarded Pods stay behind");
        }
        let pods = std::mem::take(&mut *self.pods.lock());
        for pod in pods.values() {
            pod.begin_removal();
            self.release_network(&pod.plan);
        }
        self.recovered.store(true, Ordering::Relaxed);
        if !self.privileged {
            self.throw_away();
        }
        self.close();
    }
}

impl Drop for KernelRuntime {
    fn drop(&mut self) {
        self.close();
    }
}
