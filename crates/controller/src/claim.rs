//! The SandboxClaim reconciler: a warm Sandbox if there is one, a new one otherwise, and a status that says how it is.

pub mod adoption;
mod apply;
pub mod cold;
mod env;
pub mod expiry;
pub mod metadata;
mod observability;
mod observe;
pub mod plan;
mod route;
pub mod stamps;
pub mod status;
#[cfg(test)]
mod tests;
pub mod validate;
mod volumes;

use std::{collections::HashMap, sync::Arc};

use agent_sandbox_api::{
    conditions::{self, ConditionType, Reason},
    v1beta1::OperatingMode,
};
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;

pub use self::route::route;
use crate::{
    clock::Clock,
    events::Events,
    metrics::Metrics,
    object::{Key, Sandbox},
    ports::Ports,
    reconcile::{Next, ReconcileError, Reconciler},
    store::{Store, Target},
    tracing_context::Tracing,
};

/// How claims are served.
#[derive(Clone, Debug)]
pub struct ClaimSettings {
    /// Domains whose labels a claim may put on its Pod.
    pub label_domains: Vec<String>,
    /// Write down on the claim when a controller first saw it.
    pub observability_annotations: bool,
    /// Report what becomes of claims as Events.
    pub events: bool,
    /// Where the spans of passes go.
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

/// What is remembered of a claim between passes. Losing it costs time, never correctness.
#[derive(Clone, Debug)]
struct Memory {
    uid: String,
    first_seen: Timestamp,
    /// A candidate that a write without an answer may have taken: no other is tried before that is known.
    held: Option<Held>,
}

/// A reserved Sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    key: Key,
    uid: String,
}

pub struct ClaimReconciler {
    store: Arc<Store>,
    ports: Arc<dyn Ports>,
    clock: Arc<dyn Clock>,
    events: Events,
    metrics: Arc<Metrics>,
    settings: ClaimSettings,
    memories: Mutex<HashMap<Key, Memory>>,
}

impl ClaimReconciler {
    pub fn new(
        store: Arc<Store>,
        ports: Arc<dyn Ports>,
        clock: Arc<dyn Clock>,
        events: Events,
        metrics: Arc<Metrics>,
        settings: ClaimSettings,
    ) -> Self {
        let events = if settings.events { events } else { Events::disabled() };
        Self { store, ports, clock, events, metrics, settings, memories: Mutex::default() }
    }

    /// How many claims are remembered: those that are not served yet.
    pub fn remembered(&self) -> usize {
        self.memories.lock().len()
    }

    /// What is remembered of the claim with this uid, from now on at the latest; and what was reserved for an earlier claim of the name.
    fn remember(&self, key: &Key, uid: &str, now: Timestamp) -> (Memory, Option<Held>) {
        let mut memories = self.memories.lock();
        let fresh = || Memory { uid: uid.to_owned(), first_seen: now, held: None };
        let memory = memories.entry(key.clone()).or_insert_with(fresh);
        let mut stale = None;
        if memory.uid != uid {
            stale = std::mem::replace(memory, fresh()).held;
        }
        let current = memory.clone();
        drop(memories);
        (current, stale)
    }

    /// Forgets a claim, and gives back what was reserved for it.
    fn forget(&self, key: &Key) {
        let held = self.memories.lock().remove(key).and_then(|memory| memory.held);
        self.give_back(held);
    }

    /// Remembers which candidate is reserved for a claim; an earlier one is given back.
    fn hold(&self, key: &Key, held: Option<Held>) {
        let before = match self.memories.lock().get_mut(key) {
            Some(memory) => std::mem::replace(&mut memory.held, held.clone()),
            None => None,
        };
        self.give_back(before.filter(|before| Some(before) != held.as_ref()));
    }

    fn give_back(&self, held: Option<Held>) {
        if let Some(held) = held {
            self.store.candidates(|world| world.candidates.release(&held.key, &held.uid));
        }
    }
}

#[async_trait]
impl Reconciler for ClaimReconciler {
    fn target(&self) -> Target {
        Target::Claim
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        apply::pass(self, key).await
    }
}

/// Whether a Sandbox is Ready.
pub(crate) fn sandbox_is_ready(sandbox: &Sandbox) -> bool {
    conditions::is_true(sandbox.condition(ConditionType::Ready))
}

/// Whether a Sandbox will not serve anybody any more: finished, expired or suspended.
pub(crate) fn is_spent(sandbox: &Sandbox) -> bool {
    let ended = [Reason::SandboxExpired.as_str(), Reason::SandboxSuspended.as_str()];
    sandbox.operating_mode() == OperatingMode::Suspended
        || conditions::is_true(sandbox.condition(ConditionType::Finished))
        || sandbox.condition(ConditionType::Ready).is_some_and(|ready| ended.contains(&ready.reason.as_str()))
}
