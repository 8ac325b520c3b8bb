//! Garbage collection by owner references.
//!
//! The dependency graph (owner uid → dependents) is updated from the store's events. Decisions are made from the latest
//! state, and checked again in the same step that sequences the delete, so a dependent that got another owner in
//! between is never deleted.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    patch::managed::{self, Manager},
    registry::{Resource, Snapshot},
    request::{DeleteOptions, Preconditions, Propagation},
    server::Core,
    status::ApiError,
    store::{Change, CommitError, Draft, Event, EventKind, Expect, LatestView, ObjectKey, OwnerRef, Stored, Write},
    verbs::{delete_checked, finalizers},
};

/// One object of any resource: its collection and its key.
pub(crate) type Item = (Arc<str>, ObjectKey);

/// The dependents of each owner, by the owner's uid.
#[derive(Default)]
pub(crate) struct DependencyGraph {
    dependents: Mutex<HashMap<Box<str>, HashSet<Item>>>,
}

impl DependencyGraph {
    /// The objects that refer to an owner. Objects of other namespaces than the owner's are none of its dependents,
    /// whatever uid they name.
    pub(crate) fn dependents(&self, owner: &Stored) -> Vec<Item> {
        let dependents = self.dependents.lock();
        let named = dependents.get(owner.uid()).into_iter().flatten();
        named.filter(|(_, key)| may_own(&owner.key, key)).cloned().collect()
    }

    /// Applies an event of the store.
    pub(crate) fn apply(&self, storage: &Arc<str>, event: &Event) {
        let before: &[OwnerRef] = event.previous.as_ref().map_or(&[], |p| &p.facts.owners);
        let after: &[OwnerRef] = if event.kind == EventKind::Deleted { &[] } else { &event.object.facts.owners };
        if before.is_empty() && after.is_empty() {
            return;
        }
        let item = (storage.clone(), event.object.key.clone());
        let mut dependents = self.dependents.lock();
        for owner in before.iter().filter(|o| !after.iter().any(|a| a.uid == o.uid)) {
            if let Some(set) = dependents.get_mut(&owner.uid) {
                set.remove(&item);
                if set.is_empty() {
                    dependents.remove(&owner.uid);
                }
            }
        }
        for owner in after {
            dependents.entry(owner.uid.clone()).or_default().insert(item.clone());
        }
    }

    /// Adds an object that was stored before the first event.
    pub(crate) fn load(&self, storage: &Arc<str>, object: &Stored) {
        let mut dependents = self.dependents.lock();
        for owner in &object.facts.owners {
            dependents.entry(owner.uid.clone()).or_default().insert((storage.clone(), object.key.clone()));
        }
    }
}

/// Whether the scopes of two objects allow that one owns the other: a namespaced owner is in its dependent's namespace.
fn may_own(owner: &ObjectKey, dependent: &ObjectKey) -> bool {
    owner.namespace.is_empty() || owner.namespace == dependent.namespace
}

/// Whether a dependent's reference keeps an owner, stored in `storage`, from being removed in the foreground. The
/// reference has to match it in every part, because the owner is looked up by them when the dependent is gone.
fn blocks(registry: &Snapshot, dependent: &Stored, reference: &OwnerRef, storage: &str, owner: &Stored) -> bool {
    let of_kind = || registry.by_kind(&reference.group, &reference.kind).is_some_and(|kind| &*kind.storage == storage);
    reference.blocks
        && *reference.uid == *owner.uid()
        && reference.name == owner.key.name
        && may_own(&owner.key, &dependent.key)
        && of_kind()
}

/// State of the object that an owner reference points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnerState {
    Exists,
    /// Being deleted in the foreground, and this dependent blocks the deletion.
    AwaitsDependents,
    /// Does not exist, or another object has its name now.
    Missing,
    /// The owner's kind is not served, so the reference is kept.
    UnknownKind,
}

fn owner_state(
    registry: &Snapshot,
    dependent: &Stored,
    owner: &OwnerRef,
    get: impl Fn(&Resource, &ObjectKey) -> Option<Arc<Stored>>,
) -> OwnerState {
    let Some(resource) = registry.by_kind(&owner.group, &owner.kind) else { return OwnerState::UnknownKind };
    let namespace = if resource.namespaced { &*dependent.key.namespace } else { "" };
    // A cluster-scoped object cannot be owned by a namespaced one.
    if resource.namespaced && namespace.is_empty() {
        return OwnerState::UnknownKind;
    }
    match get(resource, &ObjectKey::new(namespace, &owner.name)) {
        Some(found) if found.uid() != &*owner.uid => OwnerState::Missing,
        Some(found) if found.facts.deleting && found.facts.collector_finalizer == Some("foregroundDeletion") => {
            if owner.blocks { OwnerState::AwaitsDependents } else { OwnerState::Exists }
        }
        Some(_) => OwnerState::Exists,
        None => OwnerState::Missing,
    }
}

/// What to do with a dependent.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Keep,
    /// Remove the owner references with these uids.
    RemoveReferences(Vec<Box<str>>),
    Delete {
        foreground: bool,
    },
}

fn decide(owners: &[OwnerRef], states: &[OwnerState], has_dependents: bool) -> Decision {
    if owners.is_empty() {
        return Decision::Keep;
    }
    let dangling: Vec<Box<str>> = owners
        .iter()
        .zip(states)
        .filter(|(_, state)| matches!(state, OwnerState::Missing | OwnerState::AwaitsDependents))
        .map(|(owner, _)| owner.uid.clone())
        .collect();
    if states.iter().any(|s| matches!(s, OwnerState::Exists | OwnerState::UnknownKind)) {
        let owned = states.contains(&OwnerState::Exists);
        return if dangling.is_empty() || !owned { Decision::Keep } else { Decision::RemoveReferences(dangling) };
    }
    Decision::Delete { foreground: states.contains(&OwnerState::AwaitsDependents) && has_dependents }
}

/// Deletes a dependent that has no owner any more, and removes references to missing owners from one that has another.
pub(crate) async fn reconcile_dependent(
    core: &Arc<Core>,
    graph: &DependencyGraph,
    item: &Item,
) -> Result<(), ApiError> {
    let registry = core.registry.snapshot();
    let Some(resource) = registry.by_storage(&item.0).cloned() else { return Ok(()) };
    let Some(object) = core.store.latest(&item.0, &item.1) else { return Ok(()) };
    let states = owner_states(core, &registry, &object);
    let has_dependents = !graph.dependents(&object).is_empty();
    match decide(&object.facts.owners, &states, has_dependents) {
        Decision::Keep => Ok(()),
        Decision::RemoveReferences(uids) => remove_owner_references(core, &resource, &object, &uids).await,
        Decision::Delete { .. } if object.facts.deleting => Ok(()),
        Decision::Delete { foreground } => {
            let propagation = match object.facts.collector_finalizer {
                Some("orphan") => Propagation::Orphan,
                Some(_) => Propagation::Foreground,
                None if foreground => Propagation::Foreground,
                None => Propagation::Background,
            };
            let options = DeleteOptions {
                propagation: Some(propagation),
                preconditions: Preconditions { uid: Some(object.uid().to_owned()), resource_version: None },
                ..DeleteOptions::default()
            };
            let outcome = delete_checked(core, &resource, &item.1, &options, |current, latest| {
                let states: Vec<OwnerState> = current
                    .facts
                    .owners
                    .iter()
                    .map(|o| owner_state(&registry, current, o, |r, key| latest.get(&r.storage, key)))
                    .collect();
                match decide(&current.facts.owners, &states, has_dependents) {
                    Decision::Delete { .. } => Ok(()),
                    _ => Err(CommitError::Refused(Box::new(ApiError::bad_request("the object has an owner again")))),
                }
            })
            .await;
            match outcome {
                Err(error) if matches!(error.reason, "NotFound" | "Conflict" | "BadRequest") => Ok(()),
                other => other.map(drop),
            }
        }
    }
}

fn owner_states(core: &Core, registry: &Snapshot, object: &Stored) -> Vec<OwnerState> {
    let latest = |resource: &Resource, key: &ObjectKey| core.store.latest(&resource.storage, key);
    object.facts.owners.iter().map(|owner| owner_state(registry, object, owner, latest)).collect()
}

/// Removes the owner references with these uids, and changes nothing else.
async fn remove_owner_references(
    core: &Arc<Core>,
    resource: &Arc<Resource>,
    object: &Arc<Stored>,
    uids: &[Box<str>],
) -> Result<(), ApiError> {
    update_object(
        core,
        resource,
        &object.key,
        object.uid(),
        |value| {
            let before = value.clone();
            if let Some(list) = value["metadata"]["ownerReferences"].as_array_mut() {
                list.retain(|o| !uids.iter().any(|uid| o["uid"] == **uid));
                if list.is_empty()
                    && let Some(meta) = value["metadata"].as_object_mut()
                {
                    meta.remove("ownerReferences");
                }
            }
            managed::record_update(&before, value, &field_manager(&before), None, &mut Vec::new());
        },
        |_| Ok(()),
    )
    .await
}

/// The garbage collector as a field manager, for `managedFields`.
fn field_manager(object: &Value) -> Manager {
    Manager {
        name: "kube-controller-manager".into(),
        operation: "Update",
        api_version: object["apiVersion"].as_str().unwrap_or_default().into(),
        subresource: String::new(),
    }
}

/// Applies `change` to the stored object, and retries after concurrent writes. Does nothing if the object was deleted
/// or replaced. Removes the object if it is being deleted and `change` removed what held it.
pub(crate) async fn update_object(
    core: &Arc<Core>,
    resource: &Arc<Resource>,
    key: &ObjectKey,
    uid: &str,
    mut change: impl FnMut(&mut Value),
    check: impl Fn(&LatestView<'_>) -> Result<(), CommitError>,
) -> Result<(), ApiError> {
    loop {
        let Some(current) = core.store.latest(&resource.storage, key).filter(|o| o.uid() == uid) else { return Ok(()) };
        let mut value = current.parse();
        let before = value.clone();
        change(&mut value);
        if value == before {
            return Ok(());
        }
        let has_spec_finalizers = &*resource.storage == "/namespaces"
            && value["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        let remove = current.facts.deleting
            && finalizers(&value).is_empty()
            && !has_spec_finalizers
            && value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
        let write = Write {
            storage: resource.storage.clone(),
            key: key.clone(),
            expect: Expect::Version(current.version),
            change: if remove { Change::Delete } else { Change::Put(Draft::new(resource, &value)) },
            durable: true,
        };
        match core.store.commit_checked(write, &check).await {
            Ok(stored) => {
                if remove {
                    core.on_removed(resource, &stored);
                }
                return Ok(());
            }
            Err(CommitError::Changed(_)) => {}
            Err(CommitError::Missing | CommitError::Refused(_)) => return Ok(()),
            Err(error) => return Err(core.storage_error(&error)),
        }
    }
}

/// Processes an owner that is being deleted. With orphaning, removes the references of its dependents; in the
/// foreground, waits for its blocking dependents, which are returned. Then removes the owner's finalizer.
pub(crate) async fn reconcile_deleted_owner(
    core: &Arc<Core>,
    graph: &DependencyGraph,
    item: &Item,
) -> Result<Vec<Item>, ApiError> {
    let registry = core.registry.snapshot();
    let Some(resource) = registry.by_storage(&item.0).cloned() else { return Ok(Vec::new()) };
    let Some(owner) = core.store.latest(&item.0, &item.1).filter(|o| o.facts.deleting) else { return Ok(Vec::new()) };
    match owner.facts.collector_finalizer {
        Some("orphan") => {
            for (storage, key) in graph.dependents(&owner) {
                let Some(kind) = registry.by_storage(&storage).cloned() else { continue };
                if let Some(dependent) = core.store.latest(&storage, &key) {
                    remove_owner_references(core, &kind, &dependent, &[owner.uid().into()]).await?;
                }
            }
            drop_finalizer(core, &resource, &owner, "orphan", |_| false).await?;
            Ok(Vec::new())
        }
        Some("foregroundDeletion") => {
            let blocks = |object: &Stored| {
                object.facts.owners.iter().any(|reference| blocks(&registry, object, reference, &item.0, &owner))
            };
            let dependents: Vec<Item> = graph
                .dependents(&owner)
                .into_iter()
                .filter(|(storage, key)| core.store.latest(storage, key).is_some_and(|o| blocks(&o)))
                .collect();
            if dependents.is_empty() {
                let still_blocked = |latest: &LatestView<'_>| {
                    latest.any_queued(|_, object| blocks(object))
                        || graph.dependents(&owner).iter().any(|(s, k)| latest.get(s, k).is_some_and(|o| blocks(&o)))
                };
                drop_finalizer(core, &resource, &owner, "foregroundDeletion", still_blocked).await?;
            }
            Ok(dependents)
        }
        _ => Ok(Vec::new()),
    }
}

async fn drop_finalizer(
    core: &Arc<Core>,
    resource: &Arc<Resource>,
    owner: &Arc<Stored>,
    name: &str,
    blocked: impl Fn(&LatestView<'_>) -> bool,
) -> Result<(), ApiError> {
    update_object(
        core,
        resource,
        &owner.key,
        owner.uid(),
        |value| remove_finalizer(value, name),
        |latest| {
            if blocked(latest) {
                Err(CommitError::Refused(Box::new(ApiError::bad_request("a dependent appeared"))))
            } else {
                Ok(())
            }
        },
    )
    .await
}

pub(crate) fn remove_finalizer(value: &mut Value, name: &str) {
    let Some(meta) = value["metadata"].as_object_mut() else { return };
    if let Some(list) = meta.get_mut("finalizers").and_then(Value::as_array_mut) {
        list.retain(|f| f != name);
        if list.is_empty() {
            meta.remove("finalizers");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(uid: &str) -> OwnerRef {
        OwnerRef { uid: uid.into(), group: "".into(), kind: "K".into(), name: "n".into(), blocks: true }
    }

    #[test]
    fn a_dependent_is_deleted_only_without_any_owner() {
        use OwnerState::{AwaitsDependents, Exists, Missing, UnknownKind};
        let two = [owner("a"), owner("b")];
        let remove = |uid: &str| Decision::RemoveReferences(vec![uid.into()]);
        assert_eq!(decide(&[], &[], false), Decision::Keep);
        assert_eq!(decide(&two, &[Exists, Exists], false), Decision::Keep);
        assert_eq!(decide(&two, &[Exists, Missing], false), remove("b"));
        assert_eq!(decide(&two, &[AwaitsDependents, Exists], false), remove("a"));
        assert_eq!(decide(&two, &[Missing, Missing], true), Decision::Delete { foreground: false });
        assert_eq!(decide(&two, &[AwaitsDependents, Missing], true), Decision::Delete { foreground: true });
        assert_eq!(decide(&two, &[AwaitsDependents, Missing], false), Decision::Delete { foreground: false });
        assert_eq!(decide(&two, &[Missing, UnknownKind], false), Decision::Keep, "an unknown kind may still own it");
    }
}
