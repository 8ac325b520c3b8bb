//! Deletes objects whose creation was abandoned: because a later step failed, or because the caller was cancelled.
//!
//! A creation is pending from before its request is sent until the object is kept or deleted; [`wait_for_cleanup`]
//! waits for all pending ones before a program exits.

use crate::error::{is_conflict, is_not_found};
use agent_sandbox_api::keys::annotations::CLIENT_FIRST_REQUESTED_AT;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, sync::LazyLock, time::Duration};
use tokio::sync::{oneshot, watch};

/// Delays between attempts to find or delete the object.
const BACKOFF: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1500), Duration::from_secs(4)];

/// Number of pending creations.
static PENDING: LazyLock<watch::Sender<usize>> = LazyLock::new(|| watch::Sender::new(0));

struct PendingGuard(());

impl PendingGuard {
    fn new() -> Self {
        PENDING.send_modify(|count| *count += 1);
        Self(())
    }
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        PENDING.send_modify(|count| *count -= 1);
    }
}

/// Waits, before a program exits, until the objects of abandoned creations are deleted. Creations that are still being
/// awaited count too: drop them first.
pub async fn wait_for_cleanup(limit: Duration) {
    let mut pending = PENDING.subscribe();
    let drained = pending.wait_for(|count| *count == 0);
    let _ = tokio::time::timeout(limit, drained).await;
}

/// Runs a creation to completion even if the caller is cancelled meanwhile. Its result, which contains a
/// [`DeleteOnDrop`], is then dropped.
pub(crate) async fn run_to_completion<T: Send + 'static>(
    creation: impl Future<Output = Result<T, kube::Error>> + Send + 'static,
) -> Result<T, kube::Error> {
    let (sender, receiver) = oneshot::channel();
    let guard = PendingGuard::new();
    tokio::spawn(async move {
        drop(sender.send(creation.await));
        drop(guard);
    });
    receiver.await.unwrap_or_else(|_| Err(kube::Error::Service("the creation's task ended early".into())))
}

/// Identifies the created object, so that no other object of the same name is deleted.
enum Identity {
    Uid(String),
    /// For a lost response, which would have contained the uid: the request time in the annotation, in nanoseconds. The
    /// object has a random name.
    RequestedAt(String),
}

/// Deletes an object when dropped, unless disarmed.
pub(crate) struct DeleteOnDrop<K>
where
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    armed: Option<(Api<K>, String, Identity, PendingGuard)>,
}

impl<K> DeleteOnDrop<K>
where
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    pub(crate) fn new(api: Api<K>, name: String, uid: String) -> Self {
        Self { armed: Some((api, name, Identity::Uid(uid), PendingGuard::new())) }
    }

    /// For a request whose response was lost: the object may exist, may still be created, or may never exist.
    pub(crate) fn without_uid(api: Api<K>, name: String, requested_at: String) -> Self {
        Self { armed: Some((api, name, Identity::RequestedAt(requested_at), PendingGuard::new())) }
    }

    pub(crate) fn disarm(mut self) {
        self.armed = None;
    }
}

impl<K> Drop for DeleteOnDrop<K>
where
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    fn drop(&mut self) {
        let Some((api, name, identity, guard)) = self.armed.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            delete_created(&api, &name, &identity).await;
            drop(guard);
        });
    }
}

async fn delete_created<K>(api: &Api<K>, name: &str, identity: &Identity)
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut pauses = BACKOFF.iter();
    loop {
        let failed = match attempt(api, name, identity).await {
            Ok(Outcome::Done) => return,
            Ok(Outcome::NotFound) => None,
            Err(error) => Some(error),
        };
        let Some(pause) = pauses.next() else {
            if let Some(error) = failed {
                tracing::warn!(%name, %error, "Cannot delete the object of an abandoned creation");
            }
            return;
        };
        tokio::time::sleep(*pause).await;
    }
}

enum Outcome {
    Done,
    /// The object does not exist, but the request may still be in flight.
    NotFound,
}

async fn attempt<K>(api: &Api<K>, name: &str, identity: &Identity) -> Result<Outcome, kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let uid = match identity {
        Identity::Uid(uid) => uid.clone(),
        Identity::RequestedAt(requested_at) => match api.get_metadata(name).await {
            Ok(found) => {
                let metadata = found.metadata;
                let annotated =
                    metadata.annotations.and_then(|mut annotations| annotations.remove(CLIENT_FIRST_REQUESTED_AT));
                match metadata.uid {
                    Some(uid) if annotated.as_ref() == Some(requested_at) => uid,
                    // Another client created the object.
                    _ => return Ok(Outcome::Done),
                }
            }
            Err(error) if is_not_found(&error) => return Ok(Outcome::NotFound),
            Err(error) => return Err(error),
        },
    };
    let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
    let params = DeleteParams { preconditions, ..DeleteParams::default() };
    match api.delete(name, &params).await {
        Ok(_) => Ok(Outcome::Done),
        // Deleted already, or another object of the same name.
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(Outcome::Done),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
