//! Reads everything that a pool's plan may depend on, under one lock of the store.

use std::sync::Arc;

use agent_sandbox_api::{
    keys::annotations,
    names,
    v1beta1::{SandboxTemplate, SandboxWarmPool},
};
use jiff::Timestamp;

use super::plan::{Member, Observed, is_unschedulable};
use crate::cache::{Cached, ClusterCache, IndexKey, Key, Sandbox};

/// `None` when the pool does not exist or is being deleted: the garbage collector deletes its members.
pub(super) fn observe(world: &ClusterCache, key: &Key, now: Timestamp) -> Option<Observed> {
    let pool = world.get::<SandboxWarmPool>(key).filter(|pool| !pool.is_deleting())?;
    let template = world.get::<SandboxTemplate>(&key.sibling(pool.spec.sandbox_template_ref.name.as_str()));
    let label = IndexKey::PoolLabel { namespace: pool.namespace().to_owned(), hash: names::name_hash(pool.name()) };
    let members = world.sandboxes.find(&label).map(|sandbox| member(world, sandbox)).collect();
    Some(Observed { pool, template, members, now })
}

fn member(world: &ClusterCache, sandbox: &Arc<Sandbox>) -> Member {
    let pod_name = sandbox.annotation(annotations::POD_NAME).filter(|name| !name.is_empty()).unwrap_or(sandbox.name());
    let pod = world.pods.get(&Cached::key(&**sandbox).sibling(pod_name));
    Member {
        sandbox: sandbox.clone(),
        unschedulable: pod.is_some_and(|pod| !pod.is_deleting() && is_unschedulable(pod)),
        reserved: world.candidates.reserved_by(sandbox.uid()).is_some(),
    }
}
