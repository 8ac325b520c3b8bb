//! The ports of E2B's clients. Each port has a dialect of its own, and clients that know only one address name the port
//! in a header.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent_sandbox_protocol::e2b::{ENVD_PORT, INTERPRETER_PORT, PUBLIC_ACCESS, SANDBOX_PORT};
use http::{Request, Response, StatusCode};
use serde_json::json;

use super::listen::Port;
use super::token::{self, Access};
use super::{App, pages};
use crate::dialects::envd::{Caller, Envd};
use crate::dialects::interpreter::Interpreter;
use crate::http_io::body::{self, Body};

/// The dialects of E2B's clients.
#[derive(Debug)]
pub struct E2b {
    pub envd: Arc<Envd>,
    pub interpreter: Arc<Interpreter>,
}

impl App {
    /// Handles a request on one of E2B's ports.
    pub(super) async fn handle_e2b(self: Arc<Self>, port: Port, request: Request<Body>) -> Response<Body> {
        if !port.is_probe(request.uri().path()) {
            self.activity.notify_one();
        }
        if request.headers().contains_key(PUBLIC_ACCESS) {
            // The router did not check who sent this request: it is for programs in the sandbox.
            body::discard(request.into_body()).await;
            return body::text(StatusCode::FORBIDDEN, "this port is not public\n");
        }
        let Some(e2b) = self.e2b.as_ref().filter(|_| !self.stopping.load(Ordering::Relaxed)) else {
            // The answer by which clients know that a sandbox is gone.
            return gone("The sandbox was not found");
        };
        let caller = match token::check(self.token.as_ref(), self.router.as_ref(), request.headers()) {
            Access::Proven => Caller::Trusted,
            Access::Refused(_) => Caller::Unproven,
            // Without an access token, a page must not get here by a name that resolves to this address. Pages of other
            // origins are the dialects' own matter: with an access token they may send requests.
            Access::NotRequired => {
                if !e2b.envd.settings.has_token()
                    && let Err(error) = self.pages.hosts.check(&request)
                {
                    return pages::refuse(&error, request).await;
                }
                Caller::Unchecked
            }
        };
        match named_port(&request).unwrap_or(port.number()) {
            ENVD_PORT => Arc::clone(&e2b.envd).serve(request, caller).await,
            INTERPRETER_PORT => Arc::clone(&e2b.interpreter).serve(request, caller).await,
            _ => gone("The sandbox is running but port is not open"),
        }
    }
}

fn gone(message: &str) -> Response<Body> {
    body::json(StatusCode::BAD_GATEWAY, &json!({ "message": message, "code": 502 }))
}

/// The port that a request is for, whatever port it arrives at.
fn named_port(request: &Request<Body>) -> Option<u16> {
    request.headers().get(SANDBOX_PORT)?.to_str().ok()?.trim().parse().ok()
}

impl Port {
    /// The number that clients know the port by; it may be open under another one.
    fn number(self) -> u16 {
        match self {
            Self::Interpreter => INTERPRETER_PORT,
            Self::Main | Self::Envd => ENVD_PORT,
        }
    }
}
