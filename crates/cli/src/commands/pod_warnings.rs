//! Why a Pod does not start: the node's warning Events, which the Pod's status does not repeat, and crashes of its
//! containers.
//!
//! Also adds a problem of this machine to an error about a sandbox that did not start.

use agent_sandbox_api::v1beta1::Sandbox;
use agent_sandbox_client::ClientError;
use agent_sandbox_engine::host_check;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Event, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::ListParams,
    runtime::{WatchStreamExt as _, wait::await_condition, watcher},
};
use std::time::Duration;

/// Event reasons after which a Pod that is started once does not run.
const FATAL_REASONS: [&str; 5] =
    ["FailedCreatePodSandBox", "FailedMount", "Failed", "InspectFailed", "RuntimeClassUnavailable"];

/// Field selector for warnings about a Pod.
fn warnings_about(pod: &str) -> String {
    format!("involvedObject.name={pod},type=Warning")
}

/// Time for which a new sandbox's command is watched for an early end.
const EARLY_END: Duration = Duration::from_millis(500);

/// How the command of a new Pod ended, if it ends right after its start.
pub(crate) async fn command_ended(client: &Client, namespace: &str, pod: &str) -> Option<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let ended = await_condition(pods, pod, |pod: Option<&Pod>| pod.and_then(early_end).is_some());
    let pod = tokio::time::timeout(EARLY_END, ended).await.ok()?.ok()??;
    early_end(&pod)
}

fn early_end(pod: &Pod) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let last = statuses.iter().find_map(last_end)?;
    let message = last.message.as_deref().map(|text| format!(" ({})", text.trim())).unwrap_or_default();
    Some(match last.reason.as_deref() {
        Some("OOMKilled") => format!("was killed{message}"),
        _ => format!("ended with exit code {}{message}", last.exit_code),
    })
}

/// How a container ended: now, or before its last restart.
fn last_end(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let states = [&status.state, &status.last_state];
    states.into_iter().flatten().find_map(|state| state.terminated.as_ref())
}

/// The latest failure of a Pod's start; without one, the latest other warning.
async fn latest_warning(client: &Client, namespace: &str, pod: &str) -> Option<String> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let found = events.list(&ListParams::default().fields(&warnings_about(pod))).await.ok()?;
    let newest = found.items.into_iter().max_by_key(|event| {
        let repeated = event.last_timestamp.as_ref().map(|time| time.0);
        let at = repeated.or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0));
        (FATAL_REASONS.contains(&event.reason.as_deref().unwrap_or_default()), at)
    })?;
    newest.message
}

/// Why a Pod failed: the message in its status, else the latest warning about it.
pub(crate) async fn failed_pod_message(client: &Client, namespace: &str, pod: &str) -> Option<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let status = pods.get_opt(pod).await.ok().flatten().and_then(|pod| pod.status);
    match status.and_then(|status| status.message).filter(|message| !message.is_empty()) {
        Some(message) => Some(message),
        None => latest_warning(client, namespace, pod).await,
    }
}

/// Adds the latest warning to an error about a sandbox that did not become ready in time.
pub(crate) async fn with_latest_warning(
    client: &Client,
    namespace: &str,
    pod: &str,
    error: ClientError,
) -> anyhow::Error {
    let ClientError::Timeout { .. } = &error else { return error.into() };
    match latest_warning(client, namespace, pod).await {
        Some(reason) => anyhow::anyhow!("{error}\n  the node says: {reason}"),
        None => error.into(),
    }
}

/// The Pods whose warnings count.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    /// The only Pod that ever has this name.
    Pod(&'a str),
    /// The present Pods of the Sandbox or claim with this uid.
    OwnedBy(&'a str),
}

/// Completes with the message of the first warning after which a Pod does not start. Without such a warning it never
/// completes.
pub(crate) async fn start_failure(client: &Client, namespace: &str, subject: Subject<'_>) -> String {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let fields = match subject {
        Subject::Pod(name) => warnings_about(name),
        Subject::OwnedBy(_) => "involvedObject.kind=Pod,type=Warning".to_owned(),
    };
    let config = watcher::Config::default().fields(&fields);
    let mut warnings = watcher(events, config).default_backoff().applied_objects().boxed();
    loop {
        match warnings.try_next().await {
            Ok(Some(event)) => {
                let reason = event.reason.clone().unwrap_or_default();
                if FATAL_REASONS.contains(&reason.as_str()) && is_current(client, namespace, &event, subject).await {
                    return event.message.unwrap_or(reason);
                }
            }
            Ok(None) => return std::future::pending().await,
            Err(_) => {}
        }
    }
}

/// Completes with a description when a container of a Pod of the Sandbox or claim with this uid has ended with an error.
pub(crate) async fn crash(client: &Client, namespace: &str, owner: &str) -> String {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut changes = watcher(pods, watcher::Config::default()).default_backoff().applied_objects().boxed();
    loop {
        match changes.try_next().await {
            Ok(Some(pod)) => {
                if let Some(description) = ended_with_error(&pod)
                    && belongs_to(client, namespace, &pod, owner).await
                {
                    return description;
                }
            }
            Ok(None) => return std::future::pending().await,
            Err(_) => {}
        }
    }
}

/// How a container of the Pod ended, if one that is not ready ended with an error.
fn ended_with_error(pod: &Pod) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.iter().flatten();
    let mut ends = statuses.filter(|status| !status.ready).filter_map(last_end).filter(|end| end.exit_code != 0);
    let end = ends.next()?;
    let message = end.message.as_ref().filter(|message| !message.is_empty()).map(|message| format!(": {message}"));
    Some(match end.reason.as_deref() {
        Some("OOMKilled") => "its command used more memory than the limit".to_owned(),
        _ => format!("its command ended with exit code {}{}", end.exit_code, message.unwrap_or_default()),
    })
}

/// Whether an event is about a present Pod, and that Pod is the subject's.
async fn is_current(client: &Client, namespace: &str, event: &Event, subject: Subject<'_>) -> bool {
    let Subject::OwnedBy(owner) = subject else { return true };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let name = event.involved_object.name.as_deref().unwrap_or_default();
    let Ok(Some(pod)) = pods.get_opt(name).await else { return false };
    pod.uid() == event.involved_object.uid && belongs_to(client, namespace, &pod, owner).await
}

/// Whether a Pod belongs to the Sandbox with this uid, or to a Sandbox of the claim with this uid.
async fn belongs_to(client: &Client, namespace: &str, pod: &Pod, owner: &str) -> bool {
    let Some(sandbox) = pod.owner_references().iter().find(|reference| reference.kind == "Sandbox") else {
        return false;
    };
    if sandbox.uid == owner {
        return true;
    }
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let found = sandboxes.get_opt(&sandbox.name).await.ok().flatten();
    found.is_some_and(|found| found.owner_references().iter().any(|reference| reference.uid == owner))
}

/// Adds the machine's problem, if `host_check` finds one, to an error about a sandbox that did not start.
pub(crate) fn with_host_problem(error: impl Into<anyhow::Error>) -> anyhow::Error {
    match host_check::diagnose() {
        Some(problem) => error.into().context(problem),
        None => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ended(status: serde_json::Value) -> Option<String> {
        early_end(&serde_json::from_value(json!({"status": {"containerStatuses": [status]}})).unwrap())
    }

    #[test]
    fn a_command_that_ended_is_described_though_its_container_restarts() {
        let status = |state: serde_json::Value, last: serde_json::Value| {
            json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": state, "lastState": last})
        };
        let running = json!({"running": {}});
        let failed = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
        assert_eq!(ended(status(running.clone(), json!({}))), None);
        assert_eq!(ended(status(failed.clone(), json!({}))).as_deref(), Some("ended with exit code 3"));
        assert_eq!(ended(status(running, failed)).as_deref(), Some("ended with exit code 3"));
        let killed = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "out of memory"}});
        assert_eq!(ended(status(killed, json!({}))).as_deref(), Some("was killed (out of memory)"));
    }
}
