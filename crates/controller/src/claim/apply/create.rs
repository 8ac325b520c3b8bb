//! Creates a Sandbox for a claim that gets no warm one.

use std::sync::Arc;

use agent_sandbox_api::{
    conditions::ClaimReady,
    keys,
    owners::{self, Ownership},
    v1beta1::SandboxClaim,
};
use serde_json::json;
use tracing::debug;

use super::PENDING_RECHECK;
use crate::{
    api_client::{ApiError, Request},
    cache::{Kind, Object, Sandbox},
    claim::{
        ClaimPass,
        claim_annotations::{Assignment, ClaimAnnotations},
        expiry,
        plan::Observed,
        status::Finding,
    },
    reconcile::{Interrupted, Next},
};

/// The outcome of the create.
enum Created {
    New(Arc<Sandbox>),
    /// It existed already, and is now in the store.
    Cached,
    /// The API says that it exists, but it cannot be read.
    Unseen,
}

impl ClaimPass<'_> {
    pub(super) async fn create(
        &self,
        observed: &Observed,
        request: &Request,
        assignment: Assignment,
    ) -> Result<Next, Interrupted> {
        let claim = &observed.claim;
        let until = expiry::until_expiry(claim, observed.now);
        let annotations = ClaimAnnotations { assignment, ..self.first_annotations() };
        // Only at the observed version of the claim: with a newer one, the response would hide what another leader
        // bound meanwhile.
        let stamp =
            annotations.change(claim).map(|metadata| Request::patch_exact(&**claim, json!({ "metadata": metadata })));
        let stamped = async {
            match &stamp {
                Some(stamp) => Ok(self.writer.send(stamp).await?.and_then(|object| object.cast::<SandboxClaim>())),
                None => Ok(Some(claim.clone())),
            }
        };
        let (created, stamped) = tokio::join!(self.create_sandbox(claim, request), stamped);
        let fresh = match stamped {
            Ok(Some(fresh)) => fresh,
            Ok(None) => return Err(Interrupted::Again),
            Err(ApiError::NotFound { .. } | ApiError::Conflict { .. }) => {
                return Err(Interrupted::Stale { kind: Kind::Claim, key: self.key.clone() });
            }
            Err(error) => return Err(self.refused(claim, error, until).await),
        };
        match created {
            Ok(Created::New(sandbox)) => {
                self.event(
                    &fresh,
                    "SandboxProvisioned",
                    "Provisioning",
                    format!("Created Sandbox \"{}\"", sandbox.name()),
                );
                let pool = &fresh.spec.warm_pool_ref.name;
                self.count_creation(&fresh, &sandbox, pool, keys::LAUNCH_COLD);
                let published = self.publish(&fresh, Finding::Serves(&sandbox)).await?;
                self.finish_pass(&published)
            }
            Ok(Created::Cached) => Err(Interrupted::Again),
            Ok(Created::Unseen) => {
                if fresh.bound_sandbox().is_none() {
                    self.publish(&fresh, Finding::Refused(ClaimReady::SandboxCreatePending)).await?;
                }
                Ok(Next::After(PENDING_RECHECK))
            }
            Err(error) => Err(self.refused(&fresh, error, until).await),
        }
    }

    /// Creates the claim's own Sandbox. If one exists already, the next attempt decides by its owner.
    async fn create_sandbox(&self, claim: &SandboxClaim, request: &Request) -> Result<Created, ApiError> {
        match self.writer.send(request).await {
            Ok(object) => match object.and_then(|object| object.cast::<Sandbox>()) {
                Some(sandbox) => Ok(Created::New(sandbox)),
                None => Ok(Created::Unseen),
            },
            Err(ApiError::AlreadyExists { .. }) => match self.writer.read(Kind::Sandbox, &request.key).await {
                Ok(Some(Object::Sandbox(found))) => {
                    let ours = owners::ownership(&found.metadata, claim.uid()) == Ownership::Owned;
                    debug!(sandbox = found.name(), ours, "The Sandbox of this name exists already");
                    Ok(Created::Cached)
                }
                _ => Ok(Created::Unseen),
            },
            Err(error) => Err(error),
        }
    }
}
