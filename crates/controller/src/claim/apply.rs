//! Applies a claim's plan: sends the planned requests and reports the outcome.

mod adopt;
mod bound;
mod create;

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{conditions::ClaimReady, v1beta1::SandboxClaim};

use super::{
    ClaimPass,
    claim_annotations::ClaimAnnotations,
    expiry, observability,
    plan::{Observed, Plan, Retry},
    status::{Finding, is_ready, status_after, status_patch},
};
use crate::{
    api_client::{ApiError, Request},
    cache::{Cached, Object, Sandbox},
    reconcile::{Interrupted, Next, ReconcileError},
    serving::events::{Event, Severity},
};

/// Delay between the status that reports the expiry and the clean-up.
const CLEAN_UP_DELAY: Duration = Duration::from_millis(1);
/// Delay before the next look for a Sandbox that was created but cannot be read yet.
const PENDING_RECHECK: Duration = Duration::from_millis(200);

impl ClaimPass<'_> {
    pub(super) async fn apply(&self, observed: &Observed, plan: Plan) -> Result<Next, Interrupted> {
        let claim = &observed.claim;
        let until = expiry::until_expiry(claim, observed.now);
        match plan {
            Plan::Leave => {
                self.reconciler.forget(self.key);
                Ok(Next::Idle)
            }
            Plan::Confirm(kind, key) => Err(Interrupted::Stale { kind, key }),
            Plan::MarkExpired => {
                self.publish(claim, Finding::Expired).await?;
                self.event(claim, "ClaimExpired", "Claim Expired", "Claim expired".to_owned());
                Ok(Next::After(CLEAN_UP_DELAY))
            }
            Plan::DeleteClaim { request, policy } => {
                self.event(claim, "ClaimExpired", "Deleting", format!("Deleting Claim (ShutdownPolicy={policy})"));
                self.send(&request).await?;
                Ok(Next::Idle)
            }
            Plan::CleanUp { deletes, ready, gone } => self.clean_up(claim, &deletes, ready, gone).await,
            Plan::Bound(bound) => self.serve_bound(observed, *bound).await,
            Plan::Refuse { ready, retry } => {
                let message = ready.clone().desired_condition().message.into_owned();
                self.publish(claim, Finding::Refused(ready)).await?;
                match retry {
                    Retry::Never => Ok(until.into()),
                    Retry::After(delay) => Ok(until.into_iter().chain([delay]).min().into()),
                    Retry::BackOff => Err(Interrupted::Failed(ReconcileError::transient(message).no_later_than(until))),
                }
            }
            Plan::Resume { candidate, alternatives } => {
                let sandbox = &candidate.sandbox;
                self.reconciler
                    .store
                    .candidates(|world| world.candidates.hold(&Cached::key(&**sandbox), sandbox.uid(), claim.uid()));
                self.adopt(observed, candidate, &alternatives).await
            }
            Plan::Adopt(pools) => match self.reserve(claim, &pools) {
                Ok(candidate) => self.adopt(observed, candidate, &pools).await,
                Err(pending) => {
                    *self.failed_reservation.lock() = Some(pending);
                    Err(Interrupted::Again)
                }
            },
            Plan::Create { request, assignment } => self.create(observed, &request, assignment).await,
            Plan::Wait(delay) => Ok(until.into_iter().chain([delay]).min().into()),
        }
    }

    /// Reports in the status that the API rejected a request; the pass is retried later.
    async fn refused(&self, claim: &Arc<SandboxClaim>, error: ApiError, until: Option<Duration>) -> Interrupted {
        if !matches!(error, ApiError::NotLeader) {
            let fresh = self.reconciler.store.get::<SandboxClaim>(self.key).unwrap_or_else(|| claim.clone());
            let _ = self.publish(&fresh, Finding::Refused(ClaimReady::ReconcilerError(error.stable_text()))).await;
        }
        Interrupted::Failed(ReconcileError::from(error).no_later_than(until))
    }

    /// Annotations that a claim gets in its first pass.
    fn first_annotations(&self) -> ClaimAnnotations {
        let settings = &self.reconciler.settings;
        let seen = self.reconciler.local_states.lock().get(self.key).map(|local| local.first_seen);
        ClaimAnnotations {
            first_observed: seen.filter(|_| settings.observability_annotations),
            trace_context: self.span.annotation().map(str::to_owned),
            ..ClaimAnnotations::default()
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

    /// Sends a write; after a conflict the pass starts over.
    async fn send(&self, request: &Request) -> Result<Option<Object>, Interrupted> {
        match self.writer.send(request).await {
            Ok(object) => Ok(object),
            Err(ApiError::NotFound { .. }) => Ok(None),
            Err(ApiError::Conflict { .. }) => Err(Interrupted::Stale { kind: request.kind, key: request.key.clone() }),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the status if it differs; returns the claim as it is then.
    async fn publish(&self, claim: &Arc<SandboxClaim>, finding: Finding<'_>) -> Result<Arc<SandboxClaim>, Interrupted> {
        let status = status_after(claim, finding, self.reconciler.clock.now());
        let Some(request) = status_patch(claim, &status) else { return Ok(claim.clone()) };
        let announced = expiry::is_marked_expired(claim);
        let response = self.send(&request).await?.and_then(|object| object.cast::<SandboxClaim>());
        let Some(after) = response else { return Err(Interrupted::Again) };
        if !announced && expiry::is_marked_expired(&after) && !expiry::is_expired(claim, self.reconciler.clock.now()) {
            self.event(&after, "ClaimExpired", "Claim Expired", "Claim expired".to_owned());
        }
        Ok(after)
    }

    /// Ends a pass whose status was published.
    fn finish_pass(&self, claim: &SandboxClaim) -> Result<Next, Interrupted> {
        if is_ready(claim.status.as_ref()) {
            self.reconciler.forget(self.key);
        }
        if expiry::is_marked_expired(claim) {
            return Ok(Next::After(CLEAN_UP_DELAY));
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

    /// Counts a claim's readiness, once.
    fn count_ready(&self, before: &SandboxClaim, after: &SandboxClaim, sandbox: &Sandbox) {
        let first_seen = self.reconciler.local_states.lock().get(self.key).map(|local| local.first_seen);
        let now = self.reconciler.clock.now();
        if let Some(ready) = observability::first_ready(before, after, sandbox, first_seen, now) {
            self.reconciler.metrics.claim_ready(&ready);
        }
    }
}
