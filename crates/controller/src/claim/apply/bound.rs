//! Maintains a claim that has its Sandbox.

use std::sync::Arc;

use agent_sandbox_api::{keys, v1beta1::SandboxClaim};
use serde_json::json;

use crate::{
    api_client::{ApiError, Request},
    cache::{Kind, Sandbox},
    claim::{
        ClaimPass,
        claim_annotations::{ClaimAnnotations, format_nanoseconds},
        expiry,
        plan::{Bound, Observed},
        status::{Finding, is_ready},
    },
    reconcile::{Interrupted, Next},
};

impl ClaimPass<'_> {
    /// Repairs metadata and duplicates, then publishes the state of the claim's Sandbox.
    pub(super) async fn serve_bound(&self, observed: &Observed, bound: Bound) -> Result<Next, Interrupted> {
        let claim = &observed.claim;
        let until = expiry::until_expiry(claim, observed.now);
        if !bound.extras.is_empty() {
            // With a stale cache, the wrong Sandbox could be kept.
            let live = self.writer.read(Kind::Claim, self.key).await?.and_then(|object| object.cast::<SandboxClaim>());
            if live.as_deref().map(|live| live.resource_version().to_owned())
                != Some(claim.resource_version().to_owned())
            {
                return Err(Interrupted::Again);
            }
            for extra in &bound.extras {
                self.send(extra).await?;
            }
        }
        let annotations = ClaimAnnotations { assignment: bound.assignment.clone(), ..self.first_annotations() };
        let claim = match annotations.change(claim) {
            Some(metadata) => {
                let stamp = Request::patch_exact(&**claim, json!({ "metadata": metadata }));
                self.send(&stamp).await?.and_then(|object| object.cast::<SandboxClaim>()).ok_or(Interrupted::Again)?
            }
            None => claim.clone(),
        };
        let mut sandbox = bound.sandbox;
        if let Some(sync) = &bound.sync {
            match self.writer.send(sync).await {
                Ok(object) => sandbox = object.and_then(|object| object.cast::<Sandbox>()).unwrap_or(sandbox),
                Err(ApiError::Conflict { .. } | ApiError::NotFound { .. }) => {
                    return Err(Interrupted::Stale { kind: sync.kind, key: sync.key.clone() });
                }
                Err(error) => return Err(self.refused(&claim, error, until).await),
            }
        }
        let published = self.publish(&claim, Finding::Serves(&sandbox)).await?;
        self.count_ready(&claim, &published, &sandbox);
        self.record_first_ready(&claim, &published).await?;
        self.finish_pass(&published)
    }

    /// Records, once, when the claim first was Ready; `unknown` when it was Ready before that could be recorded.
    async fn record_first_ready(&self, before: &SandboxClaim, after: &Arc<SandboxClaim>) -> Result<(), Interrupted> {
        if !is_ready(after.status.as_ref()) {
            return Ok(());
        }
        let known = !is_ready(before.status.as_ref());
        let value =
            if known { format_nanoseconds(self.reconciler.clock.now()) } else { keys::FIRST_READY_UNKNOWN.to_owned() };
        let annotations = ClaimAnnotations { first_ready: Some(value), ..ClaimAnnotations::default() };
        if let Some(metadata) = annotations.change(after) {
            self.send(&Request::patch(&**after, json!({ "metadata": metadata }))).await?;
        }
        Ok(())
    }
}
