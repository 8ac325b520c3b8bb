//! What a reconciler is, and the loop that runs one: bounded concurrency, back-off after errors, no key twice at a time.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures::FutureExt;
use tokio::{sync::Semaphore, task::JoinSet};
use tracing::{debug, error, warn};

use crate::{
    metrics::{Metrics, PassResult},
    object::Key,
    ports::ApiError,
    queue::{Queue, Work},
    store::Target,
};

/// When to look at an object again, apart from events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Only when something happens.
    Idle,
    After(Duration),
}

impl From<Option<Duration>> for Next {
    fn from(requeue: Option<Duration>) -> Self {
        requeue.map_or(Next::Idle, Next::After)
    }
}

/// How a failed pass is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Try again, ever more slowly.
    Transient,
    /// Somebody else was faster: try again at once, from fresh knowledge.
    Conflict,
    /// This process does not lead any more: stop.
    NotLeader,
}

/// A pass that could not do all it wanted. Waiting and bad specs are not errors.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ReconcileError {
    pub class: ErrorClass,
    pub message: String,
    /// A deadline of the object that the back-off must not outlast.
    pub at_most: Option<Duration>,
}

impl ReconcileError {
    pub fn transient(message: impl Into<String>) -> Self {
        Self { class: ErrorClass::Transient, message: message.into(), at_most: None }
    }

    /// The same, to be tried again no later than this.
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
    fn target(&self) -> Target;

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError>;
}

/// Runs a reconciler until its queue is closed, then waits for the passes under way.
pub async fn run(reconciler: Arc<dyn Reconciler>, queue: Queue, workers: usize, metrics: Arc<Metrics>) {
    let permits = Arc::new(Semaphore::new(workers));
    metrics.workers(reconciler.target(), workers);
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
    let target = reconciler.target();
    let key = work.key.clone();
    let started = Instant::now();
    metrics.started(target);
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
                ErrorClass::NotLeader => debug!(%key, controller = target.controller_name(), "Stopped: not the leader"),
                ErrorClass::Conflict => {
                    debug!(%key, controller = target.controller_name(), error = %failure, "Looking again")
                }
                ErrorClass::Transient => {
                    warn!(%key, controller = target.controller_name(), error = %failure, "Reconcile failed")
                }
            }
            queue.add_failed(key, failure.at_most);
            PassResult::Error
        }
        Err(_) => {
            error!(%key, controller = target.controller_name(), "Reconcile panicked");
            metrics.panicked(target);
            queue.add_failed(key, None);
            PassResult::Error
        }
    };
    metrics.reconciled(target, result, started.elapsed());
    drop(work);
}
