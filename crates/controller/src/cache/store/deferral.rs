//! Which wake-ups no client waits for. Delaying them leaves the machine to claims that a client does wait for, and
//! merges several of them into one pass.

use agent_sandbox_api::{owners, v1beta1::OperatingMode};

use super::ReconcilerKind;
use crate::cache::{Cached, Change, ClusterCache, Delta, Pod, Sandbox};

/// Whether the reconciler may be woken later: a pool for its members; a Sandbox for having been claimed (only the Pod's
/// metadata and its own status are left to do); a Sandbox for the end of its Pod (mostly both are deleted together, and
/// the Sandbox's own deletion event is on its way), unless it is being suspended, for which a client waits.
pub(super) fn can_be_deferred(world: &ClusterCache, change: &Change, reconciler: ReconcilerKind) -> bool {
    match (reconciler, change) {
        (ReconcilerKind::Pool, Change::Sandbox(_)) => true,
        (ReconcilerKind::Sandbox, Change::Sandbox(delta)) => was_claimed(delta),
        (ReconcilerKind::Sandbox, Change::Pod(delta)) => is_ending(delta) && !is_suspending(world, delta.latest()),
        _ => false,
    }
}

fn is_ending(delta: &Delta<Pod>) -> bool {
    delta.new.as_deref().is_none_or(Cached::is_deleting)
}

fn is_suspending(world: &ClusterCache, pod: &Pod) -> bool {
    let owner = pod.controller().and_then(|owner| world.sandboxes.get(&pod.key().sibling(owner.name.as_str())));
    owner.is_some_and(|sandbox| sandbox.operating_mode() == OperatingMode::Suspended)
}

fn was_claimed(delta: &Delta<Sandbox>) -> bool {
    let of_claim = |sandbox: &Sandbox| owners::owning_claim(&sandbox.metadata).is_some();
    delta.old.as_deref().is_some_and(|old| !of_claim(old)) && delta.new.as_deref().is_some_and(of_claim)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn sandbox(owner: &str) -> Arc<Sandbox> {
        let owner = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": owner, "name": "o", "uid": "u", "controller": true,
        });
        let metadata = json!({ "name": "s", "namespace": "n", "ownerReferences": [owner] });
        Arc::new(serde_json::from_value(json!({ "metadata": metadata, "spec": {} })).expect("valid"))
    }

    fn pod(deleting: bool) -> Arc<Pod> {
        let owner = json!({ "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "s", "uid": "u", "controller": true });
        let metadata = json!({
            "name": "s", "namespace": "n", "ownerReferences": [owner],
            "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z"),
        });
        Arc::new(serde_json::from_value(json!({ "metadata": metadata })).expect("valid"))
    }

    #[test]
    fn the_end_of_a_pod_is_deferred_unless_its_sandbox_is_suspended() {
        let mut world = ClusterCache::default();
        let ended = |new: Option<Arc<Pod>>| Change::Pod(Delta { old: Some(pod(false)), new });
        for change in [ended(None), ended(Some(pod(true)))] {
            assert!(can_be_deferred(&world, &change, ReconcilerKind::Sandbox));
            assert!(!can_be_deferred(&world, &change, ReconcilerKind::Pool));
        }
        assert!(!can_be_deferred(&world, &ended(Some(pod(false))), ReconcilerKind::Sandbox), "it lives");
        let suspended = json!({
            "metadata": { "name": "s", "namespace": "n", "uid": "u", "resourceVersion": "1" },
            "spec": { "operatingMode": "Suspended" },
        });
        let suspended: Sandbox = serde_json::from_value(suspended).expect("valid");
        world.apply_update(crate::cache::CacheUpdate::Applied(suspended));
        assert!(!can_be_deferred(&world, &ended(None), ReconcilerKind::Sandbox));
    }

    fn change(old: Option<&str>, new: Option<&str>) -> Change {
        Change::Sandbox(Delta { old: old.map(sandbox), new: new.map(sandbox) })
    }

    #[test]
    fn only_work_that_follows_an_adoption_is_deferred() {
        let (pool, claim) = (Some("SandboxWarmPool"), Some("SandboxClaim"));
        assert!(
            can_be_deferred(&ClusterCache::default(), &change(pool, claim), ReconcilerKind::Sandbox),
            "just claimed"
        );
        assert!(
            !can_be_deferred(&ClusterCache::default(), &change(None, claim), ReconcilerKind::Sandbox),
            "a cold start: a user waits for its Pod"
        );
        assert!(
            !can_be_deferred(&ClusterCache::default(), &change(None, pool), ReconcilerKind::Sandbox),
            "a new member needs its Pod"
        );
        assert!(!can_be_deferred(&ClusterCache::default(), &change(claim, claim), ReconcilerKind::Sandbox), "an edit");
        assert!(!can_be_deferred(&ClusterCache::default(), &change(claim, None), ReconcilerKind::Sandbox), "gone");
        for change in [change(pool, claim), change(None, pool), change(pool, None)] {
            assert!(can_be_deferred(&ClusterCache::default(), &change, ReconcilerKind::Pool));
            assert!(!can_be_deferred(&ClusterCache::default(), &change, ReconcilerKind::Claim));
        }
    }
}
