//! C, the status write, and the deletion of an adopted Sandbox when C must not be sent.

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::v1beta1::SandboxClaim;

use super::{Adoption, AdoptionWrite, Effect, End, State, Tries, send};
use crate::{
    api_client::{ApiError, Request},
    cache::{Cached, Kind, Object, Sandbox},
    claim::status::{Finding, status_after, status_patch},
};

impl Adoption {
    /// Sends C, or ends when the claim's status is up to date already.
    pub(super) fn publish(
        mut self,
        sandbox: Arc<Sandbox>,
        claim: Arc<SandboxClaim>,
        tries: Tries,
    ) -> (Self, Vec<Effect>) {
        let status = status_after(&claim, Finding::Serves(&sandbox), self.now);
        match status_patch(&claim, &status) {
            None => self.bound(sandbox, claim),
            Some(request) => {
                let effects = vec![send(AdoptionWrite::Status, &request)];
                self.state = State::Publishing { sandbox, claim, tries, request: Some(request) };
                (self, effects)
            }
        }
    }

    pub(super) fn on_status_response(
        mut self,
        sandbox: Arc<Sandbox>,
        claim: Arc<SandboxClaim>,
        mut tries: Tries,
        request: Option<Request>,
        response: Result<Option<Object>, ApiError>,
    ) -> (Self, Vec<Effect>) {
        match response {
            Ok(object) => {
                let claim = object.and_then(|object| object.cast::<SandboxClaim>()).unwrap_or(claim);
                self.bound(sandbox, claim)
            }
            Err(ApiError::NotFound { .. } | ApiError::Invalid { .. }) => self.finish(End::ClaimGone),
            Err(error @ ApiError::Conflict { .. }) => {
                if !tries.count_conflict() {
                    return self.finish(End::Refused(error));
                }
                let effect = Effect::Read {
                    write: AdoptionWrite::Status,
                    kind: Kind::Claim,
                    key: Cached::key(&*claim),
                    pause: Duration::ZERO,
                };
                self.state = State::Publishing { sandbox, claim, tries, request };
                (self, vec![effect])
            }
            Err(ApiError::Unknown { message } | ApiError::Busy { message, .. }) => {
                match (tries.next_pause(), request) {
                    (Some(pause), Some(request)) => {
                        let effect = Effect::Send { write: AdoptionWrite::Status, request: request.clone(), pause };
                        self.state = State::Publishing { sandbox, claim, tries, request: Some(request) };
                        (self, vec![effect])
                    }
                    _ => {
                        let end = self.unanswered(&message);
                        self.finish(end)
                    }
                }
            }
            Err(error) => self.finish(End::Refused(error)),
        }
    }

    /// C was rejected: repeats it for the current claim, unless the claim is gone or assigned to another Sandbox.
    pub(super) fn on_claim_read_while_publishing(
        mut self,
        sandbox: Arc<Sandbox>,
        claim: Arc<SandboxClaim>,
        mut tries: Tries,
        request: Option<Request>,
        response: Result<Option<Object>, ApiError>,
    ) -> (Self, Vec<Effect>) {
        match response {
            Ok(object) => {
                let found = object.and_then(|object| object.cast::<SandboxClaim>());
                let Some(found) = found.filter(|found| found.uid() == claim.uid() && !found.is_deleting()) else {
                    return self.finish(End::ClaimGone);
                };
                if self.is_assigned_elsewhere(&found) {
                    return self.delete_adopted(&sandbox);
                }
                self.claim = found.clone();
                self.publish(sandbox, found, tries)
            }
            Err(ApiError::NotLeader) => self.finish(End::Refused(ApiError::NotLeader)),
            Err(error) => match tries.next_pause() {
                Some(pause) => {
                    let effect = Effect::Read {
                        write: AdoptionWrite::Status,
                        kind: Kind::Claim,
                        key: Cached::key(&*claim),
                        pause,
                    };
                    self.state = State::Publishing { sandbox, claim, tries, request };
                    (self, vec![effect])
                }
                None => {
                    let end = self.unanswered(&error.to_string());
                    self.finish(end)
                }
            },
        }
    }

    /// Deletes the adopted Sandbox at its current version: it never returns to a pool.
    pub(super) fn delete_adopted(mut self, sandbox: &Sandbox) -> (Self, Vec<Effect>) {
        let request = Request::delete(sandbox, None);
        let effects = vec![send(AdoptionWrite::DeleteAdopted, &request)];
        self.state = State::DeletingAdopted { request, tries: Tries::default() };
        (self, effects)
    }

    /// Ends whatever the outcome: the next pass finds every Sandbox that the claim controls.
    pub(super) fn on_delete_response(
        mut self,
        request: Request,
        mut tries: Tries,
        response: Result<Option<Object>, ApiError>,
    ) -> (Self, Vec<Effect>) {
        if let (Err(ApiError::Unknown { .. } | ApiError::Busy { .. }), Some(pause)) = (response, tries.next_pause()) {
            let effect = Effect::Send { write: AdoptionWrite::DeleteAdopted, request: request.clone(), pause };
            self.state = State::DeletingAdopted { request, tries };
            return (self, vec![effect]);
        }
        self.finish(End::Elsewhere)
    }
}
