//! Creations that are given up are undone: when they fail, when the caller is interrupted, and before a program ends.
//!
//! A creation counts as open from before its request is sent until it is kept or undone, whoever holds it meanwhile: [`settle`] can wait for
//! nothing less.

use crate::error::{is_conflict, is_not_found};
use agent_sandbox_api::keys::annotations::CLIENT_FIRST_REQUESTED_AT;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, sync::LazyLock, time::Duration};
use tokio::sync::{oneshot, watch};

/// Waits between the attempts to delete, or to find, what was created.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1500), Duration::from_secs(4)];

/// How many creations are open now.
static OPEN: LazyLock<watch::Sender<usize>> = LazyLock::new(|| watch::Sender::new(0));

struct Counted(());

impl Counted {
    fn new() -> Self {
        OPEN.send_modify(|count| *count += 1);
        Self(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        OPEN.send_modify(|count| *count -= 1);
    }
}

/// Waits, before a program ends, until creations that were given up are undone. One that its owner still waits for counts as well: let go of
/// it first.
pub async fn settle(limit: Duration) {
    let mut open = OPEN.subscribe();
    let settled = open.wait_for(|count| *count == 0);
    let _ = tokio::time::timeout(limit, settled).await;
}

/// Lets a creation come to its end even when the caller gives up meanwhile: its outcome, an [`Undo`] in it, is then dropped.
pub(crate) async fn finish<T: Send + 'static>(
    creation: impl Future<Output = Result<T, kube::Error>> + Send + 'static,
) -> Result<T, kube::Error> {
    let (sender, receiver) = oneshot::channel();
    let counted = Counted::new();
    tokio::spawn(async move {
        drop(sender.send(creation.await));
        drop(counted);
    });
    receiver.await.unwrap_or_else(|_| Err(kube::Error::Service("the creation's task ended early".into())))
}

/// By what an object is known to be the one that was created, so that nobody else's is ever deleted.
enum Mark {
    Uid(String),
    /// The answer with the uid was lost: the moment that the request named, to the nanosecond, under a name of chance.
    RequestedAt(String),
}

/// Deletes an object again unless it is told to keep it: also when the caller is interrupted.
pub(crate) struct Undo<K>
where
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    open: Option<(Api<K>, String, Mark, Counted)>,
}

impl<K> Undo<K>
where
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    pub(crate) fn new(api: Api<K>, name: String, uid: String) -> Self {
        Self { open: Some((api, name, Mark::Uid(uid), Counted::new())) }
    }

    /// For a request whose answer was lost: the object is there, or will be, or will never be.
    pub(crate) fn unanswered(api: Api<K>, name: String, requested_at: String) -> Self {
        Self { open: Some((api, name, Mark::RequestedAt(requested_at), Counted::new())) }
    }

    pub(crate) fn keep(mut self) {
        self.open = None;
    }
}

impl<K> Drop for Undo<K>
where
    K: Clone + Debug + DeserializeOwned + Send + 'static,
{
    fn drop(&mut self) {
        let Some((api, name, mark, counted)) = self.open.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            undo(&api, &name, &mark).await;
            drop(counted);
        });
    }
}

async fn undo<K>(api: &Api<K>, name: &str, mark: &Mark)
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut pauses = PAUSES.iter();
    loop {
        let failed = match attempt(api, name, mark).await {
            Ok(Attempt::Done) => return,
            Ok(Attempt::NotThere) => None,
            Err(error) => Some(error),
        };
        let Some(pause) = pauses.next() else {
            if let Some(error) = failed {
                tracing::warn!(%name, %error, "Cannot undo a creation");
            }
            return;
        };
        tokio::time::sleep(*pause).await;
    }
}

enum Attempt {
    Done,
    /// Not yet, perhaps: the request may still be on its way.
    NotThere,
}

async fn attempt<K>(api: &Api<K>, name: &str, mark: &Mark) -> Result<Attempt, kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let uid = match mark {
        Mark::Uid(uid) => uid.clone(),
        Mark::RequestedAt(moment) => match api.get_metadata(name).await {
            Ok(found) => {
                let metadata = found.metadata;
                let named =
                    metadata.annotations.and_then(|mut annotations| annotations.remove(CLIENT_FIRST_REQUESTED_AT));
                match metadata.uid {
                    Some(uid) if named.as_ref() == Some(moment) => uid,
                    // Somebody else's.
                    _ => return Ok(Attempt::Done),
                }
            }
            Err(error) if is_not_found(&error) => return Ok(Attempt::NotThere),
            Err(error) => return Err(error),
        },
    };
    let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
    let params = DeleteParams { preconditions, ..DeleteParams::default() };
    match api.delete(name, &params).await {
        Ok(_) => Ok(Attempt::Done),
        // Gone, or another object of the same name.
        Err(error) if is_not_found(&error) || is_conflict(&error) => Ok(Attempt::Done),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
