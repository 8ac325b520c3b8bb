//! Another HTTP service below a path of the router's port, so that one machine needs one port for both.

use agent_sandbox_protocol::e2b;
use agent_sandbox_protocol::router_headers::SANDBOX_ID;
use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;

use crate::addressing::Routing;

/// A service that an embedder adds. It authenticates its callers itself.
#[async_trait]
pub trait Mounted: Send + Sync + 'static {
    /// Path of the service: begins with a slash and does not end with one.
    fn prefix(&self) -> &str;

    /// Handles a request whose path is below the prefix.
    async fn serve(&self, request: Request<Incoming>) -> Response<Bytes>;
}

/// Whether a request is for the service. One that names a sandbox goes to the sandbox.
pub(crate) fn is_for<B>(service: &dyn Mounted, routing: &Routing, request: &Request<B>) -> bool {
    let below = request.uri().path().strip_prefix(service.prefix());
    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        && !request.headers().contains_key(SANDBOX_ID)
        && !request.headers().contains_key(e2b::SANDBOX_ID)
        && routing.in_host(request).is_none()
}
