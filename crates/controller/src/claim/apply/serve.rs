//! Looking after a claim that has its Sandbox.

use std::sync::Arc;

use agent_sandbox_api::{keys, v1beta1::SandboxClaim};
use serde_json::json;

use super::{Interrupted, Pass};
use crate::{
    claim::{
        expiry,
        plan::{Bound, Observed},
        stamps::{Stamps, precise},
        status::{Finding, is_ready},
    },
    object::{Kind, Sandbox},
    ports::ApiError,
    reconcile::Next,
    request::Request,
};

impl Pass<'_> {
    /// A claim that is served: repairs what is amiss, then says how its Sandbox is.
    pub(super) async fn serve(&self, observed: &Observed, bound: Bound) -> Result<Next, Interrupted> {
        let claim = &observed.claim;
        let until = expiry::until_expiry(claim, observed.now);
        if !bound.extras.is_empty() {
            // From a cache that lags, the wrong one could be kept.
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
        let stamps = Stamps { assignment: bound.stamps.assignment.clone(), ..self.first_stamps() };
        let claim = match stamps.change(claim) {
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
                    return Err(Interrupted::Stale(sync.kind, sync.key.clone()));
                }
                Err(error) => return Err(self.refused(&claim, error, until).await),
            }
        }
        let published = self.publish(&claim, Finding::Serves(&sandbox)).await?;
        self.count_ready(&claim, &published, &sandbox);
        self.stamp_first_ready(&claim, &published).await?;
        self.settle(&published)
    }

    /// Writes down, once, when the claim first was Ready. `unknown` when it was Ready before anybody wrote it down.
    async fn stamp_first_ready(&self, before: &SandboxClaim, after: &Arc<SandboxClaim>) -> Result<(), Interrupted> {
        if !is_ready(after.status.as_ref()) {
            return Ok(());
        }
        let known = !is_ready(before.status.as_ref());
        let value = if known { precise(self.reconciler.clock.now()) } else { keys::FIRST_READY_UNKNOWN.to_owned() };
        let stamps = Stamps { first_ready: Some(value), ..Stamps::default() };
        if let Some(metadata) = stamps.change(after) {
            self.send(&Request::patch(&**after, json!({ "metadata": metadata }))).await?;
        }
        Ok(())
    }
}
