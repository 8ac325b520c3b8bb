//! Reads everything that a Sandbox's plan may depend on, under one lock of the store.

use agent_sandbox_api::{names, owners};
use jiff::Timestamp;

use super::plan::{Observed, Unreadable, tracked_name};
use crate::{
    cache::{Cached, ClusterCache, IndexKey, Key, Kind, Sandbox},
    reconcile::LiveReads,
};

/// Finalizer of a foreground deletion.
const FOREGROUND: &str = "foregroundDeletion";

/// `None` when the Sandbox does not exist.
pub(super) fn observe(
    world: &ClusterCache,
    key: &Key,
    live: &LiveReads,
    patch_due_since: Option<Timestamp>,
    now: Timestamp,
) -> Option<Observed> {
    if live.is_absent(Kind::Sandbox, key) {
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
        owner_gone: owner_is_gone(world, key, &sandbox),
        confirmed: live.contains(Kind::Sandbox, key),
        collides_with: older_with_same_hash(world, &sandbox),
        unreadable: unreadable(live),
        patch_due_since,
        now,
        sandbox,
    })
}

/// The errors of the children that exist but could not be read.
fn unreadable(live: &LiveReads) -> Unreadable {
    let error = |kind: Kind, what: &str| live.error(kind).map(|error| format!("{what}: {}", error.stable_text()));
    Unreadable {
        pod: error(Kind::Pod, "pod already exists but failed to fetch"),
        service: error(Kind::Service, "service get failed"),
        volume: error(Kind::Pvc, "failed to get PVC"),
    }
}

/// Whether the garbage collector is about to delete the Sandbox: its controller is gone, or is being deleted in the
/// foreground.
pub(super) fn owner_is_gone(world: &ClusterCache, key: &Key, sandbox: &Sandbox) -> bool {
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
fn older_with_same_hash(world: &ClusterCache, sandbox: &Sandbox) -> Option<String> {
    let age =
        |sandbox: &Sandbox| (sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0), sandbox.uid().to_owned());
    let index =
        IndexKey::NameHash { namespace: sandbox.namespace().to_owned(), hash: names::name_hash(sandbox.name()) };
    world
        .sandboxes
        .find(&index)
        .filter(|other| other.name() != sandbox.name() && age(other) < age(sandbox))
        .min_by_key(|other| age(other))
        .map(|other| other.name().to_owned())
}
