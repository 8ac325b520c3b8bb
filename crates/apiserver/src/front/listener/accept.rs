//! Accepts TLS connections and serves HTTP/1.1 and HTTP/2 on them, with upgrades. `agent-sandbox-connections` decides how many
//! there may be.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_connections::{Connection, Connections};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use jiff::Timestamp;
use rustls::crypto::ring;
use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower::Service;

use super::certificates::ServerCertificate;
use super::{Credentials, ListenerError, kubeconfig};
use crate::render::Body;

/// Timeout for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for receiving the headers of an HTTP/1.1 request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval and timeout of HTTP/2 pings. They detect clients that disappeared without closing the connection, such as a
/// laptop that was suspended.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Maximum number of concurrent HTTP/2 streams of a connection, as in kube-apiserver.
const STREAMS_PER_CONNECTION: u32 = 250;
/// Size of the read buffer below TLS. TLS reads 4 KiB at a time, which would cost a port-forward many system calls;
/// larger reads also wake the sender less often. The buffer's pages take memory only once data was read into them.
const READ_AHEAD: usize = 512 * 1024;
/// Pause after a failed accept, which would otherwise fail again immediately when the process has no free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Configuration of the listener.
#[derive(Debug, Clone)]
pub struct ListenerConfig {
    /// Port 0 selects a free port.
    pub address: SocketAddr,
    /// Allow an address other than a loopback address.
    pub allow_remote: bool,
    /// Host names or addresses that clients use, in addition to the loopback ones.
    pub extra_names: Vec<String>,
    /// Name of the cluster, user and context in the kubeconfig.
    pub name: String,
    /// Path at which to write the kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    pub max_connections: usize,
}

impl Default for ListenerConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            allow_remote: false,
            extra_names: Vec::new(),
            name: "embedded".into(),
            kubeconfig: None,
            max_connections: 1024,
        }
    }
}

/// A running listener. Dropping it closes all connections at once; [`shutdown`](Self::shutdown) closes it gracefully.
pub struct Listener {
    address: SocketAddr,
    kubeconfig: String,
    stop: CancellationToken,
    accepting: AbortOnDropHandle<()>,
    _certificates: AbortOnDropHandle<()>,
}

impl Listener {
    /// `stop` is cancelled when the listener closes; `service` ends responses then that have no end of their own.
    pub async fn start<S>(
        config: ListenerConfig,
        credentials: &Credentials,
        stop: CancellationToken,
        service: S,
    ) -> Result<Self, ListenerError>
    where
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
    {
        if !config.address.ip().is_loopback() && !config.allow_remote {
            return Err(ListenerError::NotLoopback(config.address));
        }
        let bind_failed = |source| ListenerError::Bind { address: config.address, source };
        let socket = TcpListener::bind(config.address).await.map_err(bind_failed)?;
        let address = socket.local_addr().map_err(bind_failed)?;
        let now = Timestamp::now();
        let mut names = config.extra_names.clone();
        names.push(address.ip().to_string());
        let certificate = ServerCertificate::issue(credentials.clone(), &names, now)?;
        let tls = TlsAcceptor::from(Arc::new(tls_config(certificate.clone())?));
        let text = kubeconfig::render(&config.name, kubeconfig::reachable(address), credentials);
        if let Some(path) = &config.kubeconfig {
            kubeconfig::write(path, &text)?;
        }
        let accept_loop = AcceptLoop { tls, service, connections: Connections::new(config.max_connections) };
        Ok(Self {
            address,
            kubeconfig: text,
            accepting: AbortOnDropHandle::new(tokio::spawn(accept_loop.run(socket, stop.clone()))),
            _certificates: AbortOnDropHandle::new(tokio::spawn(certificate.renew_periodically(now))),
            stop,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The text of the kubeconfig, also if no file was requested.
    pub fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    /// Stops accepting, waits at most `grace` for requests to finish, then closes the remaining connections.
    pub async fn shutdown(self, grace: Duration) {
        self.stop.cancel();
        if timeout(grace, self.accepting).await.is_err() {
            tracing::debug!("Closed connections that were still in use");
        }
    }
}

fn tls_config(certificate: Arc<ServerCertificate>) -> Result<rustls::ServerConfig, rustls::Error> {
    let mut provider = ring::default_provider();
    // AES-128 first, as other API servers choose: a longer key only makes port-forwards slower.
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.ignore_client_order = true;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

struct AcceptLoop<S> {
    tls: TlsAcceptor,
    service: S,
    connections: Arc<Connections>,
}

impl<S> AcceptLoop<S>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    async fn run(self, socket: TcpListener, stop: CancellationToken) {
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => {}
                next = socket.accept() => match next {
                    // A connection without room is dropped, which closes it: the client can try again.
                    Ok((stream, address)) => if let Some(connection) = self.connections.add(address) {
                        let service = self.service.clone();
                        connections.spawn(serve(stream, connection, self.tls.clone(), service, graceful.watcher()));
                    },
                    Err(error) => {
                        tracing::warn!(%error, "Could not accept a connection");
                        self.connections.make_room();
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }
        drop(socket);
        graceful.shutdown().await;
        while connections.join_next().await.is_some() {}
    }
}

/// Serves a connection to its end, until it has to give way to another one, or until its client has not authenticated
/// in time.
async fn serve<S>(stream: TcpStream, connection: Arc<Connection>, tls: TlsAcceptor, service: S, watcher: Watcher)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    tokio::select! {
        () = serve_http(stream, connection.clone(), tls, service, watcher) => {}
        reason = connection.must_close(|| false) => tracing::debug!(reason, "Closed a connection"),
    }
}

async fn serve_http<S>(stream: TcpStream, connection: Arc<Connection>, tls: TlsAcceptor, service: S, watcher: Watcher)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "Client disconnected before the handshake");
        return;
    }
    let stream = BufReader::with_capacity(READ_AHEAD, stream);
    let stream = match timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
        Err(_) => return,
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    // The service that authenticates a request finds its connection in the request's extensions.
    let service = tower::util::MapRequest::new(service, move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(connection.clone());
        request
    });
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(service));
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        tracing::debug!(%error, "Connection ended");
    }
}
