//! The node's own TLS server, for a control plane that is not in this process: logs, exec, attach and port-forward.
//!
//! Every request is refused unless its connection showed a client certificate of the configured authority, or it carries a
//! token that the API vouches for and whose user may use `nodes/proxy` of this node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_apiserver::node::{NodeBackend, NodeError};
use agent_sandbox_apiserver::render::{self, Body};
use agent_sandbox_apiserver::streams::handler::{StreamError, StreamKind, StreamRequest, Streams};
use agent_sandbox_apiserver::streams::request::RequestError;
use arc_swap::ArcSwap;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

mod access;
pub mod backend;
mod routes;
mod tls;

pub use access::Refusal;
pub use backend::Backend;

use routes::{Route, route};

/// How the server is run.
#[derive(Clone, Debug)]
pub struct KubeletConfig {
    pub node_name: String,
    pub listen: SocketAddr,
    /// The server's own certificate chain and key, PEM.
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    /// Certificates of this authority are let in; PEM.
    pub client_authority: Option<Vec<u8>>,
}

/// Why the server did not start.
#[derive(Debug, Error)]
pub enum KubeletError {
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    #[error("the {0} is not usable PEM")]
    Pem(&'static str),
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    #[error("cannot check client certificates")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// Connections at a time.
const MAX_CONNECTIONS: usize = 1024;
/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A running server; dropping it ends it.
pub struct Kubelet {
    pub address: SocketAddr,
    accepting: JoinHandle<()>,
    streams: Streams,
    backend: Arc<ArcSwap<Arc<dyn NodeBackend>>>,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Kubelet {
    /// Starts listening.
    pub async fn start(
        config: KubeletConfig,
        client: kube::Client,
        backend: Arc<dyn NodeBackend>,
    ) -> Result<Self, KubeletError> {
        let acceptor = TlsAcceptor::from(tls::config(&config)?);
        let listener =
            TcpListener::bind(config.listen).await.map_err(|source| KubeletError::Listen(config.listen, source))?;
        let address = listener.local_addr().map_err(|source| KubeletError::Listen(config.listen, source))?;
        let backend = Arc::new(ArcSwap::from_pointee(backend));
        let streams = Streams::default();
        let server = Arc::new(Server {
            node_name: config.node_name,
            client,
            streams: streams.clone(),
            backend: Arc::clone(&backend),
        });
        let accepting = tokio::spawn(accept(listener, acceptor, server));
        Ok(Self { address, accepting, streams, backend })
    }

    /// Puts another backend behind the open door.
    pub fn attach(&self, backend: Arc<dyn NodeBackend>) {
        self.backend.store(Arc::new(backend));
    }

    /// Ends open sessions and waits until they have said goodbye.
    pub async fn close(self) {
        self.accepting.abort();
        self.streams.close().await;
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, server: Arc<Server>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (acceptor, server) = (acceptor.clone(), Arc::clone(&server));
        tokio::spawn(async move {
            if let Err(error) = converse(stream, acceptor, server).await {
                debug!(%error, "A connection ended badly");
            }
            drop(slot);
        });
    }
}

async fn converse(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    server: Arc<Server>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await??;
    // The verifier let nothing through that the authority did not sign.
    let certified = stream.get_ref().1.peer_certificates().is_some_and(|c| !c.is_empty());
    let service = hyper::service::service_fn(move |request| {
        let server = Arc::clone(&server);
        async move { Ok::<_, std::convert::Infallible>(server.answer(request, certified).await) }
    });
    hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
        .serve_connection_with_upgrades(TokioIo::new(stream), service)
        .await
}

struct Server {
    node_name: String,
    client: kube::Client,
    streams: Streams,
    backend: Arc<ArcSwap<Arc<dyn NodeBackend>>>,
}

impl Server {
    async fn answer(&self, request: Request<Incoming>, certified: bool) -> Response<Body> {
        if !certified
            && let Err(refusal) =
                access::check(&self.client, &self.node_name, request.method(), request.headers()).await
        {
            return plain(refusal.status(), &refusal.to_string());
        }
        match route(request.uri().path()) {
            None => plain(StatusCode::NOT_FOUND, "404 page not found"),
            Some(Route::Healthz) => plain(StatusCode::OK, "ok"),
            Some(Route::Pods) => self.pods().await,
            Some(Route::Stream { kind, namespace, pod, container }) => {
                self.stream(request, kind, &namespace, &pod, container.as_deref()).await
            }
        }
    }

    async fn pods(&self) -> Response<Body> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let mine = ListParams::default().fields(&format!("spec.nodeName={}", self.node_name));
        match pods.list(&mine).await.map(|list| serde_json::to_vec(&list)) {
            Ok(Ok(text)) => {
                let mut response = Response::new(render::full(text));
                let json = http::HeaderValue::from_static("application/json");
                response.headers_mut().insert(http::header::CONTENT_TYPE, json);
                response
            }
            Ok(Err(error)) => plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            Err(error) => plain(StatusCode::BAD_GATEWAY, &error.to_string()),
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
            Ok(_) => return plain(StatusCode::NOT_FOUND, &format!("pod {namespace}/{pod} does not exist")),
            Err(error) => return plain(StatusCode::BAD_GATEWAY, &error.to_string()),
        };
        if stored["spec"]["nodeName"].as_str() != Some(&self.node_name) {
            return plain(StatusCode::NOT_FOUND, &format!("pod {namespace}/{pod} does not run on this node"));
        }
        let upgrade = request.headers().contains_key(http::header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
        let query = routes::translate(request.uri().query(), container);
        let wanted = StreamRequest {
            method: request.method(),
            headers: request.headers(),
            query: Some(&query),
            upgrade,
            pod: &stored,
            backend: Arc::clone(&self.backend.load()),
        };
        self.streams.handle(kind, wanted).await.unwrap_or_else(|error| plain(status_of(&error), &error.to_string()))
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

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(render::full(format!("{text}\n")));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests;
