//! Adoption of a warm Sandbox, as a pure state machine: three writes, two of them dependent.
//!
//! **A** makes the Sandbox the claim's (the lock: uid and version), **B** records the assignment on the claim, in parallel; when both have
//! landed, **C** publishes name, addresses and Ready in one status write. [`Adoption::step`] takes one answer and says what to ask next;
//! whoever drives it only sends and reports. Rules it keeps:
//!
//! * Nothing is decided before both answers are definite. An unanswered write is repeated word for word; what it may have done stays
//!   reserved.
//! * A refused A is looked at live: ours already, still to be had, or lost. A lost Sandbox is replaced by the next candidate.
//! * A refused B is looked at live: the claim may be gone (then C is never sent), or be assigned elsewhere by another leader (then ours is
//!   given up, and deleted if it was taken).

mod publishing;
mod taking;

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{
    keys::{annotations, labels},
    owners,
    v1beta1::{SandboxClaim, SandboxTemplate},
};

use super::{
    metadata,
    stamps::{Assignment, Stamps},
};
use crate::{
    object::{Cached, Key, Kind, Object, Sandbox},
    ports::ApiError,
    request::Request,
};

/// Candidates that may be lost to others before the claim says so.
const MOST_LOST: usize = 5;
/// Conflicts on one object before the pass gives way.
const MOST_CONFLICTS: usize = 5;
/// Repetitions of an unanswered request; with the pauses between them about five seconds, besides the requests' own timeouts.
const MOST_UNANSWERED: u32 = 9;
/// First pause before a repetition; doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// A reserved candidate, with the template it was made from, if that can be read.
#[derive(Clone, Debug)]
pub struct Offer {
    pub sandbox: Arc<Sandbox>,
    pub template: Option<Arc<SandboxTemplate>>,
}

/// Which of the writes a request or an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leg {
    /// A
    Sandbox,
    /// B
    Claim,
    /// C
    Status,
    /// The deletion of a Sandbox that was taken in vain.
    Extra,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Reserve another candidate.
    Reserve,
    /// Give a reservation back.
    Release { key: Key, uid: String },
    /// Send a write, after a pause.
    Send { leg: Leg, request: Request, pause: Duration },
    /// Read an object live, after a pause.
    Read { leg: Leg, kind: Kind, key: Key, pause: Duration },
}

/// What came of an effect.
#[derive(Clone, Debug)]
pub enum Outcome {
    Reserved(Option<Offer>),
    Sent(Leg, Result<Option<Object>, ApiError>),
    Read(Leg, Result<Option<Object>, ApiError>),
}

/// How an adoption ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The claim is served, and says so.
    Bound { sandbox: Arc<Sandbox>, claim: Arc<SandboxClaim>, pool: String },
    /// The claim no longer exists, or is about not to.
    ClaimGone,
    /// Another leader assigned the claim elsewhere.
    Elsewhere,
    /// Candidates, or the one candidate, were lost to concurrent writes.
    Conflict(String),
    /// A write was never answered. The reservation stays.
    Unanswered { sandbox: Arc<Sandbox>, message: String },
    /// The API refused.
    Refused(ApiError),
}

#[derive(Clone, Debug)]
enum State {
    /// Waiting for a candidate, after having lost others.
    Choosing,
    /// A and B are under way.
    Taking {
        a: SandboxLeg,
        b: ClaimLeg,
    },
    /// C is under way.
    Publishing {
        sandbox: Arc<Sandbox>,
        claim: Arc<SandboxClaim>,
        tries: Tries,
        request: Option<Request>,
    },
    /// A Sandbox that was taken in vain is being deleted.
    Undoing {
        request: Request,
        tries: Tries,
    },
    Ended(End),
}

/// How often an object's write met with a conflict, and with silence.
#[derive(Clone, Copy, Debug, Default)]
struct Tries {
    conflicts: usize,
    unanswered: u32,
}

impl Tries {
    /// The pause before the next repetition; none when it is time to give up.
    fn again(&mut self) -> Option<Duration> {
        let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.unanswered));
        self.unanswered += 1;
        (self.unanswered <= MOST_UNANSWERED).then_some(pause)
    }

    /// Counts a conflict; false when there were too many.
    fn conflict(&mut self) -> bool {
        self.conflicts += 1;
        self.conflicts <= MOST_CONFLICTS
    }
}

#[derive(Clone, Debug)]
enum SandboxLeg {
    Sending { request: Request, tries: Tries },
    Won(Arc<Sandbox>),
    Lost,
    Failed(End),
}

#[derive(Clone, Debug)]
enum ClaimLeg {
    Sending { request: Request, tries: Tries },
    Committed(Arc<SandboxClaim>),
    Gone,
    Elsewhere,
    Failed(End),
}

/// One claim's adoption.
#[derive(Clone, Debug)]
pub struct Adoption {
    /// The newest state of the claim that is known here.
    claim: Arc<SandboxClaim>,
    /// The assignment that was recorded when the adoption began, and is to be replaced.
    outdated: Option<String>,
    stamps: Stamps,
    /// What `claim-first-ready-at` will say if the candidate is Ready.
    ready_stamp: String,
    offer: Option<Offer>,
    lost: usize,
    now: jiff::Timestamp,
    state: State,
}

impl Adoption {
    /// Begins with a reserved candidate. `stamps` are the annotations the claim lacks, apart from the assignment.
    pub fn begin(claim: Arc<SandboxClaim>, offer: Offer, stamps: Stamps, now: jiff::Timestamp) -> (Self, Vec<Effect>) {
        let adoption = Self {
            outdated: recorded(&claim).map(str::to_owned),
            claim,
            stamps,
            ready_stamp: super::stamps::precise(now),
            offer: None,
            lost: 0,
            now,
            state: State::Choosing,
        };
        adoption.take(offer)
    }

    /// How it ended, once it has.
    pub fn end(&self) -> Option<&End> {
        match &self.state {
            State::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Takes one answer in and says what to do next. An answer that nobody waits for changes nothing.
    pub fn step(mut self, outcome: Outcome) -> (Self, Vec<Effect>) {
        match (std::mem::replace(&mut self.state, State::Choosing), outcome) {
            (State::Choosing, Outcome::Reserved(Some(offer))) => self.take(offer),
            (State::Choosing, Outcome::Reserved(None)) => self.finish(End::Conflict("no candidate is left".to_owned())),
            (State::Taking { a, b }, Outcome::Sent(Leg::Sandbox, answer)) => {
                let (a, effects) = self.sandbox_answered(a, answer);
                self.decide(a, b, effects)
            }
            (State::Taking { a, b }, Outcome::Read(Leg::Sandbox, answer)) => {
                let (a, effects) = self.sandbox_seen(a, answer);
                self.decide(a, b, effects)
            }
            (State::Taking { a, b }, Outcome::Sent(Leg::Claim, answer)) => {
                let (b, effects) = self.claim_answered(b, answer);
                self.decide(a, b, effects)
            }
            (State::Taking { a, b }, Outcome::Read(Leg::Claim, answer)) => {
                let (b, effects) = self.claim_seen(b, answer);
                self.decide(a, b, effects)
            }
            (State::Publishing { sandbox, claim, tries, request }, Outcome::Sent(Leg::Status, answer)) => {
                self.status_answered(sandbox, claim, tries, request, answer)
            }
            (State::Publishing { sandbox, claim, tries, request }, Outcome::Read(Leg::Status, answer)) => {
                self.claim_seen_while_publishing(sandbox, claim, tries, request, answer)
            }
            (State::Undoing { request, tries }, Outcome::Sent(Leg::Extra, answer)) => {
                self.undone(request, tries, answer)
            }
            (state, _) => {
                self.state = state;
                (self, Vec::new())
            }
        }
    }

    fn trace(&self) -> Option<&str> {
        self.stamps.trace_context.as_deref()
    }

    /// Sends A and B for a candidate.
    fn take(mut self, offer: Offer) -> (Self, Vec<Effect>) {
        let a = metadata::adopt(&offer.sandbox, &self.claim, offer.template.as_deref(), self.trace());
        let b = self.assignment(&offer.sandbox);
        self.offer = Some(offer);
        let mut effects = vec![send(Leg::Sandbox, &a)];
        let b = match b {
            Some(request) => {
                effects.push(send(Leg::Claim, &request));
                ClaimLeg::Sending { request, tries: Tries::default() }
            }
            None => ClaimLeg::Committed(self.claim.clone()),
        };
        self.state = State::Taking { a: SandboxLeg::Sending { request: a, tries: Tries::default() }, b };
        (self, effects)
    }

    /// B for a candidate; none when the claim says all of it already.
    fn assignment(&self, sandbox: &Sandbox) -> Option<Request> {
        let ready = crate::claim::sandbox_is_ready(sandbox);
        let stamps = Stamps {
            assignment: Assignment::Set(sandbox.name().to_owned()),
            first_ready: ready.then(|| self.ready_stamp.clone()),
            ..self.stamps.clone()
        };
        stamps
            .change(&self.claim)
            .map(|metadata| Request::patch_exact(&*self.claim, serde_json::json!({ "metadata": metadata })))
    }

    fn candidate(&self) -> &Offer {
        self.offer.as_ref().expect("A and B are sent only for a candidate")
    }

    /// Goes on when both answers are in.
    fn decide(mut self, a: SandboxLeg, b: ClaimLeg, mut effects: Vec<Effect>) -> (Self, Vec<Effect>) {
        let (a, b) = match (a, b) {
            (a @ SandboxLeg::Sending { .. }, b) | (a, b @ ClaimLeg::Sending { .. }) => {
                self.state = State::Taking { a, b };
                return (self, effects);
            }
            settled => settled,
        };
        let offer = self.candidate();
        let release = Effect::Release { key: Cached::key(&*offer.sandbox), uid: offer.sandbox.uid().to_owned() };
        match (a, b) {
            (SandboxLeg::Won(sandbox), ClaimLeg::Committed(claim)) => self.publish(sandbox, claim, Tries::default()),
            (SandboxLeg::Won(_), ClaimLeg::Gone) => self.finish(End::ClaimGone),
            (SandboxLeg::Won(sandbox), ClaimLeg::Elsewhere) => self.undo(&sandbox),
            (SandboxLeg::Failed(end), _) if matches!(end, End::Unanswered { .. }) => self.finish(end),
            (SandboxLeg::Failed(end), ClaimLeg::Committed(_)) => {
                effects.push(release);
                self.finish_with(end, effects)
            }
            (_, ClaimLeg::Gone) => {
                effects.push(release);
                self.finish_with(End::ClaimGone, effects)
            }
            (_, ClaimLeg::Elsewhere) => {
                effects.push(release);
                self.finish_with(End::Elsewhere, effects)
            }
            (SandboxLeg::Won(_), ClaimLeg::Failed(end)) => self.finish(end),
            (_, ClaimLeg::Failed(end)) => {
                effects.push(release);
                self.finish_with(end, effects)
            }
            (SandboxLeg::Lost, ClaimLeg::Committed(_)) => {
                effects.push(release);
                self.lost += 1;
                if self.lost >= MOST_LOST {
                    let what = format!("{} candidates were lost to others", self.lost);
                    return self.finish_with(End::Conflict(what), effects);
                }
                effects.push(Effect::Reserve);
                self.state = State::Choosing;
                (self, effects)
            }
            (SandboxLeg::Sending { .. }, _) | (_, ClaimLeg::Sending { .. }) => unreachable!("handled above"),
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

fn send(leg: Leg, request: &Request) -> Effect {
    Effect::Send { leg, request: request.clone(), pause: Duration::ZERO }
}

/// The Sandbox that a claim's metadata names, in the present or in the old form.
pub fn recorded(claim: &SandboxClaim) -> Option<&str> {
    claim
        .annotation(annotations::SANDBOX_NAME)
        .or_else(|| claim.label(labels::LEGACY_SANDBOX_NAME))
        .filter(|name| !name.is_empty())
}
