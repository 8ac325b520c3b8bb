//! The HTTP service behind the TLS listener: refuses requests of web pages, authenticates each request before it is
//! handled, and ends its response with the user's token.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use agent_sandbox_connections::Connection;
use agent_sandbox_protocol::web::{AllowedHosts, AllowedOrigins, HostError, PageError, PageRules};
use futures::StreamExt;
use futures::future::BoxFuture;
use http::header::AUTHORIZATION;
use http::{Request, Response, StatusCode};
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

/// Interval at which the user of an open response (a watch, a followed log) is checked again, as that of sessions is.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(crate) struct AuthenticatingService {
    server: ApiServer,
    pages: Arc<PageRules>,
    stop: CancellationToken,
}

/// Which web pages may use the API without a bearer token: none. `extra_names` are those of the certificate besides the
/// ones of every API server. Clients outside of browsers call it by one of its names, by an address, or by a name that
/// only their own network knows.
fn page_rules(extra_names: &[String]) -> Result<PageRules, HostError> {
    // Every address is allowed.
    let names = extra_names.iter().filter(|name| name.parse::<IpAddr>().is_err()).cloned();
    let hosts = AllowedHosts::private([]).and(names)?;
    Ok(PageRules { hosts, origins: AllowedOrigins::default(), own_proxy: false, links: false })
}

fn page_error(error: &PageError) -> ApiError {
    let reason = if error.status() == StatusCode::FORBIDDEN { "Forbidden" } else { "" };
    ApiError::new(error.status(), reason, format!("{error}; send a bearer token, or use a client that is no browser"))
}

impl AuthenticatingService {
    /// Fails if one of the certificate's names, `extra_names`, is not a host name.
    pub(crate) fn new(server: ApiServer, extra_names: &[String], stop: CancellationToken) -> Result<Self, HostError> {
        Ok(Self { server, pages: Arc::new(page_rules(extra_names)?), stop })
    }

    async fn respond(self, request: Request<Incoming>) -> Response<Body> {
        let log = self.server.front().audit.clone();
        let mut audited = log.as_ref().map(|log| AuditedRequest::begin(log, request.method(), request.uri()));
        let path = request.uri().path().trim_end_matches('/');
        // Health checks need no token, and load balancers send any name.
        let user = if matches!(path, "/healthz" | "/livez" | "/readyz") {
            Ok(UserInfo::anonymous())
        } else {
            let sender = self.authenticate(&request).inspect(|sender| {
                if let Some(audited) = &mut audited {
                    audited.set_sender(sender.username.clone());
                }
            });
            let policy = &self.server.front().policy;
            let user = sender.and_then(|sender| impersonate(request.headers(), sender, &policy.current()));
            user.inspect(|user| {
                let connection = request.extensions().get::<Arc<Connection>>();
                if let Some(connection) = connection.filter(|_| !user.is_anonymous()) {
                    connection.set_authenticated();
                }
            })
        };
        let response = match &user {
            Ok(user) => self.until_ended(user, self.server.handle(user, request).await),
            Err(error) => render::error_response(error),
        };
        if let Some(audited) = audited {
            audited.end(user.as_ref().ok(), &response);
        }
        response
    }

    /// The user who sent the request, also where it asks to act as another one.
    fn authenticate<B>(&self, request: &Request<B>) -> Result<UserInfo, ApiError> {
        let headers = request.headers();
        // A token, which no browser sends by itself, proves more than a name and an origin do.
        if !headers.contains_key(AUTHORIZATION) {
            self.pages.check(request).map_err(|error| page_error(&error))?;
        }
        self.server.front().authenticator.authenticate(headers, Timestamp::now())
    }

    /// Ends a response without a known length (a watch, a followed log) when the listener closes, or when the user's
    /// token is not valid any more.
    fn until_ended(&self, user: &UserInfo, response: Response<Body>) -> Response<Body> {
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        let (server, user, stop) = (self.server.clone(), user.clone(), self.stop.clone());
        let end = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = until_invalid(&server, &user) => tracing::debug!("Ended a response whose user lost access"),
            }
        };
        response.map(|body| StreamBody::new(BodyStream::new(body).take_until(end)).boxed_unsync())
    }
}

/// Returns when the user's token is not valid any more.
async fn until_invalid(server: &ApiServer, user: &UserInfo) {
    while server.front().is_still_valid(user) {
        tokio::time::sleep(RECHECK_INTERVAL).await;
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
