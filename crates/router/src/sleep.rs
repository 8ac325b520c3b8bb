//! Sandboxes that sleep: waking them for requests, recording their use, reporting those that are not used.
//!
//! The router writes annotations of Sandboxes and nothing else; the controller decides from them. An accepted request is
//! not lost to an idle suspension: while this router's last record of activity is old, a request is recorded before it
//! is forwarded, and the response to that write says whether the Sandbox still runs.

pub(crate) mod activity;
pub(crate) mod observer;
mod processes;
mod sandbox_api;
mod waker;

use std::sync::Arc;

pub use activity::{ActivityGuard, NotBegun};
use kube::Client;

use crate::resolve::index::{LivePod, PodIndex};
use activity::{Freshness, SandboxActivity};
use sandbox_api::{SandboxApi, SandboxApiError};
pub(crate) use waker::{WakeAnswer, Waker};

/// Attempts at the record that a request waits for.
const RECORD_ATTEMPTS: usize = 2;

/// The router's part in sleeping and waking.
pub(crate) struct Sleep {
    pub(crate) api: SandboxApi,
    pub(crate) waker: Waker,
}

impl Sleep {
    pub(crate) fn new(client: Client) -> Arc<Self> {
        let api = SandboxApi::new(client);
        Arc::new(Self { waker: Waker::new(api.clone()), api })
    }

    /// Begins a use of the Pod's Sandbox, which lasts until the guard is dropped; `None` for a Sandbox that never
    /// sleeps. With an old record of activity, the new one is written first.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        index: &PodIndex,
        pod: &Arc<LivePod>,
    ) -> Result<Option<ActivityGuard>, NotBegun> {
        let Some(policy) = pod.idle else { return Ok(None) };
        let guard = ActivityGuard::begin(&pod.activity);
        match pod.activity.freshness(policy.after) {
            Freshness::Recent => {}
            Freshness::Ageing => {
                let (sleep, pod) = (Arc::clone(self), Arc::clone(pod));
                // Ends with its one write, which has a deadline. A failure is repeated by the next request.
                tokio::spawn(async move { sleep.record(&pod).await });
            }
            Freshness::Old => {
                let _single = pod.activity.writing.lock().await;
                if pod.activity.freshness(policy.after) == Freshness::Old
                    && let Err(error) = self.record(pod).await
                {
                    if error == NotBegun::Suspended {
                        index.mark_unreachable(pod);
                    }
                    return Err(error);
                }
            }
        }
        Ok(Some(guard))
    }

    /// Records the last use of a Sandbox, and repeats a write that failed once.
    pub(crate) async fn record(&self, pod: &LivePod) -> Result<(), NotBegun> {
        let activity: &SandboxActivity = &pod.activity;
        let (moment, at) = activity.last_use();
        for _ in 0..RECORD_ATTEMPTS {
            match self.api.record_activity(pod, at).await {
                Ok(running) => {
                    activity.confirm(moment);
                    return if running { Ok(()) } else { Err(NotBegun::Suspended) };
                }
                Err(SandboxApiError::Absent) => return Err(NotBegun::Suspended),
                Err(error) => {
                    tracing::warn!(%error, namespace = %pod.namespace, sandbox = %pod.sandbox, "Activity of a sandbox could not be recorded");
                    if matches!(error, SandboxApiError::Timeout) {
                        break;
                    }
                }
            }
        }
        Err(NotBegun::Unrecorded)
    }
}
