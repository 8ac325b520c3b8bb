//! An API client that holds every request until the script resolves it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::invariants;
use crate::{
    api_client::{ApiClient, ApiError, Lane, Request},
    cache::{Key, Kind, Object},
    testing::fake_api::FakeApi,
};

pub(super) enum Call {
    Write(Request),
    Read(Kind, Key),
}

pub(super) struct PendingCall {
    pub(super) call: Call,
    response: oneshot::Sender<Result<Option<Object>, ApiError>>,
}

/// How a request is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Delivered,
    /// Executed, but the response is lost.
    ResponseLost,
    /// Not executed; the client cannot tell the difference.
    RequestLost,
}

/// The API client of one process.
pub(super) struct StepwiseApi {
    api: Arc<FakeApi>,
    open: AtomicBool,
    pending: Mutex<Vec<PendingCall>>,
}

impl StepwiseApi {
    pub(super) fn new(api: Arc<FakeApi>) -> Arc<Self> {
        Arc::new(Self { api, open: AtomicBool::new(false), pending: Mutex::default() })
    }

    /// From now on every request is executed at once.
    pub(super) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.lock().len()
    }

    /// Resolves one pending request.
    pub(super) async fn resolve(&self, which: usize, delivery: Delivery) {
        let pending = {
            let mut all = self.pending.lock();
            if all.is_empty() {
                return;
            }
            let which = which % all.len();
            all.remove(which)
        };
        let lost = || Err(ApiError::Unknown { message: "connection reset".into() });
        let response = match delivery {
            Delivery::RequestLost => lost(),
            Delivery::Delivered => self.execute(&pending.call).await,
            Delivery::ResponseLost => {
                let _ = self.execute(&pending.call).await;
                lost()
            }
        };
        let _ = pending.response.send(response);
    }

    /// Takes the pending writes of a killed process: they may still arrive.
    pub(super) fn take_pending_writes(&self) -> Vec<Request> {
        let left = std::mem::take(&mut *self.pending.lock());
        left.into_iter()
            .filter_map(|pending| match pending.call {
                Call::Write(request) => Some(request),
                Call::Read(..) => None,
            })
            .collect()
    }

    async fn execute(&self, call: &Call) -> Result<Option<Object>, ApiError> {
        match call {
            Call::Write(request) => {
                invariants::check_request(&self.api, request);
                self.api.send(Lane::Core, request).await
            }
            Call::Read(kind, key) => self.api.read(Lane::Core, *kind, key).await,
        }
    }

    async fn submit(&self, call: Call) -> Result<Option<Object>, ApiError> {
        if self.open.load(Ordering::SeqCst) {
            return self.execute(&call).await;
        }
        let (response, answered) = oneshot::channel();
        self.pending.lock().push(PendingCall { call, response });
        match answered.await {
            Ok(response) => response,
            // The process was killed; its passes are being dropped.
            Err(_) => std::future::pending().await,
        }
    }
}

#[async_trait]
impl ApiClient for StepwiseApi {
    async fn send(&self, _: Lane, request: &Request) -> Result<Option<Object>, ApiError> {
        self.submit(Call::Write(request.clone())).await
    }

    async fn read(&self, _: Lane, kind: Kind, key: &Key) -> Result<Option<Object>, ApiError> {
        self.submit(Call::Read(kind, key.clone())).await
    }
}
