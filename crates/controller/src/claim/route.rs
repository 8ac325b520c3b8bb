//! Which claims a change concerns.

use std::sync::Arc;

use agent_sandbox_api::{conditions::ConditionType, keys::annotations, names, owners};

use crate::cache::{Cached, Change, ClusterCache, Delta, IndexKey, Key, ReconcilerKind, Sandbox, WorkItem};

/// Adds the claims that a change concerns.
pub fn route(world: &ClusterCache, change: &Change, items: &mut Vec<WorkItem>) {
    match change {
        Change::Claim(delta) => items.push(WorkItem::new(ReconcilerKind::Claim, delta.key())),
        Change::Sandbox(delta) => sandbox_changed(world, delta, items),
        // A change of a pool's status concerns no claim.
        Change::Pool(delta) => {
            let generation =
                |pool: &Option<Arc<_>>| pool.as_deref().map(agent_sandbox_api::v1beta1::SandboxWarmPool::generation);
            if generation(&delta.old) != generation(&delta.new) {
                let pool = delta.latest();
                wake_unbound(world, pool.namespace(), pool.name(), items);
                let shadow = names::shadow_pool(&pool.spec.sandbox_template_ref.name);
                wake_unbound(world, pool.namespace(), &shadow, items);
            }
        }
        Change::Template(delta) if delta.old.is_none() => {
            let template = delta.latest();
            let namespace = template.namespace();
            let index = IndexKey::TemplateRef { namespace: namespace.to_owned(), template: template.name().to_owned() };
            let pools = world.pools.find(&index).map(|pool| pool.name().to_owned());
            for pool in pools.chain([names::shadow_pool(template.name())]) {
                wake_claims(world, &IndexKey::PoolRef { namespace: namespace.to_owned(), pool }, items);
            }
        }
        Change::NetworkPolicy(delta) => {
            if let Some(policy) = &delta.new
                && let Some(owner) = owners::owning_claim(&policy.metadata)
            {
                items.push(WorkItem::new(ReconcilerKind::Claim, policy.key().sibling(owner.name.as_str())));
            }
        }
        Change::Template(_) | Change::Pod(_) | Change::Pvc(_) | Change::Service(_) => {}
    }
}

fn sandbox_changed(world: &ClusterCache, delta: &Delta<Sandbox>, items: &mut Vec<WorkItem>) {
    let key = delta.key();
    // A Sandbox wakes the claim that controls it, or did, when mirrored fields change.
    if matters_to_its_claim(delta) {
        for sandbox in delta.old.iter().chain(&delta.new) {
            if let Some(owner) = owners::owning_claim(&sandbox.metadata) {
                items.push(WorkItem::new(ReconcilerKind::Claim, key.sibling(owner.name.as_str())));
            }
        }
        // A Sandbox with the name of a claim may block the claim's own Sandbox.
        if world.claims.get(&key).is_some() {
            items.push(WorkItem::new(ReconcilerKind::Claim, key.clone()));
        }
        items.dedup();
    }
    // A candidate that can now be reserved ends the wait of unbound claims.
    if let Some(sandbox) = delta.new.as_deref()
        && becomes_available(delta)
        && let Some(pool) = owners::owning_pool(&sandbox.metadata)
    {
        wake_unbound(world, sandbox.namespace(), &pool.name, items);
        if let Some(template) = sandbox.annotation(annotations::TEMPLATE_REF) {
            wake_unbound(world, sandbox.namespace(), &names::shadow_pool(template), items);
        }
    }
}

/// Whether the fields that a claim mirrors, or the owner of the Sandbox, have changed.
fn matters_to_its_claim(delta: &Delta<Sandbox>) -> bool {
    let (Some(old), Some(new)) = (&delta.old, &delta.new) else { return true };
    let owner = |sandbox: &Sandbox| owners::controller_of(&sandbox.metadata).map(|owner| owner.uid.clone());
    Arc::ptr_eq(old, new)
        || old.uid() != new.uid()
        || owner(old) != owner(new)
        || old.is_deleting() != new.is_deleting()
        || old.pod_ips() != new.pod_ips()
        || old.service_fqdn() != new.service_fqdn()
        || old.condition(ConditionType::Ready) != new.condition(ConditionType::Ready)
        || old.condition(ConditionType::Finished) != new.condition(ConditionType::Finished)
}

fn becomes_available(delta: &Delta<Sandbox>) -> bool {
    let networked = |sandbox: Option<&Sandbox>| sandbox.is_some_and(|sandbox| !sandbox.pod_ips().is_empty());
    let ready = |sandbox: Option<&Sandbox>| sandbox.is_some_and(super::sandbox_is_ready);
    let (old, new) = (delta.old.as_deref(), delta.new.as_deref());
    (networked(new) && !networked(old)) || (ready(new) && !ready(old))
}

/// Claims on this pool that have no Sandbox yet.
fn wake_unbound(world: &ClusterCache, namespace: &str, pool: &str, items: &mut Vec<WorkItem>) {
    wake_claims(world, &IndexKey::Waiting { namespace: namespace.to_owned(), pool: pool.to_owned() }, items);
}

fn wake_claims(world: &ClusterCache, index: &IndexKey, items: &mut Vec<WorkItem>) {
    let claims = world.claims.find(index).filter(|claim| !claim.is_deleting());
    items.extend(claims.map(|claim| WorkItem::new(ReconcilerKind::Claim, Key::new(claim.namespace(), claim.name()))));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sandbox(change: &Value) -> Arc<Sandbox> {
        let ready = json!({"type": "Ready", "status": "False", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let mut object = json!({
            "metadata": {"name": "s", "namespace": "n", "uid": "u"},
            "status": {"conditions": [ready]},
        });
        crate::testing::fake_api::merge(&mut object, change);
        Arc::new(serde_json::from_value(object).expect("valid"))
    }

    fn delta(old: &Value, new: &Value) -> Delta<Sandbox> {
        Delta { old: Some(sandbox(old)), new: Some(sandbox(new)) }
    }

    fn ready(status: &str) -> Value {
        json!({"status": {"podIPs": ["10.0.0.1"], "conditions": [
            {"type": "Ready", "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ]}})
    }

    /// A waiting claim is woken when a member gets an address or becomes Ready, and by nothing else: every change of a
    /// pool would otherwise wake every claim that waits for it.
    #[test]
    fn a_member_becomes_available_once() {
        let (nothing, networked) = (json!({}), json!({"status": {"podIPs": ["10.0.0.1"]}}));
        assert!(becomes_available(&delta(&nothing, &networked)), "an address");
        assert!(becomes_available(&delta(&networked, &ready("True"))), "Ready");
        assert!(becomes_available(&Delta { old: None, new: Some(sandbox(&networked)) }), "first seen with an address");
        for (old, new) in [
            (&nothing, &nothing),
            (&networked, &networked),
            (&networked, &nothing),
            (&ready("True"), &ready("True")),
            (&ready("True"), &ready("False")),
        ] {
            assert!(!becomes_available(&delta(old, new)), "{old} {new}");
        }
        assert!(!becomes_available(&Delta { old: Some(sandbox(&networked)), new: None }), "gone");
    }

    /// What a claim mirrors wakes it; what it does not mirror does not.
    #[test]
    fn only_what_a_claim_mirrors_matters_to_it() {
        let nothing = json!({});
        let owner = json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "name": "c", "uid": "c", "controller": true});
        for change in [
            json!({"metadata": {"uid": "v"}}),
            json!({"metadata": {"ownerReferences": [owner]}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            json!({"status": {"podIPs": ["10.0.0.1"]}}),
            json!({"status": {"serviceFQDN": "s.n.svc.cluster.local"}}),
            ready("True"),
            json!({"status": {"conditions": [{"type": "Finished", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}),
        ] {
            assert!(matters_to_its_claim(&delta(&nothing, &change)), "{change}");
        }
        for change in [json!({}), json!({"metadata": {"labels": {"a": "b"}}}), json!({"status": {"nodeName": "n"}})] {
            assert!(!matters_to_its_claim(&delta(&nothing, &change)), "{change}");
        }
        let same = sandbox(&nothing);
        assert!(matters_to_its_claim(&Delta { old: Some(same.clone()), new: Some(same) }), "a bare wake-up");
    }
}
