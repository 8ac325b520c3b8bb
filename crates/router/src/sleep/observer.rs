//! Watches over the Sandboxes with an idle time: records use that goes on, and reports Sandboxes that are idle.
//!
//! Every router does this for all of them. What one has recorded or reported the others read before they write.

use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_api::keys::annotations;
use agent_sandbox_api::sleep::IdlePolicy;
use agent_sandbox_api::v1beta1::OperatingMode;
use futures::StreamExt;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::Sleep;
use super::activity::Due;
use super::processes;
use super::sandbox_api::SandboxApiError;
use crate::resolve::index::LivePod;
use crate::state::Shared;

/// Sandboxes that each duty handles at once.
const CONCURRENT: usize = 16;
/// Interval between two rounds at least, so that a busy index does not keep this awake.
const MIN_INTERVAL: Duration = Duration::from_millis(200);

/// What is done for every Sandbox with an idle time.
#[derive(Clone, Copy)]
enum Duty {
    /// Write down its use.
    Record,
    /// Find out whether it is idle. This asks the sandbox itself, which may not answer.
    Check,
}

/// Runs until `end`. Without Sandboxes that have an idle time it waits for changes of the index only.
///
/// Records do not wait for checks: while one waited for sandboxes that hang, another router would report its Sandbox,
/// which is in use, as idle.
pub(crate) async fn run(shared: Arc<Shared>, sleep: Arc<Sleep>, end: CancellationToken) {
    let (recording, checking) =
        (repeat(Duty::Record, &shared, &sleep, &end), repeat(Duty::Check, &shared, &sleep, &end));
    tokio::join!(recording, checking);
}

async fn repeat(duty: Duty, shared: &Arc<Shared>, sleep: &Sleep, end: &CancellationToken) {
    let mut changes = shared.index.subscribe();
    loop {
        let next = round(duty, shared, sleep).await;
        let timer = async {
            match next {
                Some(wait) => tokio::time::sleep(wait.max(MIN_INTERVAL)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = end.cancelled() => return,
            () = timer => {}
            changed = changes.changed() => if changed.is_err() { return },
        }
        tokio::select! {
            () = end.cancelled() => return,
            () = tokio::time::sleep(MIN_INTERVAL) => {}
        }
    }
}

/// Does what is due for every Sandbox; returns when the next thing is.
async fn round(duty: Duty, shared: &Arc<Shared>, sleep: &Sleep) -> Option<Duration> {
    let pods = shared.index.sleepers();
    let waits = futures::stream::iter(pods)
        .map(|(pod, policy)| async move {
            let due = || match duty {
                Duty::Record => pod.activity.record_due(policy.after),
                Duty::Check => pod.activity.check_due(policy.after),
            };
            match (due(), duty) {
                (Due::In(wait), _) => return wait,
                // A Sandbox that was suspended meanwhile is not of interest any more: its Pod disappears.
                (Due::Now, Duty::Record) => {
                    let _ = sleep.record(&pod).await;
                }
                (Due::Now, Duty::Check) => check(shared, sleep, &pod, policy).await,
            }
            match due() {
                Due::In(wait) => wait,
                Due::Now => MIN_INTERVAL,
            }
        })
        .buffer_unordered(CONCURRENT)
        .collect::<Vec<_>>()
        .await;
    waits.into_iter().min()
}

/// The idle time has passed as far as this router knows: reports the Sandbox as idle if nothing speaks against it.
async fn check(shared: &Arc<Shared>, sleep: &Sleep, pod: &Arc<LivePod>, policy: IdlePolicy) {
    let again = policy.after / 3;
    pod.activity.postpone_check(again);
    let sandbox = match sleep.api.get(&pod.namespace, &pod.sandbox).await {
        Ok(sandbox) if sandbox.uid() == &*pod.sandbox_uid && sandbox.operating_mode() == OperatingMode::Running => {
            sandbox
        }
        Ok(_) | Err(SandboxApiError::Absent) => return,
        Err(error) => {
            tracing::warn!(%error, namespace = %pod.namespace, sandbox = %pod.sandbox, "An idle sandbox could not be read");
            return;
        }
    };
    let now = Timestamp::now();
    let Some(due) = policy.due_at(|key| sandbox.annotation(key), sandbox.conditions()) else { return };
    if let Ok(left) = Duration::try_from(due.duration_since(now))
        && !left.is_zero()
    {
        // Another router has recorded activity, or a user keeps it awake.
        pod.activity.postpone_check(left);
        pod.activity.confirm_age(policy.after.saturating_sub(left));
        return;
    }
    // Another router was faster.
    let reported = agent_sandbox_api::sleep::time(sandbox.annotation(annotations::IDLE_REPORTED_AT));
    if reported.is_some_and(|reported| reported >= due) {
        return;
    }
    if policy.processes_count {
        match processes::command_runs(shared, pod).await {
            Some(false) => {}
            Some(true) => {
                drop(super::ActivityGuard::begin(&pod.activity));
                let _ = sleep.record(pod).await;
                return;
            }
            // Without an answer the Sandbox counts as used, and is asked again.
            None => return,
        }
    }
    if pod.activity.has_unrecorded_use() {
        return;
    }
    match sleep.api.stamp(&sandbox, annotations::IDLE_REPORTED_AT).await {
        Ok(()) => tracing::debug!(namespace = %pod.namespace, sandbox = %pod.sandbox, "Sandbox is idle"),
        // Something changed, perhaps because it is used: look again.
        Err(SandboxApiError::Conflict) => pod.activity.postpone_check(MIN_INTERVAL),
        Err(SandboxApiError::Absent) => {}
        Err(error) => {
            tracing::warn!(%error, namespace = %pod.namespace, sandbox = %pod.sandbox, "An idle sandbox could not be reported");
        }
    }
}
