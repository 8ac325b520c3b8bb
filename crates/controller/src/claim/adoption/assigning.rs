//! The results of A and B: which claim owns the Sandbox, and to which Sandbox the claim is assigned.

use std::time::Duration;

use agent_sandbox_api::{
    keys::labels,
    owners::{self, Ownership},
    v1beta1::SandboxClaim,
};

use super::{Adoption, AdoptionWrite, ClaimWrite, Effect, End, SandboxWrite, Tries, recorded_sandbox, send};
use crate::{
    api_client::{ApiError, Request},
    cache::{Kind, Object, Sandbox},
    claim::metadata,
};

impl Adoption {
    pub(super) fn on_sandbox_response(
        &self,
        write: SandboxWrite,
        response: Result<Option<Object>, ApiError>,
    ) -> (SandboxWrite, Vec<Effect>) {
        let SandboxWrite::Sending { request, mut tries } = write else { return (write, Vec::new()) };
        let sandbox = &self.candidate().sandbox;
        match response {
            Ok(Some(object)) => match object.cast::<Sandbox>() {
                Some(taken) => (SandboxWrite::Won(taken), Vec::new()),
                None => self.repeat_sandbox_write(request, tries, "an answer without the Sandbox"),
            },
            Ok(None) => self.repeat_sandbox_write(request, tries, "an answer without the Sandbox"),
            Err(ApiError::Conflict { .. } | ApiError::NotFound { .. }) => {
                if !tries.count_conflict() {
                    let what = format!("sandbox {} (conflicting concurrent write)", sandbox.name());
                    return (SandboxWrite::Failed(End::Conflict(what)), Vec::new());
                }
                let effect = Effect::Read {
                    write: AdoptionWrite::Sandbox,
                    kind: Kind::Sandbox,
                    key: request.key.clone(),
                    pause: Duration::ZERO,
                };
                (SandboxWrite::Sending { request, tries }, vec![effect])
            }
            Err(ApiError::Unknown { message } | ApiError::Busy { message, .. }) => {
                self.repeat_sandbox_write(request, tries, &message)
            }
            Err(error) => (SandboxWrite::Failed(End::Refused(error)), Vec::new()),
        }
    }

    /// Repeats A unchanged, unless the maximum number of repetitions is reached.
    fn repeat_sandbox_write(&self, request: Request, mut tries: Tries, message: &str) -> (SandboxWrite, Vec<Effect>) {
        match tries.next_pause() {
            Some(pause) => {
                let effect = Effect::Send { write: AdoptionWrite::Sandbox, request: request.clone(), pause };
                (SandboxWrite::Sending { request, tries }, vec![effect])
            }
            None => (SandboxWrite::Failed(self.unanswered(message)), Vec::new()),
        }
    }

    /// A was rejected: decides by the Sandbox's current owner.
    pub(super) fn on_sandbox_read(
        &self,
        write: SandboxWrite,
        response: Result<Option<Object>, ApiError>,
    ) -> (SandboxWrite, Vec<Effect>) {
        let SandboxWrite::Sending { request, mut tries } = write else { return (write, Vec::new()) };
        let reserved = self.candidate();
        match response {
            Ok(object) => match object.and_then(|object| object.cast::<Sandbox>()) {
                Some(found) if found.uid() != reserved.sandbox.uid() => (SandboxWrite::Lost, Vec::new()),
                Some(found) if owners::ownership(&found.metadata, self.claim.uid()) == Ownership::Owned => {
                    (SandboxWrite::Won(found), Vec::new())
                }
                Some(found) if is_still_offered(&found, &reserved.sandbox) => {
                    let request = metadata::adopt(&found, &self.claim, reserved.template.as_deref(), self.trace());
                    let effects = vec![send(AdoptionWrite::Sandbox, &request)];
                    (SandboxWrite::Sending { request, tries }, effects)
                }
                Some(_) | None => (SandboxWrite::Lost, Vec::new()),
            },
            Err(ApiError::NotLeader) => (SandboxWrite::Failed(End::Refused(ApiError::NotLeader)), Vec::new()),
            Err(error) => match tries.next_pause() {
                Some(pause) => {
                    let effect = Effect::Read {
                        write: AdoptionWrite::Sandbox,
                        kind: Kind::Sandbox,
                        key: request.key.clone(),
                        pause,
                    };
                    (SandboxWrite::Sending { request, tries }, vec![effect])
                }
                None => (SandboxWrite::Failed(self.unanswered(&error.to_string())), Vec::new()),
            },
        }
    }

    pub(super) fn on_claim_response(
        &mut self,
        write: ClaimWrite,
        response: Result<Option<Object>, ApiError>,
    ) -> (ClaimWrite, Vec<Effect>) {
        let ClaimWrite::Sending { request, mut tries } = write else { return (write, Vec::new()) };
        match response {
            Ok(object) => match object.and_then(|object| object.cast::<SandboxClaim>()) {
                Some(claim) => {
                    self.claim = claim.clone();
                    (ClaimWrite::Committed(claim), Vec::new())
                }
                None => self.repeat_claim_write(request, tries, "an answer without the claim"),
            },
            Err(ApiError::NotFound { .. } | ApiError::Invalid { .. }) => (ClaimWrite::Gone, Vec::new()),
            Err(ApiError::Conflict { .. }) => {
                if !tries.count_conflict() {
                    let what = format!("claim {} (conflicting concurrent write)", self.claim.name());
                    return (ClaimWrite::Failed(End::Conflict(what)), Vec::new());
                }
                let effect = Effect::Read {
                    write: AdoptionWrite::Claim,
                    kind: Kind::Claim,
                    key: request.key.clone(),
                    pause: Duration::ZERO,
                };
                (ClaimWrite::Sending { request, tries }, vec![effect])
            }
            Err(ApiError::Unknown { message } | ApiError::Busy { message, .. }) => {
                self.repeat_claim_write(request, tries, &message)
            }
            Err(error) => (ClaimWrite::Failed(End::Refused(error)), Vec::new()),
        }
    }

    fn repeat_claim_write(&self, request: Request, mut tries: Tries, message: &str) -> (ClaimWrite, Vec<Effect>) {
        match tries.next_pause() {
            Some(pause) => {
                let effect = Effect::Send { write: AdoptionWrite::Claim, request: request.clone(), pause };
                (ClaimWrite::Sending { request, tries }, vec![effect])
            }
            None => (ClaimWrite::Failed(self.unanswered(message)), Vec::new()),
        }
    }

    /// B was rejected: decides whether it is still the same claim and which Sandbox it is assigned to.
    pub(super) fn on_claim_read(
        &mut self,
        write: ClaimWrite,
        response: Result<Option<Object>, ApiError>,
    ) -> (ClaimWrite, Vec<Effect>) {
        let ClaimWrite::Sending { request, mut tries } = write else { return (write, Vec::new()) };
        match response {
            Ok(object) => {
                let found = object.and_then(|object| object.cast::<SandboxClaim>());
                let Some(found) = found.filter(|found| found.uid() == self.claim.uid() && !found.is_deleting()) else {
                    return (ClaimWrite::Gone, Vec::new());
                };
                if self.is_assigned_elsewhere(&found) {
                    return (ClaimWrite::Elsewhere, Vec::new());
                }
                self.claim = found;
                match self.assignment(&self.candidate().sandbox) {
                    Some(request) => {
                        let effects = vec![send(AdoptionWrite::Claim, &request)];
                        (ClaimWrite::Sending { request, tries }, effects)
                    }
                    None => (ClaimWrite::Committed(self.claim.clone()), Vec::new()),
                }
            }
            Err(ApiError::NotLeader) => (ClaimWrite::Failed(End::Refused(ApiError::NotLeader)), Vec::new()),
            Err(error) => match tries.next_pause() {
                Some(pause) => {
                    let effect = Effect::Read {
                        write: AdoptionWrite::Claim,
                        kind: Kind::Claim,
                        key: request.key.clone(),
                        pause,
                    };
                    (ClaimWrite::Sending { request, tries }, vec![effect])
                }
                None => (ClaimWrite::Failed(self.unanswered(&error.to_string())), Vec::new()),
            },
        }
    }

    /// Whether another controller assigned another Sandbox to the claim since the adoption began.
    pub(super) fn is_assigned_elsewhere(&self, found: &SandboxClaim) -> bool {
        let ours = self.candidate().sandbox.name();
        let other = |name: &str| name != ours && Some(name) != self.outdated.as_deref();
        let published = found.bound_sandbox().filter(|name| Some(*name) != self.claim.bound_sandbox());
        recorded_sandbox(found).is_some_and(other) || published.is_some_and(|name| name != ours)
    }
}

/// Whether a Sandbox that changed meanwhile may still be adopted: the same pool still offers it.
fn is_still_offered(found: &Sandbox, offered: &Sandbox) -> bool {
    let pool = |sandbox: &Sandbox| owners::owning_pool(&sandbox.metadata).map(|owner| owner.uid.clone());
    !found.is_deleting()
        && found.label(labels::WARM_POOL_SANDBOX).is_some()
        && found.label(labels::CLAIM_UID).is_none()
        && pool(found).is_some()
        && pool(found) == pool(offered)
        && !crate::claim::is_unusable(found)
}
