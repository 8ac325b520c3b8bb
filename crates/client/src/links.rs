//! Links to ports of sandboxes: asks a router to create or revoke one.

use crate::{
    ClientError, DirectOptions,
    call::{Body, full},
    dial::{Dialer, router_pod},
};
use agent_sandbox_protocol::links::PREFIX;
pub use agent_sandbox_protocol::links::{CreateLink, CreatedLink, LinkUrl};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper_util::{client::legacy::Client as HttpClient, rt::TokioExecutor};
use kube::{Client, Config, client::ConfigExt};
use std::time::Duration;
use tower::{Layer, ServiceExt};

/// Timeout for one request to the router.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of a response in bytes.
const MAX_RESPONSE: usize = 64 * 1024;

/// How the router that manages links is reached.
#[derive(Clone)]
pub enum LinkRouter {
    /// Through a port-forward to the router's Pod in a namespace. A router that asks for a token gets `token`.
    Tunnel { client: Client, namespace: String, token: Option<String> },
    /// At its URL.
    Direct { url: String, token: Option<String> },
}

/// Creates a link to ports of the Sandbox `name`.
pub async fn create_link(
    router: &LinkRouter,
    namespace: &str,
    name: &str,
    wanted: &CreateLink,
) -> Result<CreatedLink, ClientError> {
    let body = serde_json::to_vec(wanted).map_err(|error| ClientError::Invalid(error.to_string()))?;
    let path = format!("{PREFIX}/{namespace}/{name}");
    let answer = send(router, name, Method::POST, &path, body, "create a link").await?;
    serde_json::from_slice(&answer).map_err(|error| ClientError::Invalid(format!("the router's answer: {error}")))
}

/// Revokes a link of the Sandbox `name`.
pub async fn revoke_link(router: &LinkRouter, namespace: &str, name: &str, id: &str) -> Result<(), ClientError> {
    let path = format!("{PREFIX}/{namespace}/{name}/{id}");
    send(router, name, Method::DELETE, &path, Vec::new(), "revoke a link").await.map(drop)
}

/// The bearer token that requests of this configuration carry; `None` for one that authenticates in another way, such as
/// with a certificate.
pub async fn bearer_token(config: &Config) -> Result<Option<String>, ClientError> {
    let failed = |message: String| ClientError::Configuration { message };
    let Some(layer) = config.auth_layer().map_err(|error| failed(error.to_string()))? else { return Ok(None) };
    let seen = layer.layer(tower::service_fn(|request: Request<kube::client::Body>| async move {
        let (parts, _) = request.into_parts();
        let mut response = http::Response::new(());
        *response.headers_mut() = parts.headers;
        Ok::<_, tower::BoxError>(response)
    }));
    let response =
        seen.oneshot(Request::new(kube::client::Body::empty())).await.map_err(|error| failed(error.to_string()))?;
    let value = response.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    Ok(value.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned))
}

async fn send(
    router: &LinkRouter,
    name: &str,
    method: Method,
    path: &str,
    body: Vec<u8>,
    operation: &str,
) -> Result<Bytes, ClientError> {
    let (dialer, base, tokens) = match router {
        LinkRouter::Tunnel { client, namespace, token } => {
            let found = router_pod(client, std::slice::from_ref(namespace)).await?;
            let none = || ClientError::NoRouter { tried: namespace.clone(), direct_error: "links need one".to_owned() };
            let (namespace, pod, port) = found.ok_or_else(none)?;
            let dialer = Dialer::Pod { client: client.clone(), namespace, pod };
            // The engine knows who forwards the port. Only a router that does not gets the user's token.
            let tokens = std::iter::once(None).chain(token.clone().map(Some)).collect();
            (dialer, format!("http://localhost:{port}"), tokens)
        }
        LinkRouter::Direct { url, token } => {
            let options = DirectOptions { url: url.clone(), ..DirectOptions::default() };
            let dialer = if url.starts_with("https://") { Dialer::tls(&options)? } else { Dialer::plain() };
            (dialer, url.trim_end_matches('/').to_owned(), vec![token.clone()])
        }
    };
    let http: HttpClient<Dialer, Body> = HttpClient::builder(TokioExecutor::new()).build(dialer);
    let refused = |status: StatusCode, body: Bytes| {
        let detail = serde_json::from_slice::<serde_json::Value>(&body).ok();
        let detail = detail.and_then(|value| value["detail"].as_str().map(str::to_owned));
        let message = detail.unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned());
        let operation = operation.to_owned();
        ClientError::Refused { name: name.to_owned(), operation, status: status.as_u16(), code: None, message, body }
    };
    let mut last = None;
    for token in tokens {
        let mut request = Request::builder().method(method.clone()).uri(format!("{base}{path}"));
        request = request.header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(full(Bytes::from(body.clone())));
        let request = request.map_err(|error| ClientError::Invalid(error.to_string()))?;
        let exchange = async {
            let response = http.request(request).await.map_err(|error| crate::transport::error_chain(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
            Ok((status, body.map_err(|error| error.to_string())?.to_bytes()))
        };
        let answered = tokio::time::timeout(TIMEOUT, exchange).await;
        let answered = answered.unwrap_or_else(|_| Err(format!("no answer within {TIMEOUT:?}")));
        let disconnected = |message| {
            let (name, operation) = (name.to_owned(), operation.to_owned());
            ClientError::Disconnected { name, operation, message }
        };
        match answered.map_err(disconnected)? {
            (status, body) if status.is_success() => return Ok(body),
            (StatusCode::UNAUTHORIZED, body) => last = Some(refused(StatusCode::UNAUTHORIZED, body)),
            (status, body) => return Err(refused(status, body)),
        }
    }
    Err(last.unwrap_or_else(|| refused(StatusCode::UNAUTHORIZED, Bytes::new())))
}
