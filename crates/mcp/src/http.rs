//! Streamable HTTP: the server for many sessions at `/mcp`. Every request needs the bearer token; requests of web pages
//! are refused.

use crate::{BearerToken, McpError, Sandboxes, server::Server};
use agent_sandbox_connections::{Connection, Connections};
use agent_sandbox_protocol::web::AllowedHosts;
use bytes::Bytes;
use http::{
    Request, Response, StatusCode,
    header::{HeaderValue, WWW_AUTHENTICATE},
};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

/// Maximum size of a message: a file in base64.
const MAX_MESSAGE: usize = 96 << 20;
/// Maximum number of connections.
const CONNECTIONS: usize = 1024;
/// Timeout for the head of a request, also of the next one on a kept connection: idle connections must not use up the
/// places of others.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle timeout of a session. Its sandboxes end by their own lifetime.
const SESSION_IDLE: Duration = Duration::from_secs(3600);
/// Timeout for calls under way when the server stops.
const DRAIN: Duration = Duration::from_secs(5);

/// Where to listen, and which clients to serve.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    pub listen: SocketAddr,
    /// Names by which clients may call the server; `*` is any. Empty means loopback addresses, `localhost` and names
    /// below it.
    pub allowed_hosts: Vec<String>,
    /// What clients must send; `None` serves every client that reaches the port.
    pub token: Option<BearerToken>,
}

type Service = StreamableHttpService<Server, LocalSessionManager>;

/// What answers requests at `/mcp`, and what it asks of them.
#[derive(Clone)]
struct Endpoint {
    service: Service,
    hosts: Arc<AllowedHosts>,
    token: Option<Arc<BearerToken>>,
}

/// Serves until `stop`; `ready` is told the address once connections are accepted.
pub async fn serve_http(
    sandboxes: Sandboxes,
    options: HttpOptions,
    ready: impl FnOnce(SocketAddr),
    stop: impl Future<Output = ()>,
) -> Result<(), McpError> {
    let address = options.listen.to_string();
    if !options.listen.ip().is_loopback() && options.allowed_hosts.is_empty() {
        return Err(McpError::Exposed { address });
    }
    let failed = |source| McpError::Listen { address: address.clone(), source };
    let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
    ready(listener.local_addr().map_err(failed)?);
    let over = CancellationToken::new();
    let endpoint = Endpoint {
        service: service(sandboxes, &options.allowed_hosts, over.clone()),
        hosts: Arc::new(hosts(&options.allowed_hosts)),
        token: options.token.map(Arc::new),
    };
    let graceful = GracefulShutdown::new();
    let connections = Connections::new(CONNECTIONS);
    tokio::pin!(stop);
    loop {
        let (stream, place) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => match connections.add(peer) {
                    Some(place) => (stream, place),
                    // Dropped, which closes it: the client can try again.
                    None => continue,
                },
                Err(error) => {
                    // Too many open files, or a client that left: neither is a reason to end.
                    tracing::warn!(%error, "Cannot accept a connection");
                    connections.make_room();
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let (endpoint, own) = (endpoint.clone(), place.clone());
        let answer = hyper::service::service_fn(move |request| route(endpoint.clone(), own.clone(), request));
        let mut connection = http1::Builder::new();
        connection.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        let connection = graceful.watch(connection.serve_connection(TokioIo::new(stream), answer));
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "Connection ended");
                },
                reason = place.must_close(|| false) => tracing::debug!(reason, "Closed a connection"),
            }
        });
    }
    over.cancel();
    let _ = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
    Ok(())
}

fn service(sandboxes: Sandboxes, hosts: &[String], over: CancellationToken) -> Service {
    let mut config = StreamableHttpServerConfig::default()
        .with_cancellation_token(over)
        .with_max_request_body_bytes(MAX_MESSAGE)
        .enforce_origin_validation();
    config = match hosts.is_empty() || hosts.iter().any(|host| host == "*") {
        true => config.disable_allowed_hosts(),
        false => config.with_allowed_hosts(hosts.iter().cloned()),
    };
    let mut sessions = LocalSessionManager::default();
    sessions.session_config.keep_alive = Some(SESSION_IDLE);
    StreamableHttpService::new(move || Ok(Server::of_http(sandboxes.clone())), Arc::new(sessions), config)
}

/// The names that are allowed when none is listed. A list is checked by the service itself.
fn hosts(listed: &[String]) -> AllowedHosts {
    if listed.is_empty() { AllowedHosts::loopback() } else { AllowedHosts::any() }
}

async fn route(
    mut endpoint: Endpoint,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let has_token = |token: &Arc<BearerToken>| token.is_in(request.headers());
    match request.uri().path() {
        "/mcp" | "/mcp/" if !endpoint.token.as_ref().is_none_or(has_token) => Ok(unauthorized()),
        "/mcp" | "/mcp/" => match endpoint.hosts.check(&request) {
            Ok(()) => {
                connection.set_authenticated();
                endpoint.service.call(request).await
            }
            Err(error) => Ok(plain(error.status(), format!("{error}; name it with --allowed-host\n"))),
        },
        "/healthz" => Ok(plain(StatusCode::OK, "ok\n")),
        _ => Ok(plain(StatusCode::NOT_FOUND, "the MCP endpoint is /mcp\n")),
    }
}

fn unauthorized() -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = plain(StatusCode::UNAUTHORIZED, "send the server's token: Authorization: Bearer TOKEN\n");
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn plain(status: StatusCode, words: impl Into<Bytes>) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(words.into()).boxed());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_list_this_machines_names_are_allowed_and_no_others() {
        let usual = hosts(&[]);
        for host in ["localhost:8000", "agent.localhost:8000", "127.0.0.1:8000", "[::1]:8000"] {
            assert!(usual.contain(host), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "192.0.2.1:8000"] {
            assert!(!usual.contain(host), "{host}");
        }
        assert!(hosts(&["mcp.example".to_owned()]).contain("mcp.example"), "the service checks the list");
    }
}
