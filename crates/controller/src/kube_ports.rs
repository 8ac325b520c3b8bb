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
    request::Request,
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

    async fn exchange(
        &self,
        lane: Lane,
        request: http::Request<Body>,
        limit: Duration,
    ) -> Result<(http::StatusCode, Option<Duration>, bytes::Bytes), ApiError> {
        let unknown = |message: String| ApiError::Unknown { message };
        let method = request.method().clone();
        let exchange = async {
            if let Some(pace) = &self.pace {
                pace.turn().await;
            }
            let response = self.clients.of(lane).send(request).await.map_err(|error| unknown(error.to_string()))?;
            let status = response.status();
            let retry_after = response
                .headers()
                .get(http::header::RETRY_AFTER)
                .and_then(|value| value.to_str().ok()?.parse().ok())
                .map(Duration::from_secs);
            let body = response.into_body().collect().await.map_err(|error| unknown(error.to_string()))?.to_bytes();
            Ok((status, retry_after, body))
        };
        let answer = tokio::time::timeout(limit, exchange)
            .await
            .unwrap_or_else(|_| Err(unknown(format!("no answer within {limit:?}"))));
        self.metrics.requested(&method, answer.as_ref().ok().map(|(status, ..)| *status));
        answer
    }
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

fn decode(
    kind: Kind,
    status: http::StatusCode,
    retry_after: Option<Duration>,
    body: &[u8],
) -> Result<Option<Object>, ApiError> {
    if !status.is_success() {
        let (reason, message) = match serde_json::from_slice::<Status>(body) {
            Ok(said) if !said.message.is_empty() => (said.reason, said.message),
            _ => (String::new(), format!("the API server answered {status}")),
        };
        return Err(ApiError::from_status(status.as_u16(), &reason, message, retry_after));
    }
    if serde_json::from_slice::<Status>(body).is_ok_and(|said| said.kind == "Status") {
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
        let http = http::Request::builder()
            .method(method)
            .uri(uri)
            .header(http::header::CONTENT_TYPE, content_type)
            .header(http::header::ACCEPT, "application/json")
            .body(Body::from(body))
            .map_err(|error| ApiError::Invalid {
                message: format!("\"{}\" cannot be addressed: {error}", request.key),
            })?;
        let (status, retry_after, body) = self.exchange(lane, http, limit).await?;
        decode(request.kind, status, retry_after, &body)
    }

    async fn read(&self, lane: Lane, kind: Kind, key: &Key) -> Result<Option<Object>, ApiError> {
        let http = http::Request::builder()
            .method(http::Method::GET)
            .uri(format!("{}/{}", kind.path(&key.namespace), key.name))
            .header(http::header::ACCEPT, "application/json")
            .body(Body::from(Vec::new()))
            .map_err(|error| ApiError::Invalid { message: format!("\"{key}\" cannot be addressed: {error}") })?;
        let (status, retry_after, body) = self.exchange(lane, http, REQUEST_TIMEOUT).await?;
        match decode(kind, status, retry_after, &body) {
            Err(ApiError::NotFound { .. }) => Ok(None),
            answer => answer,
        }
    }
}
