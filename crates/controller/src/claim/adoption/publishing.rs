//! C, the status write that tells the user; and the way back when it must not be sent.

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::v1beta1::SandboxClaim;

use super::{Adoption, Effect, End, Leg, State, Tries, send};
use crate::{
    claim::status::{Finding, status_after, status_patch},
    object::{Cached, Kind, Object, Sandbox},
    ports::ApiError,
    request::Request,
};

impl Adoption {
    /// C, or the end when the claim says all of it already.
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
                let effects = vec![send(Leg::Status, &request)];
                self.state = State::Publishing { sandbox, claim, tries, request: Some(request) };
                (self, effects)
            }
        }
    }

    pub(super) fn status_answered(
        mut self,
        sandbox: Arc<Sandbox>,
        claim: Arc<SandboxClaim>,
        mut tries: Tries,
        request: Option<Request>,
        answer: Result<Option<Object>, ApiError>,
    ) -> (Self, Vec<Effect>) {
        match answer {
            Ok(object) => {
                let claim = object.and_then(|object| object.cast::<SandboxClaim>()).unwrap_or(claim);
                self.bound(sandbox, claim)
            }
            Err(ApiError::NotFound { .. } | ApiError::Invalid { .. }) => self.finish(End::ClaimGone),
            Err(error @ ApiError::Conflict { .. }) => {
                if !tries.conflict() {
                    return self.finish(End::Refused(error));
                }
                let effect = Effect::Read {
                    leg: Leg::Status,
                    kind: Kind::Claim,
                    key: Cached::key(&*claim),
                    pause: Duration::ZERO,
                };
                self.state = State::Publishing { sandbox, claim, tries, request };
                (self, vec![effect])
            }
            Err(ApiError::Unknown { message } | ApiError::Busy { message, .. }) => match (tries.again(), request) {
                (Some(pause), Some(request)) => {
                    let effect = Effect::Send { leg: Leg::Status, request: request.clone(), pause };
                    self.state = State::Publishing { sandbox, claim, tries, request: Some(request) };
                    (self, vec![effect])
                }
                _ => {
                    let end = self.unanswered(&message);
                    self.finish(end)
                }
            },
            Err(error) => self.finish(End::Refused(error)),
        }
    }

    /// C was refused: say it again about the claim as it is now, unless it is gone or assigned elsewhere.
    pub(super) fn claim_seen_while_publishing(
        mut self,
        sandbox: Arc<Sandbox>,
        claim: Arc<SandboxClaim>,
        mut tries: Tries,
        request: Option<Request>,
        answer: Result<Option<Object>, ApiError>,
    ) -> (Self, Vec<Effect>) {
        match answer {
            Ok(object) => {
                let found = object.and_then(|object| object.cast::<SandboxClaim>());
                let Some(found) = found.filter(|found| found.uid() == claim.uid() && !found.is_deleting()) else {
                    return self.finish(End::ClaimGone);
                };
                if self.is_assigned_elsewhere(&found) {
                    return self.undo(&sandbox);
                }
                self.claim = found.clone();
                self.publish(sandbox, found, tries)
            }
            Err(ApiError::NotLeader) => self.finish(End::Refused(ApiError::NotLeader)),
            Err(error) => match tries.again() {
                Some(pause) => {
                    let effect = Effect::Read { leg: Leg::Status, kind: Kind::Claim, key: Cached::key(&*claim), pause };
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

    /// Deletes the Sandbox that was taken in vain, as it is now: it never returns to a pool.
    pub(super) fn undo(mut self, sandbox: &Sandbox) -> (Self, Vec<Effect>) {
        let request = Request::delete(sandbox, None);
        let effects = vec![send(Leg::Extra, &request)];
        self.state = State::Undoing { request, tries: Tries::default() };
        (self, effects)
    }

    /// Whatever the answer, the next pass finds every Sandbox that the claim's uid controls.
    pub(super) fn undone(
        mut self,
        request: Request,
        mut tries: Tries,
        answer: Result<Option<Object>, ApiError>,
    ) -> (Self, Vec<Effect>) {
        if let (Err(ApiError::Unknown { .. } | ApiError::Busy { .. }), Some(pause)) = (answer, tries.again()) {
            let effect = Effect::Send { leg: Leg::Extra, request: request.clone(), pause };
            self.state = State::Undoing { request, tries };
            return (self, vec![effect]);
        }
        self.finish(End::Elsewhere)
    }
}
