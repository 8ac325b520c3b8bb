//! The condition tables, computed without IO.

use agent_sandbox_api::v1beta1::OperatingMode;

use super::*;

fn sandbox(service: Option<bool>, mode: OperatingMode) -> Sandbox {
    let mut sandbox: Sandbox = serde_json::from_value(minimal()).expect("valid");
    sandbox.metadata.uid = "u".into();
    sandbox.metadata.key.namespace = "default".into();
    sandbox.metadata.generation = 3;
    sandbox.spec.service = service;
    sandbox.spec.operating_mode = Some(mode);
    sandbox
}

/// A Pod in a phase; `ready` gives it a Ready condition, `ips` addresses.
fn pod(phase: &str, ready: Option<bool>, ips: usize, owner: &str) -> Pod {
    let mut conditions = Vec::new();
    if let Some(ready) = ready {
        conditions.push(json!({ "type": "Ready", "status": if ready { "True" } else { "False" } }));
    }
    serde_json::from_value(json!({
        "metadata": {
            "name": NAME,
            "ownerReferences": [{ "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": NAME, "uid": owner, "controller": true }],
        },
        "status": { "phase": phase, "conditions": conditions, "podIPs": (0..ips).map(|n| json!({ "ip": format!("10.0.0.{n}") })).collect::<Vec<_>>() },
    }))
    .expect("valid")
}

fn scheduled(mut pod: Pod, status: &str, reason: &str, message: &str) -> Pod {
    let condition = json!({ "type": "PodScheduled", "status": status, "reason": reason, "message": message });
    let condition = serde_json::from_value(condition).expect("valid");
    pod.status.conditions = pod.status.conditions.iter().cloned().chain([condition]).collect();
    pod
}

fn present(pod: Pod) -> PodFact {
    PodFact::Present(Arc::new(pod))
}

fn compute(sandbox: &Sandbox, facts: &Facts) -> SandboxStatus {
    status_after(sandbox, facts, &Settings::default(), FakeClock::new().now())
}

fn of(status: &SandboxStatus, type_: ConditionType) -> Option<(String, String, String)> {
    agent_sandbox_api::conditions::find(status.conditions.as_deref().unwrap_or_default(), type_).map(said)
}

fn facts(pod: PodFact, service: ServiceFact) -> Facts {
    Facts { pod, service, ..Facts::default() }
}

/// S-050, S-051, S-052, S-053, S-054, S-055: the text of a Sandbox that is not Ready yet.
#[test]
fn s_050_to_s_055_what_is_still_missing() {
    use ServiceFact::{Absent, Present};
    let rows = [
        (Some(true), PodFact::Absent, Absent, "Pod does not exist; Service does not exist"),
        (None, PodFact::Absent, Present, "Pod does not exist; Service Exists"),
        (Some(true), present(pod("Pending", None, 0, "u")), Present, "Pod exists with phase: Pending; Service Exists"),
        (
            Some(true),
            present(pod("Running", Some(false), 1, "u")),
            Present,
            "Pod is Running but not Ready; Service Exists",
        ),
        (Some(true), present(pod("Running", None, 1, "u")), Present, "Pod is Running but not Ready; Service Exists"),
        (
            Some(true),
            present(pod("Running", Some(true), 0, "u")),
            Present,
            "Pod is Ready but has no podIPs yet; Service Exists",
        ),
        (None, present(pod("Unknown", None, 0, "u")), Absent, "Pod exists with phase: Unknown"),
        (None, present(pod("", None, 0, "u")), Absent, "Pod exists with phase: "),
        (Some(true), present(pod("Running", Some(true), 1, "u")), Absent, "Pod is Ready; Service does not exist"),
    ];
    for (service, pod, fact, message) in rows {
        let status = compute(&sandbox(service, OperatingMode::Running), &facts(pod, fact));
        assert_eq!(of(&status, ConditionType::Ready), Some(words("False", "DependenciesNotReady", message)));
    }
    let pending = facts(present(pod("Pending", None, 0, "u")), Present);
    let status = compute(&sandbox(Some(true), OperatingMode::Running), &pending);
    assert_eq!(of(&status, ConditionType::PodScheduled).expect("there").0, "Unknown");
}

/// S-056, S-057: a Pod that ended ends the Sandbox.
#[test]
fn s_056_s_057_finished() {
    for (phase, reason, message) in
        [("Failed", "PodFailed", "Pod failed"), ("Succeeded", "PodSucceeded", "Pod completed successfully")]
    {
        let ended = scheduled(pod(phase, None, 1, "u"), "True", "", "");
        let status = compute(&sandbox(None, OperatingMode::Running), &facts(present(ended), ServiceFact::Absent));
        assert_eq!(of(&status, ConditionType::Finished), Some(words("True", reason, message)));
        assert_eq!(of(&status, ConditionType::Ready), Some(words("False", reason, message)));
        assert_eq!(of(&status, ConditionType::PodScheduled), Some(words("True", "PodScheduled", "")));
    }
}

/// S-058, S-087: of a foreign Pod the status reports only that it blocks the name.
#[test]
fn s_058_s_087_a_foreign_pod_is_not_mirrored() {
    let foreign = pod("Succeeded", None, 2, "somebody");
    let status = compute(&sandbox(None, OperatingMode::Suspended), &facts(present(foreign), ServiceFact::Absent));
    assert_eq!(of(&status, ConditionType::Finished), None);
    assert_eq!(
        of(&status, ConditionType::Suspended),
        Some(words("False", "PodNotOwned", "Refused to delete pod because it is not owned by this sandbox"))
    );
    assert_eq!(of(&status, ConditionType::Ready), Some(words("False", "SandboxSuspended", "Sandbox is suspending")));
    assert_eq!((status.pod_ips, status.node_name), (None, None));
    assert!(status.selector.is_some());
}

/// S-059: an error is reported unchanged, several on lines of their own.
#[test]
fn s_059_errors() {
    let failed = Facts { errors: vec!["one".into(), "two".into()], ..Facts::default() };
    let status = compute(&sandbox(None, OperatingMode::Running), &failed);
    assert_eq!(of(&status, ConditionType::Ready), Some(words("False", "ReconcilerError", "Error seen: one\ntwo")));
    assert_eq!(of(&status, ConditionType::Suspended), Some(words("False", "NotSuspended", "Sandbox is not suspended")));
}

/// S-060, S-061: suspending, also when the delete call failed.
#[test]
fn s_060_s_061_suspending() {
    let owned = || present(scheduled(pod("Running", Some(true), 1, "u"), "True", "", ""));
    let suspended = sandbox(None, OperatingMode::Suspended);
    let terminating = words("False", "PodTerminating", "Pod is terminating. Sandbox is suspending");
    let status = compute(&suspended, &facts(owned(), ServiceFact::Absent));
    assert_eq!(of(&status, ConditionType::Suspended), Some(terminating.clone()));
    assert_eq!(of(&status, ConditionType::Ready), Some(words("False", "SandboxSuspended", "Sandbox is suspending")));
    assert!(of(&status, ConditionType::PodScheduled).is_some());
    let failed = Facts { errors: vec!["failed to delete pod: no".into()], ..facts(owned(), ServiceFact::Absent) };
    let status = compute(&suspended, &failed);
    assert_eq!(of(&status, ConditionType::Suspended), Some(terminating));
    assert_eq!(
        of(&status, ConditionType::Ready),
        Some(words("False", "ReconcilerError", "Error seen: failed to delete pod: no"))
    );
}

/// S-062, S-063, S-064: no Pod, known or not.
#[test]
fn s_062_to_s_064_no_pod() {
    let status = compute(&sandbox(None, OperatingMode::Suspended), &Facts::default());
    assert_eq!(
        of(&status, ConditionType::Suspended),
        Some(words("True", "PodTerminated", "Pod has been terminated. Sandbox is suspended"))
    );
    assert_eq!(of(&status, ConditionType::Ready), Some(words("False", "SandboxSuspended", "Sandbox is suspended")));
    assert_eq!(of(&status, ConditionType::PodScheduled), None);

    let lost = || Facts { pod: PodFact::Unknown, errors: vec!["pod get failed: x".into()], ..Facts::default() };
    let unknown = words("Unknown", "PodSchedulingUnknown", "Pod state is unknown. Pod scheduling cannot be determined");
    let status = compute(&sandbox(None, OperatingMode::Suspended), &lost());
    assert_eq!(
        of(&status, ConditionType::Suspended),
        Some(words("Unknown", "PodStateUnknown", "Pod state is unknown. Sandbox suspension cannot be confirmed"))
    );
    assert_eq!(of(&status, ConditionType::PodScheduled), Some(unknown.clone()));
    assert_eq!(of(&status, ConditionType::Ready).expect("there").1, "ReconcilerError");
    let status = compute(&sandbox(None, OperatingMode::Running), &lost());
    assert_eq!(of(&status, ConditionType::PodScheduled), Some(unknown));
    assert_eq!(of(&status, ConditionType::Suspended).expect("there").1, "NotSuspended");
}

/// S-065, S-070: conditions that no longer apply are removed; Suspended stays and flips.
#[test]
fn s_065_s_070_conditions_come_and_go() {
    let mut sandbox = sandbox(None, OperatingMode::Suspended);
    let running = present(scheduled(pod("Running", Some(true), 1, "u"), "True", "", ""));
    sandbox.status = Some(compute(&sandbox, &facts(running, ServiceFact::Absent)));
    assert!(sandbox.condition(ConditionType::PodScheduled).is_some());
    sandbox.status = Some(compute(&sandbox, &Facts::default()));
    assert!(sandbox.condition(ConditionType::PodScheduled).is_none());
    assert_eq!(sandbox.condition(ConditionType::Suspended).expect("stays").status, "True");
    sandbox.spec.operating_mode = Some(OperatingMode::Running);
    let status = compute(&sandbox, &Facts::default());
    assert_eq!(of(&status, ConditionType::Suspended), Some(words("False", "NotSuspended", "Sandbox is not suspended")));
    assert_eq!(of(&status, ConditionType::Ready).expect("there").1, "DependenciesNotReady");
}

/// S-066, S-067, S-068: the PodScheduled condition is mirrored; values that a condition may not carry are replaced.
#[test]
fn s_066_to_s_068_scheduling_is_mirrored() {
    let rows = [
        (("False", "Unschedulable", "0/3 nodes are available"), ("False", "Unschedulable", "0/3 nodes are available")),
        (("False", "SchedulingGated", "gated"), ("False", "SchedulingGated", "gated")),
        (("False", "", "m"), ("False", "PodSchedulingUnknown", "m")),
        (("True", "", ""), ("True", "PodScheduled", "")),
        (("False", "not-a-reason", "m"), ("False", "PodSchedulingUnknown", "m")),
    ];
    for ((status, reason, message), expected) in rows {
        let pod = scheduled(pod("Pending", None, 0, "u"), status, reason, message);
        let status = compute(&sandbox(None, OperatingMode::Running), &facts(present(pod), ServiceFact::Absent));
        assert_eq!(of(&status, ConditionType::PodScheduled), Some(words(expected.0, expected.1, expected.2)));
    }
}

/// S-069: the multiple-Pods text hides other errors.
#[test]
fn s_069_multiple_pods_comes_first() {
    let facts =
        Facts { ambiguous: Some(2), pod: PodFact::Unknown, errors: vec!["PVC trouble".into()], ..Facts::default() };
    let status = compute(&sandbox(None, OperatingMode::Running), &facts);
    let text = "multiple Pods (2) are controlled by this Sandbox; refusing to choose or create a Pod";
    assert_eq!(of(&status, ConditionType::Ready), Some(words("False", "MultiplePods", text)));
}

/// S-071, S-072: when the Pod cannot be read, the status reports an unknown state.
#[tokio::test]
async fn s_071_s_072_a_pod_that_cannot_be_read() {
    for mode in ["Running", "Suspended"] {
        let mut fixture = SandboxFixture::new();
        fixture.create(with(json!({ "spec": { "service": true } })));
        fixture.converge().await;
        fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": mode } }));
        fixture.api.fail(is_delete(Kind::Pod), Fault::Refuse(ApiError::Conflict { message: "stale".into() }));
        if mode == "Running" {
            // The cache has lost the Pod, the API has not: creating it says that it exists, reading it fails.
            fixture.sync();
            fixture.store.forget(
                Kind::Pod,
                &key(),
                &fixture.pod().metadata.uid,
                &WorkItem::new(ReconcilerKind::Sandbox, key()),
            );
        }
        fixture.api.fail_read(ApiError::Unknown { message: "connection refused".into() });
        fixture.pass().await.expect_err("reading the Pod failed");
        assert_eq!(fixture.condition(ConditionType::PodScheduled).expect("kept").0, "Unknown", "{mode}");
        if mode == "Suspended" {
            assert_eq!(fixture.condition(ConditionType::Suspended).expect("there").1, "PodStateUnknown");
            assert_eq!(fixture.status().service.as_deref(), Some(NAME));
        }
    }
}

/// R54: only a change of the status is a transition.
#[test]
fn transition_times_move_only_with_the_status() {
    let clock = FakeClock::new();
    let mut sandbox = sandbox(None, OperatingMode::Running);
    let at = |sandbox: &Sandbox, clock: &FakeClock, facts: &Facts| {
        status_after(sandbox, facts, &Settings::default(), clock.now())
    };
    sandbox.status = Some(at(&sandbox, &clock, &Facts::default()));
    let first = sandbox.condition(ConditionType::Suspended).expect("there").last_transition_time.clone();
    clock.advance(seconds(10));
    sandbox.spec.operating_mode = Some(OperatingMode::Suspended);
    let owned = facts(present(pod("Running", Some(true), 1, "u")), ServiceFact::Absent);
    sandbox.status = Some(at(&sandbox, &clock, &owned));
    let kept = sandbox.condition(ConditionType::Suspended).expect("there").clone();
    assert_eq!((kept.reason.as_str(), kept.last_transition_time), ("PodTerminating", first.clone()));
    clock.advance(seconds(10));
    sandbox.status = Some(at(&sandbox, &clock, &Facts::default()));
    let moved = sandbox.condition(ConditionType::Suspended).expect("there").clone();
    assert_eq!((moved.status.as_str(), moved.last_transition_time.0 > first.0), ("True", true));
}
