//! The status of a claim.

use agent_sandbox_api::{
    conditions::{self, ClaimReady, ConditionType, Reason},
    v1beta1::{BoundSandbox, SandboxClaim, SandboxClaimStatus},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::json;

use super::expiry;
use crate::api_client::{Request, merge_diff};

use crate::cache::Sandbox;

/// The result of a pass that the status reports.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding<'a> {
    /// The claim has this Sandbox.
    Serves(&'a Sandbox),
    /// The claim has no Sandbox, for this reason. What was published stays.
    Refused(ClaimReady),
    /// The claim is expired; nothing else was examined.
    Expired,
    /// The claim is expired and its Sandbox is gone, or was never its own.
    ExpiredAndGone(ClaimReady),
}

/// The status after a finding.
pub fn status_after(claim: &SandboxClaim, finding: Finding<'_>, now: Timestamp) -> SandboxClaimStatus {
    let mut status = claim.status.clone().unwrap_or_default();
    let mut list = status.conditions.take().unwrap_or_default();
    let generation = claim.generation();
    let time = Time(now);
    let has_sandbox = matches!(finding, Finding::Serves(_));
    match finding {
        Finding::Serves(sandbox) => {
            mirror_finished(&mut list, sandbox);
            mirror_ready(&mut list, sandbox, generation, &time);
            status.sandbox = Some(BoundSandbox {
                name: Some(sandbox.name().to_owned()),
                pod_ips: Some(sandbox.pod_ips().to_vec()).filter(|ips| !ips.is_empty()),
                service_fqdn: sandbox.service_fqdn().map(str::to_owned),
            });
        }
        Finding::Refused(ready) => {
            if ready == ClaimReady::SandboxMissing {
                status.sandbox = None;
                conditions::remove(&mut list, ConditionType::Finished);
            }
            conditions::upsert(&mut list, ready.desired_condition(), generation, &time);
        }
        Finding::Expired => conditions::upsert(&mut list, ClaimReady::Expired.desired_condition(), generation, &time),
        Finding::ExpiredAndGone(ready) => {
            status.sandbox = None;
            conditions::upsert(&mut list, ready.desired_condition(), generation, &time);
        }
    }
    // The Finished condition mirrored just now may expire the claim: that is reported in the same write.
    let ended = SandboxClaim {
        status: Some(SandboxClaimStatus { conditions: Some(list.clone()), ..SandboxClaimStatus::default() }),
        ..claim.clone()
    };
    if has_sandbox && expiry::is_expired(&ended, now) {
        conditions::upsert(&mut list, ClaimReady::Expired.desired_condition(), generation, &time);
    }
    conditions::sort_by_type(&mut list);
    status.conditions = Some(list);
    status
}

fn mirror_finished(list: &mut Vec<Condition>, sandbox: &Sandbox) {
    match sandbox.condition(ConditionType::Finished) {
        Some(finished) => conditions::forward(list, finished, finished.observed_generation),
        None => conditions::remove(list, ConditionType::Finished),
    }
}

fn mirror_ready(list: &mut Vec<Condition>, sandbox: &Sandbox, generation: i64, now: &Time) {
    match sandbox.condition(ConditionType::Ready) {
        Some(ready) if ready.reason == Reason::SandboxExpired.as_str() => {
            conditions::upsert(list, ClaimReady::SandboxExpired.desired_condition(), generation, now);
        }
        Some(ready) => conditions::forward(list, ready, Some(generation)),
        None => conditions::upsert(list, ClaimReady::SandboxNotReady.desired_condition(), generation, now),
    }
}

/// The request that writes the status; `None` when it is unchanged.
pub fn status_patch(claim: &SandboxClaim, new: &SandboxClaimStatus) -> Option<Request> {
    let stored = claim.status.clone().unwrap_or_default();
    let change = merge_diff(&json!(stored), &json!(new))?;
    Some(Request::patch_status(claim, change))
}

/// Whether a status says Ready.
pub fn is_ready(status: Option<&SandboxClaimStatus>) -> bool {
    let list = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions::is_true(conditions::find(list, ConditionType::Ready))
}
