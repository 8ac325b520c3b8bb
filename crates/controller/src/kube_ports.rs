//! The ports over a Kubernetes client: one connection pool per lane, and a gate that no write passes without the lease.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;

use crate::{
    lease::Gate,
    metrics::Metrics,
    object::{Key, Kind, Object},
    pace::Pace,
    ports::{ApiError, Lane, Ports},
    request::{Request, Verb},
};

/// No single request may take longer: its outcome then counts as unknown.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A client per purpose, so that watches, claims and refill do not queue behind one another.
#[derive(Clone)]
pub struct Clients {
    pub watch: kube::Client,
    pub claims: kube::Client,
    pub core: kube::Client,
    pub refill: kube::Client,
}

impl Clients {
    /// One client for everything: right for an in-process API, where there is no connection to share.
    pub fn shared(client: kube::Client) -> Self {
        Self { watch: client.clone(), claims: client.clone(), core: client.clone(), refill: client }
    }

    fn of(&self, lane: Lane) -> &kube::Client {
        match lane {
            Lane::Claims => &self.claims,
            Lane::Core => &self.core,
            Lane::Refill => &self.refill,
        }
    }
}

pub struct KubePorts {
    clients: Clients,
    gate: Arc<Gate>,
    metrics: Arc<Metrics>,
    pace: Option<Pace>,
}

impl KubePorts {
    pub fn new(clients: Clients, gate: Arc<Gate>, metrics: Arc<Metrics>, pace: Option<Pace>) -> Self {
        Self { clients, gate, metrics, pace }
    }

    /// Sends a request until it is looked at: an API server that says when to come back is asked again then, as often as fits into
    /// `limit`. Nothing was done before that, so repeating it is safe.
    async fn exchange(&self, lane: Lane, request: &Exchange, limit: Duration) -> Result<Answer, ApiError> {
        let ends = Instant::now().checked_add(limit);
        loop {
            let left = ends.map_or(limit, |ends| ends.saturating_duration_since(Instant::now()));
            let answer = tokio::time::timeout(left, self.once(lane, request))
                .await
                .unwrap_or_else(|_| Err(ApiError::Unknown { message: format!("no answer within {limit:?}") }));
            self.metrics.requested(&request.method, answer.as_ref().ok().map(|answer| answer.status));
            let answer = answer?;
            let left = ends.map_or(limit, |ends| ends.saturating_duration_since(Instant::now()));
            match answer.retry_after.filter(|_| answer.status == http::StatusCode::TOO_MANY_REQUESTS) {
                Some(pause) if pause < left => tokio::time::sleep(pause).await,
                _ => return Ok(answer),
            }
        }
    }

    async fn once(&self, lane: Lane, request: &Exchange) -> Result<Answer, ApiError> {
        let unknown = |message: String| ApiError::Unknown { message };
        if let Some(pace) = &self.pace {
            pace.turn().await;
        }
        let response =
            self.clients.of(lane).send(request.to_http()?).await.map_err(|error| unknown(error.to_string()))?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get(http::header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(|seconds: u64| Duration::from_secs(seconds.max(1)));
        let body = response.into_body().collect().await.map_err(|error| unknown(error.to_string()))?.to_bytes();
        Ok(Answer { status, retry_after, body })
    }
}

/// A request that can be sent more than once.
struct Exchange {
    method: http::Method,
    uri: String,
    content_type: Option<&'static str>,
    body: bytes::Bytes,
}

impl Exchange {
    fn to_http(&self) -> Result<http::Request<Body>, ApiError> {
        let mut request = http::Request::builder()
            .method(&self.method)
            .uri(&self.uri)
            .header(http::header::ACCEPT, "application/json");
        if let Some(content_type) = self.content_type {
            request = request.header(http::header::CONTENT_TYPE, content_type);
        }
        request
            .body(Body::from(self.body.clone()))
            .map_err(|error| ApiError::Invalid { message: format!("\"{}\" cannot be addressed: {error}", self.uri) })
    }
}

struct Answer {
    status: http::StatusCode,
    retry_after: Option<Duration>,
    body: bytes::Bytes,
}

/// What an API server says when it does not do what was asked, or after a deletion.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

/// `gone` when the answer may be a Status instead of an object, as after a deletion.
fn decode(kind: Kind, answer: &Answer, gone: bool) -> Result<Option<Object>, ApiError> {
    let Answer { status, retry_after, body } = answer;
    if !status.is_success() {
        let (reason, message) = match serde_json::from_slice::<Status>(body) {
            Ok(said) if !said.message.is_empty() => (said.reason, said.message),
            _ => (String::new(), format!("the API server answered {status}")),
        };
        return Err(ApiError::from_status(status.as_u16(), &reason, message, *retry_after));
    }
    if gone && serde_json::from_slice::<Status>(body).is_ok_and(|said| said.kind == "Status") {
        return Ok(None);
    }
    Object::decode(kind, body)
        .map_err(|error| ApiError::Unknown { message: format!("the API server's answer does not decode: {error}") })
}

#[async_trait]
impl Ports for KubePorts {
    async fn send(&self, lane: Lane, request: &Request) -> Result<Option<Object>, ApiError> {
        let limit = self.gate.time_left(Instant::now()).ok_or(ApiError::NotLeader)?.min(REQUEST_TIMEOUT);
        let (method, uri, content_type, body) = request.to_http();
        let exchange = Exchange { method, uri, content_type: Some(content_type), body: body.into() };
        let gone = matches!(request.verb, Verb::Delete { .. });
        decode(request.kind, &self.exchange(lane, &exchange, limit).await?, gone)
    }

    async fn read(&self, lane: Lane, kind: Kind, key: &Key) -> Result<Option<Object>, ApiError> {
        let exchange = Exchange {
            method: http::Method::GET,
            uri: format!("{}/{}", kind.path(&key.namespace), key.name),
            content_type: None,
            body: bytes::Bytes::new(),
        };
        match decode(kind, &self.exchange(lane, &exchange, REQUEST_TIMEOUT).await?, false) {
            Err(ApiError::NotFound { .. }) => Ok(None),
            answer => answer,
        }
    }
}
