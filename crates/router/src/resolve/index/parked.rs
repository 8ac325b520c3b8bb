//! Uses of Pods that are not live: sessions that began before the index knew their Pod, and those that go on while a Pod
//! is not ready. The Pod's next entry continues them, so that its Sandbox is not suspended during one.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::LivePod;
use crate::sleep::activity::SandboxActivity;

/// Number of entries below which those of ended uses are not looked for.
const MIN_SWEEP: usize = 64;

#[derive(Default)]
pub(super) struct ParkedUses {
    /// By namespace and name of the Pod.
    uses: HashMap<(Arc<str>, Arc<str>), Parked>,
    /// Number of entries at which those of ended uses are removed.
    sweep_at: usize,
}

struct Parked {
    /// `None` for a Pod that is known by name only.
    sandbox_uid: Option<Arc<str>>,
    /// Alive while a use goes on.
    activity: Weak<SandboxActivity>,
}

impl ParkedUses {
    /// The uses of a Pod that is not live, for one more.
    pub(super) fn join(&mut self, namespace: &str, pod: &str) -> Arc<SandboxActivity> {
        let key = (namespace.into(), pod.into());
        if let Some(activity) = self.uses.get(&key).and_then(|parked| parked.activity.upgrade()) {
            return activity;
        }
        let activity = Arc::default();
        self.add(key, Parked { sandbox_uid: None, activity: Arc::downgrade(&activity) });
        activity
    }

    /// Keeps the uses of a Pod that leaves the index.
    pub(super) fn park(&mut self, pod: &LivePod) {
        let key = (Arc::clone(&pod.namespace), Arc::clone(&pod.pod));
        let sandbox_uid = Some(Arc::clone(&pod.sandbox_uid));
        self.add(key, Parked { sandbox_uid, activity: Arc::downgrade(&pod.activity) });
    }

    /// The uses that go on, for the new entry of their Pod.
    pub(super) fn take(&mut self, namespace: &str, pod: &str, sandbox_uid: &str) -> Option<Arc<SandboxActivity>> {
        let parked = self.uses.remove(&(namespace.into(), pod.into()))?;
        let same = parked.sandbox_uid.is_none_or(|uid| *uid == *sandbox_uid);
        parked.activity.upgrade().filter(|_| same)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.uses.len()
    }

    fn add(&mut self, key: (Arc<str>, Arc<str>), parked: Parked) {
        if self.uses.len() >= self.sweep_at {
            self.uses.retain(|_, parked| parked.activity.strong_count() > 0);
            self.sweep_at = (2 * self.uses.len()).max(MIN_SWEEP);
        }
        self.uses.insert(key, parked);
    }
}
