//! Tables of situations and the plans they produce; each also shows that no further step is planned.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::kubelet::model::{PodFailure, StartError};
use crate::kubelet::scenario::{NOW, at, pod, with_spec};

fn start(container: &str, attempt: u32) -> Action {
    Action::StartContainer { container: container.into(), attempt }
}

fn stop(container: &str, seconds: u64) -> Action {
    Action::StopContainer { container: container.into(), grace: Duration::from_secs(seconds) }
}

fn pull(container: &str) -> Action {
    Action::PullImage { container: container.into() }
}

#[test]
fn a_new_pod_gets_volumes_sandbox_and_images_at_once() {
    assert_eq!(pod().actions(), [Action::PrepareVolumes, Action::CreateSandbox, pull("main")]);
}

#[test]
fn work_in_progress_is_not_started_again() {
    let busy = pod().edit(|s| {
        s.volumes = VolumesState::Preparing;
        s.sandbox = SandboxState::Creating;
        s.container_mut("main").image = ImageState::Pulling;
    });
    assert_eq!(busy.plan(), Plan::default());
    assert_eq!(pod().prepared().starting("main").plan(), Plan::default());
    assert_eq!(pod().prepared().running("main").plan(), Plan::default());
}

#[test]
fn failed_preparations_are_retried_when_due_and_not_before() {
    let failed = |second: i64| {
        pod().prepared().edit(|s| {
            s.volumes = VolumesState::Failed { message: "no claim".into(), retry_at: at(second) };
            s.sandbox = SandboxState::Failed { message: "no address".into(), retry_at: at(second + 1) };
        })
    };
    assert_eq!(failed(NOW + 5).plan(), Plan { actions: vec![], wake_at: Some(at(NOW + 5)) });
    assert_eq!(failed(NOW - 1).actions(), [Action::PrepareVolumes, Action::CreateSandbox]);
}

#[test]
fn a_container_starts_once_everything_it_needs_is_there() {
    assert_eq!(pod().prepared().actions(), [start("main", 0)]);
    let no_volumes = pod().prepared().edit(|s| s.volumes = VolumesState::Preparing);
    assert_eq!(no_volumes.actions(), []);
    let no_sandbox = pod().prepared().edit(|s| s.sandbox = SandboxState::Creating);
    assert_eq!(no_sandbox.actions(), []);
    let no_image = pod().prepared().edit(|s| s.container_mut("main").image = ImageState::Pulling);
    assert_eq!(no_image.actions(), []);
}

#[test]
fn a_failed_pull_waits_for_its_back_off() {
    let failed = |retry: i64| {
        pod().prepared().edit(|s| {
            s.container_mut("main").image = ImageState::Failed {
                reason: "ErrImagePull".into(),
                message: "no route".into(),
                failed_at: at(NOW - 5),
                retry_at: at(retry),
            }
        })
    };
    assert_eq!(failed(NOW + 10).plan(), Plan { actions: vec![], wake_at: Some(at(NOW + 10)) });
    assert_eq!(failed(NOW).actions(), [pull("main")]);
}

#[test]
fn a_start_that_failed_is_retried_when_due() {
    let failed = |retry: i64| {
        pod().prepared().edit(|s| {
            let error = StartError { reason: "CreateContainerError".into(), message: "x".into(), retry_at: at(retry) };
            s.container_mut("main").start_error = Some(error);
        })
    };
    assert_eq!(failed(NOW + 3).plan(), Plan { actions: vec![], wake_at: Some(at(NOW + 3)) });
    assert_eq!(failed(NOW - 3).actions(), [start("main", 0)]);
}

#[test]
fn restart_policy_decides_which_containers_restart() {
    for (policy, code, restarts) in [
        ("Always", 0, true),
        ("Always", 1, true),
        ("OnFailure", 0, false),
        ("OnFailure", 1, true),
        ("Never", 0, false),
        ("Never", 1, false),
    ] {
        let scenario = with_spec(json!({"restartPolicy": policy, "containers": [{"name": "main"}]})).prepared().exited(
            "main",
            code,
            NOW - 1,
        );
        let want = if restarts { vec![start("main", 1)] } else { vec![Action::RemoveSandbox] };
        assert_eq!(scenario.actions(), want, "{policy} after {code}");
    }
}

#[test]
fn a_crash_loop_waits_longer_each_time() {
    for (restarts, since, wake) in [(1, 1, Some(9)), (2, 1, Some(19)), (5, 1, Some(159)), (1, 10, None)] {
        let plan = pod().prepared().restarted("main", restarts).exited("main", 1, NOW - since).plan();
        match wake {
            Some(seconds) => assert_eq!(plan, Plan { actions: vec![], wake_at: Some(at(NOW + seconds)) }),
            None => assert_eq!(plan.actions, [start("main", restarts + 1)]),
        }
    }
}

fn with_init() -> crate::kubelet::scenario::Scenario {
    with_spec(json!({"restartPolicy": "OnFailure",
        "initContainers": [{"name": "one"}, {"name": "side", "restartPolicy": "Always"}, {"name": "two"}],
        "containers": [{"name": "a"}, {"name": "b"}]}))
    .prepared()
}

#[test]
fn init_containers_run_one_after_the_other_and_sidecars_stay() {
    assert_eq!(with_init().actions(), [start("one", 0)]);
    assert_eq!(with_init().running("one").actions(), []);
    let one_done = || with_init().exited("one", 0, NOW - 1);
    assert_eq!(one_done().actions(), [start("side", 0)]);
    assert_eq!(one_done().running("side").not_started("side").actions(), []);
    assert_eq!(one_done().running("side").actions(), [start("two", 0)]);
    assert_eq!(one_done().running("side").exited("two", 0, NOW).actions(), [start("a", 0), start("b", 0)]);
    let all = one_done().running("side").exited("two", 0, NOW).running("a").running("b");
    assert_eq!(all.actions(), []);
}

#[test]
fn a_sidecar_that_dies_is_restarted_beside_running_containers() {
    let scenario = with_init().exited("one", 0, NOW - 9).exited("two", 0, NOW - 8).running("a").running("b");
    assert_eq!(scenario.exited("side", 0, NOW - 1).actions(), [start("side", 1)]);
}

#[test]
fn a_failed_init_container_is_retried_or_ends_the_pod() {
    assert_eq!(with_init().exited("one", 1, NOW - 1).actions(), [start("one", 1)]);
    let never = with_spec(
        json!({"restartPolicy": "Never", "initContainers": [{"name": "one"}], "containers": [{"name": "a"}]}),
    )
    .prepared()
    .exited("one", 1, NOW - 1);
    assert_eq!(never.actions(), [Action::RemoveSandbox]);
}

#[test]
fn init_containers_do_not_run_again_when_a_main_container_restarts() {
    let scenario = with_init().exited("one", 0, NOW - 90).running("side").exited("two", 0, NOW - 80);
    assert_eq!(scenario.exited("a", 1, NOW - 1).running("b").actions(), [start("a", 1)]);
}

#[test]
fn deletion_stops_main_containers_then_sidecars_then_the_sandbox_then_the_object() {
    let all = || {
        with_init()
            .exited("one", 0, NOW - 90)
            .exited("two", 0, NOW - 80)
            .running("side")
            .running("a")
            .running("b")
            .deleting(30)
    };
    assert_eq!(all().actions(), [stop("a", 30), stop("b", 30)]);
    assert_eq!(all().stopping("a").stopping("b").actions(), []);
    assert_eq!(all().exited("a", 0, NOW).stopping("b").actions(), []);
    let main_gone = || all().exited("a", 0, NOW).exited("b", 143, NOW);
    assert_eq!(main_gone().actions(), [stop("side", 30)]);
    let stopped = || main_gone().exited("side", 0, NOW);
    assert_eq!(stopped().actions(), [Action::RemoveSandbox]);
    assert_eq!(stopped().edit(|s| s.sandbox = SandboxState::Removing).actions(), []);
    assert_eq!(stopped().edit(|s| s.sandbox = SandboxState::Absent).actions(), []);
    let written = stopped().edit(|s| {
        s.sandbox = SandboxState::Absent;
        s.final_status_written = true;
    });
    assert_eq!(written.actions(), [Action::DeleteObject]);
}

#[test]
fn a_failed_removal_is_repeated_before_the_object_is_deleted() {
    let failed = |second: i64| {
        pod().prepared().exited("main", 0, NOW).edit(|s| {
            s.sandbox = SandboxState::RemovalFailed { retry_at: at(second) };
            s.final_status_written = true;
        })
    };
    assert_eq!(failed(NOW).deleting(30).actions(), [Action::RemoveSandbox]);
    let waiting = failed(NOW + 1).deleting(30);
    assert_eq!((waiting.actions(), waiting.plan().wake_at), (vec![], Some(at(NOW + 1))));
    // After the loss of a supervisor: no new sandbox while the old one is there.
    let lost = pod().prepared().edit(|s| s.sandbox = SandboxState::RemovalFailed { retry_at: at(NOW) });
    assert_eq!(lost.actions(), [Action::RemoveSandbox]);
}

#[test]
fn the_grace_period_is_what_is_left_of_it() {
    let mut scenario = pod().prepared().running("main").deleting(10);
    scenario.pod.metadata.deletion_grace_period_seconds = Some(60);
    assert_eq!(scenario.actions(), [stop("main", 10)]);
    assert_eq!(pod().prepared().running("main").deleting(0).actions(), [stop("main", 0)]);
}

#[test]
fn a_pod_deleted_before_anything_ran_is_deleted_at_once() {
    let gone = pod().deleting(30).edit(|s| s.final_status_written = true);
    assert_eq!(gone.actions(), [Action::DeleteObject]);
    let creating = pod().deleting(30).edit(|s| s.sandbox = SandboxState::Creating);
    assert_eq!(creating.actions(), []);
    assert_eq!(pod().prepared().starting("main").deleting(30).actions(), []);
}

#[test]
fn a_node_failure_stops_everything_and_starts_nothing() {
    let failure = |s: &mut PodRecord| {
        s.failure = Some(PodFailure { reason: "Evicted".into(), message: "disk".into() });
    };
    assert_eq!(pod().edit(failure).actions(), []);
    assert_eq!(pod().prepared().running("main").edit(failure).actions(), [stop("main", 30)]);
    assert_eq!(pod().prepared().exited("main", 1, NOW).edit(failure).actions(), [Action::RemoveSandbox]);
}

#[test]
fn the_active_deadline_fails_the_pod() {
    let spec = |seconds: i64| with_spec(json!({"activeDeadlineSeconds": seconds, "containers": [{"name": "main"}]}));
    let before = spec(150).prepared().running("main");
    assert_eq!(before.plan(), Plan { actions: vec![], wake_at: Some(at(NOW + 50)) });
    let after = spec(100).prepared().running("main").actions();
    assert!(matches!(&after[..], [Action::Fail(v)] if v.reason == "DeadlineExceeded"), "{after:?}");
}

#[test]
fn a_finished_pod_stops_its_sidecars() {
    let scenario = with_spec(json!({"restartPolicy": "Never", "containers": [{"name": "a"}],
        "initContainers": [{"name": "s1", "restartPolicy": "Always"}, {"name": "s2", "restartPolicy": "Always"}]}))
    .prepared()
    .running("s1")
    .running("s2")
    .exited("a", 0, NOW);
    assert_eq!(scenario.actions(), [stop("s2", 30)]);
}

/// The machine's clock is changed while Pods run and while others wait: running Pods are not affected, and no delay is
/// extended.
#[test]
fn a_clock_change_ends_no_pod_and_extends_no_delay() {
    const HOUR: i64 = 3_600;
    let running = pod().prepared().running("main");
    for moved in [-1_000 * HOUR, -HOUR, HOUR, 1_000 * HOUR] {
        assert_eq!(plan(&running.pod, &running.state, at(NOW + moved)), Plan::default(), "{moved}");
    }
    // Delays that were set before the clock was moved back by an hour.
    let failed = pod().prepared().edit(|s| {
        s.volumes = VolumesState::Failed { message: "no claim".into(), retry_at: at(NOW + HOUR + 2) };
        s.sandbox = SandboxState::Failed { message: "no address".into(), retry_at: at(NOW + HOUR + 2) };
        s.container_mut("main").image = ImageState::Failed {
            reason: "ErrImagePull".into(),
            message: "no route".into(),
            failed_at: at(NOW + HOUR),
            retry_at: at(NOW + HOUR + 160),
        };
    });
    assert_eq!(failed.actions(), [Action::PrepareVolumes, Action::CreateSandbox, pull("main")]);
    let crashed = pod().prepared().exited("main", 1, NOW + HOUR).restarted("main", 5);
    assert_eq!(crashed.actions(), [start("main", 6)]);
    let refused = pod().prepared().edit(|s| {
        let error = StartError { reason: "x".into(), message: "y".into(), retry_at: at(NOW + HOUR) };
        s.container_mut("main").start_error = Some(error);
    });
    assert_eq!(refused.actions(), [start("main", 0)]);
    // A deletion requested before the clock was moved back gets its grace period, not an hour more.
    let mut deleted = pod().prepared().running("main").deleting(30);
    let deadline = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(NOW + HOUR + 30));
    deleted.pod.metadata.deletion_timestamp = Some(deadline);
    assert_eq!(deleted.actions(), [stop("main", 30)]);
}
