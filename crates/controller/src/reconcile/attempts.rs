//! The attempt loop of a pass: observe, plan and apply again when an object turns out to have changed.

use std::{collections::HashMap, sync::Arc};

use super::{Next, ReconcileError};
use crate::{
    api_client::{ApiError, Writer},
    cache::{Cached, ClusterCache, Key, Kind, Object},
};

/// Why an attempt ended without completing its pass.
#[derive(Debug)]
pub(crate) enum Interrupted {
    /// The object is not what the plan was made for: read it live and plan again.
    Stale { kind: Kind, key: Key },
    /// Plan again from the current state of the store.
    Again,
    /// The pass has failed.
    Failed(ReconcileError),
}

impl From<ReconcileError> for Interrupted {
    fn from(error: ReconcileError) -> Self {
        Interrupted::Failed(error)
    }
}

impl From<ApiError> for Interrupted {
    fn from(error: ApiError) -> Self {
        Interrupted::Failed(error.into())
    }
}

/// One reconcile pass over an object.
pub(crate) trait Pass: Sync {
    /// Maximum number of attempts, before the pass gives up until its backoff.
    const MAX_ATTEMPTS: usize;

    /// The kind of the reconciled object.
    const KIND: Kind;

    fn writer(&self) -> &Writer;

    /// Whether a plan can be made although an object of this kind could not be read.
    fn can_plan_without(_kind: Kind) -> bool {
        false
    }

    /// Observes, plans and applies once.
    fn attempt(&self, live: &LiveReads) -> impl Future<Output = Result<Next, Interrupted>> + Send;
}

/// Runs attempts until one completes the pass. The object that made an attempt stale is read live before the next one.
pub(crate) async fn run_attempts<P: Pass>(pass: &P) -> Result<Next, ReconcileError> {
    let mut live = LiveReads::default();
    for _ in 0..P::MAX_ATTEMPTS {
        match pass.attempt(&live).await {
            Ok(next) => return Ok(next),
            Err(Interrupted::Again) => {}
            Err(Interrupted::Failed(error)) => return Err(error),
            Err(Interrupted::Stale { kind, key }) => match pass.writer().read(kind, &key).await {
                Err(error) if error == ApiError::NotLeader || !P::can_plan_without(kind) => return Err(error.into()),
                read => live.insert(kind, key, read),
            },
        }
    }
    Err(ReconcileError::transient(format!("the objects of this {} keep changing", P::KIND.name())))
}

/// Live reads of a pass, which are newer than the cache or outside of what it watches.
#[derive(Clone, Debug, Default)]
pub struct LiveReads(HashMap<(Kind, Key), Result<Option<Object>, ApiError>>);

impl LiveReads {
    fn insert(&mut self, kind: Kind, key: Key, read: Result<Option<Object>, ApiError>) {
        self.0.insert((kind, key), read);
    }

    /// Whether the object was read live, so that its state in the store, or its absence from it, counts as current.
    pub(crate) fn contains(&self, kind: Kind, key: &Key) -> bool {
        matches!(self.0.get(&(kind, key.clone())), Some(Ok(_)))
    }

    /// Whether a live read showed that the object does not exist.
    pub(crate) fn is_absent(&self, kind: Kind, key: &Key) -> bool {
        matches!(self.0.get(&(kind, key.clone())), Some(Ok(None)))
    }

    /// The error of a failed read of this kind.
    pub(crate) fn error(&self, kind: Kind) -> Option<&ApiError> {
        self.0.iter().filter(|((of, _), _)| *of == kind).find_map(|(_, read)| read.as_ref().err())
    }

    /// The object with this key. The store also holds the live read, or something newer, unless the kind's cache is
    /// restricted by label.
    pub(crate) fn get<K: Cached>(&self, world: &ClusterCache, key: &Key) -> Option<Arc<K>> {
        world.get(key).or_else(|| self.0.get(&(K::KIND_OF, key.clone()))?.as_ref().ok()?.as_ref()?.cast())
    }
}
