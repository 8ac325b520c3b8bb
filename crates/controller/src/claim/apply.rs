//! Carrying out a claim's plan: it sends what was decided and reports what came of it.

mod adopt;
mod create;
mod serve;

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{conditions::ClaimReady, v1beta1::SandboxClaim};
use tracing::debug;

use super::{
    ClaimReconciler,
    adoption::Offer,
    expiry, observability,
    observe::{LiveLooks, observe, template_of},
    plan::{Observed, Plan, Retry, legacy_policy, plan, plan_without_candidate, warm_pools},
    stamps::Stamps,
    status::{Finding, is_ready, status_after, status_patch},
};
use crate::{
    events::{Event, Severity},
    object::{Cached, Key, Kind, Object, Sandbox},
    ports::{ApiError, Lane, Writer},
    reconcile::{Next, ReconcileError},
    request::Request,
    store::{Target, Wake},
    tracing_context::PassSpan,
};

/// How often a pass may start over because the world moved under it, before it yields to others.
const MAX_ATTEMPTS: usize = 8;
/// How soon the clean-up of an expired claim follows the status that announces it.
const SOON: Duration = Duration::from_millis(1);
/// How soon a claim looks for a Sandbox that was created but cannot be seen.
const PENDING_RECHECK: Duration = Duration::from_millis(200);

/// Why a pass starts over or ends early.
enum Interrupted {
    /// The object is not what the plan was made for: read it live and plan again.
    Stale(Kind, Key),
    /// Plan again from what is known now.
    Again,
    Failed(ReconcileError),
}

impl From<ApiError> for Interrupted {
    fn from(error: ApiError) -> Self {
        Interrupted::Failed(error.into())
    }
}

pub(super) async fn pass(reconciler: &ClaimReconciler, key: &Key) -> Result<Next, ReconcileError> {
    let tracing = &reconciler.settings.tracing;
    let traced = tracing.is_on().then(|| reconciler.store.get::<SandboxClaim>(key)).flatten();
    let mut span = traced.map_or_else(PassSpan::default, |claim| {
        tracing.start("ReconcileSandboxClaim", "sandboxclaim", &claim.metadata)
    });
    let outcome = attempts(reconciler, key, &span).await;
    if let Err(error) = &outcome {
        span.failed(&error.message);
    }
    outcome
}

async fn attempts(reconciler: &ClaimReconciler, key: &Key, span: &PassSpan) -> Result<Next, ReconcileError> {
    let origin = Wake::new(Target::Claim, key.clone());
    let writer = Writer::new(reconciler.ports.clone(), reconciler.store.clone(), Lane::Claims, origin);
    let mut looked_at = LiveLooks::new();
    for _ in 0..MAX_ATTEMPTS {
        let pass = Pass { reconciler, writer: &writer, key, span };
        match pass.attempt(&mut looked_at).await {
            Ok(next) => return Ok(next),
            Err(Interrupted::Again) => {}
            Err(Interrupted::Failed(error)) => return Err(error),
            Err(Interrupted::Stale(kind, key)) => {
                writer.read(kind, &key).await?;
                looked_at.insert((kind, key));
            }
        }
    }
    Err(ReconcileError::transient("the objects of this SandboxClaim keep changing"))
}

struct Pass<'a> {
    reconciler: &'a ClaimReconciler,
    writer: &'a Writer,
    key: &'a Key,
    span: &'a PassSpan,
}

impl Pass<'_> {
    async fn attempt(&self, looked_at: &mut LiveLooks) -> Result<Next, Interrupted> {
        let Some(observed) = self.observe(looked_at) else {
            self.reconciler.forget(self.key);
            return Ok(Next::Idle);
        };
        if let Some(request) = legacy_policy(&observed) {
            // A leftover of old releases: worth an attempt, never worth failing a claim.
            if let Err(error) = self.writer.send(&request).await {
                debug!(%error, "Could not delete a legacy network policy");
            }
        }
        let plan = plan(&observed, &self.reconciler.settings);
        if !matches!(plan, Plan::Resume { .. } | Plan::Confirm(..)) {
            // What was reserved before is bound by now, or will never be.
            self.reconciler.hold(self.key, None);
        }
        let plan = match plan {
            Plan::Adopt { pools, assignment } => {
                match self.reserve(&observed.claim, &pools, observed.template.as_deref()) {
                    Ok(offer) => return self.adopt(&observed, offer, pools).await,
                    Err(pending) => plan_without_candidate(&observed, pending, assignment),
                }
            }
            plan => plan,
        };
        self.carry_out(observed, plan, looked_at).await
    }

    fn observe(&self, looked_at: &LiveLooks) -> Option<Observed> {
        let now = self.reconciler.clock.now();
        let uid = self.reconciler.store.read().claims.get(self.key)?.uid().to_owned();
        let (memory, stale) = self.reconciler.remember(self.key, &uid, now);
        self.reconciler.give_back(stale);
        let held = memory.held.as_ref().map(|held| &held.key);
        let observed = observe(&self.reconciler.store.read(), self.key, looked_at, held, memory.first_seen, now)?;
        Some(Observed { trace: self.span.annotation().map(str::to_owned), ..observed })
    }

    async fn carry_out(&self, observed: Observed, plan: Plan, looked_at: &mut LiveLooks) -> Result<Next, Interrupted> {
        let claim = &observed.claim;
        let until = expiry::until_expiry(claim, observed.now);
        match plan {
            Plan::Leave => {
                self.reconciler.forget(self.key);
                Ok(Next::Idle)
            }
            Plan::Confirm(kind, key) => {
                self.writer.read(kind, &key).await?;
                looked_at.insert((kind, key));
                Err(Interrupted::Again)
            }
            Plan::MarkExpired => {
                self.publish(claim, Finding::Expired).await?;
                self.event(claim, "ClaimExpired", "Claim Expired", "Claim expired".to_owned());
                Ok(Next::After(SOON))
            }
            Plan::DeleteClaim { request, policy } => {
                self.event(claim, "ClaimExpired", "Deleting", format!("Deleting Claim (ShutdownPolicy={policy})"));
                self.send(&request).await?;
                Ok(Next::Idle)
            }
            Plan::CleanUp { deletes, ready, gone } => self.clean_up(claim, &deletes, ready, gone).await,
            Plan::Bound(bound) => self.serve(&observed, *bound).await,
            Plan::Refuse { ready, retry } => {
                let message = ready.clone().verdict().message.into_owned();
                self.publish(claim, Finding::Refused(ready)).await?;
                match retry {
                    Retry::Never => Ok(until.into()),
                    Retry::After(delay) => Ok(until.into_iter().chain([delay]).min().into()),
                    Retry::BackOff => Err(Interrupted::Failed(ReconcileError::transient(message).no_later_than(until))),
                }
            }
            Plan::Resume { sandbox, template, assignment: _ } => {
                self.reconciler
                    .store
                    .candidates(|world| world.candidates.hold(&Cached::key(&*sandbox), sandbox.uid(), claim.uid()));
                let template = {
                    let world = self.reconciler.store.read();
                    template_of(&world, self.key, &sandbox).or(template)
                };
                self.adopt(&observed, Offer { sandbox, template }, warm_pools(&observed)).await
            }
            Plan::Create { request, assignment } => self.create(&observed, &request, assignment).await,
            Plan::Wait(delay) => Ok(until.into_iter().chain([delay]).min().into()),
            Plan::Adopt { .. } => Err(Interrupted::Again),
        }
    }

    /// Says that the API refused, and tries again later.
    async fn refused(&self, claim: &Arc<SandboxClaim>, error: ApiError, until: Option<Duration>) -> Interrupted {
        if !matches!(error, ApiError::NotLeader) {
            let fresh = self.reconciler.store.get::<SandboxClaim>(self.key).unwrap_or_else(|| claim.clone());
            let _ = self.publish(&fresh, Finding::Refused(ClaimReady::ReconcilerError(stable_text(&error)))).await;
        }
        Interrupted::Failed(ReconcileError::from(error).no_later_than(until))
    }

    /// Annotations that a claim gets when it is first dealt with.
    fn first_stamps(&self) -> Stamps {
        let settings = &self.reconciler.settings;
        let seen = self.reconciler.memories.lock().get(self.key).map(|memory| memory.first_seen);
        Stamps {
            first_observed: seen.filter(|_| settings.observability_annotations),
            trace_context: self.span.annotation().map(str::to_owned),
            ..Stamps::default()
        }
    }

    async fn clean_up(
        &self,
        claim: &Arc<SandboxClaim>,
        deletes: &[Request],
        ready: ClaimReady,
        gone: bool,
    ) -> Result<Next, Interrupted> {
        for delete in deletes {
            self.send(delete).await?;
        }
        if !deletes.is_empty() {
            return Err(Interrupted::Again);
        }
        if gone {
            self.publish(claim, Finding::ExpiredAndGone(ready)).await?;
            self.reconciler.forget(self.key);
        }
        Ok(Next::Idle)
    }

    /// Sends a write; a refusal because of a change since starts the pass over.
    async fn send(&self, request: &Request) -> Result<Option<Object>, Interrupted> {
        match self.writer.send(request).await {
            Ok(object) => Ok(object),
            Err(ApiError::NotFound { .. }) => Ok(None),
            Err(ApiError::Conflict { .. }) => Err(Interrupted::Stale(request.kind, request.key.clone())),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the status if it differs; the claim as it is then.
    async fn publish(&self, claim: &Arc<SandboxClaim>, finding: Finding<'_>) -> Result<Arc<SandboxClaim>, Interrupted> {
        let status = status_after(claim, finding, self.reconciler.clock.now());
        let Some(request) = status_patch(claim, &status) else { return Ok(claim.clone()) };
        let announced = expiry::is_announced(claim);
        let answer = self.send(&request).await?.and_then(|object| object.cast::<SandboxClaim>());
        let Some(after) = answer else { return Err(Interrupted::Again) };
        if !announced && expiry::is_announced(&after) && !expiry::is_expired(claim, self.reconciler.clock.now()) {
            self.event(&after, "ClaimExpired", "Claim Expired", "Claim expired".to_owned());
        }
        Ok(after)
    }

    /// Ends a pass of a claim that was dealt with.
    fn settle(&self, claim: &SandboxClaim) -> Result<Next, Interrupted> {
        if is_ready(claim.status.as_ref()) {
            self.reconciler.forget(self.key);
        }
        if expiry::is_announced(claim) {
            return Ok(Next::After(SOON));
        }
        Ok(expiry::until_expiry(claim, self.reconciler.clock.now()).into())
    }

    fn event(&self, claim: &SandboxClaim, reason: &'static str, action: &'static str, note: String) {
        self.reconciler.events.emit(Event {
            regarding: Event::regarding(claim),
            severity: Severity::Normal,
            reason,
            action,
            note,
            controller: "sandboxclaim-controller",
        });
    }

    fn count_creation(&self, claim: &SandboxClaim, sandbox: &Sandbox, pool: &str, launch_type: &'static str) {
        self.reconciler.metrics.claim_created(&observability::created(claim, sandbox, pool, launch_type));
    }

    /// Counts a claim's readiness, the first time.
    fn count_ready(&self, before: &SandboxClaim, after: &SandboxClaim, sandbox: &Sandbox) {
        let first_seen = self.reconciler.memories.lock().get(self.key).map(|memory| memory.first_seen);
        let now = self.reconciler.clock.now();
        if let Some(ready) = observability::first_ready(before, after, sandbox, first_seen, now) {
            self.reconciler.metrics.claim_ready(&ready);
        }
    }
}

/// The error without what differs from attempt to attempt: every new text would be a write and an event.
fn stable_text(error: &ApiError) -> String {
    match error {
        ApiError::Unknown { .. } => "the API server did not answer properly".to_owned(),
        ApiError::Busy { .. } => "the API server is busy".to_owned(),
        other => other.to_string(),
    }
}
