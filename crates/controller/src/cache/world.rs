//! How the [`ClusterCache`], everything the controller knows as plain data, takes in updates.
//!
//! This module has no IO, no lock and no clock, so that property tests can drive it with stale and reordered inputs.
//! [`super::Store`] puts it behind a lock and turns changes into wake-ups.

use std::sync::Arc;

use agent_sandbox_api::{groups, owners};

use super::{Cached, Change, ClusterCache, Delta, Key, Object, Sandbox};

/// One update of the cache of a kind.
#[derive(Debug)]
pub enum CacheUpdate<K> {
    /// A watch event that carries the object.
    Applied(K),
    /// A watch event that reports a deletion.
    Deleted(K),
    /// A complete list and its version.
    Listed(Vec<K>, u64),
}

impl<K: Cached> CacheUpdate<K> {
    /// Compacts the objects that will be cached.
    pub fn compact(&mut self) {
        match self {
            CacheUpdate::Applied(object) => object.compact(),
            CacheUpdate::Deleted(_) => {}
            CacheUpdate::Listed(items, _) => items.iter_mut().for_each(Cached::compact),
        }
    }
}

impl ClusterCache {
    pub fn get<K: Cached>(&self, key: &Key) -> Option<Arc<K>> {
        K::cache(self).get(key).cloned()
    }

    /// Applies what a watch or a list brought.
    pub fn apply_update<K: Cached>(&mut self, update: CacheUpdate<K>) -> Vec<Change> {
        let deltas = match update {
            CacheUpdate::Applied(object) => K::cache_mut(self).observe_event(Arc::new(object)).into_iter().collect(),
            CacheUpdate::Deleted(object) => K::cache_mut(self).observe_deletion(&object).into_iter().collect(),
            CacheUpdate::Listed(items, version) => K::cache_mut(self).observe_list(items, version),
        };
        deltas.into_iter().map(|delta| self.update_candidates(delta)).collect()
    }

    /// Overlays the response to one of this controller's writes.
    pub fn apply_response(&mut self, object: &Object) -> Option<Change> {
        self.overlay(object, true)
    }

    /// Applies a live read.
    pub fn observe_read(&mut self, object: &Object) -> Option<Change> {
        self.overlay(object, false)
    }

    pub(super) fn overlay_typed<K: Cached>(&mut self, object: &Arc<K>, ours: bool) -> Option<Change> {
        let cache = K::cache_mut(self);
        let delta = if ours { cache.apply_response(object.clone()) } else { cache.observe_read(object.clone()) }?;
        Some(self.update_candidates(delta))
    }

    /// Updates the candidates for a change.
    pub(super) fn update_candidates<K: Cached>(&mut self, delta: Delta<K>) -> Change {
        let change = K::change(delta);
        match &change {
            Change::Sandbox(delta) => {
                let key = delta.key();
                let terminating = self.pod_is_terminating(delta.latest());
                self.candidates.update(&key, delta.new.as_deref(), terminating);
            }
            // A candidate whose Pod is terminating must not be handed out, though its status may still say Ready.
            Change::Pod(delta) => {
                let pod = delta.latest();
                if let Some(owner) =
                    pod.controller().filter(|owner| owners::is_kind(owner, groups::CORE, groups::SANDBOX))
                {
                    let key = pod.key().sibling(owner.name.as_str());
                    if let Some(sandbox) = self.sandboxes.get(&key).cloned() {
                        let terminating = self.pod_is_terminating(&sandbox);
                        self.candidates.update(&key, Some(&sandbox), terminating);
                    }
                }
            }
            _ => {}
        }
        change
    }

    fn pod_is_terminating(&self, sandbox: &Sandbox) -> bool {
        self.pods.controlled_by(sandbox.uid()).any(|pod| pod.is_deleting())
    }
}
