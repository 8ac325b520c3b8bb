//! Fault injection between a client and its API server: throttling, error responses, outages.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::{Client, client::Body};
use serde_json::json;
use tokio::sync::watch;
use tower::BoxError;

/// The fault that an API server shows to the wrapped client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApiFault {
    #[default]
    None,
    /// Every write gets status 429; reads and watches work.
    Throttling { retry_after_seconds: Option<u64> },
    /// Every request gets this status.
    Failing(u16),
    /// Every request fails to connect, and open watches end.
    Unreachable,
}

type Response = http::Response<UnsyncBoxBody<Bytes, BoxError>>;

/// Injects the current [`ApiFault`] into the requests of a client.
#[derive(Clone)]
pub struct FaultInjector {
    fault: Arc<watch::Sender<ApiFault>>,
    rejected_requests: Arc<AtomicUsize>,
}

impl FaultInjector {
    /// Wraps `inner`; the returned client is subject to the faults that are set on the injector.
    pub fn wrap(inner: Client) -> (Client, Self) {
        let injector = Self { fault: Arc::new(watch::Sender::new(ApiFault::None)), rejected_requests: Arc::default() };
        let shared = injector.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (inner, injector) = (inner.clone(), shared.clone());
            async move { injector.send(inner, request).await }
        });
        (Client::new(service, "default"), injector)
    }

    /// Sets the fault for all requests from now on.
    pub fn set(&self, fault: ApiFault) {
        self.fault.send_replace(fault);
    }

    /// Number of requests that did not reach the API server.
    pub fn rejected_requests(&self) -> usize {
        self.rejected_requests.load(Ordering::Relaxed)
    }

    async fn send(&self, inner: Client, request: http::Request<Body>) -> Result<Response, BoxError> {
        let fault = *self.fault.borrow();
        let rejection = match fault {
            ApiFault::None => None,
            ApiFault::Throttling { .. } if request.method() == http::Method::GET => None,
            ApiFault::Throttling { retry_after_seconds } => {
                Some(error_response(429, "TooManyRequests", retry_after_seconds))
            }
            ApiFault::Failing(status) => Some(error_response(status, "InternalError", None)),
            ApiFault::Unreachable => Some(Err("connection refused".into())),
        };
        match rejection {
            Some(rejection) => {
                self.rejected_requests.fetch_add(1, Ordering::Relaxed);
                rejection
            }
            None => Ok(inner.send(request).await?.map(|body| self.until_unreachable(body))),
        }
    }

    /// Ends a response body when the API server becomes unreachable.
    fn until_unreachable(&self, body: Body) -> UnsyncBoxBody<Bytes, BoxError> {
        let mut fault = self.fault.subscribe();
        let unreachable = async move {
            if fault.wait_for(|fault| *fault == ApiFault::Unreachable).await.is_err() {
                // The injector was dropped with its test: the body is never cut off.
                std::future::pending::<()>().await;
            }
        };
        StreamBody::new(BodyStream::new(body.map_err(BoxError::from)).take_until(Box::pin(unreachable))).boxed_unsync()
    }
}

fn error_response(status: u16, reason: &str, retry_after: Option<u64>) -> Result<Response, BoxError> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": "injected fault", "reason": reason, "code": status,
    });
    let mut response = http::Response::builder().status(status).header(http::header::CONTENT_TYPE, "application/json");
    if let Some(seconds) = retry_after {
        response = response.header(http::header::RETRY_AFTER, seconds);
    }
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed_unsync();
    Ok(response.body(body)?)
}
