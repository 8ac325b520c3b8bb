//! What is known about a Pod when its actor starts: from the runtime, and from the status written earlier. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};

use super::backoff::{Backoff, BackoffPolicy};
use super::model::{
    ContainerRecord, ImageStatus, ImageStep, Instance, PodState, Run, Sandbox, SandboxInfo, Termination, Verdict,
};
use crate::runtime;

/// The state to go on from. The flag says that the Pod's supervisor died while nobody looked.
pub fn recover(
    pod: &Pod,
    found: Option<&runtime::PodState>,
    policy: &BackoffPolicy,
    now: Timestamp,
) -> (PodState, bool) {
    let mut state = from_status(pod, policy, now);
    let Some(found) = found else { return (state, false) };
    let pod_ips = found.sandbox.ips.iter().map(ToString::to_string).collect();
    state.sandbox = Sandbox::Up(SandboxInfo { pod_ips });
    for container in &found.containers {
        let record = state.record_mut(&container.name);
        let attempts = container.attempt.saturating_sub(record.restarts);
        record.backoff = (0..attempts).fold(record.backoff, |b, _| b.grown(policy));
        record.restarts = container.attempt;
        if let Some(previous) = &container.previous {
            let run = Run { id: id(&previous.id), started_at: previous.started_at, stopping: false };
            record.last = Some(super::actor::termination(&run, &previous.exit, None));
        }
        let run = Run { id: id(&container.id), started_at: container.started_at, stopping: false };
        record.instance = match &container.exit {
            None => Instance::Running(run),
            Some(exit) => {
                // A message read earlier is kept: the status has it when the exit was already reported.
                let known = match &record.instance {
                    Instance::Exited(t) if t.id == run.id => t.message.clone(),
                    _ => None,
                };
                Instance::Exited(super::actor::termination(&run, exit, known))
            }
        };
        if container.exit.is_some() {
            record.started = false;
            record.ready = false;
        }
    }
    (state, !found.alive)
}

fn id(raw: &str) -> String {
    if raw.contains("://") { raw.to_owned() } else { format!("agent-sandbox://{raw}") }
}

/// What an earlier status says, for a Pod the runtime does not have.
fn from_status(pod: &Pod, policy: &BackoffPolicy, now: Timestamp) -> PodState {
    let mut state = PodState::default();
    let Some(status) = &pod.status else { return state };
    state.started_at = status.start_time.as_ref().map(|t| t.0);
    if status.phase.as_deref() == Some("Failed")
        && let Some(reason) = &status.reason
    {
        state.verdict = Some(Verdict { reason: reason.clone(), message: status.message.clone().unwrap_or_default() });
    }
    let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    for container in all {
        if let Some(record) = record_from(container, policy, now) {
            state.containers.insert(container.name.clone(), record);
        }
    }
    state
}

/// The record of a container that ran at some time; `None` for one that never did.
fn record_from(status: &ContainerStatus, policy: &BackoffPolicy, now: Timestamp) -> Option<ContainerRecord> {
    let restarts = u32::try_from(status.restart_count).unwrap_or(0);
    let state = status.state.as_ref();
    let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref()).map(termination);
    let running = state.and_then(|s| s.running.as_ref());
    let ended = state.and_then(|s| s.terminated.as_ref());
    let (instance, last) = match (running, ended) {
        (Some(running), _) => {
            // Said to be running, and the runtime does not have it: the machine went down under it.
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
        (None, Some(ended)) => (Instance::Exited(termination(ended)), last),
        // Waiting: what it did before is its last state.
        (None, None) => (last.map_or(Instance::None, Instance::Exited), None),
    };
    if instance == Instance::None && restarts == 0 {
        return None;
    }
    let image = match status.image_id.is_empty() {
        true => ImageStep::Needed,
        false => ImageStep::Ready(ImageStatus { image: status.image.clone(), image_id: status.image_id.clone() }),
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

fn termination(t: &ContainerStateTerminated) -> Termination {
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
        let record = state.record("a");
        assert_eq!((record.restarts, record.ready, record.started), (1, true, true));
        assert_eq!(record.instance.run().unwrap().id, "agent-sandbox://x1");
        assert_eq!(state.started_at, Some(at(60)));
    }

    #[test]
    fn an_exit_that_nobody_saw_has_its_code() {
        let (state, _) =
            recover(&pod(running_status()), Some(&found(true, 1, Some(3))), &BackoffPolicy::default(), at(300));
        let record = state.record("a");
        assert_eq!(record.instance.termination().unwrap().exit_code, 3);
        assert_eq!(record.instance.termination().unwrap().finished_at, at(200));
        assert!(!record.ready);
    }

    #[test]
    fn after_a_reboot_running_containers_are_unknown_and_restart() {
        let (state, lost) = recover(&pod(running_status()), None, &BackoffPolicy::default(), at(300));
        assert!(!lost);
        let ended = state.record("a").instance.termination().unwrap();
        assert_eq!((ended.exit_code, ended.reason.as_str()), (137, "ContainerStatusUnknown"));
        assert_eq!(state.sandbox, Sandbox::Absent);
    }

    #[test]
    fn a_dead_supervisor_is_said_to_be_lost() {
        assert!(recover(&pod(running_status()), Some(&found(false, 1, None)), &BackoffPolicy::default(), at(1)).1);
    }

    #[test]
    fn a_finished_pod_stays_finished() {
        let status = json!({"phase": "Failed", "reason": "Evicted", "message": "m", "containerStatuses": [{"name": "a",
            "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "1970-01-01T00:02:00Z"}}}]});
        let (state, _) = recover(&pod(status), None, &BackoffPolicy::default(), at(300));
        assert_eq!(state.verdict.as_ref().unwrap().reason, "Evicted");
        assert_eq!(state.record("a").instance.termination().unwrap().exit_code, 1);
    }

    #[test]
    fn a_new_pod_starts_from_nothing() {
        let (state, lost) = recover(&pod(json!({"phase": "Pending"})), None, &BackoffPolicy::default(), at(1));
        assert!(state.containers.is_empty() && !lost);
    }
}
