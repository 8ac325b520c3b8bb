//! Why a sandbox does not start: the node's warning Events, which the Pod's status does not repeat, and ends of its
//! containers.
//!
//! On an engine a Pod whose start fails does not run later either, so such a failure ends a wait. The nodes of other
//! clusters repeat failed starts, for example when a registry is busy: there they are only added to a timeout.

use crate::ClientError;
use agent_sandbox_api::{
    keys::annotations,
    v1beta1::{Sandbox, SandboxClaim},
};
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
/// What the versions of engines contain, and those of other Kubernetes APIs do not.
const EMBEDDED_VERSION: &str = "+embedded.";
/// Time for a start before its failures are looked for: most starts take less, and make no further requests then.
const GRACE: Duration = Duration::from_millis(500);
/// Time for which a new sandbox's own command is watched for an early end.
const EARLY_END: Duration = Duration::from_millis(500);

/// The Pods whose warnings count.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// The only Pod that ever has this name.
    Pod(&'a str),
    /// The present Pods of the Sandbox or claim with this uid.
    OwnedBy(&'a str),
}

/// The object that is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner<'a> {
    Sandbox(&'a str),
    Claim { name: &'a str, uid: Option<&'a str> },
}

impl Owner<'_> {
    fn name(self) -> String {
        let (Self::Sandbox(name) | Self::Claim { name, .. }) = self;
        name.to_owned()
    }

    /// The object's uid; `None` if it cannot be read.
    async fn uid(self, client: &Client, namespace: &str) -> Option<String> {
        let found = match self {
            Self::Claim { uid: Some(uid), .. } => return Some(uid.to_owned()),
            Self::Claim { name, uid: None } => {
                Api::<SandboxClaim>::namespaced(client.clone(), namespace).get_metadata_opt(name).await
            }
            Self::Sandbox(name) => {
                let api = Api::<Sandbox>::namespaced(client.clone(), namespace);
                return api.get_metadata_opt(name).await.ok()??.metadata.uid;
            }
        };
        found.ok()??.metadata.uid
    }
}

/// The outcome of a wait, which on an engine ends with the first permanent failure of the object's Pod. Timeouts and
/// failed Pods are explained with what the node says.
pub(crate) async fn or_failure<T>(
    client: &Client,
    namespace: &str,
    owner: Owner<'_>,
    ready: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let failure = async {
        tokio::time::sleep(GRACE).await;
        if !is_engine(client).await {
            return std::future::pending().await;
        }
        let Some(uid) = owner.uid(client, namespace).await else { return std::future::pending().await };
        tokio::select! {
            reason = start_failure(client, namespace, Subject::OwnedBy(&uid)) => reason,
            reason = crash(client, namespace, &uid) => reason,
        }
    };
    let outcome = tokio::select! {
        outcome = ready => outcome,
        reason = failure => return Err(ClientError::CannotStart { name: owner.name(), reason }),
    };
    match outcome {
        Ok(object) => Ok(object),
        Err(error) => Err(explain(client, namespace, owner, error).await),
    }
}

/// Adds the node's words, which say more than a condition, to a timeout and to a failed Pod.
async fn explain(client: &Client, namespace: &str, owner: Owner<'_>, error: ClientError) -> ClientError {
    let cause = async || {
        let uid = owner.uid(client, namespace).await?;
        start_problem(client, namespace, &uid).await
    };
    match error {
        ClientError::Timeout { name, wanted, after, last } => {
            let last = match cause().await {
                Some(cause) if !last.contains(&cause) => format!("{last}; the node says: {cause}"),
                _ => last,
            };
            ClientError::Timeout { name, wanted, after, last }
        }
        ClientError::Failed { name, reason, message } if reason == "PodFailed" => {
            let message = cause().await.unwrap_or(message);
            ClientError::Failed { name, reason, message }
        }
        other => other,
    }
}

/// Checks that a Sandbox that was just created, and is ready, stays so: its Pod is Ready for a moment even if its
/// command ends at once. A sandbox's own daemon stays, so only a given command is watched for a while, unless it is meant
/// to end.
pub(crate) async fn check_new(client: &Client, namespace: &str, made: &Sandbox) -> Result<(), ClientError> {
    if made.annotation(annotations::SHUTDOWN_WHEN_FINISHED).is_some() {
        return Ok(());
    }
    let spec = serde_json::to_value(&made.spec.pod_template.spec).unwrap_or_default();
    let has_command = spec["containers"][0]["command"].is_array();
    let pod = made.name_any();
    let how = match has_command {
        true => early_end_within(client, namespace, &pod, EARLY_END).await,
        false => {
            let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
            pods.get_opt(&pod).await.ok().flatten().as_ref().and_then(early_end)
        }
    };
    match how {
        Some(how) => Err(ClientError::CannotStart { name: pod, reason: format!("its command {how}") }),
        None => Ok(()),
    }
}

/// How the command of a new Pod ended, if it ends within the time.
async fn early_end_within(client: &Client, namespace: &str, pod: &str, limit: Duration) -> Option<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let ended = await_condition(pods, pod, |pod: Option<&Pod>| pod.and_then(early_end).is_some());
    let pod = tokio::time::timeout(limit, ended).await.ok()?.ok()??;
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

/// Whether the API is that of an engine.
async fn is_engine(client: &Client) -> bool {
    client.apiserver_version().await.is_ok_and(|version| version.git_version.contains(EMBEDDED_VERSION))
}

/// Why the present Pod of the Sandbox or claim with this uid does not run: the end of a container, else the message in
/// its status, else the latest warning about it. `None` if there is no Pod, or nothing is known about it.
pub async fn start_problem(client: &Client, namespace: &str, owner: &str) -> Option<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for pod in pods.list(&ListParams::default()).await.ok()? {
        if belongs_to(client, namespace, &pod, owner).await {
            return pod_problem(client, namespace, &pod).await;
        }
    }
    None
}

/// Like [`start_problem`], about one Pod.
pub(crate) async fn pod_problem(client: &Client, namespace: &str, pod: &Pod) -> Option<String> {
    let message = || pod.status.as_ref()?.message.clone().filter(|message| !message.is_empty());
    match ended_with_error(pod).or_else(message) {
        Some(found) => Some(found),
        None => latest_warning(client, namespace, pod).await,
    }
}

/// The latest failure of a Pod's start; without one, the latest other warning.
async fn latest_warning(client: &Client, namespace: &str, pod: &Pod) -> Option<String> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let found = events.list(&ListParams::default().fields(&warnings_about(&pod.name_any()))).await.ok()?;
    let about_it = found.items.into_iter().filter(|event| event.involved_object.uid == pod.uid());
    let newest = about_it.max_by_key(|event| {
        let repeated = event.last_timestamp.as_ref().map(|time| time.0);
        let at = repeated.or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0));
        (FATAL_REASONS.contains(&event.reason.as_deref().unwrap_or_default()), at)
    })?;
    newest.message
}

/// Field selector for warnings about a Pod.
fn warnings_about(pod: &str) -> String {
    format!("involvedObject.kind=Pod,involvedObject.name={pod},type=Warning")
}

/// Completes with the message of the first warning after which a Pod does not start. Without such a warning it never
/// completes.
pub async fn start_failure(client: &Client, namespace: &str, subject: Subject<'_>) -> String {
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
async fn crash(client: &Client, namespace: &str, owner: &str) -> String {
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
