//! Which wake-ups nobody waits for. Served a moment later, they leave the machine to claims that somebody does wait for, and several of
//! them become one.

use agent_sandbox_api::{owners, v1beta1::OperatingMode};

use super::Target;
use crate::{
    object::{Cached, Pod, Sandbox},
    world::{Change, Delta, World},
};

/// Whether the target may hear of the change a little later: a pool of its members; a Sandbox of its having been claimed (what is left to
/// do then is the Pod's metadata and its own status); a Sandbox of the end of its Pod (mostly they go together, and the news of its own
/// end are on their way), unless it is being suspended, for which somebody waits.
pub(super) fn can_wait(world: &World, change: &Change, target: Target) -> bool {
    match (target, change) {
        (Target::Pool, Change::Sandbox(_)) => true,
        (Target::Sandbox, Change::Sandbox(delta)) => was_claimed(delta),
        (Target::Sandbox, Change::Pod(delta)) => is_ending(delta) && !is_suspending(world, delta.latest()),
        _ => false,
    }
}

fn is_ending(delta: &Delta<Pod>) -> bool {
    delta.new.as_deref().is_none_or(Cached::is_deleting)
}

fn is_suspending(world: &World, pod: &Pod) -> bool {
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
    fn the_end_of_a_pod_can_wait_unless_its_sandbox_is_suspended() {
        let mut world = World::default();
        let ended = |new: Option<Arc<Pod>>| Change::Pod(Delta { old: Some(pod(false)), new });
        for change in [ended(None), ended(Some(pod(true)))] {
            assert!(can_wait(&world, &change, Target::Sandbox));
            assert!(!can_wait(&world, &change, Target::Pool));
        }
        assert!(!can_wait(&world, &ended(Some(pod(false))), Target::Sandbox), "it lives");
        let suspended = json!({
            "metadata": { "name": "s", "namespace": "n", "uid": "u", "resourceVersion": "1" },
            "spec": { "operatingMode": "Suspended" },
        });
        let suspended: Sandbox = serde_json::from_value(suspended).expect("valid");
        world.learn(crate::world::News::Event(suspended));
        assert!(!can_wait(&world, &ended(None), Target::Sandbox));
    }

    fn change(old: Option<&str>, new: Option<&str>) -> Change {
        Change::Sandbox(Delta { old: old.map(sandbox), new: new.map(sandbox) })
    }

    #[test]
    fn only_what_follows_a_claims_service_can_wait() {
        let (pool, claim) = (Some("SandboxWarmPool"), Some("SandboxClaim"));
        assert!(can_wait(&World::default(), &change(pool, claim), Target::Sandbox), "just claimed");
        assert!(
            !can_wait(&World::default(), &change(None, claim), Target::Sandbox),
            "a cold start: somebody waits for its Pod"
        );
        assert!(!can_wait(&World::default(), &change(None, pool), Target::Sandbox), "a new member needs its Pod");
        assert!(!can_wait(&World::default(), &change(claim, claim), Target::Sandbox), "an edit");
        assert!(!can_wait(&World::default(), &change(claim, None), Target::Sandbox), "gone");
        for change in [change(pool, claim), change(None, pool), change(pool, None)] {
            assert!(can_wait(&World::default(), &change, Target::Pool));
            assert!(!can_wait(&World::default(), &change, Target::Claim));
        }
    }
}
