//! The server as the service behind an in-process `kube::Client`.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use agent_sandbox_telemetry::audit::AuditLog;
use futures::future::BoxFuture;
use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt as _;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::ApiServer;
use crate::front::audit::AuditedRequest;
use crate::front::auth::UserInfo;
use crate::render::{self, Body};
use crate::status::ApiError;

/// Size of the in-memory pipe of an upgraded connection.
const PIPE_SIZE: usize = 64 * 1024;

/// Extension of requests from a client that does not read `managedFields`.
#[derive(Clone, Copy)]
pub(super) struct OmitManagedFields;

/// Whose requests a client sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    /// A part of this process, for itself.
    Component,
    /// A part of this process, for a user who asked it over the network.
    User,
}

pub(super) struct InProcessService {
    pub(super) server: ApiServer,
    pub(super) user: Arc<UserInfo>,
    pub(super) sender: Sender,
    pub(super) omit_managed_fields: bool,
}

impl tower::Service<Request<kube::client::Body>> for InProcessService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<kube::client::Body>) -> Self::Future {
        let server = self.server.clone();
        let user = self.user.clone();
        let head = self.audited_head(&request);
        let sender = self.sender;
        if self.omit_managed_fields {
            request.extensions_mut().insert(OmitManagedFields);
        }
        Box::pin(async move {
            let response = if request.headers().contains_key(http::header::UPGRADE) {
                upgrade(server, user.clone(), request).await
            } else {
                server.handle(&user, request).await
            };
            if let Some((log, method, uri)) = head {
                let audited = AuditedRequest::begin(&log, &method, &uri);
                match sender {
                    Sender::User => audited.end(Some(&user), &response),
                    Sender::Component => audited.end_of_component(&user, &response),
                }
            }
            Ok(response)
        })
    }
}

impl InProcessService {
    /// What a record needs of a request; `None` if there will be none.
    fn audited_head(&self, request: &Request<kube::client::Body>) -> Option<(AuditLog, Method, Uri)> {
        let log = self.server.front().audit.as_ref()?;
        // Policies are about objects that are written.
        let possible =
            self.sender == Sender::User || matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH);
        possible.then(|| (log.clone(), request.method().clone(), request.uri().clone()))
    }
}

/// Handles an upgrade request (exec, attach, port-forward) over HTTP on an in-memory pipe, because an upgrade needs a
/// connection to take over. The response can be upgraded like one from a socket.
async fn upgrade(server: ApiServer, user: Arc<UserInfo>, request: Request<kube::client::Body>) -> Response<Body> {
    match connect(server, user, request).await {
        Ok(response) => response,
        Err(error) => render::error_response(&ApiError::internal(format!("in-process upgrade failed: {error}"))),
    }
}

async fn connect(
    server: ApiServer,
    user: Arc<UserInfo>,
    request: Request<kube::client::Body>,
) -> Result<Response<Body>, hyper::Error> {
    let (near, far) = tokio::io::duplex(PIPE_SIZE);
    let service = service_fn(move |request| {
        let (server, user) = (server.clone(), user.clone());
        async move { Ok::<_, Infallible>(server.handle(&user, request).await) }
    });
    let serving =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), service).with_upgrades();
    // Both tasks end when either side closes the pipe.
    tokio::spawn(serving);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await?;
    tokio::spawn(connection.with_upgrades());
    let response = sender.send_request(request).await?;
    Ok(response.map(|body| body.map_err(render::BoxError::from).boxed_unsync()))
}
