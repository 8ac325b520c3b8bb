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
        // The map's and this one.
        if Arc::strong_count(&self.wake) == 2 {
            wakes.remove(&self.key);
        }
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
