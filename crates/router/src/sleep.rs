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

pub use activity::{ActivityGuard, Suspended};
use kube::Client;

use crate::resolve::index::{LivePod, PodIndex};
use activity::{Freshness, SandboxActivity};
use sandbox_api::SandboxApi;
pub(crate) use waker::{WakeAnswer, Waker};

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
    ) -> Result<Option<ActivityGuard>, Suspended> {
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
                if pod.activity.freshness(policy.after) == Freshness::Old && self.record(pod).await.is_err() {
                    index.mark_unreachable(pod);
                    return Err(Suspended);
                }
            }
        }
        Ok(Some(guard))
    }

    /// Records the last use of a Sandbox. A failed write is logged and is no error: the request is then served without
    /// its protection.
    pub(crate) async fn record(&self, pod: &LivePod) -> Result<(), Suspended> {
        let activity: &SandboxActivity = &pod.activity;
        let (moment, at) = activity.last_use();
        match self.api.record_activity(pod, at).await {
            Ok(running) => {
                activity.confirm(moment);
                if running { Ok(()) } else { Err(Suspended) }
            }
            Err(error) => {
                tracing::warn!(%error, namespace = %pod.namespace, sandbox = %pod.sandbox, "Activity of a sandbox could not be recorded");
                Ok(())
            }
        }
    }
}
