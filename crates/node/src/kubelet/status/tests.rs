//! Tests of the status in each situation, with the reasons and messages of the upstream kubelet.

use serde_json::json;

use super::*;
use crate::kubelet::model::{PodFailure, SandboxState, StartError};
use crate::kubelet::scenario::{NOW, Scenario, at, exit, pod, with_spec};

fn conditions(status: &PodStatus) -> Vec<String> {
    let line = |c: &PodCondition| match (&c.reason, &c.message) {
        (Some(reason), Some(message)) => format!("{}={} {reason}: {message}", c.type_, c.status),
        (Some(reason), None) => format!("{}={} {reason}", c.type_, c.status),
        _ => format!("{}={}", c.type_, c.status),
    };
    status.conditions.iter().flatten().map(line).collect()
}

fn waiting(status: &PodStatus) -> (String, Option<String>) {
    let first = &status.container_statuses.as_ref().unwrap()[0];
    let state = first.state.as_ref().unwrap().waiting.clone().expect("waiting");
    (state.reason.unwrap(), state.message)
}

fn phase_of(scenario: &Scenario) -> String {
    scenario.status().phase.unwrap()
}

#[test]
fn a_new_pod_is_pending_and_creating() {
    let status = pod().status();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    assert_eq!(status.observed_generation, Some(3));
    assert_eq!(waiting(&status), ("ContainerCreating".into(), None));
    assert_eq!(status.pod_ip, None);
    assert_eq!(status.host_ip.as_deref(), Some("192.0.2.1"));
    assert_eq!(status.start_time, Some(Time(at(NOW - 100))));
    assert_eq!(
        conditions(&status),
        [
            "PodReadyToStartContainers=False",
            "Initialized=True",
            "Ready=False ContainersNotReady: containers with unready status: [main]",
            "ContainersReady=False ContainersNotReady: containers with unready status: [main]",
            "PodScheduled=True",
        ]
    );
}

#[test]
fn a_running_ready_pod_says_so_everywhere() {
    let status = pod().prepared().running("main").status();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.pod_ip.as_deref(), Some("10.1.0.7"));
    assert_eq!(status.pod_ips.as_ref().unwrap()[0].ip, "10.1.0.7");
    assert_eq!(
        conditions(&status),
        [
            "PodReadyToStartContainers=True",
            "Initialized=True",
            "Ready=True",
            "ContainersReady=True",
            "PodScheduled=True"
        ]
    );
    let container = &status.container_statuses.unwrap()[0];
    assert!(container.ready && container.started == Some(true));
    assert_eq!(container.image_id, "img@sha256:1");
    assert_eq!(container.container_id.as_deref(), Some("agent-sandbox://main"));
    assert!(container.state.as_ref().unwrap().running.is_some());
}

#[test]
fn a_running_container_that_is_not_ready_is_named() {
    let status = pod().prepared().running("main").unready("main").status();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(conditions(&status)[2], "Ready=False ContainersNotReady: containers with unready status: [main]");
}

#[test]
fn readiness_gates_hold_back_ready_but_not_containers_ready() {
    let mut scenario =
        with_spec(json!({"readinessGates": [{"conditionType": "x/gate"}], "containers": [{"name": "main"}]}))
            .prepared()
            .running("main");
    let closed = conditions(&scenario.status());
    assert_eq!(
        closed[2],
        "Ready=False ReadinessGatesNotReady: corresponding condition of pod readiness gate \"x/gate\" does not exist."
    );
    assert_eq!(closed[3], "ContainersReady=True");
    let gate = json!({"conditions": [{"type": "x/gate", "status": "True"}]});
    scenario.pod.status = Some(serde_json::from_value(gate).unwrap());
    let open = conditions(&scenario.status());
    assert_eq!(open[2], "Ready=True");
    assert_eq!(open[5], "x/gate=True", "a condition of another owner is kept");
}

#[test]
fn phases_follow_exits_and_restart_policy() {
    for (policy, first, second, want) in [
        ("Always", Some(1), Some(1), "Running"),
        ("OnFailure", Some(0), Some(0), "Succeeded"),
        ("OnFailure", Some(0), Some(1), "Running"),
        ("Never", Some(0), Some(0), "Succeeded"),
        ("Never", Some(0), Some(1), "Failed"),
        ("Never", Some(1), None, "Running"),
        ("Always", Some(0), None, "Running"),
    ] {
        let spec = json!({"restartPolicy": policy, "containers": [{"name": "a"}, {"name": "b"}]});
        let mut scenario = with_spec(spec).prepared();
        for (name, code) in [("a", first), ("b", second)] {
            scenario = match code {
                Some(code) => scenario.exited(name, code, NOW - 1),
                None => scenario.running(name),
            };
        }
        assert_eq!(phase_of(&scenario), want, "{policy} {first:?} {second:?}");
    }
}

#[test]
fn a_final_phase_stays_final() {
    let done = with_spec(json!({"restartPolicy": "Never", "containers": [{"name": "main"}]})).prepared().exited(
        "main",
        0,
        NOW - 1,
    );
    let status = done.status();
    assert_eq!(
        conditions(&status)[1..4],
        ["Initialized=True PodCompleted", "Ready=False PodCompleted", "ContainersReady=False PodCompleted",]
    );
    let removed = done.edit(|s| s.sandbox = SandboxState::Absent);
    let after = removed.status_after(Some(&status));
    assert_eq!(after.phase.as_deref(), Some("Succeeded"));
    assert_eq!(after.pod_ip.as_deref(), Some("10.1.0.7"), "the address stays on record");
}

#[test]
fn a_crash_loop_is_waiting_with_the_last_exit_beside_it() {
    let status = pod().prepared().restarted("main", 2).exited("main", 7, NOW - 3).status();
    assert_eq!(
        waiting(&status),
        ("CrashLoopBackOff".into(), Some("back-off 20s restarting failed container=main pod=p_ns(u1)".into()))
    );
    let container = &status.container_statuses.as_ref().unwrap()[0];
    assert_eq!(container.restart_count, 2);
    assert_eq!(container.last_state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 7);
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn image_errors_turn_into_back_off_after_a_moment() {
    let failed = |reason: &str, ago: i64| {
        pod().prepared().edit(|s| {
            s.container_mut("main").image = ImageState::Failed {
                reason: reason.into(),
                message: "no route".into(),
                failed_at: at(NOW - ago),
                retry_at: at(NOW + 9),
            }
        })
    };
    assert_eq!(waiting(&failed("ErrImagePull", 0).status()), ("ErrImagePull".into(), Some("no route".into())));
    assert_eq!(
        waiting(&failed("ErrImagePull", 2).status()),
        ("ImagePullBackOff".into(), Some("Back-off pulling image \"img\": ErrImagePull: no route".into()))
    );
    assert_eq!(waiting(&failed("InvalidImageName", 60).status()).0, "InvalidImageName");
    assert_eq!(waiting(&failed("ErrImageNeverPull", 60).status()).0, "ErrImageNeverPull");
}

#[test]
fn a_start_error_is_the_waiting_reason() {
    let scenario = pod().prepared().edit(|s| {
        let error = StartError {
            reason: "CreateContainerConfigError".into(),
            message: "secret \"s\" not found".into(),
            retry_at: at(NOW),
        };
        s.container_mut("main").start_error = Some(error);
    });
    assert_eq!(
        waiting(&scenario.status()),
        ("CreateContainerConfigError".into(), Some("secret \"s\" not found".into()))
    );
}

#[test]
fn init_containers_hold_the_main_ones_back() {
    let spec = json!({"initContainers": [{"name": "i1"}, {"name": "i2"}], "containers": [{"name": "main"}]});
    let status = with_spec(spec.clone()).prepared().exited("i1", 0, NOW - 9).running("i2").status();
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(
        conditions(&status)[1],
        "Initialized=False ContainersNotInitialized: containers with incomplete status: [i2]"
    );
    assert_eq!(waiting(&status).0, "PodInitializing");
    let init = status.init_container_statuses.unwrap();
    assert!(init[0].ready && !init[1].ready);
    let done = with_spec(spec).prepared().exited("i1", 0, NOW - 9).exited("i2", 0, NOW - 5).running("main").status();
    assert_eq!(conditions(&done)[1..3], ["Initialized=True", "Ready=True"]);
}

#[test]
fn an_unready_sidecar_makes_the_pod_unready() {
    let spec =
        json!({"initContainers": [{"name": "side", "restartPolicy": "Always"}], "containers": [{"name": "main"}]});
    let status = with_spec(spec).prepared().running("side").unready("side").running("main").status();
    assert_eq!(conditions(&status)[2], "Ready=False ContainersNotReady: containers with unready status: [side]");
}

#[test]
fn a_node_failure_fails_the_pod_once_nothing_runs() {
    let failure =
        |s: &mut PodRecord| s.failure = Some(PodFailure { reason: "Evicted".into(), message: "too much".into() });
    let stopping = pod().prepared().running("main").edit(failure).status();
    assert_eq!((stopping.phase.as_deref(), stopping.reason.as_deref()), (Some("Running"), Some("Evicted")));
    let ended = pod().prepared().exited("main", 137, NOW).edit(failure).status();
    assert_eq!((ended.phase.as_deref(), ended.message.as_deref()), (Some("Failed"), Some("too much")));
    assert_eq!(conditions(&ended)[2], "Ready=False PodFailed");
}

#[test]
fn transition_times_move_only_with_the_status() {
    let first = pod().prepared().running("main").unready("main").status();
    let mut earlier = first.clone();
    for condition in earlier.conditions.iter_mut().flatten() {
        condition.last_transition_time = Some(Time(at(5)));
    }
    let ready = pod().prepared().running("main").status_after(Some(&earlier));
    let since = |type_: &str| condition(&ready, type_).unwrap().last_transition_time.clone().unwrap().0;
    assert_eq!(since("PodScheduled"), at(5));
    assert_eq!(since("Ready"), at(NOW));
    assert_eq!(
        pod().prepared().running("main").unready("main").status_after(Some(&earlier)),
        earlier,
        "steady is equal"
    );
}

#[test]
fn the_attempt_before_is_the_last_state() {
    let status = pod()
        .prepared()
        .restarted("main", 1)
        .running("main")
        .edit(|s| s.container_mut("main").last = Some(exit(3, NOW - 60)))
        .status();
    let container = &status.container_statuses.unwrap()[0];
    let last = container.last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (3, Some("Error")));
    assert_eq!(container.restart_count, 1);
}
