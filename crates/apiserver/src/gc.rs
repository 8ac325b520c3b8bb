//! Garbage collection by owner references.
//!
//! The index (owner uid → dependents) follows the store's events. Decisions are made from the latest state, and checked
//! again in the same step that sequences the delete, so a dependent that was adopted meanwhile is never collected.

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

/// One object of any resource.
pub(crate) type Item = (Arc<str>, ObjectKey);

/// Who depends on whom.
#[derive(Default)]
pub(crate) struct Graph {
    dependents: Mutex<HashMap<Box<str>, HashSet<Item>>>,
}

impl Graph {
    pub(crate) fn dependents(&self, uid: &str) -> Vec<Item> {
        self.dependents.lock().get(uid).into_iter().flatten().cloned().collect()
    }

    /// Follows one event.
    pub(crate) fn follow(&self, storage: &Arc<str>, event: &Event) {
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

    /// Takes in an object that was there before the events began.
    pub(crate) fn load(&self, storage: &Arc<str>, object: &Stored) {
        let mut dependents = self.dependents.lock();
        for owner in &object.facts.owners {
            dependents.entry(owner.uid.clone()).or_default().insert((storage.clone(), object.key.clone()));
        }
    }
}

/// What an owner reference points at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Alive,
    /// Being deleted in the foreground, and this dependent blocks it.
    Waiting,
    /// Never was, is gone, or its name belongs to another object now.
    Gone,
    /// Of a kind nobody serves: leave it alone.
    Unknown,
}

fn look(
    registry: &Snapshot,
    dependent: &Stored,
    owner: &OwnerRef,
    get: impl Fn(&Resource, &ObjectKey) -> Option<Arc<Stored>>,
) -> Owner {
    let Some(resource) = registry.by_kind(&owner.group, &owner.kind) else { return Owner::Unknown };
    let namespace = if resource.namespaced { &*dependent.key.namespace } else { "" };
    // A cluster-scoped object cannot be owned by a namespaced one.
    if resource.namespaced && namespace.is_empty() {
        return Owner::Unknown;
    }
    match get(resource, &ObjectKey::new(namespace, &owner.name)) {
        Some(found) if found.uid() != &*owner.uid => Owner::Gone,
        Some(found) if found.facts.deleting && found.facts.collector_finalizer == Some("foregroundDeletion") => {
            if owner.blocks { Owner::Waiting } else { Owner::Alive }
        }
        Some(_) => Owner::Alive,
        None => Owner::Gone,
    }
}

/// What is to be done about a dependent.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Keep,
    /// Drop references to these uids.
    Trim(Vec<Box<str>>),
    Delete {
        foreground: bool,
    },
}

fn judge(owners: &[OwnerRef], states: &[Owner], has_dependents: bool) -> Verdict {
    if owners.is_empty() {
        return Verdict::Keep;
    }
    let pick = |wanted: fn(Owner) -> bool| -> Vec<Box<str>> {
        owners.iter().zip(states).filter(|(_, s)| wanted(**s)).map(|(o, _)| o.uid.clone()).collect()
    };
    let lost = pick(|s| matches!(s, Owner::Gone | Owner::Waiting));
    if states.iter().any(|s| matches!(s, Owner::Alive | Owner::Unknown)) {
        let alive = states.contains(&Owner::Alive);
        return if lost.is_empty() || !alive { Verdict::Keep } else { Verdict::Trim(lost) };
    }
    Verdict::Delete { foreground: states.contains(&Owner::Waiting) && has_dependents }
}

/// Looks at one dependent and collects it if nobody owns it any longer.
pub(crate) async fn check(core: &Arc<Core>, graph: &Graph, item: &Item) -> Result<(), ApiError> {
    let registry = core.registry.snapshot();
    let Some(resource) = registry.by_storage(&item.0).cloned() else { return Ok(()) };
    let Some(object) = core.store.latest(&item.0, &item.1) else { return Ok(()) };
    let states = states(core, &registry, &object);
    let has_dependents = !graph.dependents(object.uid()).is_empty();
    match judge(&object.facts.owners, &states, has_dependents) {
        Verdict::Keep => Ok(()),
        Verdict::Trim(uids) => trim(core, &resource, &object, &uids).await,
        Verdict::Delete { .. } if object.facts.deleting => Ok(()),
        Verdict::Delete { foreground } => {
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
                let again: Vec<Owner> = current
                    .facts
                    .owners
                    .iter()
                    .map(|o| look(&registry, current, o, |r, key| latest.get(&r.storage, key)))
                    .collect();
                match judge(&current.facts.owners, &again, has_dependents) {
                    Verdict::Delete { .. } => Ok(()),
                    _ => Err(CommitError::Refused(Box::new(ApiError::bad_request("owned again")))),
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

fn states(core: &Core, registry: &Snapshot, object: &Stored) -> Vec<Owner> {
    let latest = |resource: &Resource, key: &ObjectKey| core.store.latest(&resource.storage, key);
    object.facts.owners.iter().map(|owner| look(registry, object, owner, latest)).collect()
}

/// Removes single owner references, and nothing else.
async fn trim(
    core: &Arc<Core>,
    resource: &Arc<Resource>,
    object: &Arc<Stored>,
    uids: &[Box<str>],
) -> Result<(), ApiError> {
    edit(
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
            managed::updated(&before, value, &collector(&before), None, &mut Vec::new());
        },
        |_| Ok(()),
    )
    .await
}

/// Who trims owner references, for the record of who owns what.
fn collector(object: &Value) -> Manager {
    Manager {
        name: "kube-controller-manager".into(),
        operation: "Update",
        api_version: object["apiVersion"].as_str().unwrap_or_default().into(),
        subresource: String::new(),
    }
}

/// Edits the stored object until nobody interferes; does nothing if it is gone or replaced.
pub(crate) async fn edit(
    core: &Arc<Core>,
    resource: &Arc<Resource>,
    key: &ObjectKey,
    uid: &str,
    change: impl Fn(&mut Value),
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
        let held = &*resource.storage == "/namespaces"
            && value["spec"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        let over = current.facts.deleting
            && finalizers(&value).is_empty()
            && !held
            && value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
        let write = Write {
            storage: resource.storage.clone(),
            key: key.clone(),
            expect: Expect::Version(current.version),
            change: if over { Change::Delete } else { Change::Put(Draft::new(resource, &value)) },
            durable: true,
        };
        match core.store.commit_checked(write, &check).await {
            Ok(stored) => {
                if over {
                    core.removed(resource, &stored);
                }
                return Ok(());
            }
            Err(CommitError::Changed(_)) => {}
            Err(CommitError::Missing | CommitError::Refused(_)) => return Ok(()),
            Err(error) => return Err(core.storage_error(&error)),
        }
    }
}

/// An owner on its way out: waits for its dependents, or lets them go.
pub(crate) async fn release(core: &Arc<Core>, graph: &Graph, item: &Item) -> Result<Vec<Item>, ApiError> {
    let registry = core.registry.snapshot();
    let Some(resource) = registry.by_storage(&item.0).cloned() else { return Ok(Vec::new()) };
    let Some(owner) = core.store.latest(&item.0, &item.1).filter(|o| o.facts.deleting) else { return Ok(Vec::new()) };
    match owner.facts.collector_finalizer {
        Some("orphan") => {
            for (storage, key) in graph.dependents(owner.uid()) {
                let Some(kind) = registry.by_storage(&storage).cloned() else { continue };
                if let Some(dependent) = core.store.latest(&storage, &key) {
                    trim(core, &kind, &dependent, &[owner.uid().into()]).await?;
                }
            }
            drop_finalizer(core, &resource, &owner, "orphan", |_| false).await?;
            Ok(Vec::new())
        }
        Some("foregroundDeletion") => {
            let uid: Box<str> = owner.uid().into();
            let blocks = |object: &Stored| object.facts.owners.iter().any(|o| o.uid == uid && o.blocks);
            let dependents: Vec<Item> = graph
                .dependents(&uid)
                .into_iter()
                .filter(|(storage, key)| core.store.latest(storage, key).is_some_and(|o| blocks(&o)))
                .collect();
            if dependents.is_empty() {
                let still = |latest: &LatestView<'_>| {
                    latest.any_queued(|_, object| blocks(object))
                        || graph.dependents(&uid).iter().any(|(s, k)| latest.get(s, k).is_some_and(|o| blocks(&o)))
                };
                drop_finalizer(core, &resource, &owner, "foregroundDeletion", still).await?;
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
    edit(
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
    fn verdicts() {
        use Owner::{Alive, Gone, Unknown, Waiting};
        let two = [owner("a"), owner("b")];
        assert_eq!(judge(&[], &[], false), Verdict::Keep);
        assert_eq!(judge(&two, &[Alive, Alive], false), Verdict::Keep);
        assert_eq!(judge(&two, &[Alive, Gone], false), Verdict::Trim(vec!["b".into()]));
        assert_eq!(judge(&two, &[Waiting, Alive], false), Verdict::Trim(vec!["a".into()]));
        assert_eq!(judge(&two, &[Gone, Gone], true), Verdict::Delete { foreground: false });
        assert_eq!(judge(&two, &[Waiting, Gone], true), Verdict::Delete { foreground: true });
        assert_eq!(judge(&two, &[Waiting, Gone], false), Verdict::Delete { foreground: false });
        assert_eq!(judge(&two, &[Gone, Unknown], false), Verdict::Keep, "an unknown kind may still own it");
    }
}
