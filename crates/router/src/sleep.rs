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
                if let Ok(single) = Arc::clone(&pod.activity.writing).try_lock_owned() {
                    let (sleep, pod) = (Arc::clone(self), Arc::clone(pod));
                    // Ends with its one write, which has a deadline. A failure is repeated by the next request.
                    tokio::spawn(async move {
                        let _single = single;
                        sleep.record(&pod).await
                    });
                }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use agent_sandbox_api::sleep::IdlePolicy;
    use http::{Request, Response};
    use http_body_util::Full;
    use serde_json::json;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::resolve::index::PodFacts;

    const IDLE: Duration = Duration::from_secs(3000);

    /// An API with one running Sandbox, which answers as many requests as there are permits; and the number of requests.
    fn api() -> (Arc<Sleep>, Arc<Semaphore>, Arc<AtomicUsize>) {
        let (permits, asked) = (Arc::new(Semaphore::new(0)), Arc::<AtomicUsize>::default());
        let (answers, count) = (Arc::clone(&permits), Arc::clone(&asked));
        let service = tower::service_fn(move |_: Request<kube::client::Body>| {
            count.fetch_add(1, Ordering::SeqCst);
            let answers = Arc::clone(&answers);
            async move {
                answers.acquire().await.unwrap().forget();
                let sandbox = json!({
                    "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
                    "metadata": { "name": "box", "namespace": "default", "uid": "u1", "resourceVersion": "1" },
                    "spec": { "operatingMode": "Running", "podTemplate": { "spec": {} } },
                });
                Ok::<_, kube::Error>(Response::new(Full::from(sandbox.to_string())))
            }
        });
        (Sleep::new(Client::new(service, "default")), permits, asked)
    }

    fn index() -> (PodIndex, Arc<LivePod>) {
        let index = PodIndex::default();
        index.apply(PodFacts {
            namespace: "default".into(),
            sandbox: "box".into(),
            sandbox_uid: "u1".into(),
            pod: "p".into(),
            pod_uid: "p1".into(),
            ips: vec!["10.0.0.7".parse().unwrap()],
            name_routable: true,
            idle: Some(IdlePolicy { after: IDLE, processes_count: true }),
            e2b: None,
        });
        let pod = index.by_name("default", "box").unwrap();
        (index, pod)
    }

    async fn until(condition: impl Fn() -> bool) {
        let wait = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap();
    }

    #[tokio::test]
    async fn one_write_renews_an_ageing_record_for_all_requests() {
        let ((sleep, permits, asked), (index, pod)) = (api(), index());
        pod.activity.confirm(1);
        pod.activity.pass(IDLE / 2);
        for round in 1..=2 {
            for _ in 0..20 {
                assert!(sleep.begin(&index, &pod).await.unwrap().is_some(), "no request waits");
            }
            until(|| asked.load(Ordering::SeqCst) >= round).await;
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            assert_eq!(asked.load(Ordering::SeqCst), round);
            permits.add_permits(1);
            until(|| pod.activity.freshness(IDLE) == Freshness::Recent).await;
            until(|| pod.activity.writing.try_lock().is_ok()).await;
            pod.activity.pass(IDLE / 2);
        }
    }
}
