//! The HTTP server: listeners, connections, and the choice of the dialect; HTTP/1.1 and HTTP/2 without TLS on every
//! port.

mod e2b;
mod listen;
mod pages;
mod token;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_sandbox_protocol::e2b::PUBLIC_ACCESS;
use agent_sandbox_protocol::native::PREFIX;
use agent_sandbox_protocol::web::PageRules;
use http::{HeaderMap, Request, Response, StatusCode, Uri, header};
use tower::ServiceExt;

pub use e2b::E2b;
pub use listen::{Listeners, Port, serve};
pub use pages::page_rules;
use token::Access;
pub use token::Token;

use crate::config::RouterKeys;
use crate::dialects::native::Native;
use crate::dialects::runtime::{self, Endpoint, Runtime};
use crate::dialects::workspace::Workspace;
use crate::http_io::body::{self, Body};

/// The older name of the reflection service; its messages are the same.
const OLD_REFLECTION: &str = "/grpc.reflection.v1alpha.";
const REFLECTION: &str = "/grpc.reflection.v1.";

/// How a request arrived. Browsers cannot open Unix sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Unix,
}

/// Everything that requests are dispatched to.
#[derive(Debug)]
pub struct App {
    pub runtime: Arc<Runtime>,
    pub workspace: Arc<Workspace>,
    pub native: Arc<Native>,
    pub grpc: axum::Router,
    /// What E2B's clients use; `None` if their ports are closed.
    pub e2b: Option<E2b>,
    pub token: Option<Token>,
    /// The router whose tokens are accepted beside the bearer token.
    pub router: Option<RouterKeys>,
    /// Which requests of web pages are accepted.
    pub pages: PageRules,
    pub stopping: Arc<AtomicBool>,
    /// Notified of every request, and of the end of every connection that had one. Probes do not count as activity:
    /// they arrive every second for as long as a sandbox lives.
    pub activity: Arc<tokio::sync::Notify>,
}

impl App {
    /// Handles one request.
    pub(crate) async fn handle(self: Arc<Self>, transport: Transport, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        // Probes need no token; they only learn that the daemon is alive.
        let probe = is_probe(&path);
        if !probe {
            self.activity.notify_one();
        }
        if request.headers().contains_key(PUBLIC_ACCESS) {
            // Even a proven router did not check who sent this request: it is for programs in the sandbox.
            body::discard(request.into_body()).await;
            return body::text(StatusCode::FORBIDDEN, "this port is not public\n");
        }
        match token::check(self.token.as_ref(), self.router.as_ref(), request.headers()) {
            _ if probe => {}
            // A page knows no token.
            Access::Proven => {}
            Access::Refused(why) => return token::unauthorized(why, request).await,
            Access::NotRequired if transport == Transport::Unix => {}
            Access::NotRequired => {
                if let Err(error) = self.pages.check(&request) {
                    return pages::refuse(&error, request).await;
                }
            }
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

/// Fuzz target: what the daemon decides before a dialect gets the request.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(request: &Request<Body>) {
    let rules = page_rules(Vec::new(), Default::default(), "search ns.svc.cluster.example");
    let _ = rules.expect("no names are listed").check(request);
    let access = token::check(Some(&Token::of(b"secret")), None, request.headers());
    let headers = request.headers().get_all(header::AUTHORIZATION);
    if access == Access::Proven {
        assert!(headers.iter().any(|value| value.as_bytes().ends_with(b"secret")), "a foreign token was accepted");
    }
    let _ = (is_probe(request.uri().path()), is_grpc(request.headers()), Endpoint::of(request.uri().path()));
}
