//! The SandboxWarmPool reconciler: exactly as many unclaimed Sandboxes as asked for, fresh and ready.

mod apply;
mod observe;
mod pacing;
mod plan;
mod slow_start;
mod status;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, time::Duration};

use agent_sandbox_api::{groups, owners, v1beta1::SandboxWarmPool};
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use rand::RngExt;

use self::observe::observe;
pub use self::{
    pacing::{Pacing, PacingSettings},
    plan::{Hold, Observed, Plan, plan},
    status::{pool_status, status_patch},
};
use crate::{
    clock::{Clock, between},
    events::{Event, Events, Severity},
    metrics::Metrics,
    object::{Cached, Key},
    ports::{Lane, Ports, Writer},
    reconcile::{Next, ReconcileError, Reconciler},
    store::{Store, Target, Wake},
    world::{Change, IndexKey, World},
};

/// Deadlines of many pools are spread by up to this factor.
const LONGEST_STRETCH: f64 = 1.5;
/// How long nobody must have claimed before a pool that has plenty refills, and how long it puts that off at most.
const LULL: Duration = Duration::from_millis(100);
const LONGEST_YIELD: Duration = Duration::from_secs(1);

/// How pools are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSettings {
    /// Most creates, and most deletes, of one pass.
    pub max_batch_size: usize,
    /// How long a member may take to become Ready.
    pub readiness_grace: Duration,
    /// How often a pool that waits for the scheduler looks again.
    pub unschedulable_recheck: Duration,
    /// Mark pool Pods as safe to evict, where the template says nothing about it.
    pub eviction: bool,
    pub pacing: PacingSettings,
    /// Bursts of changes are reported together, this far apart.
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
            // Below a second, which is how often people look; claims that come faster than this share a write.
            status_interval: Duration::from_millis(500),
        }
    }
}

/// What is remembered of a pool between passes. Losing it costs time, never correctness.
#[derive(Debug, Default)]
pub struct Memory {
    uid: String,
    pacing: Pacing,
    hold: Hold,
    last_status: Option<Timestamp>,
    /// Names of members whose creation was never answered: tried again before new ones.
    unanswered: Vec<String>,
    yielding: Yielding,
}

/// How a pool leaves the machine to claims.
#[derive(Debug, Default)]
struct Yielding {
    since: Option<Timestamp>,
    /// When claims were last seen at work.
    last_claim: Option<Timestamp>,
    /// How many members could be claimed then.
    available: usize,
}

pub struct PoolReconciler {
    store: Arc<Store>,
    ports: Arc<dyn Ports>,
    clock: Arc<dyn Clock>,
    events: Events,
    settings: PoolSettings,
    memories: Mutex<HashMap<Key, Arc<tokio::sync::Mutex<Memory>>>>,
}

impl PoolReconciler {
    pub fn new(
        store: Arc<Store>,
        ports: Arc<dyn Ports>,
        clock: Arc<dyn Clock>,
        events: Events,
        _metrics: Arc<Metrics>,
        settings: PoolSettings,
    ) -> Self {
        Self { store, ports, clock, events, settings, memories: Mutex::default() }
    }

    /// How many pools are remembered.
    pub fn remembered(&self) -> usize {
        self.memories.lock().len()
    }

    fn memory(&self, key: &Key) -> Arc<tokio::sync::Mutex<Memory>> {
        self.memories.lock().entry(key.clone()).or_default().clone()
    }

    async fn pass(&self, key: &Key, memory: &mut Memory) -> Result<Next, ReconcileError> {
        let now = self.clock.now();
        let Some(observed) = observe(&self.store.read(), key, now) else {
            self.memories.lock().remove(key);
            return Ok(Next::Idle);
        };
        if memory.uid != observed.pool.uid() {
            *memory = Memory { uid: observed.pool.uid().to_owned(), ..Memory::default() };
        }
        if let Some(rest) = self.gives_way(&observed, &mut memory.yielding) {
            return Ok(Next::After(rest));
        }
        let plan = plan(&observed, &mut memory.pacing, &self.settings);
        self.announce(&observed.pool, memory.hold, plan.hold);
        memory.hold = plan.hold;

        let writer =
            Writer::new(self.ports.clone(), self.store.clone(), Lane::Refill, Wake::new(Target::Pool, key.clone()));
        // Status first: it says what was found, whatever becomes of the rest of the pass.
        let published = self.publish(&writer, &observed, &plan, memory, now).await;
        let done = apply::apply(&writer, &self.store, &observed, &plan, &self.settings, &mut memory.unanswered).await;
        memory.pacing.created(done.created);
        let postponed = published?;
        let deadline = plan.deadline.map(|deadline| deadline.mul_f64(rand::rng().random_range(1.0..LONGEST_STRETCH)));
        let requeue = plan.requeue.into_iter().chain(deadline).min();
        if let Some(error) = done.error {
            return Err(ReconcileError::from(error).no_later_than(requeue));
        }
        // Nobody wakes a pass about its own writes.
        let again = done.look_again.then_some(Duration::ZERO);
        Ok([again, requeue, postponed].into_iter().flatten().min().into())
    }

    /// How long the pool leaves the machine to claims: while it has plenty, until they pause, and not for ever.
    fn gives_way(&self, observed: &Observed, yielding: &mut Yielding) -> Option<Duration> {
        if !self.store.is_patient() {
            return None;
        }
        let under_way = self.store.claims_under_way();
        let available = self.store.read().candidates.available(&[observed.pool.uid()]);
        if under_way > 0 || available < yielding.available {
            yielding.last_claim = Some(observed.now);
        }
        yielding.available = available;
        let plenty = available * 4 > observed.pool.replicas() && available >= under_way;
        let rest = yielding.last_claim.and_then(|last| LULL.checked_sub(between(last, observed.now)));
        let since = *yielding.since.get_or_insert(observed.now);
        let rest = rest.filter(|rest| plenty && !rest.is_zero() && between(since, observed.now) < LONGEST_YIELD);
        if rest.is_none() {
            yielding.since = None;
        }
        rest
    }

    /// Writes the status when it changed; how long to wait when it was written a moment ago.
    async fn publish(
        &self,
        writer: &Writer,
        observed: &Observed,
        plan: &Plan,
        memory: &mut Memory,
        now: Timestamp,
    ) -> Result<Option<Duration>, ReconcileError> {
        let Some(request) = status_patch(&observed.pool, &plan.status) else { return Ok(None) };
        let since = memory.last_status.map(|last| between(last, now));
        if let Some(rest) =
            since.and_then(|since| self.settings.status_interval.checked_sub(since)).filter(|rest| !rest.is_zero())
        {
            return Ok(Some(rest));
        }
        memory.last_status = Some(now);
        match writer.send(&request).await {
            Ok(_) | Err(crate::ports::ApiError::NotFound { .. }) => Ok(None),
            Err(crate::ports::ApiError::Conflict { .. }) => {
                writer.read(request.kind, &request.key).await?;
                Ok(Some(Duration::ZERO))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Says once that the pool waits for the scheduler, and once that it no longer does.
    fn announce(&self, pool: &SandboxWarmPool, before: Hold, now: Hold) {
        let (severity, reason, note) = match (before, now) {
            (Hold::None, Hold::Unschedulable { held, desired }) => (
                Severity::Warning,
                "WarmPoolNotProgressing",
                format!(
                    "{held}/{desired} sandboxes are unschedulable past the {} readiness grace period; holding them instead of replacing (replacements would be equally unschedulable)",
                    go_duration(self.settings.readiness_grace)
                ),
            ),
            (Hold::Unschedulable { .. }, Hold::None) => {
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

/// A duration as Go prints it (`5m0s`), which is what people compare event texts with.
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
    fn target(&self) -> Target {
        Target::Pool
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let memory = self.memory(key);
        // Two passes of one pool would both see the same gap and fill it twice.
        let mut memory = memory.lock().await;
        self.pass(key, &mut memory).await
    }
}

/// Whom a change concerns among pools.
pub fn route(world: &World, change: &Change, wakes: &mut Vec<Wake>) {
    match change {
        Change::Pool(delta) => wakes.push(Wake::new(Target::Pool, delta.key())),
        Change::Sandbox(delta) => {
            for sandbox in delta.old.iter().chain(&delta.new) {
                if let Some(owner) = owners::owning_pool(&sandbox.metadata) {
                    wakes.push(Wake::new(Target::Pool, Cached::key(&**sandbox).sibling(owner.name.as_str())));
                }
            }
            wakes.dedup();
        }
        Change::Template(delta) => {
            let template = delta.latest();
            let index = IndexKey::TemplateRef {
                namespace: template.namespace().to_owned(),
                template: template.name().to_owned(),
            };
            wakes.extend(world.pools.find(&index).map(|pool| Wake::new(Target::Pool, Cached::key(&**pool))));
        }
        // Whether a member waits for the scheduler is written on its Pod alone.
        Change::Pod(delta) => {
            let pod = delta.latest();
            let sandbox = pod
                .controller()
                .filter(|owner| owners::is_kind(owner, groups::CORE, groups::SANDBOX))
                .and_then(|owner| world.sandboxes.get(&pod.key().sibling(owner.name.as_str())));
            let unschedulable =
                |pod: &Option<Arc<crate::object::Pod>>| pod.as_deref().is_some_and(plan::is_unschedulable);
            if let Some(owner) = sandbox.and_then(|sandbox| owners::owning_pool(&sandbox.metadata))
                && unschedulable(&delta.old) != unschedulable(&delta.new)
            {
                wakes.push(Wake::new(Target::Pool, pod.key().sibling(owner.name.as_str())));
            }
        }
        Change::Claim(_) | Change::Pvc(_) | Change::Service(_) | Change::NetworkPolicy(_) => {}
    }
}
