//! The SandboxClaim reconciler: adopts a warm Sandbox if there is one, creates a new one otherwise, and reports on it
//! in the claim's status.

pub mod adoption;
mod apply;
pub mod claim_annotations;
pub mod cold_start;
mod env;
pub mod expiry;
pub mod metadata;
mod observability;
mod observe;
pub mod plan;
mod route;
pub mod status;
#[cfg(test)]
mod tests;
pub mod validate;
mod volumes;

use std::{collections::HashMap, sync::Arc};

use agent_sandbox_api::{
    conditions::{self, ConditionType, Reason},
    v1beta1::{OperatingMode, SandboxClaim},
};
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use tracing::debug;

pub use self::route::route;
use self::{
    observe::observe,
    plan::{Observed, Plan, legacy_policy, plan},
};
use crate::{
    api_client::{ApiClient, Lane, Writer},
    cache::{Key, Kind, ReconcilerKind, Sandbox, Store, WorkItem},
    clock::Clock,
    reconcile::{Interrupted, LiveReads, Next, Pass, ReconcileError, Reconciler, run_attempts},
    serving::{
        events::Events,
        metrics::Metrics,
        tracing_context::{PassSpan, Tracing},
    },
};

/// Settings of the claim reconciler.
#[derive(Clone, Debug)]
pub struct ClaimSettings {
    /// Label domains that a claim may use for its Pod.
    pub label_domains: Vec<String>,
    /// Whether to record on the claim when a controller first saw it.
    pub observability_annotations: bool,
    /// Whether to emit Events about claims.
    pub events: bool,
    /// Where the spans of passes are exported to.
    pub tracing: Tracing,
}

impl Default for ClaimSettings {
    fn default() -> Self {
        Self {
            label_domains: vec![validate::DEFAULT_LABEL_DOMAIN.to_owned()],
            observability_annotations: true,
            events: true,
            tracing: Tracing::default(),
        }
    }
}

/// In-memory state of a claim between passes. Losing it costs time, never correctness.
#[derive(Clone, Debug)]
struct LocalState {
    uid: String,
    first_seen: Timestamp,
    /// A candidate that a write without a response may have adopted: no other is tried before the outcome is known.
    held: Option<HeldSandbox>,
}

/// A reserved Sandbox whose adoption has an unknown outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HeldSandbox {
    key: Key,
    uid: String,
}

pub struct ClaimReconciler {
    store: Arc<Store>,
    api: Arc<dyn ApiClient>,
    clock: Arc<dyn Clock>,
    events: Events,
    metrics: Arc<Metrics>,
    settings: ClaimSettings,
    local_states: Mutex<HashMap<Key, LocalState>>,
}

impl ClaimReconciler {
    pub fn new(
        store: Arc<Store>,
        api: Arc<dyn ApiClient>,
        clock: Arc<dyn Clock>,
        events: Events,
        metrics: Arc<Metrics>,
        settings: ClaimSettings,
    ) -> Self {
        let events = if settings.events { events } else { Events::disabled() };
        Self { store, api, clock, events, metrics, settings, local_states: Mutex::default() }
    }

    /// Number of claims with in-memory state: those that are not Ready yet.
    pub fn tracked(&self) -> usize {
        self.local_states.lock().len()
    }

    /// The in-memory state of the claim with this uid, created if absent; and the Sandbox that was held for an earlier
    /// claim of the name.
    fn local_state(&self, key: &Key, uid: &str, now: Timestamp) -> (LocalState, Option<HeldSandbox>) {
        let mut local_states = self.local_states.lock();
        let fresh = || LocalState { uid: uid.to_owned(), first_seen: now, held: None };
        let local = local_states.entry(key.clone()).or_insert_with(fresh);
        let mut stale = None;
        if local.uid != uid {
            stale = std::mem::replace(local, fresh()).held;
        }
        let current = local.clone();
        drop(local_states);
        (current, stale)
    }

    /// Drops the state of a claim, and releases the Sandbox held for it.
    fn forget(&self, key: &Key) {
        let held = self.local_states.lock().remove(key).and_then(|local| local.held);
        self.release_held(held);
    }

    /// Records which candidate is held for a claim; an earlier one is released.
    fn set_held(&self, key: &Key, held: Option<HeldSandbox>) {
        let before = match self.local_states.lock().get_mut(key) {
            Some(local) => std::mem::replace(&mut local.held, held.clone()),
            None => None,
        };
        self.release_held(before.filter(|before| Some(before) != held.as_ref()));
    }

    fn release_held(&self, held: Option<HeldSandbox>) {
        if let Some(held) = held {
            self.store.candidates(|world| world.candidates.release(&held.key, &held.uid));
        }
    }
}

#[async_trait]
impl Reconciler for ClaimReconciler {
    fn kind(&self) -> ReconcilerKind {
        ReconcilerKind::Claim
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let tracing = &self.settings.tracing;
        let traced = tracing.is_on().then(|| self.store.get::<SandboxClaim>(key)).flatten();
        let mut span = traced.map_or_else(PassSpan::default, |claim| {
            tracing.start("ReconcileSandboxClaim", "sandboxclaim", &claim.metadata)
        });
        let origin = WorkItem::new(ReconcilerKind::Claim, key.clone());
        let writer = Writer::new(self.api.clone(), self.store.clone(), Lane::Claims, origin);
        let pass =
            ClaimPass { reconciler: self, writer: &writer, key, span: &span, failed_reservation: Mutex::default() };
        let outcome = run_attempts(&pass).await;
        if let Err(error) = &outcome {
            span.failed(&error.message);
        }
        outcome
    }
}

/// One pass over a claim.
struct ClaimPass<'a> {
    reconciler: &'a ClaimReconciler,
    writer: &'a Writer,
    key: &'a Key,
    span: &'a PassSpan,
    /// Number of candidates without an address at the time when none could be reserved in this pass.
    failed_reservation: Mutex<Option<usize>>,
}

impl Pass for ClaimPass<'_> {
    /// One attempt of them may be spent on a reservation that fails.
    const MAX_ATTEMPTS: usize = 9;

    const KIND: Kind = Kind::Claim;

    fn writer(&self) -> &Writer {
        self.writer
    }

    async fn attempt(&self, live: &LiveReads) -> Result<Next, Interrupted> {
        let Some(observed) = self.observe(live) else {
            self.reconciler.forget(self.key);
            return Ok(Next::Idle);
        };
        if let Some(request) = legacy_policy(&observed) {
            // Left behind by old releases: a failed deletion must not fail the claim.
            if let Err(error) = self.writer.send(&request).await {
                debug!(%error, "Could not delete a legacy network policy");
            }
        }
        let plan = plan(&observed, &self.reconciler.settings);
        if !matches!(plan, Plan::Resume { .. } | Plan::Confirm(..)) {
            // A Sandbox held by an earlier pass is bound by now, or will never be.
            self.reconciler.set_held(self.key, None);
        }
        self.apply(&observed, plan).await
    }
}

impl ClaimPass<'_> {
    fn observe(&self, live: &LiveReads) -> Option<Observed> {
        let now = self.reconciler.clock.now();
        let uid = self.reconciler.store.read().claims.get(self.key)?.uid().to_owned();
        let (local, stale) = self.reconciler.local_state(self.key, &uid, now);
        self.reconciler.release_held(stale);
        let held = local.held.as_ref().map(|held| &held.key);
        let observed = observe(&self.reconciler.store.read(), self.key, live, held, local.first_seen, now)?;
        Some(Observed {
            trace: self.span.annotation().map(str::to_owned),
            failed_reservation: *self.failed_reservation.lock(),
            ..observed
        })
    }
}

/// Whether a Sandbox is Ready.
pub(crate) fn sandbox_is_ready(sandbox: &Sandbox) -> bool {
    conditions::is_true(sandbox.condition(ConditionType::Ready))
}

/// Whether a Sandbox cannot serve a claim any more: finished, expired or suspended.
pub(crate) fn is_unusable(sandbox: &Sandbox) -> bool {
    let ended = [Reason::SandboxExpired.as_str(), Reason::SandboxSuspended.as_str()];
    sandbox.operating_mode() == OperatingMode::Suspended
        || conditions::is_true(sandbox.condition(ConditionType::Finished))
        || sandbox.condition(ConditionType::Ready).is_some_and(|ready| ended.contains(&ready.reason.as_str()))
}
