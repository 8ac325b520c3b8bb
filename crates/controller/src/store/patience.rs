//! Which wake-ups nobody waits for. Served a moment later, they leave the machine to claims that somebody does wait for, and several of
//! them become one.

use agent_sandbox_api::{owners, v1beta1::Sandbox};

use super::Target;
use crate::world::{Change, Delta};

/// Whether the target may hear of the change a little later: a pool of its members, a Sandbox of its having been claimed (what is left to
/// do then is the Pod's metadata and its own status).
pub(super) fn can_wait(change: &Change, target: Target) -> bool {
    match (target, change) {
        (Target::Pool, Change::Sandbox(_)) => true,
        (Target::Sandbox, Change::Sandbox(delta)) => was_claimed(delta),
        _ => false,
    }
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

    fn change(old: Option<&str>, new: Option<&str>) -> Change {
        Change::Sandbox(Delta { old: old.map(sandbox), new: new.map(sandbox) })
    }

    #[test]
    fn only_what_follows_a_claims_service_can_wait() {
        let (pool, claim) = (Some("SandboxWarmPool"), Some("SandboxClaim"));
        assert!(can_wait(&change(pool, claim), Target::Sandbox), "just claimed");
        assert!(!can_wait(&change(None, claim), Target::Sandbox), "a cold start: somebody waits for its Pod");
        assert!(!can_wait(&change(None, pool), Target::Sandbox), "a new member needs its Pod");
        assert!(!can_wait(&change(claim, claim), Target::Sandbox), "an edit");
        assert!(!can_wait(&change(claim, None), Target::Sandbox), "gone");
        for change in [change(pool, claim), change(None, pool), change(pool, None)] {
            assert!(can_wait(&change, Target::Pool));
            assert!(!can_wait(&change, Target::Claim));
        }
    }
}
