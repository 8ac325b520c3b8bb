//! Waits until the Pods of an earlier engine run again: until then their status still says that they run.

use agent_sandbox_engine::Engine;
use agent_sandbox_node::runtime::{PodRuntime as _, PodState};
use anyhow::Result;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{Api, ResourceExt as _, api::ListParams};
use std::time::{Duration, Instant};

/// Timeout for the Pods of an earlier engine: after it the engine counts as ready, and they continue to start.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between looks at the Pods that have not started yet.
const INTERVAL: Duration = Duration::from_millis(10);

/// Waits until the status of every Pod describes containers that this engine runs.
pub(crate) async fn wait(engine: &Engine) -> Result<()> {
    let api: Api<Pod> = Api::all(engine.client());
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let mut current = true;
        for pod in api.list(&ListParams::default()).await? {
            let state = engine.kernel().state(&pod.uid().unwrap_or_default()).await?;
            current = current && is_current(&pod, state.as_ref());
        }
        if current || Instant::now() >= deadline {
            return Ok(());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Whether a Pod's status describes what this engine runs. False for a Pod that ran on an earlier engine as long as its
/// containers are about to be started again.
fn is_current(pod: &Pod, state: Option<&PodState>) -> bool {
    let (Some(spec), Some(status)) = (&pod.spec, &pod.status) else { return true };
    if status.phase.as_deref() != Some("Running") || pod.metadata.deletion_timestamp.is_some() {
        return true;
    }
    let restarts = |exit_code: i32| match spec.restart_policy.as_deref() {
        Some("Never") => false,
        Some("OnFailure") => exit_code != 0,
        _ => true,
    };
    status.container_statuses.iter().flatten().all(|container| is_container_current(container, restarts, state))
}

fn is_container_current(container: &ContainerStatus, restarts: impl Fn(i32) -> bool, state: Option<&PodState>) -> bool {
    // The Pod that represents the router has no containers.
    let (Some(id), Some(shown)) = (&container.container_id, &container.state) else { return true };
    if shown.running.is_some() {
        let mut own = state.into_iter().flat_map(|state| &state.containers);
        return own.any(|own| own.exit.is_none() && id.ends_with(&own.id));
    }
    match &shown.waiting {
        // Other reasons say why it does not start.
        Some(waiting) => !matches!(waiting.reason.as_deref(), Some("ContainerCreating" | "PodInitializing")),
        None => !shown.terminated.as_ref().is_some_and(|ended| restarts(ended.exit_code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(phase: &str, policy: &str, shown: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "a"}, "spec": {"restartPolicy": policy, "containers": [{"name": "main"}]},
            "status": {"phase": phase, "containerStatuses": [{
                "name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "containerID": "agent-sandbox://one", "state": shown,
            }]},
        }))
        .unwrap()
    }

    fn state(id: &str, exit: Value) -> PodState {
        serde_json::from_value(json!({
            "sandbox": {"uid": "u", "ips": [], "first_host_id": 0, "id_count": 1, "supervisor_pid": 1, "weaknesses": []},
            "namespace": "default", "name": "a", "alive": true, "containers": [{
                "name": "main", "attempt": 0, "id": id, "pid": 2, "started_at": "2026-01-01T00:00:00Z", "exit": exit,
                "previous": null,
            }],
        }))
        .unwrap()
    }

    #[test]
    fn a_status_is_current_when_this_engine_runs_the_container() {
        let running = pod("Running", "Always", json!({"running": {}}));
        let ended = json!({"code": 0, "signal": null, "oom_killed": false, "finished_at": "2026-01-01T00:00:01Z"});
        assert!(is_current(&running, Some(&state("one", Value::Null))));
        assert!(!is_current(&running, None), "it ended with the earlier engine");
        assert!(!is_current(&running, Some(&state("two", Value::Null))), "the new start is not reported yet");
        assert!(!is_current(&running, Some(&state("one", ended))));
    }

    #[test]
    fn only_a_container_that_is_about_to_start_is_waited_for() {
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let ended = json!({"terminated": {"exitCode": 0}});
        assert!(!is_current(&pod("Running", "Always", waiting("ContainerCreating")), None));
        assert!(!is_current(&pod("Running", "Always", ended.clone()), None), "it is restarted at once");
        assert!(is_current(&pod("Running", "Always", waiting("CrashLoopBackOff")), None));
        assert!(is_current(&pod("Running", "OnFailure", ended.clone()), None));
        let failed = json!({"terminated": {"exitCode": 137}});
        assert!(!is_current(&pod("Running", "OnFailure", failed.clone()), None));
        assert!(is_current(&pod("Running", "Never", failed), None));
        assert!(is_current(&pod("Pending", "Always", waiting("ContainerCreating")), None), "its image may be pulled");
        assert!(is_current(&pod("Failed", "Always", ended), None));
    }
}
