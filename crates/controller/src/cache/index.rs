//! What objects can be found by besides their name, and which entries each kind has.

use agent_sandbox_api::{
    keys::labels,
    names,
    v1beta1::{SandboxClaim, SandboxTemplate, SandboxWarmPool},
};

use super::{Cached, Sandbox};

/// What an object can be found by, besides its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IndexKey {
    /// The uid in the controller reference.
    Controller(String),
    /// Sandboxes or templates of a namespace whose names have the same hash.
    NameHash { namespace: String, hash: String },
    /// Claims that name a pool.
    PoolRef { namespace: String, pool: String },
    /// Claims that name a pool and have no Sandbox yet.
    Waiting { namespace: String, pool: String },
    /// Pools that name a template.
    TemplateRef { namespace: String, template: String },
    /// Sandboxes labelled as unclaimed members of the pool whose name has this hash.
    PoolLabel { namespace: String, hash: String },
}

pub(crate) fn index_owner<K: Cached>(object: &K) -> Vec<IndexKey> {
    object.controller().map(|owner| IndexKey::Controller(owner.uid.clone())).into_iter().collect()
}

pub(crate) fn index_sandbox(sandbox: &Sandbox) -> Vec<IndexKey> {
    let namespace = sandbox.namespace().to_owned();
    let mut index = index_owner(sandbox);
    index.push(IndexKey::NameHash { namespace: namespace.clone(), hash: names::name_hash(sandbox.name()) });
    if let Some(hash) = sandbox.label(labels::WARM_POOL_SANDBOX) {
        index.push(IndexKey::PoolLabel { namespace, hash: hash.to_owned() });
    }
    index
}

pub(crate) fn index_claim(claim: &SandboxClaim) -> Vec<IndexKey> {
    let (namespace, pool) = (claim.namespace().to_owned(), claim.spec.warm_pool_ref.name.clone());
    let waiting = claim.bound_sandbox().is_none();
    let waiting = waiting.then(|| IndexKey::Waiting { namespace: namespace.clone(), pool: pool.clone() });
    waiting.into_iter().chain([IndexKey::PoolRef { namespace, pool }]).collect()
}

pub(crate) fn index_pool(pool: &SandboxWarmPool) -> Vec<IndexKey> {
    vec![IndexKey::TemplateRef {
        namespace: pool.namespace().to_owned(),
        template: pool.spec.sandbox_template_ref.name.clone(),
    }]
}

pub(crate) fn index_template(template: &SandboxTemplate) -> Vec<IndexKey> {
    vec![IndexKey::NameHash { namespace: template.namespace().to_owned(), hash: names::name_hash(template.name()) }]
}
