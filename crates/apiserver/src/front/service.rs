//! The HTTP service behind the TLS listener: authenticates each request before it is handled.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use agent_sandbox_connections::Connection;
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::Incoming;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::audit::AuditedRequest;
use super::auth::UserInfo;
use super::auth::authenticate::impersonate;
use crate::render::{self, Body};
use crate::server::ApiServer;
use crate::status::ApiError;

#[derive(Clone)]
pub(crate) struct AuthenticatingService {
    server: ApiServer,
    stop: CancellationToken,
}

impl AuthenticatingService {
    pub(crate) fn new(server: ApiServer, stop: CancellationToken) -> Self {
        Self { server, stop }
    }

    async fn respond(self, request: Request<Incoming>) -> Response<Body> {
        let log = self.server.front().audit.clone();
        let audited = log.as_ref().map(|log| AuditedRequest::begin(log, request.method(), request.uri()));
        let path = request.uri().path().trim_end_matches('/');
        // Health checks need no token.
        let user = if matches!(path, "/healthz" | "/livez" | "/readyz") {
            Ok(UserInfo::anonymous())
        } else {
            self.authenticate(request.headers()).inspect(|user| {
                let connection = request.extensions().get::<Arc<Connection>>();
                if let Some(connection) = connection.filter(|_| !user.is_anonymous()) {
                    connection.set_authenticated();
                }
            })
        };
        let response = match &user {
            Ok(user) => self.until_stopped(self.server.handle(user, request).await),
            Err(error) => render::error_response(error),
        };
        if let Some(audited) = audited {
            audited.end(user.as_ref().ok(), &response);
        }
        response
    }

    fn authenticate(&self, headers: &http::HeaderMap) -> Result<UserInfo, ApiError> {
        let front = self.server.front();
        let user = front.authenticator.authenticate(headers, Timestamp::now())?;
        impersonate(headers, user, &front.policy.current())
    }

    /// Ends a response without a known length (a watch, a followed log) when the listener closes.
    fn until_stopped(&self, response: Response<Body>) -> Response<Body> {
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        let stop = self.stop.clone().cancelled_owned();
        response.map(|body| StreamBody::new(BodyStream::new(body).take_until(stop)).boxed_unsync())
    }
}

impl tower::Service<Request<Incoming>> for AuthenticatingService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.respond(request).await) })
    }
}
