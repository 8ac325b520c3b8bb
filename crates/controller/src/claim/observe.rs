//! Reads everything that a claim's plan may depend on, under one lock of the store.

use std::sync::Arc;

use agent_sandbox_api::{
    keys::annotations,
    names,
    v1beta1::{SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use jiff::Timestamp;
use serde_json::Value;

use super::{
    adoption::recorded_sandbox,
    plan::{Observed, Source},
};
use crate::{
    cache::{Cached, ClusterCache, IndexKey, Key, Sandbox},
    reconcile::LiveReads,
};

/// `None` when the claim does not exist.
pub(super) fn observe(
    world: &ClusterCache,
    key: &Key,
    live: &LiveReads,
    held: Option<&Key>,
    first_seen: Timestamp,
    now: Timestamp,
) -> Option<Observed> {
    let claim = world.get::<SandboxClaim>(key)?;
    let source = source(world, key, &claim);
    let template_name = match &source {
        Source::Pool(pool) => Some(pool.spec.sandbox_template_ref.name.clone()),
        Source::Template { template, .. } => Some(template.clone()),
        Source::Missing => None,
    };
    let template = template_name.as_ref().and_then(|name| world.get::<SandboxTemplate>(&key.sibling(name.as_str())));
    let controlled: Vec<Arc<Sandbox>> = world
        .sandboxes
        .controlled_by(claim.uid())
        .filter(|sandbox| sandbox.namespace() == claim.namespace())
        .cloned()
        .collect();
    let assigned_key = held.cloned().or_else(|| recorded_sandbox(&claim).map(|name| key.sibling(name)));
    let assigned = assigned_key.as_ref().and_then(|key| world.get::<Sandbox>(key));
    Some(Observed {
        same_name_sandbox: world.get(key),
        published: claim.bound_sandbox().and_then(|name| world.get(&key.sibling(name))),
        legacy_policy: world.get(&key.sibling(names::network_policy(claim.name()))),
        bound_template: controlled_template(world, key, &controlled),
        assigned_template: assigned.as_deref().and_then(|sandbox| template_of(world, key, sandbox)),
        assigned_pool: assigned.as_deref().and_then(|sandbox| owning_pool(world, sandbox)),
        assigned,
        assigned_key,
        controlled,
        template_name,
        template,
        source,
        live: live.clone(),
        failed_reservation: None,
        trace: None,
        first_seen,
        now,
        claim,
    })
}

/// Where the claim's Sandbox comes from.
fn source(world: &ClusterCache, key: &Key, claim: &SandboxClaim) -> Source {
    let name = claim.spec.warm_pool_ref.name.as_str();
    if let Some(pool) = world.get::<SandboxWarmPool>(&key.sibling(name)) {
        return Source::Pool(pool);
    }
    let Some((template, policy)) = names::shadow_pool_template(name).zip(v1alpha1_policy(claim)) else {
        return Source::Missing;
    };
    let index = IndexKey::TemplateRef { namespace: claim.namespace().to_owned(), template: template.to_owned() };
    let pools = match policy.as_str() {
        "none" => Vec::new(),
        _ => world.pools.find(&index).filter(|pool| !pool.is_deleting()).cloned().collect(),
    };
    Source::Template { template: template.to_owned(), pools }
}

/// The pool policy of a claim written through v1alpha1; `None` for other claims.
fn v1alpha1_policy(claim: &SandboxClaim) -> Option<String> {
    let state: Value = serde_json::from_str(claim.annotation(annotations::V1ALPHA1_CLAIM_STATE)?).ok()?;
    Some(state["spec"]["warmpool"].as_str().unwrap_or("default").to_owned())
}

/// The templates of the Sandboxes that the claim controls, in their order.
fn controlled_template(
    world: &ClusterCache,
    key: &Key,
    controlled: &[Arc<Sandbox>],
) -> Vec<Option<Arc<SandboxTemplate>>> {
    controlled.iter().map(|sandbox| template_of(world, key, sandbox)).collect()
}

/// The template that a Sandbox names as its origin.
pub(super) fn template_of(world: &ClusterCache, key: &Key, sandbox: &Sandbox) -> Option<Arc<SandboxTemplate>> {
    world.get(&key.sibling(sandbox.annotation(annotations::TEMPLATE_REF)?))
}

fn owning_pool(world: &ClusterCache, sandbox: &Sandbox) -> Option<Arc<SandboxWarmPool>> {
    let owner = agent_sandbox_api::owners::owning_pool(&sandbox.metadata)?;
    world
        .get::<SandboxWarmPool>(&Cached::key(sandbox).sibling(owner.name.as_str()))
        .filter(|pool| pool.uid() == owner.uid)
}
