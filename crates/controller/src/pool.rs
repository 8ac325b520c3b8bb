//! The SandboxWarmPool reconciler: keeps the requested number of unclaimed Sandboxes, up to date and ready.

mod apply;
mod claim_yield;
mod observe;
mod pacing;
mod plan;
mod route;
mod slow_start;
mod status;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, time::Duration};

use agent_sandbox_api::v1beta1::SandboxWarmPool;
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use rand::RngExt;

use self::{claim_yield::ClaimYield, observe::observe};
pub use self::{
    pacing::{Pacing, PacingSettings},
    plan::{Observed, Plan, Progress, plan},
    route::route,
    status::{pool_status, status_patch},
};
use crate::{
    api_client::{ApiClient, ApiError, Lane, Writer},
    cache::{Key, ReconcilerKind, Store, WorkItem},
    clock::{Clock, between},
    reconcile::{Next, ReconcileError, Reconciler},
    serving::events::{Event, Events, Severity},
};

/// Deadlines are stretched by a random factor up to this, so that many pools do not wake at once.
const MAX_DEADLINE_STRETCH: f64 = 1.5;

/// Settings of the pool reconciler.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSettings {
    /// Maximum number of creates, and of deletes, per pass.
    pub max_batch_size: usize,
    /// Time in which a member must become Ready.
    pub readiness_grace: Duration,
    /// Period of passes over a pool that waits for the scheduler.
    pub unschedulable_recheck: Duration,
    /// Whether to mark pool Pods as safe to evict, where the template says nothing about it.
    pub eviction: bool,
    pub pacing: PacingSettings,
    /// Minimum time between two status writes; changes in between are reported together.
    pub status_interval: Duration,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            max_batch_size: 300,
            readiness_grace: Duration::from_secs(300),
            unschedulable_recheck: Duration::from_secs(60),
            eviction: true,
            pacing: PacingSettings::default(),
            // Below a second, so that users see the status as current; claims that come faster than this share a write.
            status_interval: Duration::from_millis(500),
        }
    }
}

/// In-memory state of a pool between passes. Losing it costs time, never correctness.
#[derive(Debug, Default)]
pub struct LocalState {
    uid: String,
    pacing: Pacing,
    progress: Progress,
    last_status: Option<Timestamp>,
    /// Names of members whose create got no response: tried again before new names.
    unanswered: Vec<String>,
    claim_yield: ClaimYield,
}

pub struct PoolReconciler {
    store: Arc<Store>,
    api: Arc<dyn ApiClient>,
    clock: Arc<dyn Clock>,
    events: Events,
    settings: PoolSettings,
    local_states: Mutex<HashMap<Key, Arc<tokio::sync::Mutex<LocalState>>>>,
}

impl PoolReconciler {
    pub fn new(
        store: Arc<Store>,
        api: Arc<dyn ApiClient>,
        clock: Arc<dyn Clock>,
        events: Events,
        settings: PoolSettings,
    ) -> Self {
        Self { store, api, clock, events, settings, local_states: Mutex::default() }
    }

    /// Number of pools with in-memory state.
    pub fn tracked(&self) -> usize {
        self.local_states.lock().len()
    }

    fn local(&self, key: &Key) -> Arc<tokio::sync::Mutex<LocalState>> {
        self.local_states.lock().entry(key.clone()).or_default().clone()
    }

    async fn pass(&self, key: &Key, local: &mut LocalState) -> Result<Next, ReconcileError> {
        let now = self.clock.now();
        let Some(observed) = observe(&self.store.read(), key, now) else {
            self.local_states.lock().remove(key);
            return Ok(Next::Idle);
        };
        if local.uid != observed.pool.uid() {
            *local = LocalState { uid: observed.pool.uid().to_owned(), ..LocalState::default() };
        }
        if let Some(rest) = local.claim_yield.yields_to_claims(&self.store, &observed) {
            return Ok(Next::After(rest));
        }
        let plan = plan(&observed, &mut local.pacing, &self.settings);
        self.emit_progress_event(&observed.pool, local.progress, plan.progress);
        local.progress = plan.progress;

        let writer = Writer::new(
            self.api.clone(),
            self.store.clone(),
            Lane::Refill,
            WorkItem::new(ReconcilerKind::Pool, key.clone()),
        );
        // Status first: it reports what was observed, whatever becomes of the rest of the pass.
        let published = self.publish(&writer, &observed, &plan, local, now).await;
        let applied = apply::apply(&writer, &self.store, &observed, &plan, &self.settings, &mut local.unanswered).await;
        local.pacing.created(applied.created);
        let postponed = published?;
        let deadline =
            plan.deadline.map(|deadline| deadline.mul_f64(rand::rng().random_range(1.0..MAX_DEADLINE_STRETCH)));
        let requeue = plan.requeue.into_iter().chain(deadline).min();
        if let Some(error) = applied.error {
            return Err(ReconcileError::from(error).no_later_than(requeue));
        }
        // A pass is not woken by its own writes.
        let again = applied.changed.then_some(Duration::ZERO);
        Ok([again, requeue, postponed].into_iter().flatten().min().into())
    }

    /// Writes the status when it changed; returns how long to wait when the last write was too recent.
    async fn publish(
        &self,
        writer: &Writer,
        observed: &Observed,
        plan: &Plan,
        local: &mut LocalState,
        now: Timestamp,
    ) -> Result<Option<Duration>, ReconcileError> {
        let Some(request) = status_patch(&observed.pool, &plan.status) else { return Ok(None) };
        let since = local.last_status.map(|last| between(last, now));
        if let Some(rest) =
            since.and_then(|since| self.settings.status_interval.checked_sub(since)).filter(|rest| !rest.is_zero())
        {
            return Ok(Some(rest));
        }
        local.last_status = Some(now);
        match writer.send(&request).await {
            Ok(_) | Err(ApiError::NotFound { .. }) => Ok(None),
            Err(ApiError::Conflict { .. }) => {
                writer.read(request.kind, &request.key).await?;
                Ok(Some(Duration::ZERO))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Emits one event when the pool starts to wait for the scheduler, and one when it progresses again.
    fn emit_progress_event(&self, pool: &SandboxWarmPool, before: Progress, now: Progress) {
        let (severity, reason, note) = match (before, now) {
            (Progress::Progressing, Progress::Unschedulable { held, desired }) => (
                Severity::Warning,
                "WarmPoolNotProgressing",
                format!(
                    "{held}/{desired} sandboxes are unschedulable past the {} readiness grace period; holding them instead of replacing (replacements would be equally unschedulable)",
                    go_duration(self.settings.readiness_grace)
                ),
            ),
            (Progress::Unschedulable { .. }, Progress::Progressing) => {
                (Severity::Normal, "WarmPoolProgressing", "Warm pool is progressing again".to_owned())
            }
            _ => return,
        };
        self.events.emit(Event {
            regarding: Event::regarding(pool),
            severity,
            reason,
            action: "Reconciling",
            note,
            controller: "sandboxwarmpool-controller",
        });
    }
}

/// A duration as Go prints it (`5m0s`), as in upstream's event texts.
fn go_duration(duration: Duration) -> String {
    let (hours, minutes, seconds) = (duration.as_secs() / 3600, duration.as_secs() / 60 % 60, duration.as_secs() % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[async_trait]
impl Reconciler for PoolReconciler {
    fn kind(&self) -> ReconcilerKind {
        ReconcilerKind::Pool
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let local = self.local(key);
        // Two passes of one pool would both see the same gap and fill it twice.
        let mut local = local.lock().await;
        self.pass(key, &mut local).await
    }
}
