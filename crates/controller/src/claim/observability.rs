//! The metrics of claims.

use std::time::Duration;

use agent_sandbox_api::{
    conditions::ConditionType,
    keys::{self, annotations, labels},
    v1beta1::SandboxClaim,
};
use jiff::Timestamp;

use super::{sandbox_is_ready, status::is_ready};
use crate::serving::metrics::{ClaimCreated, ClaimReady};

use crate::cache::Sandbox;

/// Value of the template label when the Sandbox does not name its template.
const UNKNOWN_TEMPLATE: &str = "__unknown__";

/// The labels for a claim that got a Sandbox, from this pool or created for it.
pub(super) fn created(claim: &SandboxClaim, sandbox: &Sandbox, pool: &str, launch_type: &'static str) -> ClaimCreated {
    ClaimCreated {
        namespace: claim.namespace().to_owned(),
        sandbox_template: template_of(sandbox),
        launch_type,
        warmpool_name: pool.to_owned(),
        pod_condition: if sandbox_is_ready(sandbox) { "ready" } else { "not_ready" },
        created_by: keys::normalised_created_by(claim.label(labels::CREATED_BY).unwrap_or_default()),
    }
}

/// The latencies of a claim's first readiness; `None` when this write did not make it Ready for the first time.
///
/// The annotation may have been written before the status, so it proves earlier readiness only on a claim that was
/// bound.
pub(super) fn first_ready(
    before: &SandboxClaim,
    after: &SandboxClaim,
    sandbox: &Sandbox,
    first_seen: Option<Timestamp>,
    now: Timestamp,
) -> Option<ClaimReady> {
    let was_ready_once =
        before.annotation(annotations::CLAIM_FIRST_READY_AT).is_some() && before.bound_sandbox().is_some();
    if is_ready(before.status.as_ref()) || !is_ready(after.status.as_ref()) || was_ready_once {
        return None;
    }
    let stamped = |key| after.annotation(key).and_then(|text| text.parse::<Timestamp>().ok());
    let since = |start: Option<Timestamp>| elapsed(start?, now);
    Some(ClaimReady {
        namespace: after.namespace().to_owned(),
        launch_type: match sandbox.label(labels::LAUNCH_TYPE) {
            Some(keys::LAUNCH_WARM) => keys::LAUNCH_WARM,
            _ => keys::LAUNCH_COLD,
        },
        sandbox_template: template_of(sandbox),
        since_webhook: since(stamped(annotations::WEBHOOK_FIRST_OBSERVED_AT)),
        since_controller: since(stamped(annotations::CONTROLLER_FIRST_OBSERVED_AT).or(first_seen)),
        since_client: since(stamped(annotations::CLIENT_FIRST_REQUESTED_AT)),
        sandbox_creation: creation_latency(sandbox),
    })
}

fn template_of(sandbox: &Sandbox) -> String {
    sandbox.annotation(annotations::TEMPLATE_REF).unwrap_or(UNKNOWN_TEMPLATE).to_owned()
}

fn creation_latency(sandbox: &Sandbox) -> Option<Duration> {
    let created = sandbox.metadata.creation_timestamp.as_ref()?.0;
    elapsed(created, sandbox.condition(ConditionType::Ready)?.last_transition_time.0)
}

/// The time between two instants; `None` when the first is after the second.
fn elapsed(from: Timestamp, to: Timestamp) -> Option<Duration> {
    Duration::try_from(to.duration_since(from)).ok()
}
