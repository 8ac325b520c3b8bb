//! A deleted CRD takes its objects with it.

use std::sync::Arc;

use crate::{
    gc,
    request::DeleteOptions,
    server::Core,
    status::ApiError,
    store::ObjectKey,
    verbs::{Outcome, delete_object},
};

pub(super) const STORAGE: &str = "apiextensions.k8s.io/customresourcedefinitions";
const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// `agents.x-k8s.io/sandboxes` → `sandboxes.agents.x-k8s.io`: the CRD that may wait for this collection.
pub(super) fn definition_of(storage: &str) -> Option<Box<str>> {
    let (group, plural) = storage.split_once('/')?;
    (!group.is_empty()).then(|| format!("{plural}.{group}").into())
}

/// Deletes the objects of a CRD that is being deleted, then lets it go.
pub(super) async fn look(core: &Arc<Core>, name: &str) -> Result<(), ApiError> {
    let key = ObjectKey::new("", name);
    let Some(definition) = core.store.latest(&STORAGE.into(), &key).filter(|d| d.facts.deleting) else {
        return Ok(());
    };
    let registry = core.registry.snapshot();
    let defined = registry.resources().iter().find(|r| r.is_custom() && r.qualified() == name).cloned();
    if let Some(resource) = defined {
        let mut left = 0;
        for object in core.store.collection(&resource.storage).list("") {
            match delete_object(core, &resource, &object.key, &DeleteOptions::default()).await {
                Ok(Outcome::Removed(_)) => {}
                Ok(Outcome::Marked(_)) => left += 1,
                Err(error) if error.reason == "NotFound" => {}
                Err(error) => return Err(error),
            }
        }
        if left > 0 {
            return Ok(());
        }
    }
    let Some(resource) = registry.by_storage(STORAGE).cloned() else { return Ok(()) };
    gc::edit(core, &resource, &key, definition.uid(), |value| gc::remove_finalizer(value, FINALIZER), |_| Ok(())).await
}
