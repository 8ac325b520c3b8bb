//! The Sandbox reconciler: one Pod, its volumes and its Service, and a status that says how they are.

mod adoption;
mod apply;
mod observe;
mod plan;
mod pod;
mod service;
mod status;
mod volume;

use std::{collections::HashMap, sync::Arc, time::Duration};

use agent_sandbox_api::{
    conditions::{ConditionType, Reason},
    groups, names, owners,
    v1beta1::SandboxStatus,
};
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;

use self::{
    apply::{Interrupted, apply, apply_deletes, stable_text},
    observe::{LiveReads, is_abandoned, observe},
};
pub use self::{
    plan::{
        CleanUp, Observed, Plan, PodName, PodPlan, Reconcile, Settings, Step, Unreadable, is_expired, plan,
        plan_pod_name, tracked_name, until_shutdown,
    },
    service::{ServicePlan, service_ports},
    status::{
        Facts, PodFact, ServiceFact, first_word_can_wait, multiple_pods, status_after, status_cleaned_up,
        status_marked_expired, status_patch,
    },
    volume::VolumePlan,
};
use crate::{
    clock::Clock,
    events::{Event, Events, Severity},
    object::{Cached, Key, Kind, Sandbox},
    ports::{ApiError, Lane, Ports, Writer},
    reconcile::{Next, ReconcileError, Reconciler},
    request::Request,
    store::{Store, Target, Wake},
    tracing_context::{PassSpan, Tracing},
    world::{Change, IndexKey, World},
};

/// How often a pass may start over because the world moved under it, before it yields to others.
const MAX_ATTEMPTS: usize = 5;
/// How soon the clean-up of an expired Sandbox follows the status that announces it.
const SOON: Duration = Duration::from_millis(1);
/// How soon a suspended Sandbox whose name somebody else's Pod holds looks again: no event of that Pod is ours to see.
const FOREIGN_POD_RECHECK: Duration = Duration::from_secs(60);

pub struct SandboxReconciler {
    pub store: Arc<Store>,
    pub ports: Arc<dyn Ports>,
    pub clock: Arc<dyn Clock>,
    pub events: Events,
    pub settings: Settings,
    pub tracing: Tracing,
    /// When each postponed Pod patch was first found due. Losing it merely restarts the window.
    postponed: Mutex<HashMap<Key, Timestamp>>,
    /// Since when each Sandbox without a status could have had one.
    silent: Mutex<HashMap<Key, Timestamp>>,
}

impl SandboxReconciler {
    pub fn new(
        store: Arc<Store>,
        ports: Arc<dyn Ports>,
        clock: Arc<dyn Clock>,
        events: Events,
        settings: Settings,
        tracing: Tracing,
    ) -> Self {
        Self { store, ports, clock, events, settings, tracing, postponed: Mutex::default(), silent: Mutex::default() }
    }

    /// Nothing is left to be done for this Sandbox at a later time.
    fn forget(&self, key: &Key) {
        self.postponed.lock().remove(key);
        self.silent.lock().remove(key);
    }

    /// How many Pod patches are postponed at present.
    pub fn postponed(&self) -> usize {
        self.postponed.lock().len()
    }

    /// How many Sandboxes have yet to say their first word.
    pub fn silent(&self) -> usize {
        self.silent.lock().len()
    }

    async fn attempt(
        &self,
        key: &Key,
        writer: &Writer,
        live: &LiveReads,
        span: &PassSpan,
    ) -> Result<Result<Next, ReconcileError>, Interrupted> {
        let now = self.clock.now();
        let due_since = self.postponed.lock().get(key).copied();
        let observed = observe(&self.store.read(), key, live, due_since, now);
        let Some(observed) = observed else {
            self.forget(key);
            return Ok(Ok(Next::Idle));
        };
        let sandbox = observed.sandbox.clone();
        match plan(&observed, &self.settings) {
            Plan::Leave => {
                self.forget(key);
                Ok(Ok(Next::Idle))
            }
            Plan::Confirm => Err(Interrupted::Stale { kind: Kind::Sandbox, key: key.clone() }),
            Plan::MarkExpired => self.mark_expired(writer, &sandbox).await,
            Plan::CleanUp(clean_up) => self.clean_up(writer, &sandbox, &clean_up).await,
            Plan::Reconcile(reconcile) => self.carry_out(writer, &observed, &reconcile, span).await,
        }
    }

    async fn mark_expired(
        &self,
        writer: &Writer,
        sandbox: &Sandbox,
    ) -> Result<Result<Next, ReconcileError>, Interrupted> {
        let status = status_marked_expired(sandbox, self.clock.now());
        Ok(publish(writer, sandbox, &status).await?.map(|()| Next::After(SOON)))
    }

    async fn clean_up(
        &self,
        writer: &Writer,
        sandbox: &Sandbox,
        plan: &CleanUp,
    ) -> Result<Result<Next, ReconcileError>, Interrupted> {
        let mut errors = apply_deletes(writer, &plan.deletes).await?;
        if let Some(step) = &plan.delete_sandbox {
            // The children go with it, so whether their own deletion failed does not matter.
            errors = apply_deletes(writer, std::slice::from_ref(step)).await?;
            if errors.is_empty() {
                return Ok(Ok(Next::Idle));
            }
        }
        if !errors.is_empty() {
            return Ok(Err(ReconcileError::transient(errors.join("\n"))));
        }
        let status = status_cleaned_up(sandbox, self.clock.now());
        Ok(publish(writer, sandbox, &status).await?.map(|()| Next::Idle))
    }

    async fn carry_out(
        &self,
        writer: &Writer,
        observed: &Observed,
        plan: &Reconcile,
        span: &PassSpan,
    ) -> Result<Result<Next, ReconcileError>, Interrupted> {
        let facts = apply(writer, observed, plan, span).await?;
        self.remember_postponement(observed, plan);
        let key = Key::new(observed.sandbox.namespace(), observed.sandbox.name());
        // The annotation patch has moved the version; spec and generation stay those that were acted on.
        let Some(stored) = self.still_there(&key, &observed.sandbox) else { return Ok(Ok(Next::Idle)) };
        if stored.generation() != observed.sandbox.generation() {
            return Err(Interrupted::Stale { kind: Kind::Sandbox, key });
        }
        let now = self.clock.now();
        if is_expired(&stored, now) {
            return self.mark_expired(writer, &stored).await;
        }
        let status = status_after(&stored, &facts, &self.settings, now);
        if stored.conditions().is_empty() {
            let since = *self.silent.lock().entry(key.clone()).or_insert(now);
            if let Some(rest) = first_word_can_wait(&stored, &status, (since, self.settings.first_word), now) {
                return Ok(Ok(Next::After(until_shutdown(&stored, now).unwrap_or(rest).min(rest))));
            }
            self.silent.lock().remove(&key);
        }
        self.announce(&stored, &facts);
        let published = publish(writer, &stored, &status).await?;
        let deadline = until_shutdown(&stored, now);
        let mut errors = facts.errors.clone();
        if let Err(error) = published {
            errors.push(error.message);
        }
        if !errors.is_empty() {
            return Ok(Err(ReconcileError::transient(errors.join("\n")).no_later_than(deadline)));
        }
        let foreign_holds_name = matches!(&plan.pod, PodPlan::Await { pod } if owners::ownership(&pod.metadata, stored.uid()) != owners::Ownership::Owned);
        let recheck = foreign_holds_name.then_some(FOREIGN_POD_RECHECK);
        Ok(Ok(plan.requeue.into_iter().chain(deadline).chain(recheck).min().into()))
    }

    /// The Sandbox as it is known now; `None` when, while its children were written, it went or its claim did: what is left is the garbage
    /// collector's, and a status would come too late.
    fn still_there(&self, key: &Key, planned: &Sandbox) -> Option<Arc<Sandbox>> {
        let world = self.store.read();
        let stored = world.get::<Sandbox>(key).filter(|stored| stored.uid() == planned.uid())?;
        (!stored.is_deleting() && !is_abandoned(&world, key, &stored)).then_some(stored)
    }

    fn remember_postponement(&self, observed: &Observed, plan: &Reconcile) {
        let key = Key::new(observed.sandbox.namespace(), observed.sandbox.name());
        let mut postponed = self.postponed.lock();
        match plan.patch_due_since {
            Some(since) => postponed.insert(key, since),
            None => postponed.remove(&key),
        };
    }

    /// Says once that more than one Pod is ours.
    fn announce(&self, sandbox: &Sandbox, facts: &Facts) {
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

/// Writes the status if it differs from the stored one. A conflict starts the pass over; a Sandbox that is gone needs none.
async fn publish(
    writer: &Writer,
    sandbox: &Sandbox,
    status: &SandboxStatus,
) -> Result<Result<(), ReconcileError>, Interrupted> {
    let Some(patch) = status_patch(sandbox, status) else { return Ok(Ok(())) };
    match writer.send(&Request::patch_status(sandbox, patch)).await {
        Ok(_) | Err(ApiError::NotFound { .. }) => Ok(Ok(())),
        Err(ApiError::NotLeader) => Err(Interrupted::NotLeader),
        Err(ApiError::Conflict { .. }) => {
            Err(Interrupted::Stale { kind: Kind::Sandbox, key: Key::new(sandbox.namespace(), sandbox.name()) })
        }
        Err(error) => Ok(Err(error.into())),
    }
}

#[async_trait]
impl Reconciler for SandboxReconciler {
    fn target(&self) -> Target {
        Target::Sandbox
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let mut span = self.start_span(key);
        let outcome = self.pass(key, &span).await;
        if let Err(error) = &outcome {
            span.failed(&error.message);
        }
        outcome
    }
}

impl SandboxReconciler {
    fn start_span(&self, key: &Key) -> PassSpan {
        let traced = self.tracing.is_on().then(|| self.store.get::<Sandbox>(key)).flatten();
        traced.map_or_else(PassSpan::default, |sandbox| {
            self.tracing.start("ReconcileSandbox", "sandbox", &sandbox.metadata)
        })
    }

    async fn pass(&self, key: &Key, span: &PassSpan) -> Result<Next, ReconcileError> {
        let writer =
            Writer::new(self.ports.clone(), self.store.clone(), Lane::Core, Wake::new(Target::Sandbox, key.clone()));
        let mut live = LiveReads::default();
        for _ in 0..MAX_ATTEMPTS {
            match self.attempt(key, &writer, &live, span).await {
                Ok(outcome) => return outcome,
                Err(Interrupted::NotLeader) => return Err(ApiError::NotLeader.into()),
                Err(Interrupted::Stale { kind, key }) => match writer.read(kind, &key).await {
                    Ok(object) => live.insert(kind, key, object),
                    Err(ApiError::NotLeader) => return Err(ApiError::NotLeader.into()),
                    Err(error) if live.fail(kind, &stable_text(&error)) => {}
                    Err(error) => return Err(error.into()),
                },
            }
        }
        Err(ReconcileError::transient("the objects of this Sandbox keep changing"))
    }
}

/// Whom a change concerns among Sandboxes.
pub fn route(world: &World, change: &Change, wakes: &mut Vec<Wake>) {
    fn owners_of<K: Cached>(object: Option<&Arc<K>>, wakes: &mut Vec<Wake>) {
        let Some(object) = object else { return };
        if let Some(owner) = object.controller().filter(|owner| owners::is_kind(owner, groups::CORE, groups::SANDBOX)) {
            wakes.push(Wake::new(Target::Sandbox, object.key().sibling(owner.name.as_str())));
        }
    }
    /// Both sides count: an object that loses its owner, or is deleted, concerns the owner it had. One that is in the way without being
    /// owned concerns the Sandbox of its name.
    fn child<K: Cached>(world: &World, old: Option<&Arc<K>>, new: Option<&Arc<K>>, wakes: &mut Vec<Wake>) {
        owners_of(old, wakes);
        owners_of(new, wakes);
        if let Some(object) = new.or(old) {
            let key = object.key();
            if K::KIND_OF != Kind::Pvc && world.sandboxes.get(&key).is_some() {
                wakes.push(Wake::new(Target::Sandbox, key));
            }
        }
        wakes.dedup();
    }
    match change {
        Change::Sandbox(delta) => {
            wakes.push(Wake::new(Target::Sandbox, delta.key()));
            if delta.new.is_none() {
                let gone = delta.latest();
                let index =
                    IndexKey::NameHash { namespace: gone.namespace().to_owned(), hash: names::name_hash(gone.name()) };
                wakes.extend(world.sandboxes.find(&index).map(|twin| Wake::new(Target::Sandbox, Cached::key(&**twin))));
            }
        }
        Change::Pod(delta) => child(world, delta.old.as_ref(), delta.new.as_ref(), wakes),
        Change::Service(delta) => child(world, delta.old.as_ref(), delta.new.as_ref(), wakes),
        Change::Pvc(delta) => child(world, delta.old.as_ref(), delta.new.as_ref(), wakes),
        Change::Claim(_) | Change::Pool(_) | Change::Template(_) | Change::NetworkPolicy(_) => {}
    }
}

#[cfg(test)]
mod tests;
