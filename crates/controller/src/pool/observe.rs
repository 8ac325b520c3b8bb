//! Reading, in one look at the store, everything a pool's plan may depend on.

use std::sync::Arc;

use agent_sandbox_api::{
    keys::annotations,
    names,
    v1beta1::{SandboxTemplate, SandboxWarmPool},
};
use jiff::Timestamp;

use super::plan::{Member, Observed, is_unschedulable};
use crate::{
    object::{Cached, Key, Sandbox},
    world::{IndexKey, World},
};

/// `None` when the pool is not there or on its way out: the garbage collector takes its members.
pub(super) fn observe(world: &World, key: &Key, now: Timestamp) -> Option<Observed> {
    let pool = world.get::<SandboxWarmPool>(key).filter(|pool| !pool.is_deleting())?;
    let template = world.get::<SandboxTemplate>(&key.sibling(pool.spec.sandbox_template_ref.name.as_str()));
    let label = IndexKey::PoolLabel { namespace: pool.namespace().to_owned(), hash: names::name_hash(pool.name()) };
    let members = world.sandboxes.find(&label).map(|sandbox| member(world, sandbox)).collect();
    Some(Observed { pool, template, members, now })
}

fn member(world: &World, sandbox: &Arc<Sandbox>) -> Member {
    let pod_name = sandbox.annotation(annotations::POD_NAME).filter(|name| !name.is_empty()).unwrap_or(sandbox.name());
    let pod = world.pods.get(&Cached::key(&**sandbox).sibling(pod_name));
    Member {
        sandbox: sandbox.clone(),
        unschedulable: pod.is_some_and(|pod| !pod.is_deleting() && is_unschedulable(pod)),
        reserved: world.candidates.reserved_by(sandbox.uid()).is_some(),
    }
}
