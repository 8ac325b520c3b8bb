//! Reading, in one look at the store, everything a Sandbox's plan may depend on.

use std::{collections::HashMap, sync::Arc};

use agent_sandbox_api::{names, owners};
use jiff::Timestamp;

use super::plan::{Observed, Unreadable, tracked_name};
use crate::{
    object::{Cached, Key, Kind, Object, Sandbox},
    world::{IndexKey, Known, World},
};

/// The finalizer of a deletion that waits for what the object owns.
const FOREGROUND: &str = "foregroundDeletion";

/// Live reads of this pass, which are newer than the cache or outside of what it watches.
#[derive(Default)]
pub(super) struct LiveReads {
    objects: HashMap<(Kind, Key), Option<Object>>,
    unreadable: Unreadable,
}

impl LiveReads {
    pub(super) fn insert(&mut self, kind: Kind, key: Key, object: Option<Object>) {
        self.objects.insert((kind, key), object);
    }

    /// Notes that an object which is there could not be read. `false`: no plan can be made without it.
    pub(super) fn fail(&mut self, kind: Kind, error: &str) -> bool {
        match kind {
            Kind::Pod => self.unreadable.pod = Some(format!("pod already exists but failed to fetch: {error}")),
            Kind::Service => self.unreadable.service = Some(format!("service get failed: {error}")),
            Kind::Pvc => self.unreadable.volume = Some(format!("failed to get PVC: {error}")),
            _ => return false,
        }
        true
    }

    /// What is known under a name. The store also holds the live read, or something newer, unless the kind's cache is restricted.
    fn get<K: Known>(&self, world: &World, key: &Key) -> Option<Arc<K>> {
        world.get(key).or_else(|| self.objects.get(&(K::KIND_OF, key.clone()))?.as_ref()?.cast())
    }
}

/// `None` when the Sandbox is not there.
pub(super) fn observe(
    world: &World,
    key: &Key,
    live: &LiveReads,
    patch_due_since: Option<Timestamp>,
    now: Timestamp,
) -> Option<Observed> {
    let read = live.objects.get(&(Kind::Sandbox, key.clone()));
    if read.is_some_and(Option::is_none) {
        return None;
    }
    let sandbox = world.get::<Sandbox>(key)?;
    let volumes = sandbox
        .volume_claim_templates()
        .iter()
        .map(|template| live.get(world, &key.sibling(names::volume_claim(template.name(), sandbox.name()))))
        .collect();
    Some(Observed {
        owned_pods: world
            .pods
            .controlled_by(sandbox.uid())
            .filter(|pod| *pod.key().namespace == *key.namespace)
            .cloned()
            .collect(),
        tracked_pod: live.get(world, &key.sibling(tracked_name(&sandbox))),
        named_pod: live.get(world, key),
        service: live.get(world, key),
        volumes,
        abandoned: is_abandoned(world, key, &sandbox),
        confirmed: read.is_some(),
        collides_with: older_twin(world, &sandbox),
        unreadable: live.unreadable.clone(),
        patch_due_since,
        now,
        sandbox,
    })
}

/// Whether the garbage collector is about to take the Sandbox: its controller is gone, or goes after what it owns.
pub(super) fn is_abandoned(world: &World, key: &Key, sandbox: &Sandbox) -> bool {
    let Some(owner) = owners::controller_of(&sandbox.metadata) else { return false };
    let foreground = || {
        let claim = world.claims.get(&key.sibling(owner.name.as_str())).filter(|claim| claim.uid() == owner.uid);
        claim.is_some_and(|claim| {
            let finalizers = claim.metadata.finalizers.iter().flatten();
            claim.is_deleting() && finalizers.into_iter().any(|finalizer| finalizer == FOREGROUND)
        })
    };
    world.claims.is_deleted(&owner.uid) || world.pools.is_deleted(&owner.uid) || foreground()
}

/// The oldest Sandbox of the namespace that has the same name hash and is older than this one.
fn older_twin(world: &World, sandbox: &Sandbox) -> Option<String> {
    let age =
        |sandbox: &Sandbox| (sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0), sandbox.uid().to_owned());
    let index =
        IndexKey::NameHash { namespace: sandbox.namespace().to_owned(), hash: names::name_hash(sandbox.name()) };
    world
        .sandboxes
        .find(&index)
        .filter(|twin| twin.name() != sandbox.name() && age(twin) < age(sandbox))
        .min_by_key(|twin| age(twin))
        .map(|twin| twin.name().to_owned())
}
