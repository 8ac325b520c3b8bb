//! The node's warning Events about a Pod that does not start. The Pod's status does not repeat them.
//!
//! Also adds a problem of this machine to an error about a sandbox that did not start.

use agent_sandbox_client::ClientError;
use agent_sandbox_engine::host_check;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::ListParams,
    runtime::{WatchStreamExt as _, watcher},
};

/// Event reasons after which a Pod that is started once does not run.
const FATAL_REASONS: [&str; 5] =
    ["FailedCreatePodSandBox", "FailedMount", "Failed", "InspectFailed", "RuntimeClassUnavailable"];

/// Field selector for warnings about a Pod.
fn warnings_about(pod: &str) -> String {
    format!("involvedObject.name={pod},type=Warning")
}

/// The latest warning about a Pod, if there is one.
async fn latest_warning(client: &Client, namespace: &str, pod: &str) -> Option<String> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let found = events.list(&ListParams::default().fields(&warnings_about(pod))).await.ok()?;
    let newest = found.items.into_iter().max_by_key(|event| {
        let repeated = event.last_timestamp.as_ref().map(|time| time.0);
        repeated.or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0))
    })?;
    newest.message
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

/// Completes with the message of the first warning after which the Pod does not start. Without such a warning it never
/// completes. With `owner`, warnings about an earlier Pod of the same name are passed over: the warning's Pod must be
/// controlled by the object with this uid.
pub(crate) async fn start_failure(client: &Client, namespace: &str, pod: &str, owner: Option<&str>) -> String {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let config = watcher::Config::default().fields(&warnings_about(pod));
    let mut warnings = watcher(events, config).default_backoff().applied_objects().boxed();
    loop {
        match warnings.try_next().await {
            Ok(Some(event)) => {
                let reason = event.reason.clone().unwrap_or_default();
                if FATAL_REASONS.contains(&reason.as_str()) && is_current(client, namespace, &event, owner).await {
                    return event.message.unwrap_or(reason);
                }
            }
            Ok(None) => return std::future::pending().await,
            Err(_) => {}
        }
    }
}

/// Whether an event is about the present Pod of this name, and that Pod is the owner's.
async fn is_current(client: &Client, namespace: &str, event: &Event, owner: Option<&str>) -> bool {
    let Some(owner) = owner else { return true };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let name = event.involved_object.name.as_deref().unwrap_or_default();
    let Ok(Some(pod)) = pods.get_opt(name).await else { return false };
    let owned = pod.owner_references().iter().any(|reference| reference.uid == owner);
    owned && pod.uid() == event.involved_object.uid
}

/// Adds the machine's problem, if `host_check` finds one, to an error about a sandbox that did not start.
pub(crate) fn with_host_problem(error: impl Into<anyhow::Error>) -> anyhow::Error {
    match host_check::diagnose() {
        Some(problem) => error.into().context(problem),
        None => error.into(),
    }
}
