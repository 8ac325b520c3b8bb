//! Recovers the record of a Pod when its actor starts, from the runtime's state and the status written earlier. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

use crate::kubelet::actor::{container_id, termination};
use crate::kubelet::backoff::{Backoff, BackoffPolicy};
use crate::kubelet::model::{
    ContainerRecord, ImageState, ImageStatus, Instance, PodFailure, PodRecord, Run, SandboxInfo, SandboxState,
    Termination,
};
use crate::runtime;

/// The record to continue from, and whether the Pod's supervisor died while the node was not running.
pub fn recover(
    pod: &Pod,
    found: Option<&runtime::PodState>,
    policy: &BackoffPolicy,
    now: Timestamp,
) -> (PodRecord, bool) {
    let mut state = from_status(pod, policy, now);
    let Some(found) = found else { return (state, false) };
    let pod_ips = found.sandbox.ips.iter().map(ToString::to_string).collect();
    state.sandbox = SandboxState::Up(SandboxInfo { pod_ips });
    for container in &found.containers {
        let record = state.container_mut(&container.name);
        let attempts = container.attempt.saturating_sub(record.restarts);
        record.backoff = (0..attempts).fold(record.backoff, |b, _| b.grown(policy));
        record.restarts = container.attempt;
        if let Some(previous) = &container.previous {
            let run = Run { id: container_id(&previous.id), started_at: previous.started_at, stopping: false };
            record.last = Some(termination(&run, &previous.exit, None));
        }
        let run = Run { id: container_id(&container.id), started_at: container.started_at, stopping: false };
        record.instance = match &container.exit {
            None => Instance::Running(run),
            Some(exit) => {
                // If the exit was already reported, the status has the termination message; keep it.
                let known = match &record.instance {
                    Instance::Exited(t) if t.id == run.id => t.message.clone(),
                    _ => None,
                };
                Instance::Exited(termination(&run, exit, known))
            }
        };
        if container.exit.is_some() {
            record.started = false;
            record.ready = false;
        }
    }
    (state, !found.alive)
}

/// The record according to the status that was written earlier.
fn from_status(pod: &Pod, policy: &BackoffPolicy, now: Timestamp) -> PodRecord {
    let mut state = PodRecord::default();
    let Some(status) = &pod.status else { return state };
    state.started_at = status.start_time.as_ref().map(|t| t.0);
    if status.phase.as_deref() == Some("Failed")
        && let Some(reason) = &status.reason
    {
        state.failure =
            Some(PodFailure { reason: reason.clone(), message: status.message.clone().unwrap_or_default() });
    }
    let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    for container in all {
        if let Some(record) = record_from(container, policy, now) {
            state.containers.insert(container.name.clone(), record);
        }
    }
    state
}

/// The record of a container; `None` for one that never ran.
fn record_from(status: &ContainerStatus, policy: &BackoffPolicy, now: Timestamp) -> Option<ContainerRecord> {
    let restarts = u32::try_from(status.restart_count).unwrap_or(0);
    let state = status.state.as_ref();
    let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref()).map(recorded_termination);
    let running = state.and_then(|s| s.running.as_ref());
    let ended = state.and_then(|s| s.terminated.as_ref());
    let (instance, last) = match (running, ended) {
        (Some(running), _) => {
            // The status says running but the runtime does not have the container: the machine was restarted.
            let lost = Termination {
                id: status.container_id.clone().unwrap_or_default(),
                exit_code: 137,
                signal: None,
                reason: "ContainerStatusUnknown".to_owned(),
                message: Some("The container could not be located after the node came back".to_owned()),
                started_at: running.started_at.as_ref().map(|t| t.0),
                finished_at: now,
            };
            (Instance::Exited(lost), last)
        }
        (None, Some(ended)) => (Instance::Exited(recorded_termination(ended)), last),
        // Waiting: the last state is how the container ended before.
        (None, None) => (last.map_or(Instance::None, Instance::Exited), None),
    };
    if instance == Instance::None && restarts == 0 {
        return None;
    }
    let image = match status.image_id.is_empty() {
        true => ImageState::Needed,
        false => ImageState::Ready(ImageStatus { image: status.image.clone(), image_id: status.image_id.clone() }),
    };
    Some(ContainerRecord {
        restarts,
        instance,
        last,
        image,
        start_error: None,
        started: status.started == Some(true),
        ready: status.ready,
        backoff: (0..restarts).fold(Backoff::new(), |b, _| b.grown(policy)),
    })
}

/// How a container ended, according to its status.
fn recorded_termination(t: &ContainerStateTerminated) -> Termination {
    Termination {
        id: t.container_id.clone().unwrap_or_default(),
        exit_code: t.exit_code,
        signal: t.signal,
        reason: t.reason.clone().unwrap_or_default(),
        message: t.message.clone(),
        started_at: t.started_at.as_ref().map(|t| t.0),
        finished_at: t.finished_at.as_ref().map(|t| t.0).unwrap_or(Timestamp::UNIX_EPOCH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{ContainerState, Exit, PodSandbox};
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(status: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": [{"name": "a"}]}, "status": status}))
        .unwrap()
    }

    fn found(alive: bool, attempt: u32, exit: Option<i32>) -> runtime::PodState {
        runtime::PodState {
            sandbox: PodSandbox {
                uid: "u".into(),
                ips: vec!["10.0.0.5".parse().unwrap()],
                first_host_id: 0,
                id_count: 1,
                supervisor_pid: 1,
                weaknesses: vec![],
            },
            namespace: "n".into(),
            name: "p".into(),
            alive,
            containers: vec![ContainerState {
                name: "a".into(),
                attempt,
                id: "x1".into(),
                pid: 7,
                started_at: at(100),
                exit: exit.map(|code| Exit { code, signal: None, oom_killed: false, finished_at: at(200) }),
                port_open: false,
                previous: None,
            }],
        }
    }

    fn running_status() -> serde_json::Value {
        json!({"phase": "Running", "startTime": "1970-01-01T00:01:00Z", "containerStatuses": [{"name": "a", "image": "i",
            "imageID": "i@d", "ready": true, "started": true, "restartCount": 1, "containerID": "agent-sandbox://x1",
            "state": {"running": {"startedAt": "1970-01-01T00:01:40Z"}}}]})
    }

    #[test]
    fn a_running_pod_is_found_again_ready_and_with_its_address() {
        let (state, lost) =
            recover(&pod(running_status()), Some(&found(true, 1, None)), &BackoffPolicy::default(), at(300));
        assert!(!lost);
        assert_eq!(state.sandbox.info().unwrap().pod_ips, ["10.0.0.5"]);
        let record = state.container("a");
        assert_eq!((record.restarts, record.ready, record.started), (1, true, true));
        assert_eq!(record.instance.run().unwrap().id, "agent-sandbox://x1");
        assert_eq!(state.started_at, Some(at(60)));
    }

    #[test]
    fn an_exit_while_the_node_was_down_keeps_its_code() {
        let (state, _) =
            recover(&pod(running_status()), Some(&found(true, 1, Some(3))), &BackoffPolicy::default(), at(300));
        let record = state.container("a");
        assert_eq!(record.instance.termination().unwrap().exit_code, 3);
        assert_eq!(record.instance.termination().unwrap().finished_at, at(200));
        assert!(!record.ready);
    }

    #[test]
    fn after_a_reboot_running_containers_are_unknown_and_restart() {
        let (state, lost) = recover(&pod(running_status()), None, &BackoffPolicy::default(), at(300));
        assert!(!lost);
        let ended = state.container("a").instance.termination().unwrap();
        assert_eq!((ended.exit_code, ended.reason.as_str()), (137, "ContainerStatusUnknown"));
        assert_eq!(state.sandbox, SandboxState::Absent);
    }

    #[test]
    fn a_dead_supervisor_is_reported_as_lost() {
        assert!(recover(&pod(running_status()), Some(&found(false, 1, None)), &BackoffPolicy::default(), at(1)).1);
    }

    #[test]
    fn a_finished_pod_stays_finished() {
        let status = json!({"phase": "Failed", "reason": "Evicted", "message": "m", "containerStatuses": [{"name": "a",
            "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "1970-01-01T00:02:00Z"}}}]});
        let (state, _) = recover(&pod(status), None, &BackoffPolicy::default(), at(300));
        assert_eq!(state.failure.as_ref().unwrap().reason, "Evicted");
        assert_eq!(state.container("a").instance.termination().unwrap().exit_code, 1);
    }

    #[test]
    fn a_new_pod_starts_from_nothing() {
        let (state, lost) = recover(&pod(json!({"phase": "Pending"})), None, &BackoffPolicy::default(), at(1));
        assert!(state.containers.is_empty() && !lost);
    }
}
