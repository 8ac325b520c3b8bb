//! Listening, serving connections, finding the handler: HTTP/1.1 and HTTP/2 without TLS on every port.

pub mod body;
pub mod download;
mod listen;
mod token;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Request, Response, StatusCode};

pub use listen::{Listeners, serve};
pub use token::Token;

use crate::runtime::{self, Endpoint, Runtime};
use body::Body;

/// Everything a request can reach.
#[derive(Debug)]
pub struct App {
    pub runtime: Arc<Runtime>,
    pub token: Option<Token>,
    pub stopping: AtomicBool,
}

impl App {
    /// Answers one request.
    pub async fn handle(self: Arc<Self>, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        // Probes come without a token and learn nothing but that we live.
        let probe = matches!(path.as_str(), "/" | "" | "/v1/health") && request.method() != http::Method::POST;
        if let Some(token) = self.token.as_ref().filter(|_| !probe)
            && !token.allows(request.headers())
        {
            return token::unauthorized();
        }
        if self.stopping.load(Ordering::Relaxed) && !probe {
            return body::text(StatusCode::SERVICE_UNAVAILABLE, "shutting down\n");
        }
        match Endpoint::of(&path) {
            Some(endpoint) => Arc::clone(&self.runtime).serve(endpoint, request).await,
            None => runtime::not_found(),
        }
    }
}
