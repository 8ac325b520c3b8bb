//! The reconciler trait, and the loop that runs one: bounded concurrency, backoff after errors, no key twice at a time.

mod attempts;
mod queue;

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures::FutureExt;
use tokio::{sync::Semaphore, task::JoinSet};
use tracing::{debug, error, warn};

pub(crate) use self::attempts::{Interrupted, Pass, run_attempts};
pub use self::{
    attempts::LiveReads,
    queue::{Queue, QueueStats, Work},
};
use crate::{
    api_client::ApiError,
    cache::{Key, ReconcilerKind},
    serving::metrics::{Metrics, PassResult},
};

/// When to reconcile an object again, apart from events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Only when an event wakes it.
    Idle,
    After(Duration),
}

impl From<Option<Duration>> for Next {
    fn from(requeue: Option<Duration>) -> Self {
        requeue.map_or(Next::Idle, Next::After)
    }
}

/// How a failed pass is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Retry with exponential backoff.
    Transient,
    /// Another client changed the object meanwhile: retry from fresh data.
    Conflict,
    /// This process is no longer the leader: stop.
    NotLeader,
}

/// A pass that failed in part or in whole. Waiting and bad specs are not errors.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ReconcileError {
    pub class: ErrorClass,
    pub message: String,
    /// A deadline of the object, as a delay that the backoff must not exceed.
    pub at_most: Option<Duration>,
}

impl ReconcileError {
    pub fn transient(message: impl Into<String>) -> Self {
        Self { class: ErrorClass::Transient, message: message.into(), at_most: None }
    }

    /// The same error, retried after at most this delay.
    pub fn no_later_than(mut self, deadline: Option<Duration>) -> Self {
        self.at_most = deadline;
        self
    }
}

impl From<ApiError> for ReconcileError {
    fn from(error: ApiError) -> Self {
        let class = match &error {
            ApiError::NotLeader => ErrorClass::NotLeader,
            ApiError::Conflict { .. } | ApiError::AlreadyExists { .. } | ApiError::NotFound { .. } => {
                ErrorClass::Conflict
            }
            ApiError::Invalid { .. }
            | ApiError::Forbidden { .. }
            | ApiError::Busy { .. }
            | ApiError::Unknown { .. } => ErrorClass::Transient,
        };
        Self { class, message: error.to_string(), at_most: None }
    }
}

#[async_trait]
pub trait Reconciler: Send + Sync + 'static {
    fn kind(&self) -> ReconcilerKind;

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError>;
}

/// Runs a reconciler until its queue is closed, then waits for the running passes.
pub async fn run(reconciler: Arc<dyn Reconciler>, queue: Queue, workers: usize, metrics: Arc<Metrics>) {
    let permits = Arc::new(Semaphore::new(workers));
    metrics.workers_started(reconciler.kind(), workers);
    let mut passes = JoinSet::new();
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { break };
        let Some(work) = queue.next().await else { break };
        while passes.try_join_next().is_some() {}
        let (reconciler, queue, metrics) = (reconciler.clone(), queue.clone(), metrics.clone());
        passes.spawn(async move {
            pass(&*reconciler, &queue, work, &metrics).await;
            drop(permit);
        });
    }
    while passes.join_next().await.is_some() {}
}

async fn pass(reconciler: &dyn Reconciler, queue: &Queue, work: Work, metrics: &Metrics) {
    let kind = reconciler.kind();
    let key = work.key.clone();
    let started = Instant::now();
    metrics.pass_started(kind);
    let outcome = AssertUnwindSafe(reconciler.reconcile(&key)).catch_unwind().await;
    let result = match outcome {
        Ok(Ok(Next::Idle)) => {
            queue.forget(&key);
            PassResult::Success
        }
        Ok(Ok(Next::After(delay))) => {
            queue.forget(&key);
            queue.add_after(key, delay);
            PassResult::RequeueAfter
        }
        Ok(Err(failure)) => {
            match failure.class {
                ErrorClass::NotLeader => {
                    debug!(%key, controller = kind.controller_name(), "Stopped: not the leader")
                }
                ErrorClass::Conflict => {
                    debug!(%key, controller = kind.controller_name(), error = %failure, "Retrying after a conflict")
                }
                ErrorClass::Transient => {
                    warn!(%key, controller = kind.controller_name(), error = %failure, "Reconcile failed")
                }
            }
            queue.add_failed(key, failure.at_most);
            PassResult::Error
        }
        Err(_) => {
            error!(%key, controller = kind.controller_name(), "Reconcile panicked");
            metrics.pass_panicked(kind);
            queue.add_failed(key, None);
            PassResult::Error
        }
    };
    metrics.pass_finished(kind, result, started.elapsed());
    drop(work);
}
