//! The kubelet's HTTPS server, for a control plane outside this process: logs, exec, attach and port-forward.
//!
//! A request is served only if its user is authorised for `nodes/proxy` of this node. The user is the one that a client
//! certificate of the configured authority names, or the one of a bearer token that the API authenticates.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_connections::{Connection, Connections};
use agent_sandbox_streams::backend::{NodeBackend, NodeError};
use agent_sandbox_streams::body::{self, Body};
use agent_sandbox_streams::request::RequestError;
use agent_sandbox_streams::server::{StreamError, StreamKind, StreamRequest, StreamServer};
use arc_swap::ArcSwap;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

mod auth;
pub mod backend;
mod routes;
mod subject;
mod tls;

pub use auth::AuthError;
pub use backend::Backend;
#[cfg(any(test, fuzzing))]
pub(crate) use subject::fuzz as fuzz_certificate;

use routes::{Route, route};

/// Configuration of the server.
#[derive(Clone, Debug)]
pub struct KubeletServerConfig {
    pub node_name: String,
    pub listen: SocketAddr,
    /// Certificate chain and key of the server, in PEM.
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    /// Authority whose client certificates are accepted, in PEM.
    pub client_authority: Option<Vec<u8>>,
}

/// Why the server did not start.
#[derive(Debug, Error)]
pub enum KubeletServerError {
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    #[error("the {0} is not usable PEM")]
    Pem(&'static str),
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    #[error("cannot check client certificates")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// Maximum number of concurrent connections.
const MAX_CONNECTIONS: usize = 1024;
/// Timeout for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server. Dropping it stops accepting connections.
pub struct KubeletServer {
    pub address: SocketAddr,
    accepting: JoinHandle<()>,
    streams: StreamServer,
    backend: Arc<ArcSwap<Arc<dyn NodeBackend>>>,
}

impl Drop for KubeletServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl KubeletServer {
    /// Binds the listener and starts serving.
    pub async fn start(
        config: KubeletServerConfig,
        client: kube::Client,
        backend: Arc<dyn NodeBackend>,
    ) -> Result<Self, KubeletServerError> {
        let acceptor = TlsAcceptor::from(tls::config(&config)?);
        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(|source| KubeletServerError::Listen(config.listen, source))?;
        let address = listener.local_addr().map_err(|source| KubeletServerError::Listen(config.listen, source))?;
        let backend = Arc::new(ArcSwap::from_pointee(backend));
        let streams = StreamServer::default();
        let handler = Arc::new(RequestHandler {
            node_name: config.node_name,
            client,
            streams: streams.clone(),
            backend: Arc::clone(&backend),
        });
        let accepting = tokio::spawn(accept(listener, acceptor, handler));
        Ok(Self { address, accepting, streams, backend })
    }

    /// Replaces the backend while the server keeps running.
    pub fn set_backend(&self, backend: Arc<dyn NodeBackend>) {
        self.backend.store(Arc::new(backend));
    }

    /// Stops the server: closes open sessions and waits until they have ended.
    pub async fn close(self) {
        self.accepting.abort();
        self.streams.close().await;
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, handler: Arc<RequestHandler>) {
    let connections = Connections::new(MAX_CONNECTIONS);
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            connections.make_room();
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // A connection without a place is closed by being dropped.
        let Some(place) = connections.add(peer) else { continue };
        let (acceptor, handler) = (acceptor.clone(), Arc::clone(&handler));
        tokio::spawn(async move {
            tokio::select! {
                ended = serve_connection(stream, acceptor, handler, Arc::clone(&place)) => if let Err(error) = ended {
                    debug!(%error, "A connection failed");
                },
                reason = place.must_close(|| false) => debug!(reason, "Closed a connection"),
            }
        });
    }
}

async fn serve_connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    handler: Arc<RequestHandler>,
    place: Arc<Connection>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await??;
    // The verifier has rejected certificates that the authority did not sign.
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let certified = Arc::new(certificate.and_then(|certificate| subject::user_of(certificate)));
    let service = hyper::service::service_fn(move |request| {
        let (handler, certified, place) = (Arc::clone(&handler), Arc::clone(&certified), Arc::clone(&place));
        async move {
            let user = certified.as_ref().as_ref();
            Ok::<_, std::convert::Infallible>(handler.handle(request, user, &place).await)
        }
    });
    hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .await
}

/// Serves the requests of all connections.
struct RequestHandler {
    node_name: String,
    client: kube::Client,
    streams: StreamServer,
    backend: Arc<ArcSwap<Arc<dyn NodeBackend>>>,
}

impl RequestHandler {
    async fn handle(
        &self,
        request: Request<Incoming>,
        certified: Option<&UserInfo>,
        place: &Connection,
    ) -> Response<Body> {
        if certified.is_some()
            && let Err(error) = auth::check_page(&request)
        {
            return text_response(error.status(), &error.to_string());
        }
        let (method, headers) = (request.method(), request.headers());
        if let Err(error) = auth::authorize(&self.client, &self.node_name, certified, method, headers).await {
            return text_response(error.status(), &error.to_string());
        }
        place.set_authenticated();
        match route(request.uri().path()) {
            None => text_response(StatusCode::NOT_FOUND, "404 page not found"),
            Some(Route::Healthz) => text_response(StatusCode::OK, "ok"),
            Some(Route::Pods) => self.pods().await,
            Some(Route::Stream { kind, namespace, pod, container }) => {
                self.stream(request, kind, &namespace, &pod, container.as_deref()).await
            }
        }
    }

    async fn pods(&self) -> Response<Body> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let of_this_node = ListParams::default().fields(&format!("spec.nodeName={}", self.node_name));
        match pods.list(&of_this_node).await.map(|list| serde_json::to_vec(&list)) {
            Ok(Ok(text)) => {
                let mut response = Response::new(body::full(text));
                let json = http::HeaderValue::from_static("application/json");
                response.headers_mut().insert(http::header::CONTENT_TYPE, json);
                response
            }
            Ok(Err(error)) => text_response(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            Err(error) => text_response(StatusCode::BAD_GATEWAY, &error.to_string()),
        }
    }

    async fn stream(
        &self,
        mut request: Request<Incoming>,
        kind: StreamKind,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
    ) -> Response<Body> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let stored = match pods.get_opt(pod).await.map(|found| found.map(serde_json::to_value)) {
            Ok(Some(Ok(stored))) => stored,
            Ok(_) => return text_response(StatusCode::NOT_FOUND, &format!("pod {namespace}/{pod} does not exist")),
            Err(error) => return text_response(StatusCode::BAD_GATEWAY, &error.to_string()),
        };
        if stored["spec"]["nodeName"].as_str() != Some(&self.node_name) {
            return text_response(StatusCode::NOT_FOUND, &format!("pod {namespace}/{pod} does not run on this node"));
        }
        let upgrade = request.headers().contains_key(http::header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
        let query = routes::translate(request.uri().query(), container);
        let stream_request = StreamRequest {
            method: request.method(),
            headers: request.headers(),
            query: Some(&query),
            upgrade,
            pod: &stored,
            backend: Arc::clone(&self.backend.load()),
            still_allowed: None,
        };
        self.streams
            .handle(kind, stream_request)
            .await
            .unwrap_or_else(|error| text_response(status_of(&error), &error.to_string()))
    }
}

fn status_of(error: &StreamError) -> StatusCode {
    match error {
        StreamError::Request(RequestError::BadRequest(_)) => StatusCode::BAD_REQUEST,
        StreamError::Request(_) => StatusCode::UNPROCESSABLE_ENTITY,
        StreamError::Node(NodeError::NotFound(_)) => StatusCode::NOT_FOUND,
        StreamError::Node(NodeError::BadRequest(_)) => StatusCode::BAD_REQUEST,
        StreamError::Node(NodeError::Unavailable(_)) => StatusCode::SERVICE_UNAVAILABLE,
        StreamError::Node(NodeError::Internal(_)) => StatusCode::INTERNAL_SERVER_ERROR,
        StreamError::Busy => StatusCode::TOO_MANY_REQUESTS,
    }
}

fn text_response(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(body::full(format!("{text}\n")));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests;
