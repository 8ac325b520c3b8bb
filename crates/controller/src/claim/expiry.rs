//! When a claim expires.

use std::time::Duration;

use agent_sandbox_api::{
    conditions::{self, ConditionType, Reason},
    v1beta1::SandboxClaim,
};
use jiff::{SignedDuration, Timestamp};

use crate::clock::between;

/// The time at which the claim expires: its shutdown time, or the end of its Sandbox plus the time to live, whichever
/// is first.
pub fn expires_at(claim: &SandboxClaim) -> Option<Timestamp> {
    let lifecycle = claim.spec.lifecycle.as_ref()?;
    let shutdown = lifecycle.shutdown_time.as_ref().map(|time| time.0);
    let finished = claim.condition(ConditionType::Finished).filter(|finished| conditions::is_true(Some(finished)));
    let outlived = finished.zip(lifecycle.ttl_seconds_after_finished).and_then(|(finished, ttl)| {
        finished.last_transition_time.0.checked_add(SignedDuration::from_secs(i64::from(ttl))).ok()
    });
    shutdown.into_iter().chain(outlived).min()
}

/// Whether the claim is expired; at exactly the expiry time it is.
pub fn is_expired(claim: &SandboxClaim, now: Timestamp) -> bool {
    expires_at(claim).is_some_and(|instant| now >= instant)
}

/// Time left, when the claim has an expiry time.
pub fn until_expiry(claim: &SandboxClaim, now: Timestamp) -> Option<Duration> {
    expires_at(claim).map(|instant| between(now, instant))
}

/// Whether the status already reports the expiry; nothing is cleaned up before.
pub fn is_marked_expired(claim: &SandboxClaim) -> bool {
    claim.condition(ConditionType::Ready).is_some_and(|ready| ready.reason == Reason::ClaimExpired.as_str())
}
