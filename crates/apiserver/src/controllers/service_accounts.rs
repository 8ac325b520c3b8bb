//! Creates the service account `default` of every namespace.

use std::sync::Arc;

use serde_json::json;

use crate::{
    server::Core,
    status::ApiError,
    store::{Change, CommitError, Draft, Expect, ObjectKey, Write},
    verbs::now,
};

pub(super) const STORAGE: &str = "/serviceaccounts";

pub(super) async fn ensure_default(core: &Arc<Core>, namespace: &str) -> Result<(), ApiError> {
    let registry = core.registry.snapshot();
    let Some(resource) = registry.resource("", "serviceaccounts") else { return Ok(()) };
    let key = ObjectKey::new(namespace, "default");
    if core.store.latest(&resource.storage, &key).is_some() {
        return Ok(());
    }
    let object = json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {
            "name": "default",
            "namespace": namespace,
            "uid": uuid::Uuid::new_v4().to_string(),
            "creationTimestamp": now(),
        },
    });
    let write = Write {
        storage: resource.storage.clone(),
        key,
        expect: Expect::Absent,
        change: Change::Put(Draft::new(resource, &object)),
        durable: true,
    };
    let namespace_key = ObjectKey::new("", namespace);
    let is_active = |latest: &crate::store::LatestView<'_>| match latest.get(&super::NAMESPACES.into(), &namespace_key)
    {
        Some(found) if !found.facts.deleting => Ok(()),
        _ => Err(CommitError::Missing),
    };
    match core.store.commit_checked(write, is_active).await {
        Ok(_) | Err(CommitError::Exists | CommitError::Missing) => Ok(()),
        Err(error) => Err(core.storage_error(&error)),
    }
}
