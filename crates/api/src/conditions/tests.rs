//! Tests of conditions: byte-exact texts and the rules of transition times.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use super::*;

fn at(second: i64) -> Time {
    Time(Timestamp::from_second(second).expect("in range"))
}

fn fields(condition: &DesiredCondition) -> (&str, &str, &str, &str) {
    (condition.type_.as_str(), condition.status.as_str(), &condition.reason, &condition.message)
}

#[test]
fn texts_of_a_sandbox_are_byte_exact() {
    for (condition, expected) in [
        (
            SandboxSuspended::NotSuspended.desired_condition(),
            ("Suspended", "False", "NotSuspended", "Sandbox is not suspended"),
        ),
        (
            SandboxSuspended::PodStateUnknown.desired_condition(),
            ("Suspended", "Unknown", "PodStateUnknown", "Pod state is unknown. Sandbox suspension cannot be confirmed"),
        ),
        (
            SandboxSuspended::PodTerminated.desired_condition(),
            ("Suspended", "True", "PodTerminated", "Pod has been terminated. Sandbox is suspended"),
        ),
        (
            SandboxSuspended::PodNotOwned.desired_condition(),
            ("Suspended", "False", "PodNotOwned", "Refused to delete pod because it is not owned by this sandbox"),
        ),
        (
            SandboxSuspended::PodTerminating.desired_condition(),
            ("Suspended", "False", "PodTerminating", "Pod is terminating. Sandbox is suspending"),
        ),
        (
            VolumesPending::Attach(vec!["a".into(), "b".into()]).desired_condition(),
            (
                "VolumesPending",
                "True",
                "AttachedAtResume",
                "A running Pod keeps its volumes. Attached when the Sandbox is resumed: a, b",
            ),
        ),
        (
            VolumesPending::Detach(vec!["a".into()]).desired_condition(),
            (
                "VolumesPending",
                "True",
                "DetachedAtResume",
                "A running Pod keeps its volumes. Detached when the Sandbox is resumed: a",
            ),
        ),
        (
            VolumesPending::Change { attach: vec!["a".into()], detach: vec!["b".into()] }.desired_condition(),
            (
                "VolumesPending",
                "True",
                "ChangedAtResume",
                "A running Pod keeps its volumes. When the Sandbox is resumed, attached: a; detached: b",
            ),
        ),
        (PodOutcome::Succeeded.finished(), ("Finished", "True", "PodSucceeded", "Pod completed successfully")),
        (PodOutcome::Failed.finished(), ("Finished", "True", "PodFailed", "Pod failed")),
        (
            PodScheduling::Unknown.desired_condition(),
            (
                "PodScheduled",
                "Unknown",
                "PodSchedulingUnknown",
                "Pod state is unknown. Pod scheduling cannot be determined",
            ),
        ),
        (
            PodScheduling::NotReported.desired_condition(),
            ("PodScheduled", "Unknown", "PodSchedulingUnknown", "Pod has not reported a PodScheduled condition yet"),
        ),
        (SandboxReady::MultiplePods("two".into()).desired_condition(), ("Ready", "False", "MultiplePods", "two")),
        (
            SandboxReady::ReconcilerError(vec!["a".into(), "b".into()]).desired_condition(),
            ("Ready", "False", "ReconcilerError", "Error seen: a\nb"),
        ),
        (
            SandboxReady::InvalidConfiguration("no".into()).desired_condition(),
            ("Ready", "False", "InvalidConfiguration", "no"),
        ),
        (SandboxReady::Suspending.desired_condition(), ("Ready", "False", "SandboxSuspended", "Sandbox is suspending")),
        (SandboxReady::Suspended.desired_condition(), ("Ready", "False", "SandboxSuspended", "Sandbox is suspended")),
        (
            SandboxReady::Finished(PodOutcome::Succeeded).desired_condition(),
            ("Ready", "False", "PodSucceeded", "Pod completed successfully"),
        ),
        (SandboxReady::Finished(PodOutcome::Failed).desired_condition(), ("Ready", "False", "PodFailed", "Pod failed")),
        (
            SandboxReady::DependenciesReady("ok".into()).desired_condition(),
            ("Ready", "True", "DependenciesReady", "ok"),
        ),
        (
            SandboxReady::DependenciesNotReady("no".into()).desired_condition(),
            ("Ready", "False", "DependenciesNotReady", "no"),
        ),
        (SandboxReady::Expired.desired_condition(), ("Ready", "False", "SandboxExpired", "Sandbox has expired")),
    ] {
        assert_eq!(fields(&condition), expected);
    }
}

#[test]
fn texts_of_a_claim_are_byte_exact() {
    for (ready, reason, message) in [
        (ClaimReady::TemplateNotFound { template: "t".into() }, "TemplateNotFound", "SandboxTemplate \"t\" not found"),
        (ClaimReady::WarmPoolNotFound { pool: "p".into() }, "WarmPoolNotFound", "SandboxWarmPool \"p\" not found"),
        (
            ClaimReady::AdoptionConflict("x".into()),
            "AdoptionConflict",
            "adoption write conflict: x; the next pass retries from a converged view",
        ),
        (
            ClaimReady::SandboxCreatePending,
            "SandboxCreatePending",
            "Sandbox already created; waiting for cache to converge",
        ),
        (ClaimReady::InvalidMetadata("m".into()), "InvalidMetadata", "m"),
        (ClaimReady::EnvVarsInjectionRejected("e".into()), "EnvVarsInjectionRejected", "e"),
        (ClaimReady::VolumeClaimTemplatesError("v".into()), "VolumeClaimTemplatesError", "v"),
        (ClaimReady::ReconcilerError("e".into()), "ReconcilerError", "Error seen: e"),
        (ClaimReady::Expired, "ClaimExpired", "Claim expired. Sandbox cleanup initiated."),
        (
            ClaimReady::ExpiredForeignSandbox { sandbox: "s".into(), claim: "c".into() },
            "ClaimExpired",
            "Claim expired. sandbox not owned by this claim: sandbox \"s\" is not owned by claim \"c\"; deletion skipped.",
        ),
        (ClaimReady::SandboxMissing, "SandboxMissing", "Sandbox does not exist"),
        (
            ClaimReady::SandboxExpired,
            "SandboxExpired",
            "Underlying Sandbox resource has expired independently of the Claim.",
        ),
        (ClaimReady::SandboxNotReady, "SandboxNotReady", "Sandbox is not ready"),
    ] {
        assert_eq!(fields(&ready.desired_condition()), ("Ready", "False", reason, message));
    }
}

#[test]
fn mirrored_scheduling_keeps_only_valid_reasons() {
    let mirrored = |status, reason: &str| {
        PodScheduling::Mirrored { status, reason: reason.into(), message: "m".into() }
            .desired_condition()
            .reason
            .into_owned()
    };
    assert_eq!(mirrored(ConditionStatus::False, "Unschedulable"), "Unschedulable");
    assert_eq!(mirrored(ConditionStatus::True, ""), "PodScheduled");
    assert_eq!(mirrored(ConditionStatus::False, ""), "PodSchedulingUnknown");
    assert_eq!(mirrored(ConditionStatus::True, "not-allowed"), "PodSchedulingUnknown");
}

#[test]
fn transition_time_moves_only_with_the_status() {
    let mut conditions = Vec::new();
    upsert(&mut conditions, SandboxReady::DependenciesNotReady("a".into()).desired_condition(), 1, &at(10));
    upsert(&mut conditions, SandboxReady::DependenciesNotReady("b".into()).desired_condition(), 2, &at(20));
    assert_eq!(conditions.len(), 1);
    let ready = find(&conditions, ConditionType::Ready).expect("written");
    assert_eq!((ready.message.as_str(), ready.observed_generation), ("b", Some(2)));
    assert_eq!(ready.last_transition_time, at(10));

    upsert(&mut conditions, SandboxReady::DependenciesReady("c".into()).desired_condition(), 2, &at(30));
    assert_eq!(find(&conditions, ConditionType::Ready).expect("written").last_transition_time, at(30));
    assert!(is_true(find(&conditions, ConditionType::Ready)));
}

#[test]
fn a_forwarded_condition_keeps_its_own_transition_time_when_the_status_changes() {
    let source = Condition {
        type_: "Ready".into(),
        status: "True".into(),
        reason: "DependenciesReady".into(),
        message: "Pod is Ready".into(),
        observed_generation: Some(7),
        last_transition_time: at(5),
    };
    let mut conditions = Vec::new();
    upsert(&mut conditions, ClaimReady::SandboxMissing.desired_condition(), 1, &at(10));
    forward(&mut conditions, &source, Some(1));
    assert_eq!(conditions, vec![Condition { observed_generation: Some(1), ..source }]);
}

#[test]
fn lists_are_sorted_and_pruned_by_type() {
    let mut conditions = Vec::new();
    upsert(&mut conditions, ClaimReady::SandboxMissing.desired_condition(), 1, &at(10));
    upsert(&mut conditions, PodOutcome::Failed.finished(), 1, &at(10));
    sort_by_type(&mut conditions);
    assert_eq!(conditions.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(), ["Finished", "Ready"]);
    remove(&mut conditions, ConditionType::Finished);
    assert!(find(&conditions, ConditionType::Finished).is_none());
}

#[test]
fn oversized_messages_are_cut_at_a_character() {
    let text = "ä".repeat(40_000);
    assert_eq!(truncated_message(text).chars().count(), 32_768);
    assert_eq!(truncated_message("short".into()), "short");
}

#[test]
fn reasons_follow_the_schemas_pattern() {
    for reason in ["A", "Ab", "A_", "A:b", "A,b1"] {
        assert!(is_reason(reason), "{reason}");
    }
    for reason in ["", "1A", "A-b", "A:", "_A", "A b", "Ä"] {
        assert!(!is_reason(reason), "{reason}");
    }
    assert!(!is_reason(&"A".repeat(1_025)));
}
