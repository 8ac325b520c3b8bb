//! Deletes the content of a namespace that is being deleted, then the namespace.

use std::sync::Arc;

use super::gc;
use crate::{
    request::{DeleteOptions, Preconditions},
    server::Core,
    status::ApiError,
    store::{CommitError, ObjectKey},
    verbs::{DeleteOutcome, delete_object},
};

/// Creates the default service account of a namespace, or deletes the content of one that is being deleted.
pub(super) async fn reconcile(core: &Arc<Core>, name: &str) -> Result<(), ApiError> {
    let key = ObjectKey::new("", name);
    let Some(namespace) = core.store.latest(&super::NAMESPACES.into(), &key) else { return Ok(()) };
    if !namespace.facts.deleting {
        return super::service_accounts::ensure_default(core, name).await;
    }
    if delete_content(core, name).await? {
        remove_finalizer(core, &key, namespace.uid()).await?;
    }
    Ok(())
}

/// Deletes everything in a namespace; true if nothing remains.
async fn delete_content(core: &Arc<Core>, name: &str) -> Result<bool, ApiError> {
    let registry = core.registry.snapshot();
    let mut remaining = 0;
    for (storage, collection) in core.store.collections() {
        let Some(resource) = registry.by_storage(&storage).filter(|r| r.namespaced).cloned() else { continue };
        for object in collection.list(name) {
            if object.facts.deleting {
                remaining += 1;
                continue;
            }
            let options = DeleteOptions {
                preconditions: Preconditions { uid: Some(object.uid().to_owned()), resource_version: None },
                ..DeleteOptions::default()
            };
            match delete_object(core, &resource, &object.key, &options).await {
                Ok(DeleteOutcome::Removed(_)) => {}
                Ok(DeleteOutcome::Marked(_)) => remaining += 1,
                Err(error) if matches!(error.reason, "NotFound" | "Conflict") => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(remaining == 0)
}

/// Removes the namespace's finalizer, and so the namespace, if it is still empty when the write is sequenced.
async fn remove_finalizer(core: &Arc<Core>, key: &ObjectKey, uid: &str) -> Result<(), ApiError> {
    let registry = core.registry.snapshot();
    let Some(resource) = registry.resource("", "namespaces").cloned() else { return Ok(()) };
    let store = core.store.clone();
    gc::update_object(
        core,
        &resource,
        key,
        uid,
        |value| {
            if let Some(spec) = value["spec"].as_object_mut() {
                spec.remove("finalizers");
            }
        },
        |latest| {
            let queued = latest.any_queued(|_, object| object.key.namespace == key.name);
            let published = store.collections().iter().any(|(storage, collection)| {
                let mut found = false;
                collection.scan(&key.name, None, |object| {
                    found = !latest.is_queued(storage, &object.key);
                    !found
                });
                found
            });
            if queued || published {
                Err(CommitError::Refused(Box::new(ApiError::bad_request("not empty"))))
            } else {
                Ok(())
            }
        },
    )
    .await
}
