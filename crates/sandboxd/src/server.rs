//! The HTTP server: listeners, connections, and the choice of the dialect; HTTP/1.1 and HTTP/2 without TLS on every
//! port.

mod listen;
mod token;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_sandbox_protocol::native::PREFIX;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use tower::ServiceExt;

pub use listen::{Listeners, serve};
pub use token::Token;

use crate::dialects::native::Native;
use crate::dialects::runtime::{self, Endpoint, Runtime};
use crate::dialects::workspace::Workspace;
use crate::http_io::body::{self, Body};

/// The older name of the reflection service; its messages are the same.
const OLD_REFLECTION: &str = "/grpc.reflection.v1alpha.";
const REFLECTION: &str = "/grpc.reflection.v1.";

/// Everything that requests are dispatched to.
#[derive(Debug)]
pub struct App {
    pub runtime: Arc<Runtime>,
    pub workspace: Arc<Workspace>,
    pub native: Arc<Native>,
    pub grpc: axum::Router,
    pub token: Option<Token>,
    pub stopping: Arc<AtomicBool>,
    /// Notified of every request, and of the end of every connection that had one. Probes do not count as activity:
    /// they arrive every second for as long as a sandbox lives.
    pub activity: Arc<tokio::sync::Notify>,
}

impl App {
    /// Handles one request.
    pub async fn handle(self: Arc<Self>, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        // Probes need no token; they only learn that the daemon is alive.
        let probe = is_probe(&path);
        if !probe {
            self.activity.notify_one();
        }
        if let Some(token) = self.token.as_ref().filter(|_| !probe)
            && !token.allows(request.headers())
        {
            return token::unauthorized();
        }
        if self.stopping.load(Ordering::Relaxed) && !probe {
            return body::text(StatusCode::SERVICE_UNAVAILABLE, "shutting down\n");
        }
        if is_grpc(request.headers()) {
            return self.grpc(request).await;
        }
        if path == PREFIX || path.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with('/')) {
            return Arc::clone(&self.native).serve(request).await;
        }
        if path.starts_with("/v1/") {
            return Arc::clone(&self.workspace).serve(request).await;
        }
        match Endpoint::of(&path) {
            Some(endpoint) => Arc::clone(&self.runtime).serve(endpoint, request).await,
            None => runtime::not_found(),
        }
    }

    async fn grpc(&self, mut request: Request<Body>) -> Response<Body> {
        if let Some(method) = request.uri().path().strip_prefix(OLD_REFLECTION)
            && let Ok(uri) = Uri::try_from(format!("{REFLECTION}{method}"))
        {
            *request.uri_mut() = uri;
        }
        match self.grpc.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

fn is_probe(path: &str) -> bool {
    matches!(path, "/" | "" | "/v1/health")
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
