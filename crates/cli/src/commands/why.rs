//! What the node has to say about a Pod that does not start: its warnings, which no status repeats.

use agent_sandbox_client::ClientError;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api, Client,
    api::ListParams,
    runtime::{WatchStreamExt as _, watcher},
};

/// Warnings after which a Pod that is to run once will not run.
const FINAL: [&str; 5] =
    ["FailedCreatePodSandBox", "FailedMount", "Failed", "InspectFailed", "RuntimeClassUnavailable"];

fn about(pod: &str) -> String {
    format!("involvedObject.name={pod},type=Warning")
}

/// The latest warning about a Pod, if there is one.
pub(crate) async fn latest(client: &Client, namespace: &str, pod: &str) -> Option<String> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let found = events.list(&ListParams::default().fields(&about(pod))).await.ok()?;
    let newest = found.items.into_iter().max_by_key(|event| {
        let repeated = event.last_timestamp.as_ref().map(|time| time.0);
        repeated.or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0))
    })?;
    newest.message
}

/// Adds the node's reason to an error about a sandbox that did not become ready in time.
pub(crate) async fn explained(client: &Client, namespace: &str, pod: &str, error: ClientError) -> anyhow::Error {
    let ClientError::Timeout { .. } = &error else { return error.into() };
    match latest(client, namespace, pod).await {
        Some(reason) => anyhow::anyhow!("{error}\n  the node says: {reason}"),
        None => error.into(),
    }
}

/// Completes with the first warning that says a Pod will not start; never, when there is none.
pub(crate) async fn refused(client: &Client, namespace: &str, pod: &str) -> String {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let config = watcher::Config::default().fields(&about(pod));
    let mut warnings = watcher(events, config).default_backoff().applied_objects().boxed();
    loop {
        match warnings.try_next().await {
            Ok(Some(event)) => {
                let reason = event.reason.unwrap_or_default();
                if FINAL.contains(&reason.as_str()) {
                    return event.message.unwrap_or(reason);
                }
            }
            Ok(None) => return std::future::pending().await,
            Err(_) => {}
        }
    }
}
