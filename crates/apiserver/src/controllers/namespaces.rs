//! A deleted namespace is emptied, then removed.

use std::sync::Arc;

use crate::{
    gc,
    request::{DeleteOptions, Preconditions},
    server::Core,
    status::ApiError,
    store::{CommitError, ObjectKey},
    verbs::delete_object,
};

/// Looks at a namespace: gives it its service account, or empties it.
pub(super) async fn look(core: &Arc<Core>, name: &str) -> Result<(), ApiError> {
    let key = ObjectKey::new("", name);
    let Some(namespace) = core.store.latest(&super::NAMESPACES.into(), &key) else { return Ok(()) };
    if !namespace.facts.deleting {
        return super::accounts::ensure(core, name).await;
    }
    if empty(core, name).await? {
        finish(core, &key, namespace.uid()).await?;
    }
    Ok(())
}

/// Deletes everything in a namespace; true when nothing is left.
async fn empty(core: &Arc<Core>, name: &str) -> Result<bool, ApiError> {
    let registry = core.registry.snapshot();
    let mut left = 0;
    for (storage, collection) in core.store.collections() {
        let Some(resource) = registry.by_storage(&storage).filter(|r| r.namespaced).cloned() else { continue };
        for object in collection.list(name) {
            if object.facts.deleting {
                left += 1;
                continue;
            }
            let options = DeleteOptions {
                preconditions: Preconditions { uid: Some(object.uid().to_owned()), resource_version: None },
                ..DeleteOptions::default()
            };
            match delete_object(core, &resource, &object.key, &options).await {
                Ok(crate::verbs::Outcome::Removed(_)) => {}
                Ok(crate::verbs::Outcome::Marked(_)) => left += 1,
                Err(error) if matches!(error.reason, "NotFound" | "Conflict") => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(left == 0)
}

/// Lets the namespace go, if it is still empty at that very moment.
async fn finish(core: &Arc<Core>, key: &ObjectKey, uid: &str) -> Result<(), ApiError> {
    let registry = core.registry.snapshot();
    let Some(resource) = registry.resource("", "namespaces").cloned() else { return Ok(()) };
    let store = core.store.clone();
    gc::edit(
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
