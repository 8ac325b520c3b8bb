//! Requests from the network: each must show a token before anything else happens.

use std::convert::Infallible;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::Incoming;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::auth::authenticate::impersonate;
use crate::render::{self, Body};
use crate::server::ApiServer;
use crate::status::ApiError;

/// The service behind the TLS listener.
#[derive(Clone)]
pub(crate) struct Door {
    server: ApiServer,
    stop: CancellationToken,
}

impl Door {
    pub(crate) fn new(server: ApiServer, stop: CancellationToken) -> Self {
        Self { server, stop }
    }

    async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().trim_end_matches('/');
        // Whoever watches over the process needs no token to see that it lives.
        let user = if matches!(path, "/healthz" | "/livez" | "/readyz") {
            Ok(crate::identity::UserInfo::prober())
        } else {
            self.identify(request.headers())
        };
        match user {
            Ok(user) => self.until_stopped(self.server.handle(&user, request).await),
            Err(error) => render::error_response(&error),
        }
    }

    fn identify(&self, headers: &http::HeaderMap) -> Result<crate::identity::UserInfo, ApiError> {
        let front = self.server.front();
        let user = front.authenticator.authenticate(headers, Timestamp::now())?;
        impersonate(headers, user, &front.policies.current())
    }

    /// Watches and followed logs have no end of their own; they end when the listener closes.
    fn until_stopped(&self, response: Response<Body>) -> Response<Body> {
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        let stop = self.stop.clone().cancelled_owned();
        response.map(|body| StreamBody::new(BodyStream::new(body).take_until(stop)).boxed_unsync())
    }
}

impl tower::Service<Request<Incoming>> for Door {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let door = self.clone();
        Box::pin(async move { Ok(door.answer(request).await) })
    }
}

/// A body of the network side in the type that all answers have.
pub(super) fn boxed<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<render::BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}
