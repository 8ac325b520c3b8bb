//! The [`ApiClient`] over `kube::Client`: one client per lane, and a gate that no write passes without the lease.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;

use crate::{
    api_client::{ApiClient, ApiError, Lane, Request, Verb, rate_limit::RateLimiter},
    cache::{Key, Kind, Object},
    leader_election::WriteGate,
    serving::metrics::Metrics,
};

/// Timeout of a request, including its retries. Its outcome then counts as unknown.
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
    /// One client for everything, for an in-process API, where there is no connection to share.
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

pub struct KubeApiClient {
    clients: Clients,
    gate: Arc<WriteGate>,
    metrics: Arc<Metrics>,
    rate_limiter: Option<RateLimiter>,
}

impl KubeApiClient {
    pub fn new(
        clients: Clients,
        gate: Arc<WriteGate>,
        metrics: Arc<Metrics>,
        rate_limiter: Option<RateLimiter>,
    ) -> Self {
        Self { clients, gate, metrics, rate_limiter }
    }

    /// Sends a request until the API server processes it: after a 429 with `Retry-After` the request is repeated, as
    /// often as fits into `limit`. A rejected request had no effect, so repeating it is safe.
    async fn send_until_accepted(
        &self,
        lane: Lane,
        request: &HttpRequest,
        limit: Duration,
    ) -> Result<HttpResponse, ApiError> {
        let ends = Instant::now().checked_add(limit);
        loop {
            let left = ends.map_or(limit, |ends| ends.saturating_duration_since(Instant::now()));
            let response = tokio::time::timeout(left, self.send_once(lane, request))
                .await
                .unwrap_or_else(|_| Err(ApiError::Unknown { message: format!("no answer within {limit:?}") }));
            self.metrics.request_finished(&request.method, response.as_ref().ok().map(|response| response.status));
            let response = response?;
            let left = ends.map_or(limit, |ends| ends.saturating_duration_since(Instant::now()));
            match response.retry_after.filter(|_| response.status == http::StatusCode::TOO_MANY_REQUESTS) {
                Some(pause) if pause < left => tokio::time::sleep(pause).await,
                _ => return Ok(response),
            }
        }
    }

    async fn send_once(&self, lane: Lane, request: &HttpRequest) -> Result<HttpResponse, ApiError> {
        let unknown = |message: String| ApiError::Unknown { message };
        if let Some(rate_limiter) = &self.rate_limiter {
            rate_limiter.acquire().await;
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
        Ok(HttpResponse { status, retry_after, body })
    }
}

/// A request that can be sent more than once.
struct HttpRequest {
    method: http::Method,
    uri: String,
    content_type: Option<&'static str>,
    body: bytes::Bytes,
}

impl HttpRequest {
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

struct HttpResponse {
    status: http::StatusCode,
    retry_after: Option<Duration>,
    body: bytes::Bytes,
}

/// The `Status` object that an API server returns for an error, or after a deletion.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

/// Decodes a response. `gone`: the response may be a Status instead of an object, as after a deletion.
fn decode(kind: Kind, response: &HttpResponse, gone: bool) -> Result<Option<Object>, ApiError> {
    let HttpResponse { status, retry_after, body } = response;
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
        .map_err(|error| ApiError::Unknown { message: format!("cannot decode the API server's response: {error}") })
}

#[async_trait]
impl ApiClient for KubeApiClient {
    async fn send(&self, lane: Lane, request: &Request) -> Result<Option<Object>, ApiError> {
        let limit = self.gate.time_left(Instant::now()).ok_or(ApiError::NotLeader)?.min(REQUEST_TIMEOUT);
        let (method, uri, content_type, body) = request.to_http();
        let send_until_accepted = HttpRequest { method, uri, content_type: Some(content_type), body: body.into() };
        let gone = matches!(request.verb, Verb::Delete { .. });
        decode(request.kind, &self.send_until_accepted(lane, &send_until_accepted, limit).await?, gone)
    }

    async fn read(&self, lane: Lane, kind: Kind, key: &Key) -> Result<Option<Object>, ApiError> {
        let send_until_accepted = HttpRequest {
            method: http::Method::GET,
            uri: format!("{}/{}", kind.path(&key.namespace), key.name),
            content_type: None,
            body: bytes::Bytes::new(),
        };
        match decode(kind, &self.send_until_accepted(lane, &send_until_accepted, REQUEST_TIMEOUT).await?, false) {
            Err(ApiError::NotFound { .. }) => Ok(None),
            response => response,
        }
    }
}
