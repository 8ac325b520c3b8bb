//! Wakes suspended Sandboxes: one request to the API per Sandbox, whatever the number of requests that wait for it.

use std::collections::HashMap;
use std::sync::Arc;

use agent_sandbox_api::keys::annotations;
use agent_sandbox_api::sleep;
use agent_sandbox_api::v1beta1::OperatingMode;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

use super::sandbox_api::{SandboxApi, SandboxApiError};

/// Sandboxes that this router wakes at once; the others wait in order. A node starts about as many Pods per second.
const MAX_WAKES: usize = 64;
/// Sandboxes of one namespace among them, so that one tenant cannot occupy all places.
const MAX_WAKES_PER_NAMESPACE: usize = 32;
/// Attempts at a Sandbox that changes while its wake is requested.
const ATTEMPTS: usize = 5;

/// What a request without a live Pod has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeAnswer {
    /// A Pod will appear: wait for it.
    Waking,
    /// The Sandbox is to run already, does not exist, or could not be read: fail as without waking.
    NotSuspended,
    /// It is suspended, and requests do not wake it.
    StaysSuspended,
}

struct Wake {
    answer: WakeAnswer,
    /// Places among the wakes under way, held until the last request has its Pod.
    _places: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
}

type Key = (Arc<str>, Arc<str>);

pub(crate) struct Waker {
    api: SandboxApi,
    wakes: Mutex<HashMap<Key, Arc<OnceCell<Wake>>>>,
    namespaces: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
    places: Arc<Semaphore>,
}

/// A request that waits for a wake; to be kept until it has its Pod.
pub(crate) struct WakeTicket<'a> {
    waker: &'a Waker,
    key: Key,
    wake: Arc<OnceCell<Wake>>,
}

impl Drop for WakeTicket<'_> {
    fn drop(&mut self) {
        let mut wakes = self.waker.wakes.lock();
        // The map's and this one. Both are released under the lock, so that the last of several tickets dropped at once
        // finds itself alone.
        if Arc::strong_count(&self.wake) == 2 {
            wakes.remove(&self.key);
        }
        // With the last ticket the places become free, which the namespace's entry has to see.
        drop(std::mem::take(&mut self.wake));
        drop(wakes);
        let mut namespaces = self.waker.namespaces.lock();
        if namespaces.get(&self.key.0).is_some_and(|places| {
            Arc::strong_count(places) == 1 && places.available_permits() == MAX_WAKES_PER_NAMESPACE
        }) {
            namespaces.remove(&self.key.0);
        }
    }
}

impl WakeTicket<'_> {
    /// Requests the wake, or joins the one under way. If the request that made it goes away, another one makes it.
    pub(crate) async fn answer(&self, uid: Option<&str>) -> WakeAnswer {
        self.wake.get_or_init(|| self.waker.wake(&self.key, uid)).await.answer
    }
}

impl Waker {
    pub(super) fn new(api: SandboxApi) -> Self {
        let places = Arc::new(Semaphore::new(MAX_WAKES));
        Self { api, wakes: Mutex::default(), namespaces: Mutex::default(), places }
    }

    /// A place in the queue of the Sandbox; `None` if `limit` requests wait for it already.
    pub(crate) fn ticket(&self, namespace: &str, sandbox: &str, limit: u32) -> Option<WakeTicket<'_>> {
        let key: Key = (namespace.into(), sandbox.into());
        let mut wakes = self.wakes.lock();
        let wake = wakes.entry(key.clone()).or_default();
        let waiting = Arc::strong_count(wake) - 1;
        (limit == 0 || waiting < limit as usize).then(|| WakeTicket { waker: self, key, wake: Arc::clone(wake) })
    }

    async fn wake(&self, key: &Key, uid: Option<&str>) -> Wake {
        let unplaced = |answer| Wake { answer, _places: None };
        match self.suspended(key, uid).await {
            Ok(None) => return unplaced(WakeAnswer::NotSuspended),
            Ok(Some(false)) => return unplaced(WakeAnswer::StaysSuspended),
            Ok(Some(true)) => {}
            Err(error) => return unplaced(failed(key, &error)),
        }
        let places = self.places(&key.0).await;
        for _ in 0..ATTEMPTS {
            let outcome = async {
                let sandbox = self.api.get(&key.0, &key.1).await?;
                if sandbox.operating_mode() == OperatingMode::Running {
                    return Ok(WakeAnswer::Waking);
                }
                if !sleep::wakes_on_request(|name| sandbox.annotation(name)) {
                    return Ok(WakeAnswer::StaysSuspended);
                }
                if sandbox.annotation(annotations::WAKE_REQUESTED_AT).is_none() {
                    self.api.stamp(&sandbox, annotations::WAKE_REQUESTED_AT).await?;
                }
                Ok(WakeAnswer::Waking)
            };
            match outcome.await {
                Ok(answer) => return Wake { answer, _places: places },
                // Another router was faster, or the controller wrote the status.
                Err(SandboxApiError::Conflict) => {}
                Err(error) => return unplaced(failed(key, &error)),
            }
        }
        unplaced(failed(key, &SandboxApiError::Conflict))
    }

    /// Whether requests wake the Sandbox; `None` if it is not suspended, or is not the one that is meant.
    async fn suspended(&self, key: &Key, uid: Option<&str>) -> Result<Option<bool>, SandboxApiError> {
        let sandbox = self.api.get(&key.0, &key.1).await?;
        let meant = uid.is_none_or(|uid| uid == sandbox.uid()) && !sandbox.is_deleting();
        if !meant || sandbox.operating_mode() == OperatingMode::Running {
            return Ok(None);
        }
        Ok(Some(sleep::wakes_on_request(|name| sandbox.annotation(name))))
    }

    /// Waits for a place in the namespace, then in the router. Semaphores serve in order of arrival.
    async fn places(&self, namespace: &Arc<str>) -> Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)> {
        let own = {
            let mut namespaces = self.namespaces.lock();
            let new = || Arc::new(Semaphore::new(MAX_WAKES_PER_NAMESPACE));
            Arc::clone(namespaces.entry(Arc::clone(namespace)).or_insert_with(new))
        };
        // Neither semaphore is ever closed.
        let own = own.acquire_owned().await.ok()?;
        Some((own, Arc::clone(&self.places).acquire_owned().await.ok()?))
    }
}

fn failed(key: &Key, error: &SandboxApiError) -> WakeAnswer {
    if !matches!(error, SandboxApiError::Absent) {
        tracing::warn!(%error, namespace = %key.0, sandbox = %key.1, "A suspended sandbox could not be woken");
    }
    WakeAnswer::NotSuspended
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use http_body_util::Full;
    use serde_json::json;
    use std::time::Duration;

    /// An API where every Sandbox is suspended for being idle; it records the Sandboxes whose wake is requested.
    fn waker() -> (Arc<Waker>, Arc<Mutex<Vec<String>>>) {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let record = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let path = request.uri().path().to_owned();
            let parts: Vec<&str> = path.split('/').collect();
            let (namespace, name) = (parts[5], parts[7]);
            if request.method() == http::Method::PATCH {
                record.lock().push(format!("{namespace}/{name}"));
            }
            let sandbox = json!({
                "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
                "metadata": {
                    "name": name, "namespace": namespace, "uid": name, "resourceVersion": "1",
                    "annotations": { annotations::SUSPENDED_BY: "idle" },
                },
                "spec": { "operatingMode": "Suspended", "podTemplate": { "spec": {} } },
            });
            async move { Ok::<_, kube::Error>(Response::new(Full::from(sandbox.to_string()))) }
        });
        (Arc::new(Waker::new(SandboxApi::new(kube::Client::new(service, "default")))), asked)
    }

    /// A request for each of these Sandboxes, which holds its ticket until it is aborted.
    fn requests(waker: &Arc<Waker>, namespace: &'static str, count: usize) -> Vec<tokio::task::JoinHandle<()>> {
        let request = |number| {
            let waker = Arc::clone(waker);
            tokio::spawn(async move {
                let ticket = waker.ticket(namespace, &format!("box-{number}"), 0).unwrap();
                assert_eq!(ticket.answer(None).await, WakeAnswer::Waking);
                std::future::pending().await
            })
        };
        (0..count).map(request).collect()
    }

    async fn until(what: &str, condition: impl Fn() -> bool) {
        let wait = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(20), wait).await.is_ok(), "{what}");
    }

    /// One namespace gets half of the places, another one the rest; the next wakes wait until requests have ended.
    #[tokio::test]
    async fn wakes_under_way_are_limited_for_a_namespace_and_for_the_router() {
        let (waker, asked) = waker();
        let count = |namespace: &str| asked.lock().iter().filter(|one| one.starts_with(namespace)).count();
        let first = requests(&waker, "one", MAX_WAKES_PER_NAMESPACE + 8);
        until("one namespace takes its places", || count("one/") == MAX_WAKES_PER_NAMESPACE).await;
        let second = requests(&waker, "two", MAX_WAKES - MAX_WAKES_PER_NAMESPACE);
        until("another one is not kept waiting", || count("two/") == MAX_WAKES - MAX_WAKES_PER_NAMESPACE).await;
        assert_eq!(count("one/"), MAX_WAKES_PER_NAMESPACE, "the rest of the first one's waits");
        let third = requests(&waker, "three", 1);
        until("it waits for a place of the router", || waker.namespaces.lock().contains_key("three")).await;
        assert_eq!((waker.places.available_permits(), count("three/")), (0, 0));
        for request in &second {
            request.abort();
        }
        until("places become free for both", || count("three/") == 1).await;
        assert_eq!(count("one/"), MAX_WAKES_PER_NAMESPACE, "its namespace's own limit still holds");
        for request in &first[..8] {
            request.abort();
        }
        let most = MAX_WAKES_PER_NAMESPACE + 8;
        until("the rest of the first one's is woken", || count("one/") == most).await;
        for request in first.iter().chain(&third) {
            request.abort();
        }
        until("nothing is kept", || waker.wakes.lock().is_empty() && waker.namespaces.lock().is_empty()).await;
        assert_eq!(waker.places.available_permits(), MAX_WAKES);
    }

    /// Requests of one burst end on different threads at the same moment.
    #[tokio::test]
    async fn tickets_dropped_at_once_leave_nothing() {
        let (waker, _) = waker();
        for _ in 0..2_000 {
            let barrier = std::sync::Barrier::new(3);
            std::thread::scope(|scope| {
                for ticket in (0..3).map(|_| waker.ticket("one", "box", 0).unwrap()).collect::<Vec<_>>() {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        drop(ticket);
                    });
                }
            });
            assert!(waker.wakes.lock().is_empty());
        }
    }

    #[tokio::test]
    async fn requests_beyond_the_limit_of_one_sandbox_are_refused() {
        let (waker, _) = waker();
        let tickets: Vec<_> = (0..3).map(|_| waker.ticket("one", "box", 2)).collect();
        assert_eq!(tickets.iter().filter(|ticket| ticket.is_some()).count(), 2);
        drop(tickets);
        assert!(waker.ticket("one", "box", 2).is_some());
    }
}
