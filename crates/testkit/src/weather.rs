//! A client whose API server can be made to throttle, fail or disappear.

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

/// How the API server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sky {
    #[default]
    Clear,
    /// Every write is answered 429; reads and watches work.
    Throttling { retry_after_seconds: Option<u64> },
    /// Every request is answered with this status.
    Failing(u16),
    /// Nothing is answered, and open watches end.
    Gone,
}

type Answer = http::Response<UnsyncBoxBody<Bytes, BoxError>>;

/// Decides what becomes of a client's requests.
#[derive(Clone)]
pub struct Weather {
    sky: Arc<watch::Sender<Sky>>,
    turned_away: Arc<AtomicUsize>,
}

impl Weather {
    /// A client over `inner` that has this weather.
    pub fn wrap(inner: Client) -> (Client, Self) {
        let weather = Self { sky: Arc::new(watch::Sender::new(Sky::Clear)), turned_away: Arc::default() };
        let over = weather.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (inner, weather) = (inner.clone(), over.clone());
            async move { weather.pass(inner, request).await }
        });
        (Client::new(service, "default"), weather)
    }

    pub fn becomes(&self, sky: Sky) {
        self.sky.send_replace(sky);
    }

    /// How many requests did not reach the API.
    pub fn turned_away(&self) -> usize {
        self.turned_away.load(Ordering::Relaxed)
    }

    async fn pass(&self, inner: Client, request: http::Request<Body>) -> Result<Answer, BoxError> {
        let sky = *self.sky.borrow();
        let turned_away = match sky {
            Sky::Clear => None,
            Sky::Throttling { .. } if request.method() == http::Method::GET => None,
            Sky::Throttling { retry_after_seconds } => Some(refusal(429, "TooManyRequests", retry_after_seconds)),
            Sky::Failing(status) => Some(refusal(status, "InternalError", None)),
            Sky::Gone => Some(Err("connection refused".into())),
        };
        match turned_away {
            Some(answer) => {
                self.turned_away.fetch_add(1, Ordering::Relaxed);
                answer
            }
            None => Ok(inner.send(request).await?.map(|body| self.exposed(body))),
        }
    }

    /// The body, until the API server is gone.
    fn exposed(&self, body: Body) -> UnsyncBoxBody<Bytes, BoxError> {
        let mut sky = self.sky.subscribe();
        let gone = async move {
            if sky.wait_for(|sky| *sky == Sky::Gone).await.is_err() {
                // The weather ended with its test; the body goes on.
                std::future::pending::<()>().await;
            }
        };
        StreamBody::new(BodyStream::new(body.map_err(BoxError::from)).take_until(Box::pin(gone))).boxed_unsync()
    }
}

fn refusal(status: u16, reason: &str, retry_after: Option<u64>) -> Result<Answer, BoxError> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "message": "the weather is bad", "reason": reason, "code": status,
    });
    let mut answer = http::Response::builder().status(status).header(http::header::CONTENT_TYPE, "application/json");
    if let Some(seconds) = retry_after {
        answer = answer.header(http::header::RETRY_AFTER, seconds);
    }
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed_unsync();
    Ok(answer.body(body)?)
}
