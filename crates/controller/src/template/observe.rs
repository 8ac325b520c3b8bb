//! Reads everything that a template's plan may depend on, under one lock of the store.

use agent_sandbox_api::{names, v1beta1::SandboxTemplate};

use super::plan::Observed;
use crate::cache::{ClusterCache, Key};

/// `None` when the template does not exist.
pub(super) fn observe(world: &ClusterCache, key: &Key) -> Option<Observed> {
    let template = world.get::<SandboxTemplate>(key)?;
    let policy = world.get(&key.sibling(names::network_policy(template.name())));
    Some(Observed { template, policy })
}
