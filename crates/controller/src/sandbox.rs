//! The Sandbox reconciler: one Pod, its volumes and its Service, and a status that reports on them.

mod adoption;
mod apply;
mod egress;
mod observe;
mod plan;
mod pod;
mod route;
mod service;
mod sleep;
mod status;
mod transitions;
mod volume;

use std::{collections::HashMap, sync::Arc, time::Duration};

use agent_sandbox_api::{
    conditions::{ConditionType, Reason},
    v1beta1::{OperatingMode, SandboxStatus},
};
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;

use self::{
    apply::{apply, apply_deletes, publish},
    observe::{observe, owner_is_gone},
};
pub use self::{
    plan::{
        CleanUp, Observed, Plan, PodName, PodNamePlan, PodPlan, Reconcile, Settings, Step, Unreadable, ends_with,
        is_expired, plan, tracked_name, until_deadline, until_shutdown,
    },
    route::route,
    service::{ServicePlan, service_ports},
    sleep::SleepChange,
    status::{
        Facts, PodFact, ServiceFact, first_status_wait, multiple_pods, status_after, status_cleaned_up,
        status_marked_expired, status_patch,
    },
    transitions::{Transition, transitions},
    volume::VolumePlan,
};
use crate::{
    api_client::{ApiClient, ApiError, Lane, Writer},
    cache::{Key, Kind, ReconcilerKind, Sandbox, Store, WorkItem},
    clock::{Clock, between},
    reconcile::{Interrupted, LiveReads, Next, Pass, ReconcileError, Reconciler, run_attempts},
    serving::{
        events::{Event, Events, Severity},
        metrics::Metrics,
        tracing_context::{PassSpan, Tracing},
    },
};

/// Delay between the status that reports the expiry and the clean-up.
const CLEAN_UP_DELAY: Duration = Duration::from_millis(1);

pub struct SandboxReconciler {
    pub store: Arc<Store>,
    pub api: Arc<dyn ApiClient>,
    pub clock: Arc<dyn Clock>,
    pub events: Events,
    metrics: Arc<Metrics>,
    pub settings: Settings,
    pub tracing: Tracing,
    /// When each postponed Pod patch was first due. Losing it merely restarts the window.
    postponed: Mutex<HashMap<Key, Timestamp>>,
    /// Since when each Sandbox without a status could have had one.
    without_status: Mutex<HashMap<Key, Timestamp>>,
    /// When the suspension or resumption that is under way was first seen. Losing it costs one latency sample.
    requested: Mutex<HashMap<Key, (OperatingMode, Timestamp)>>,
}

impl SandboxReconciler {
    pub fn new(
        store: Arc<Store>,
        api: Arc<dyn ApiClient>,
        clock: Arc<dyn Clock>,
        events: Events,
        metrics: Arc<Metrics>,
        settings: Settings,
        tracing: Tracing,
    ) -> Self {
        Self {
            store,
            api,
            clock,
            events,
            metrics,
            settings,
            tracing,
            postponed: Mutex::default(),
            without_status: Mutex::default(),
            requested: Mutex::default(),
        }
    }

    /// Drops the in-memory state of a Sandbox for which nothing is left to do later.
    fn forget(&self, key: &Key) {
        self.postponed.lock().remove(key);
        self.without_status.lock().remove(key);
        self.requested.lock().remove(key);
    }

    /// Number of postponed Pod patches.
    pub fn postponed(&self) -> usize {
        self.postponed.lock().len()
    }

    /// Number of Sandboxes whose first status is deferred.
    pub fn without_status(&self) -> usize {
        self.without_status.lock().len()
    }

    /// The Sandbox as it is cached now; `None` when, while its children were written, it was deleted or its claim was:
    /// the garbage collector deletes what is left, and a status would come too late.
    fn current_sandbox(&self, key: &Key, planned: &Sandbox) -> Option<Arc<Sandbox>> {
        let world = self.store.read();
        let stored = world.get::<Sandbox>(key).filter(|stored| stored.uid() == planned.uid())?;
        (!stored.is_deleting() && !owner_is_gone(&world, key, &stored)).then_some(stored)
    }

    fn remember_postponement(&self, observed: &Observed, plan: &Reconcile) {
        let key = Key::new(observed.sandbox.namespace(), observed.sandbox.name());
        let mut postponed = self.postponed.lock();
        match plan.patch_due_since {
            Some(since) => postponed.insert(key, since),
            None => postponed.remove(&key),
        };
    }

    /// Counts what a status that was just written says has happened since the one before. `seen` is when the pass
    /// observed the Sandbox.
    fn count_transitions(&self, key: &Key, before: &Sandbox, after: &SandboxStatus, seen: Timestamp) {
        let mode = before.operating_mode();
        let mut requested = self.requested.lock();
        // A suspension that was taken back before the Pod was gone ends here.
        if requested.get(key).is_some_and(|(wanted, _)| *wanted != mode) {
            requested.remove(key);
        }
        let resuming = mode == OperatingMode::Running && requested.contains_key(key);
        let after = after.conditions.as_deref().unwrap_or_default();
        for transition in transitions(before.conditions(), after, mode, resuming) {
            let took = match transition {
                Transition::SuspendRequested | Transition::ResumeRequested => {
                    requested.insert(key.clone(), (mode, seen));
                    None
                }
                Transition::Suspended | Transition::Resumed => {
                    requested.remove(key).map(|(_, since)| between(since, self.clock.now()))
                }
                _ => None,
            };
            self.metrics.sandbox_changed(before, transition, took);
        }
    }

    /// Emits one event when the Sandbox controls more than one Pod.
    fn emit_multiple_pods_event(&self, sandbox: &Sandbox, facts: &Facts) {
        let said =
            sandbox.condition(ConditionType::Ready).is_some_and(|ready| ready.reason == Reason::MultiplePods.as_str());
        if let Some(count) = facts.ambiguous.filter(|_| !said) {
            self.events.emit(Event {
                regarding: Event::regarding(sandbox),
                severity: Severity::Warning,
                reason: Reason::MultiplePods.as_str(),
                action: "Reconciling",
                note: multiple_pods(count),
                controller: "sandbox-controller",
            });
        }
    }
}

#[async_trait]
impl Reconciler for SandboxReconciler {
    fn kind(&self) -> ReconcilerKind {
        ReconcilerKind::Sandbox
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let traced = self.tracing.is_on().then(|| self.store.get::<Sandbox>(key)).flatten();
        let mut span = traced.map_or_else(PassSpan::default, |sandbox| {
            self.tracing.start("ReconcileSandbox", "sandbox", &sandbox.metadata)
        });
        let origin = WorkItem::new(ReconcilerKind::Sandbox, key.clone());
        let writer = Writer::new(self.api.clone(), self.store.clone(), Lane::Core, origin);
        let outcome = run_attempts(&SandboxPass { reconciler: self, writer: &writer, key, span: &span }).await;
        if let Err(error) = &outcome {
            span.failed(&error.message);
        }
        outcome
    }
}

/// One pass over a Sandbox.
struct SandboxPass<'a> {
    reconciler: &'a SandboxReconciler,
    writer: &'a Writer,
    key: &'a Key,
    span: &'a PassSpan,
}

impl Pass for SandboxPass<'_> {
    const MAX_ATTEMPTS: usize = 5;

    const KIND: Kind = Kind::Sandbox;

    fn writer(&self) -> &Writer {
        self.writer
    }

    fn can_plan_without(kind: Kind) -> bool {
        kind.is_child()
    }

    async fn attempt(&self, live: &LiveReads) -> Result<Next, Interrupted> {
        let SandboxReconciler { store, clock, settings, postponed, .. } = self.reconciler;
        let due_since = postponed.lock().get(self.key).copied();
        let observed = observe(&store.read(), self.key, live, due_since, clock.now());
        let Some(observed) = observed else {
            self.reconciler.forget(self.key);
            return Ok(Next::Idle);
        };
        match plan(&observed, settings) {
            Plan::Leave => {
                self.reconciler.forget(self.key);
                Ok(Next::Idle)
            }
            Plan::Confirm => Err(self.stale()),
            Plan::MarkExpired => self.mark_expired(&observed.sandbox).await,
            Plan::CleanUp(clean_up) => self.clean_up(&observed.sandbox, &clean_up).await,
            Plan::Sleep(change) => self.change_sleep(&observed.sandbox, *change).await,
            Plan::Reconcile(reconcile) => self.reconcile_children(&observed, &reconcile).await,
        }
    }
}

impl SandboxPass<'_> {
    /// The Sandbox has changed: read it live and plan again.
    fn stale(&self) -> Interrupted {
        Interrupted::Stale { kind: Kind::Sandbox, key: self.key.clone() }
    }

    async fn mark_expired(&self, sandbox: &Sandbox) -> Result<Next, Interrupted> {
        let status = status_marked_expired(sandbox, self.reconciler.clock.now());
        publish(self.writer, sandbox, &status).await??;
        self.reconciler.count_transitions(self.key, sandbox, &status, self.reconciler.clock.now());
        Ok(Next::After(CLEAN_UP_DELAY))
    }

    async fn clean_up(&self, sandbox: &Sandbox, plan: &CleanUp) -> Result<Next, Interrupted> {
        let mut errors = apply_deletes(self.writer, &plan.deletes).await?;
        if let Some(step) = &plan.delete_sandbox {
            // The garbage collector deletes the children, so errors of their own deletion do not matter.
            errors = apply_deletes(self.writer, std::slice::from_ref(step)).await?;
            if errors.is_empty() {
                return Ok(Next::Idle);
            }
        }
        if !errors.is_empty() {
            return Err(ReconcileError::transient(errors.join("\n")).into());
        }
        let status = status_cleaned_up(sandbox, self.reconciler.clock.now());
        publish(self.writer, sandbox, &status).await??;
        Ok(Next::Idle)
    }

    /// Writes the change and plans again from the result. The write is valid only for the observed version: whatever was
    /// recorded since, such as activity, is decided about anew.
    async fn change_sleep(&self, sandbox: &Sandbox, change: SleepChange) -> Result<Next, Interrupted> {
        match self.writer.send(&change.request).await {
            Ok(_) => {}
            Err(ApiError::Conflict { .. }) => return Err(self.stale()),
            Err(ApiError::NotFound { .. }) => return Ok(Next::Idle),
            Err(error) => return Err(error.into()),
        }
        if let Some((reason, note)) = change.event {
            self.reconciler.events.emit(Event {
                regarding: Event::regarding(sandbox),
                severity: Severity::Normal,
                reason,
                action: "ChangingOperatingMode",
                note,
                controller: "sandbox-controller",
            });
        }
        Err(Interrupted::Again)
    }

    async fn reconcile_children(&self, observed: &Observed, plan: &Reconcile) -> Result<Next, Interrupted> {
        let SandboxReconciler { clock, settings, without_status, .. } = self.reconciler;
        let facts = apply(self.writer, observed, plan, self.span).await?;
        self.reconciler.remember_postponement(observed, plan);
        // The annotation patch has changed the version; spec and generation stay those that the plan was made for.
        let Some(stored) = self.reconciler.current_sandbox(self.key, &observed.sandbox) else { return Ok(Next::Idle) };
        if stored.generation() != observed.sandbox.generation() {
            return Err(self.stale());
        }
        let now = clock.now();
        if is_expired(&stored, now) {
            return self.mark_expired(&stored).await;
        }
        let status = status_after(&stored, &facts, settings, now);
        if stored.conditions().is_empty() {
            let since = *without_status.lock().entry(self.key.clone()).or_insert(now);
            if let Some(rest) = first_status_wait(&stored, &status, (since, settings.first_status_delay), now) {
                return Ok(Next::After(until_deadline(&stored, now).unwrap_or(rest).min(rest)));
            }
            without_status.lock().remove(self.key);
        }
        self.reconciler.emit_multiple_pods_event(&stored, &facts);
        let published = publish(self.writer, &stored, &status).await?;
        let deadline = until_deadline(&stored, now);
        let mut errors = facts.errors.clone();
        match published {
            Ok(()) => self.reconciler.count_transitions(self.key, &stored, &status, observed.now),
            Err(error) => errors.push(error.to_string()),
        }
        if !errors.is_empty() {
            return Err(ReconcileError::transient(errors.join("\n")).no_later_than(deadline).into());
        }
        if ends_with(&stored, &status) {
            // The reconciler's own status is no event.
            return Ok(Next::After(CLEAN_UP_DELAY));
        }
        Ok(plan.requeue.into_iter().chain(deadline).min().into())
    }
}

#[cfg(test)]
mod tests;
