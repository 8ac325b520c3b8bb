//! Making a Sandbox of the claim's own.

use std::sync::Arc;

use agent_sandbox_api::{
    conditions::ClaimReady,
    keys,
    owners::{self, Ownership},
    v1beta1::SandboxClaim,
};
use serde_json::json;
use tracing::debug;

use super::{Interrupted, PENDING_RECHECK, Pass};
use crate::{
    claim::{
        expiry,
        plan::Observed,
        stamps::{Assignment, Stamps},
        status::Finding,
    },
    object::{Kind, Object, Sandbox},
    ports::ApiError,
    reconcile::Next,
    request::Request,
};

/// What became of the creation of a claim's own Sandbox.
enum Created {
    New(Arc<Sandbox>),
    /// It was there, and is now in the store.
    Known,
    /// It is said to be there, and cannot be seen.
    Unseen,
}

impl Pass<'_> {
    pub(super) async fn create(
        &self,
        observed: &Observed,
        request: &Request,
        assignment: Assignment,
    ) -> Result<Next, Interrupted> {
        let claim = &observed.claim;
        let until = expiry::until_expiry(claim, observed.now);
        let stamps = Stamps { assignment, ..self.first_stamps() };
        // Exactly this state of the claim: over a newer one, what another leader bound meanwhile would be hidden in the answer.
        let stamp =
            stamps.change(claim).map(|metadata| Request::patch_exact(&**claim, json!({ "metadata": metadata })));
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
                return Err(Interrupted::Stale(Kind::Claim, self.key.clone()));
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
                self.settle(&published)
            }
            Ok(Created::Known) => Err(Interrupted::Again),
            Ok(Created::Unseen) => {
                if fresh.bound_sandbox().is_none() {
                    self.publish(&fresh, Finding::Refused(ClaimReady::SandboxCreatePending)).await?;
                }
                Ok(Next::After(PENDING_RECHECK))
            }
            Err(error) => Err(self.refused(&fresh, error, until).await),
        }
    }

    /// Creates the claim's own Sandbox. One that is there already is ours, or the next look says whose it is.
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
                    Ok(Created::Known)
                }
                _ => Ok(Created::Unseen),
            },
            Err(error) => Err(error),
        }
    }
}
