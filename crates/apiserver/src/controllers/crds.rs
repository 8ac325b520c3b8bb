//! Deletes the objects of a CRD that is being deleted.

use std::sync::Arc;

use super::gc;
use crate::{
    request::DeleteOptions,
    server::Core,
    status::ApiError,
    store::ObjectKey,
    verbs::{DeleteOutcome, delete_object},
};

pub(super) const STORAGE: &str = "apiextensions.k8s.io/customresourcedefinitions";
const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// `agents.x-k8s.io/sandboxes` → `sandboxes.agents.x-k8s.io`: the name of the CRD of a collection.
pub(super) fn crd_of(storage: &str) -> Option<Box<str>> {
    let (group, plural) = storage.split_once('/')?;
    (!group.is_empty()).then(|| format!("{plural}.{group}").into())
}

/// Deletes the objects of a CRD that is being deleted, then removes the CRD's finalizer.
pub(super) async fn reconcile(core: &Arc<Core>, name: &str) -> Result<(), ApiError> {
    let key = ObjectKey::new("", name);
    let Some(crd) = core.store.latest(&STORAGE.into(), &key).filter(|d| d.facts.deleting) else {
        return Ok(());
    };
    let registry = core.registry.snapshot();
    let defined = registry.resources().iter().find(|r| r.is_custom() && r.qualified() == name).cloned();
    if let Some(resource) = defined {
        let mut remaining = 0;
        for object in core.store.collection(&resource.storage).list("") {
            match delete_object(core, &resource, &object.key, &DeleteOptions::default()).await {
                Ok(DeleteOutcome::Removed(_)) => {}
                Ok(DeleteOutcome::Marked(_)) => remaining += 1,
                Err(error) if error.reason == "NotFound" => {}
                Err(error) => return Err(error),
            }
        }
        if remaining > 0 {
            return Ok(());
        }
    }
    let Some(resource) = registry.by_storage(STORAGE).cloned() else { return Ok(()) };
    gc::update_object(core, &resource, &key, crd.uid(), |value| gc::remove_finalizer(value, FINALIZER), |_| Ok(()))
        .await
}
