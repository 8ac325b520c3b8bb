//! Keeps the index current by watching Pods; retries with backoff for as long as the router runs.

use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_api::keys::labels;
use futures::{StreamExt, TryStreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use super::pod::{self, SlimPod};
use super::{PodFacts, PodIndex};

/// Watches until `shutdown`. While the API is unreachable the index becomes stale, but not incorrect.
pub(crate) async fn run(index: Arc<PodIndex>, client: Client, namespace: Option<String>, shutdown: CancellationToken) {
    let resource = pod::resource();
    let api: Api<SlimPod> = match &namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    let config = watcher::Config::default().labels(labels::SANDBOX_NAME_HASH).fields("status.podIP!=");
    let events = watcher(api, config).default_backoff();
    let mut events = std::pin::pin!(events.into_stream().take_until(shutdown.cancelled_owned()));
    let mut listing = Vec::new();
    let mut warned = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                warned = false;
                apply_event(&index, &mut listing, event);
            }
            Err(error) if !warned => {
                warned = true;
                tracing::warn!(%error, "Watching Pods failed; retrying");
            }
            Err(error) => tracing::debug!(%error, "Watching Pods still fails"),
        }
    }
}

fn apply_event(index: &PodIndex, listing: &mut Vec<PodFacts>, event: Event<SlimPod>) {
    match event {
        Event::Init => listing.clear(),
        Event::InitApply(pod) => listing.extend(pod::facts(&pod)),
        Event::InitDone => {
            index.replace_all(std::mem::take(listing));
            tracing::debug!(sandboxes = index.len(), "Pod index is complete");
        }
        Event::Apply(pod) => match pod::facts(&pod) {
            Some(facts) => index.apply(facts),
            None => remove(index, &pod),
        },
        Event::Delete(pod) => remove(index, &pod),
    }
}

fn remove(index: &PodIndex, pod: &SlimPod) {
    if let (Some(namespace), Some(name)) = (&pod.metadata.namespace, &pod.metadata.name) {
        index.remove(namespace, name);
    }
}

/// Timeout of the router process for the first list of Pods.
pub(crate) const FIRST_LIST_DEADLINE: Duration = Duration::from_secs(60);
