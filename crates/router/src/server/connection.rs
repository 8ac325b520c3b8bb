//! Serves one client connection: TLS handshake, HTTP/1.1 or HTTP/2, idle timeout, graceful end.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use agent_sandbox_connections::Connection;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::client_connection::{ActivityStream, ClientConnection, ConnectionAuth, IdleTimeout};
use super::tls::Acceptor;
use crate::proxy;
use crate::state::{Shared, Worker};

/// Timeout for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the read buffer of one client connection; larger request heads are refused.
const MAX_BUFFER: usize = 128 * 1024;
/// The same for a connection that an embedder has opened and authenticated: its data was decrypted before, and larger
/// pieces need fewer wake-ups.
const MAX_TRUSTED_BUFFER: usize = 512 * 1024;
const MAX_HEADERS: usize = 128;

/// Counts an open connection.
struct ConnectionGuard(Arc<Shared>);

impl ConnectionGuard {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) async fn serve_accepted(
    worker: Arc<Worker>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Acceptor>,
    slot: Option<Arc<Connection>>,
    stop: CancellationToken,
) {
    let _guard = ConnectionGuard::new(&worker.shared);
    let peer = agent_sandbox_protocol::address::canonical(peer.ip());
    let client = ClientConnection::new(Some(peer), tls.is_some(), ConnectionAuth::Unauthenticated, slot.clone());
    let served = serve_tls(worker, stream, Arc::clone(&client), tls, stop);
    let Some(slot) = slot else { return served.await };
    tokio::select! {
        () = served => {}
        reason = slot.must_close(|| client.is_busy()) => tracing::debug!(reason, "Closed a client connection"),
    }
}

async fn serve_tls(
    worker: Arc<Worker>,
    stream: TcpStream,
    client: Arc<ClientConnection>,
    tls: Option<Acceptor>,
    stop: CancellationToken,
) {
    match tls {
        None => serve_connection(worker, ActivityStream::new(stream, Arc::clone(&client)), client, stop).await,
        Some(acceptor) => match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                serve_connection(worker, ActivityStream::new(stream, Arc::clone(&client)), client, stop).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake timed out"),
        },
    }
}

/// Serves a connection that an embedder has opened.
pub(crate) async fn serve_stream<S>(worker: &Arc<Worker>, stream: S, auth: ConnectionAuth)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let _guard = ConnectionGuard::new(&worker.shared);
    let client = ClientConnection::new(None, false, auth, None);
    let stop = worker.shared.stop.clone();
    serve_connection(Arc::clone(worker), ActivityStream::new(stream, Arc::clone(&client)), client, stop).await;
}

/// Serves HTTP/1.1 or HTTP/2 until the client disconnects, is idle for too long, or the router drains.
async fn serve_connection<S>(worker: Arc<Worker>, stream: S, client: Arc<ClientConnection>, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let buffer = match &client.auth {
        ConnectionAuth::Unauthenticated => MAX_BUFFER,
        ConnectionAuth::User(_) => MAX_TRUSTED_BUFFER,
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .header_read_timeout(None)
        .max_buf_size(buffer)
        .max_headers(MAX_HEADERS)
        .http2()
        .enable_connect_protocol()
        .timer(TokioTimer::new())
        .max_concurrent_streams(250)
        .max_header_list_size(MAX_BUFFER as u32)
        .keep_alive_interval(Some(Duration::from_secs(60)))
        .keep_alive_timeout(Duration::from_secs(20));
    let shared = Arc::clone(&worker.shared);
    let mut idle = IdleTimeout::new(Arc::clone(&client), (&shared.config.timeouts).into());
    let service = service_fn(move |request| proxy::handle(Arc::clone(&worker), Arc::clone(&client), request));
    let mut connection = std::pin::pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let mut stopping = Some(Box::pin(stop.cancelled_owned()));
    let mut aborting = Box::pin(shared.abort.clone().cancelled_owned());
    std::future::poll_fn(|cx| {
        if let Some(stop) = &mut stopping
            && Pin::new(stop).poll(cx).is_ready()
        {
            stopping = None;
            connection.as_mut().graceful_shutdown();
        }
        if let Poll::Ready(result) = connection.as_mut().poll(cx) {
            if let Err(error) = result {
                tracing::debug!(%error, "Client connection ended");
            }
            return Poll::Ready(());
        }
        if Pin::new(&mut aborting).poll(cx).is_ready() {
            return Poll::Ready(());
        }
        idle.poll(cx)
    })
    .await;
}
