//! Adoption of a warm Sandbox, as a pure state machine: three writes, two of them dependent.
//!
//! **A** makes the claim the owner of the Sandbox (the lock: uid and version), **B** records the assignment on the
//! claim, in parallel; when both have succeeded, **C** publishes name, addresses and Ready in one status write.
//! [`Adoption::step`] takes one result and returns the next effects; the driver only executes them and reports the
//! results. Rules:
//!
//! * Nothing is decided before the outcome of both writes is known. A write without a response is repeated unchanged;
//!   the candidate that it may have adopted stays reserved.
//! * After a rejected A the Sandbox is read live: already adopted, still available, or lost. A lost Sandbox is replaced
//!   by the next candidate.
//! * After a rejected B the claim is read live: it may be gone (then C is never sent), or be assigned to another
//!   Sandbox by another leader (then this candidate is released, and deleted if it was adopted).

mod assigning;
mod publishing;

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{
    keys::{annotations, labels},
    owners,
    v1beta1::{SandboxClaim, SandboxTemplate},
};

use super::{
    claim_annotations::{Assignment, ClaimAnnotations},
    metadata,
};
use crate::{
    api_client::{ApiError, Request},
    cache::{Cached, Key, Kind, Object, Sandbox},
};

/// Maximum number of candidates lost to other claims before the claim reports it.
const MAX_LOST_CANDIDATES: usize = 5;
/// Maximum number of conflicts on one object before the pass ends.
const MAX_CONFLICTS: usize = 5;
/// Maximum number of repetitions of a request without a response; with the pauses between them about five seconds,
/// besides the requests' own timeouts.
const MAX_UNANSWERED: u32 = 9;
/// First pause before a repetition; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// A reserved candidate, with the template it was created from, if that can be read.
#[derive(Clone, Debug)]
pub struct ReservedSandbox {
    pub sandbox: Arc<Sandbox>,
    pub template: Option<Arc<SandboxTemplate>>,
}

/// The write that a request or a response belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdoptionWrite {
    /// A
    Sandbox,
    /// B
    Claim,
    /// C
    Status,
    /// The deletion of a Sandbox that was adopted although the claim was assigned to another one.
    DeleteAdopted,
}

/// What the driver does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Reserve another candidate.
    Reserve,
    /// Release a reservation.
    Release { key: Key, uid: String },
    /// Send a write, after a pause.
    Send { write: AdoptionWrite, request: Request, pause: Duration },
    /// Read an object live, after a pause.
    Read { write: AdoptionWrite, kind: Kind, key: Key, pause: Duration },
}

/// The result of an effect.
#[derive(Clone, Debug)]
pub enum EffectResult {
    Reserved(Option<ReservedSandbox>),
    Sent(AdoptionWrite, Result<Option<Object>, ApiError>),
    Read(AdoptionWrite, Result<Option<Object>, ApiError>),
}

/// The end of an adoption.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The claim has its Sandbox, and its status says so.
    Bound { sandbox: Arc<Sandbox>, claim: Arc<SandboxClaim>, pool: String },
    /// The claim no longer exists, or is being deleted.
    ClaimGone,
    /// Another leader assigned another Sandbox to the claim.
    Elsewhere,
    /// Candidates, or the one candidate, were lost to concurrent writes.
    Conflict(String),
    /// A write got no response. The reservation stays.
    Unanswered { sandbox: Arc<Sandbox>, message: String },
    /// The API rejected a write.
    Refused(ApiError),
}

#[derive(Clone, Debug)]
enum State {
    /// A candidate is being reserved, after others were lost.
    Reserving,
    /// A and B are in flight.
    Assigning {
        a: SandboxWrite,
        b: ClaimWrite,
    },
    /// C is in flight.
    Publishing {
        sandbox: Arc<Sandbox>,
        claim: Arc<SandboxClaim>,
        tries: Tries,
        request: Option<Request>,
    },
    /// An adopted Sandbox is being deleted because the claim was assigned to another one.
    DeletingAdopted {
        request: Request,
        tries: Tries,
    },
    Ended(End),
}

/// Number of conflicts, and of missing responses, of an object's write.
#[derive(Clone, Copy, Debug, Default)]
struct Tries {
    conflicts: usize,
    unanswered: u32,
}

impl Tries {
    /// Counts a missing response; returns the pause before the next repetition, or `None` when there were too many.
    fn next_pause(&mut self) -> Option<Duration> {
        let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.unanswered));
        self.unanswered += 1;
        (self.unanswered <= MAX_UNANSWERED).then_some(pause)
    }

    /// Counts a conflict; returns `false` when there were too many.
    fn count_conflict(&mut self) -> bool {
        self.conflicts += 1;
        self.conflicts <= MAX_CONFLICTS
    }
}

#[derive(Clone, Debug)]
enum SandboxWrite {
    Sending { request: Request, tries: Tries },
    Won(Arc<Sandbox>),
    Lost,
    Failed(End),
}

#[derive(Clone, Debug)]
enum ClaimWrite {
    Sending { request: Request, tries: Tries },
    Committed(Arc<SandboxClaim>),
    Gone,
    Elsewhere,
    Failed(End),
}

/// The adoption of a Sandbox by one claim.
#[derive(Clone, Debug)]
pub struct Adoption {
    /// The newest known state of the claim.
    claim: Arc<SandboxClaim>,
    /// The assignment that was recorded when the adoption began, and is to be replaced.
    outdated: Option<String>,
    annotations: ClaimAnnotations,
    /// Value of `claim-first-ready-at` if the candidate is Ready.
    ready_time: String,
    reserved: Option<ReservedSandbox>,
    lost: usize,
    now: jiff::Timestamp,
    state: State,
}

impl Adoption {
    /// Begins with a reserved candidate. `annotations` are those that the claim lacks, apart from the assignment.
    pub fn begin(
        claim: Arc<SandboxClaim>,
        reserved: ReservedSandbox,
        annotations: ClaimAnnotations,
        now: jiff::Timestamp,
    ) -> (Self, Vec<Effect>) {
        let adoption = Self {
            outdated: recorded_sandbox(&claim).map(str::to_owned),
            claim,
            annotations,
            ready_time: super::claim_annotations::format_nanoseconds(now),
            reserved: None,
            lost: 0,
            now,
            state: State::Reserving,
        };
        adoption.send_assignment(reserved)
    }

    /// The end, once it is reached.
    pub fn end(&self) -> Option<&End> {
        match &self.state {
            State::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Takes one result and returns the next effects. A result that the current state does not wait for changes
    /// nothing.
    pub fn step(mut self, outcome: EffectResult) -> (Self, Vec<Effect>) {
        match (std::mem::replace(&mut self.state, State::Reserving), outcome) {
            (State::Reserving, EffectResult::Reserved(Some(reserved))) => self.send_assignment(reserved),
            (State::Reserving, EffectResult::Reserved(None)) => {
                self.finish(End::Conflict("no candidate is left".to_owned()))
            }
            (State::Assigning { a, b }, EffectResult::Sent(AdoptionWrite::Sandbox, response)) => {
                let (a, effects) = self.on_sandbox_response(a, response);
                self.decide(a, b, effects)
            }
            (State::Assigning { a, b }, EffectResult::Read(AdoptionWrite::Sandbox, response)) => {
                let (a, effects) = self.on_sandbox_read(a, response);
                self.decide(a, b, effects)
            }
            (State::Assigning { a, b }, EffectResult::Sent(AdoptionWrite::Claim, response)) => {
                let (b, effects) = self.on_claim_response(b, response);
                self.decide(a, b, effects)
            }
            (State::Assigning { a, b }, EffectResult::Read(AdoptionWrite::Claim, response)) => {
                let (b, effects) = self.on_claim_read(b, response);
                self.decide(a, b, effects)
            }
            (
                State::Publishing { sandbox, claim, tries, request },
                EffectResult::Sent(AdoptionWrite::Status, response),
            ) => self.on_status_response(sandbox, claim, tries, request, response),
            (
                State::Publishing { sandbox, claim, tries, request },
                EffectResult::Read(AdoptionWrite::Status, response),
            ) => self.on_claim_read_while_publishing(sandbox, claim, tries, request, response),
            (State::DeletingAdopted { request, tries }, EffectResult::Sent(AdoptionWrite::DeleteAdopted, response)) => {
                self.on_delete_response(request, tries, response)
            }
            (state, _) => {
                self.state = state;
                (self, Vec::new())
            }
        }
    }

    fn trace(&self) -> Option<&str> {
        self.annotations.trace_context.as_deref()
    }

    /// Sends A and B for a candidate.
    fn send_assignment(mut self, reserved: ReservedSandbox) -> (Self, Vec<Effect>) {
        let a = metadata::adopt(&reserved.sandbox, &self.claim, reserved.template.as_deref(), self.trace());
        let b = self.assignment(&reserved.sandbox);
        self.reserved = Some(reserved);
        let mut effects = vec![send(AdoptionWrite::Sandbox, &a)];
        let b = match b {
            Some(request) => {
                effects.push(send(AdoptionWrite::Claim, &request));
                ClaimWrite::Sending { request, tries: Tries::default() }
            }
            None => ClaimWrite::Committed(self.claim.clone()),
        };
        self.state = State::Assigning { a: SandboxWrite::Sending { request: a, tries: Tries::default() }, b };
        (self, effects)
    }

    /// B for a candidate; `None` when the claim is annotated already.
    fn assignment(&self, sandbox: &Sandbox) -> Option<Request> {
        let ready = crate::claim::sandbox_is_ready(sandbox);
        let annotations = ClaimAnnotations {
            assignment: Assignment::Set(sandbox.name().to_owned()),
            first_ready: ready.then(|| self.ready_time.clone()),
            ..self.annotations.clone()
        };
        annotations
            .change(&self.claim)
            .map(|metadata| Request::patch_exact(&*self.claim, serde_json::json!({ "metadata": metadata })))
    }

    fn candidate(&self) -> &ReservedSandbox {
        self.reserved.as_ref().expect("A and B are sent only for a candidate")
    }

    /// Continues when the outcomes of A and B are known.
    fn decide(mut self, a: SandboxWrite, b: ClaimWrite, mut effects: Vec<Effect>) -> (Self, Vec<Effect>) {
        let (a, b) = match (a, b) {
            (a @ SandboxWrite::Sending { .. }, b) | (a, b @ ClaimWrite::Sending { .. }) => {
                self.state = State::Assigning { a, b };
                return (self, effects);
            }
            known => known,
        };
        let reserved = self.candidate();
        let release = Effect::Release { key: Cached::key(&*reserved.sandbox), uid: reserved.sandbox.uid().to_owned() };
        match (a, b) {
            (SandboxWrite::Won(sandbox), ClaimWrite::Committed(claim)) => {
                self.publish(sandbox, claim, Tries::default())
            }
            (SandboxWrite::Won(_), ClaimWrite::Gone) => self.finish(End::ClaimGone),
            (SandboxWrite::Won(sandbox), ClaimWrite::Elsewhere) => self.delete_adopted(&sandbox),
            (SandboxWrite::Failed(end), _) if matches!(end, End::Unanswered { .. }) => self.finish(end),
            (SandboxWrite::Failed(end), ClaimWrite::Committed(_)) => {
                effects.push(release);
                self.finish_with(end, effects)
            }
            (_, ClaimWrite::Gone) => {
                effects.push(release);
                self.finish_with(End::ClaimGone, effects)
            }
            (_, ClaimWrite::Elsewhere) => {
                effects.push(release);
                self.finish_with(End::Elsewhere, effects)
            }
            (SandboxWrite::Won(_), ClaimWrite::Failed(end)) => self.finish(end),
            (_, ClaimWrite::Failed(end)) => {
                effects.push(release);
                self.finish_with(end, effects)
            }
            (SandboxWrite::Lost, ClaimWrite::Committed(_)) => {
                effects.push(release);
                self.lost += 1;
                if self.lost >= MAX_LOST_CANDIDATES {
                    let what = format!("{} candidates were lost to others", self.lost);
                    return self.finish_with(End::Conflict(what), effects);
                }
                effects.push(Effect::Reserve);
                self.state = State::Reserving;
                (self, effects)
            }
            (SandboxWrite::Sending { .. }, _) | (_, ClaimWrite::Sending { .. }) => unreachable!("handled above"),
        }
    }

    fn bound(self, sandbox: Arc<Sandbox>, claim: Arc<SandboxClaim>) -> (Self, Vec<Effect>) {
        let pool = owners::owning_pool(&self.candidate().sandbox.metadata).map(|owner| owner.name.clone());
        self.finish(End::Bound { sandbox, claim, pool: pool.unwrap_or_default() })
    }

    fn unanswered(&self, message: &str) -> End {
        End::Unanswered { sandbox: self.candidate().sandbox.clone(), message: message.to_owned() }
    }

    fn finish(self, end: End) -> (Self, Vec<Effect>) {
        self.finish_with(end, Vec::new())
    }

    fn finish_with(mut self, end: End, effects: Vec<Effect>) -> (Self, Vec<Effect>) {
        self.state = State::Ended(end);
        (self, effects)
    }
}

fn send(write: AdoptionWrite, request: &Request) -> Effect {
    Effect::Send { write, request: request.clone(), pause: Duration::ZERO }
}

/// The Sandbox that a claim's metadata names, in the current or in the legacy form.
pub fn recorded_sandbox(claim: &SandboxClaim) -> Option<&str> {
    claim
        .annotation(annotations::SANDBOX_NAME)
        .or_else(|| claim.label(labels::LEGACY_SANDBOX_NAME))
        .filter(|name| !name.is_empty())
}
