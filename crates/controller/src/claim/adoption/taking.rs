//! The answers to A and B: whose the Sandbox is, and whose the claim.

use std::time::Duration;

use agent_sandbox_api::{
    keys::labels,
    owners::{self, Ownership},
    v1beta1::SandboxClaim,
};

use super::{Adoption, ClaimLeg, Effect, End, Leg, SandboxLeg, Tries, recorded, send};
use crate::{
    claim::metadata,
    object::{Kind, Object, Sandbox},
    ports::ApiError,
    request::Request,
};

impl Adoption {
    pub(super) fn sandbox_answered(
        &self,
        leg: SandboxLeg,
        answer: Result<Option<Object>, ApiError>,
    ) -> (SandboxLeg, Vec<Effect>) {
        let SandboxLeg::Sending { request, mut tries } = leg else { return (leg, Vec::new()) };
        let sandbox = &self.candidate().sandbox;
        match answer {
            Ok(Some(object)) => match object.cast::<Sandbox>() {
                Some(taken) => (SandboxLeg::Won(taken), Vec::new()),
                None => self.repeat_a(request, tries, "an answer without the Sandbox"),
            },
            Ok(None) => self.repeat_a(request, tries, "an answer without the Sandbox"),
            Err(ApiError::Conflict { .. } | ApiError::NotFound { .. }) => {
                if !tries.conflict() {
                    let what = format!("sandbox {} (conflicting concurrent write)", sandbox.name());
                    return (SandboxLeg::Failed(End::Conflict(what)), Vec::new());
                }
                let effect = Effect::Read {
                    leg: Leg::Sandbox,
                    kind: Kind::Sandbox,
                    key: request.key.clone(),
                    pause: Duration::ZERO,
                };
                (SandboxLeg::Sending { request, tries }, vec![effect])
            }
            Err(ApiError::Unknown { message } | ApiError::Busy { message, .. }) => {
                self.repeat_a(request, tries, &message)
            }
            Err(error) => (SandboxLeg::Failed(End::Refused(error)), Vec::new()),
        }
    }

    /// Repeats A word for word, unless that was done often enough.
    fn repeat_a(&self, request: Request, mut tries: Tries, message: &str) -> (SandboxLeg, Vec<Effect>) {
        match tries.again() {
            Some(pause) => {
                let effect = Effect::Send { leg: Leg::Sandbox, request: request.clone(), pause };
                (SandboxLeg::Sending { request, tries }, vec![effect])
            }
            None => (SandboxLeg::Failed(self.unanswered(message)), Vec::new()),
        }
    }

    /// A was refused: whose is the Sandbox now?
    pub(super) fn sandbox_seen(
        &self,
        leg: SandboxLeg,
        answer: Result<Option<Object>, ApiError>,
    ) -> (SandboxLeg, Vec<Effect>) {
        let SandboxLeg::Sending { request, mut tries } = leg else { return (leg, Vec::new()) };
        let offer = self.candidate();
        match answer {
            Ok(object) => match object.and_then(|object| object.cast::<Sandbox>()) {
                Some(found) if found.uid() != offer.sandbox.uid() => (SandboxLeg::Lost, Vec::new()),
                Some(found) if owners::ownership(&found.metadata, self.claim.uid()) == Ownership::Owned => {
                    (SandboxLeg::Won(found), Vec::new())
                }
                Some(found) if is_still_offered(&found, &offer.sandbox) => {
                    let request = metadata::adopt(&found, &self.claim, offer.template.as_deref(), self.trace());
                    let effects = vec![send(Leg::Sandbox, &request)];
                    (SandboxLeg::Sending { request, tries }, effects)
                }
                Some(_) | None => (SandboxLeg::Lost, Vec::new()),
            },
            Err(ApiError::NotLeader) => (SandboxLeg::Failed(End::Refused(ApiError::NotLeader)), Vec::new()),
            Err(error) => match tries.again() {
                Some(pause) => {
                    let effect =
                        Effect::Read { leg: Leg::Sandbox, kind: Kind::Sandbox, key: request.key.clone(), pause };
                    (SandboxLeg::Sending { request, tries }, vec![effect])
                }
                None => (SandboxLeg::Failed(self.unanswered(&error.to_string())), Vec::new()),
            },
        }
    }

    pub(super) fn claim_answered(
        &mut self,
        leg: ClaimLeg,
        answer: Result<Option<Object>, ApiError>,
    ) -> (ClaimLeg, Vec<Effect>) {
        let ClaimLeg::Sending { request, mut tries } = leg else { return (leg, Vec::new()) };
        match answer {
            Ok(object) => match object.and_then(|object| object.cast::<SandboxClaim>()) {
                Some(claim) => {
                    self.claim = claim.clone();
                    (ClaimLeg::Committed(claim), Vec::new())
                }
                None => self.repeat_b(request, tries, "an answer without the claim"),
            },
            Err(ApiError::NotFound { .. } | ApiError::Invalid { .. }) => (ClaimLeg::Gone, Vec::new()),
            Err(ApiError::Conflict { .. }) => {
                if !tries.conflict() {
                    let what = format!("claim {} (conflicting concurrent write)", self.claim.name());
                    return (ClaimLeg::Failed(End::Conflict(what)), Vec::new());
                }
                let effect = Effect::Read {
                    leg: Leg::Claim,
                    kind: Kind::Claim,
                    key: request.key.clone(),
                    pause: Duration::ZERO,
                };
                (ClaimLeg::Sending { request, tries }, vec![effect])
            }
            Err(ApiError::Unknown { message } | ApiError::Busy { message, .. }) => {
                self.repeat_b(request, tries, &message)
            }
            Err(error) => (ClaimLeg::Failed(End::Refused(error)), Vec::new()),
        }
    }

    fn repeat_b(&self, request: Request, mut tries: Tries, message: &str) -> (ClaimLeg, Vec<Effect>) {
        match tries.again() {
            Some(pause) => {
                let effect = Effect::Send { leg: Leg::Claim, request: request.clone(), pause };
                (ClaimLeg::Sending { request, tries }, vec![effect])
            }
            None => (ClaimLeg::Failed(self.unanswered(message)), Vec::new()),
        }
    }

    /// B was refused: is it still the same claim, and whose is it?
    pub(super) fn claim_seen(
        &mut self,
        leg: ClaimLeg,
        answer: Result<Option<Object>, ApiError>,
    ) -> (ClaimLeg, Vec<Effect>) {
        let ClaimLeg::Sending { request, mut tries } = leg else { return (leg, Vec::new()) };
        match answer {
            Ok(object) => {
                let found = object.and_then(|object| object.cast::<SandboxClaim>());
                let Some(found) = found.filter(|found| found.uid() == self.claim.uid() && !found.is_deleting()) else {
                    return (ClaimLeg::Gone, Vec::new());
                };
                if self.is_assigned_elsewhere(&found) {
                    return (ClaimLeg::Elsewhere, Vec::new());
                }
                self.claim = found;
                match self.assignment(&self.candidate().sandbox) {
                    Some(request) => {
                        let effects = vec![send(Leg::Claim, &request)];
                        (ClaimLeg::Sending { request, tries }, effects)
                    }
                    None => (ClaimLeg::Committed(self.claim.clone()), Vec::new()),
                }
            }
            Err(ApiError::NotLeader) => (ClaimLeg::Failed(End::Refused(ApiError::NotLeader)), Vec::new()),
            Err(error) => match tries.again() {
                Some(pause) => {
                    let effect = Effect::Read { leg: Leg::Claim, kind: Kind::Claim, key: request.key.clone(), pause };
                    (ClaimLeg::Sending { request, tries }, vec![effect])
                }
                None => (ClaimLeg::Failed(self.unanswered(&error.to_string())), Vec::new()),
            },
        }
    }

    /// Whether somebody else gave the claim another Sandbox since the adoption began.
    pub(super) fn is_assigned_elsewhere(&self, found: &SandboxClaim) -> bool {
        let ours = self.candidate().sandbox.name();
        let other = |name: &str| name != ours && Some(name) != self.outdated.as_deref();
        let published = found.bound_sandbox().filter(|name| Some(*name) != self.claim.bound_sandbox());
        recorded(found).is_some_and(other) || published.is_some_and(|name| name != ours)
    }
}

/// Whether a Sandbox that changed meanwhile may still be taken: the same pool still offers it.
fn is_still_offered(found: &Sandbox, offered: &Sandbox) -> bool {
    let pool = |sandbox: &Sandbox| owners::owning_pool(&sandbox.metadata).map(|owner| owner.uid.clone());
    !found.is_deleting()
        && found.label(labels::WARM_POOL_SANDBOX).is_some()
        && found.label(labels::CLAIM_UID).is_none()
        && pool(found).is_some()
        && pool(found) == pool(offered)
        && !crate::claim::is_spent(found)
}
