//! Accepts TLS connections and serves HTTP/1.1 and HTTP/2 on them, with upgrades.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower::Service;

use super::certificates::ServerCertificate;
use super::{Credentials, ServeError, kubeconfig};
use crate::render::Body;

const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
const HEADER_LIMIT: Duration = Duration::from_secs(30);
/// Finds clients that vanished without closing, such as a laptop that went to sleep.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Same as Kubernetes' API server.
const STREAMS_PER_CONNECTION: u32 = 250;
/// TLS asks for 4 KiB at a time: a port-forward would spend its time on system calls. Reading more at once also wakes whoever sends less
/// often. Memory is taken only for what is there to read.
const READ_AHEAD: usize = 512 * 1024;
/// After running out of descriptors, accepting again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the front door needs to know.
#[derive(Debug, Clone)]
pub struct ListenerConfig {
    /// Port 0 takes a free one.
    pub address: SocketAddr,
    /// Anything but a loopback address is refused unless this is set.
    pub allow_remote: bool,
    /// Host names or addresses that clients use, beside the loopback ones.
    pub extra_names: Vec<String>,
    /// Name of the cluster, user and context in the kubeconfig.
    pub name: String,
    /// Where the kubeconfig is written, if anywhere.
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

/// An open front door; dropping it closes it at once, [`shutdown`](Self::shutdown) politely.
pub struct Listener {
    address: SocketAddr,
    kubeconfig: String,
    stop: CancellationToken,
    accepting: AbortOnDropHandle<()>,
    _certificates: AbortOnDropHandle<()>,
}

impl Listener {
    /// `service` is given a token that fires when the listener closes, to end answers that would go on for ever.
    pub async fn start<S>(
        config: ListenerConfig,
        credentials: &Credentials,
        service: impl FnOnce(CancellationToken) -> S,
    ) -> Result<Self, ServeError>
    where
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
        S::Future: Send,
    {
        if !config.address.ip().is_loopback() && !config.allow_remote {
            return Err(ServeError::NotLoopback(config.address));
        }
        let bind_failed = |source| ServeError::Bind { address: config.address, source };
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
        let stop = CancellationToken::new();
        let door = FrontDoor {
            tls,
            service: service(stop.clone()),
            permits: Arc::new(Semaphore::new(config.max_connections)),
        };
        Ok(Self {
            address,
            kubeconfig: text,
            accepting: AbortOnDropHandle::new(tokio::spawn(door.run(socket, stop.clone()))),
            _certificates: AbortOnDropHandle::new(tokio::spawn(certificate.keep_fresh(now))),
            stop,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The text of the kubeconfig, also when no file was asked for.
    pub fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    /// Stops accepting, lets requests finish for at most `grace`, then closes what is left.
    pub async fn shutdown(self, grace: Duration) {
        self.stop.cancel();
        if timeout(grace, self.accepting).await.is_err() {
            tracing::debug!("Closed connections that were still busy");
        }
    }
}

fn tls_config(certificate: Arc<ServerCertificate>) -> Result<rustls::ServerConfig, rustls::Error> {
    let mut provider = ring::default_provider();
    // 128 bits first, as other API servers choose: a longer key only makes port-forwards slower.
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    config.ignore_client_order = true;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

struct FrontDoor<S> {
    tls: TlsAcceptor,
    service: S,
    permits: Arc<Semaphore>,
}

impl<S> FrontDoor<S>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    async fn run(self, socket: TcpListener, stop: CancellationToken) {
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        loop {
            let permits = self.permits.clone();
            tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => {}
                // Without a permit nothing is accepted: the kernel's queue holds clients back.
                next = async {
                    let permit = permits.acquire_owned().await.expect("the semaphore is never closed");
                    (permit, socket.accept().await)
                } => match next {
                    (permit, Ok((stream, _))) => {
                        connections.spawn(serve(stream, permit, self.tls.clone(), self.service.clone(), graceful.watcher()));
                    }
                    (_, Err(error)) => {
                        tracing::warn!(%error, "Could not accept a connection");
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

async fn serve<S>(stream: TcpStream, permit: OwnedSemaphorePermit, tls: TlsAcceptor, service: S, watcher: Watcher)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let _permit = permit;
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "Client left before the handshake");
        return;
    }
    let stream = BufReader::with_capacity(READ_AHEAD, stream);
    let stream = match timeout(HANDSHAKE_LIMIT, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
        Err(_) => return,
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_LIMIT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(service));
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        tracing::debug!(%error, "Connection ended");
    }
}
