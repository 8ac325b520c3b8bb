//! Everything the controller knows, as plain data: one cache per kind, the indexes between them, and the warm candidates.
//!
//! There is no IO, no lock and no clock here, so that property tests can drive it with stale and reordered inputs. [`crate::store`] puts
//! it behind a lock and turns changes into wake-ups.

mod cache;
mod candidates;

use std::sync::Arc;

use agent_sandbox_api::{
    groups,
    keys::labels,
    names, owners,
    v1beta1::{SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use k8s_openapi::api::networking::v1::NetworkPolicy;

pub use self::{
    cache::{Cache, Delta},
    candidates::{Candidates, Grade, Pick},
};
use crate::object::{Cached, Key, Kind, Object, Pod, Pvc, Sandbox, Service};

/// What an object can be found by, besides its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IndexKey {
    /// The uid in the controller reference.
    Controller(String),
    /// Sandboxes and Templates of a namespace whose names hash alike.
    NameHash { namespace: String, hash: String },
    /// Claims that name a pool.
    PoolRef { namespace: String, pool: String },
    /// Claims that name a pool and have no Sandbox yet.
    Waiting { namespace: String, pool: String },
    /// Pools that name a template.
    TemplateRef { namespace: String, template: String },
    /// Sandboxes labelled as unclaimed members of the pool whose name hashes so.
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

/// One object's change, as the routers that decide whom to wake see it.
#[derive(Clone, Debug)]
pub enum Change {
    Sandbox(Delta<Sandbox>),
    Claim(Delta<SandboxClaim>),
    Pool(Delta<SandboxWarmPool>),
    Template(Delta<SandboxTemplate>),
    Pod(Delta<Pod>),
    Pvc(Delta<Pvc>),
    Service(Delta<Service>),
    NetworkPolicy(Delta<NetworkPolicy>),
}

#[derive(Default)]
pub struct World {
    pub sandboxes: Cache<Sandbox>,
    pub claims: Cache<SandboxClaim>,
    pub pools: Cache<SandboxWarmPool>,
    pub templates: Cache<SandboxTemplate>,
    pub pods: Cache<Pod>,
    pub pvcs: Cache<Pvc>,
    pub services: Cache<Service>,
    pub policies: Cache<NetworkPolicy>,
    pub candidates: Candidates,
}

/// A kind that has a place in the [`World`].
pub trait Known: Cached {
    fn cache(world: &World) -> &Cache<Self>
    where
        Self: Sized;
    fn cache_mut(world: &mut World) -> &mut Cache<Self>
    where
        Self: Sized;
    fn change(delta: Delta<Self>) -> Change
    where
        Self: Sized;
}

macro_rules! known {
    ($type:ty, $field:ident, $variant:ident) => {
        impl Known for $type {
            fn cache(world: &World) -> &Cache<Self> {
                &world.$field
            }

            fn cache_mut(world: &mut World) -> &mut Cache<Self> {
                &mut world.$field
            }

            fn change(delta: Delta<Self>) -> Change {
                Change::$variant(delta)
            }
        }
    };
}

known!(Sandbox, sandboxes, Sandbox);
known!(SandboxClaim, claims, Claim);
known!(SandboxWarmPool, pools, Pool);
known!(SandboxTemplate, templates, Template);
known!(Pod, pods, Pod);
known!(Pvc, pvcs, Pvc);
known!(Service, services, Service);
known!(NetworkPolicy, policies, NetworkPolicy);

/// One thing learnt about one kind.
#[derive(Debug)]
pub enum News<K> {
    /// The watch showed an object.
    Event(K),
    /// The watch said that an object is gone.
    Deletion(K),
    /// A complete list at a version.
    List(Vec<K>, u64),
}

impl<K: Cached> News<K> {
    /// Drops what no decision reads.
    pub fn slim(&mut self) {
        match self {
            News::Event(object) => object.slim(),
            News::Deletion(_) => {}
            News::List(items, _) => items.iter_mut().for_each(Cached::slim),
        }
    }
}

impl World {
    pub fn get<K: Known>(&self, key: &Key) -> Option<Arc<K>> {
        K::cache(self).get(key).cloned()
    }

    /// Takes in what a watch or a list brought.
    pub fn learn<K: Known>(&mut self, news: News<K>) -> Vec<Change> {
        let deltas = match news {
            News::Event(object) => K::cache_mut(self).observe_event(Arc::new(object)).into_iter().collect(),
            News::Deletion(object) => K::cache_mut(self).observe_deletion(&object).into_iter().collect(),
            News::List(items, version) => K::cache_mut(self).observe_list(items, version),
        };
        deltas.into_iter().map(|delta| self.settle(delta)).collect()
    }

    /// Overlays the answer to one of our writes.
    pub fn apply_answer(&mut self, object: &Object) -> Option<Change> {
        self.overlay(object, true)
    }

    /// Takes in a live read.
    pub fn observe_read(&mut self, object: &Object) -> Option<Change> {
        self.overlay(object, false)
    }

    /// Takes in that the API no longer has this uid.
    pub fn forget(&mut self, kind: Kind, key: &Key, uid: &str) -> Option<Change> {
        fn typed<K: Known>(world: &mut World, key: &Key, uid: &str) -> Option<Change> {
            let delta = K::cache_mut(world).forget(key, uid)?;
            Some(world.settle(delta))
        }
        match kind {
            Kind::Sandbox => typed::<Sandbox>(self, key, uid),
            Kind::Claim => typed::<SandboxClaim>(self, key, uid),
            Kind::Pool => typed::<SandboxWarmPool>(self, key, uid),
            Kind::Template => typed::<SandboxTemplate>(self, key, uid),
            Kind::Pod => typed::<Pod>(self, key, uid),
            Kind::Pvc => typed::<Pvc>(self, key, uid),
            Kind::Service => typed::<Service>(self, key, uid),
            Kind::NetworkPolicy => typed::<NetworkPolicy>(self, key, uid),
            Kind::Event => None,
        }
    }

    fn overlay(&mut self, object: &Object, ours: bool) -> Option<Change> {
        fn typed<K: Known>(world: &mut World, object: &Arc<K>, ours: bool) -> Option<Change> {
            let cache = K::cache_mut(world);
            let delta = if ours { cache.apply_answer(object.clone()) } else { cache.observe_read(object.clone()) }?;
            Some(world.settle(delta))
        }
        match object {
            Object::Sandbox(object) => typed(self, object, ours),
            Object::Claim(object) => typed(self, object, ours),
            Object::Pool(object) => typed(self, object, ours),
            Object::Template(object) => typed(self, object, ours),
            Object::Pod(object) => typed(self, object, ours),
            Object::Pvc(object) => typed(self, object, ours),
            Object::Service(object) => typed(self, object, ours),
            Object::NetworkPolicy(object) => typed(self, object, ours),
        }
    }

    /// Brings derived state up to date with a change.
    fn settle<K: Known>(&mut self, delta: Delta<K>) -> Change {
        let change = K::change(delta);
        match &change {
            Change::Sandbox(delta) => {
                let key = delta.key();
                let terminating = self.pod_is_terminating(delta.latest());
                self.candidates.update(&key, delta.new.as_deref(), terminating);
            }
            // A candidate whose Pod is on its way out must not be handed out, though its status may still say Ready.
            Change::Pod(delta) => {
                let pod = delta.latest();
                if let Some(owner) =
                    pod.controller().filter(|owner| owners::is_kind(owner, groups::CORE, groups::SANDBOX))
                {
                    let key = pod.key().sibling(owner.name.as_str());
                    if let Some(sandbox) = self.sandboxes.get(&key).cloned() {
                        let terminating = self.pod_is_terminating(&sandbox);
                        self.candidates.update(&key, Some(&sandbox), terminating);
                    }
                }
            }
            _ => {}
        }
        change
    }

    fn pod_is_terminating(&self, sandbox: &Sandbox) -> bool {
        self.pods.controlled_by(sandbox.uid()).any(|pod| pod.is_deleting())
    }
}
