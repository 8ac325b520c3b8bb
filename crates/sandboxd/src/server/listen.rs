//! Listening sockets and connections: accept until stopped, then let open requests finish within a time limit.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{App, Transport, is_probe};
use crate::http_io::body::Body;

/// Maximum number of connections served at once; more wait in the kernel's accept queue.
const MAX_CONNECTIONS: usize = 1024;

/// Maximum number of bytes of a request read at once. Larger buffers make uploads no faster: data should still be in
/// the CPU cache when it is written to the file.
const MAX_BUFFER: usize = 256 * 1024;

/// Pause after a failed accept: descriptors may become available again.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// What is served on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Every dialect that has paths of its own.
    Main,
    /// E2B's processes and files.
    Envd,
    /// E2B's code interpreter.
    Interpreter,
}

impl Port {
    pub(super) fn is_probe(self, path: &str) -> bool {
        match self {
            Self::Main => is_probe(path),
            Self::Envd | Self::Interpreter => path == "/health",
        }
    }
}

/// Bound sockets, not yet served.
#[derive(Debug)]
pub struct Listeners {
    tcp: Vec<(Port, TcpListener)>,
    unix: Vec<UnixListener>,
}

impl Listeners {
    /// Binds every address, or fails; of `optional` addresses, those that are free. `open` sockets are bound already.
    pub async fn bind(
        addresses: &[SocketAddr],
        optional: &[SocketAddr],
        sockets: &[PathBuf],
        open: Vec<std::net::TcpListener>,
    ) -> io::Result<Self> {
        let named = |what: &dyn std::fmt::Display, error: io::Error| {
            io::Error::new(error.kind(), format!("cannot listen on {what}: {error}"))
        };
        let mut tcp = Vec::new();
        for listener in open {
            listener.set_nonblocking(true)?;
            tcp.push(TcpListener::from_std(listener)?);
        }
        let known: Vec<_> = tcp.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        let is_closed = |address: &&SocketAddr| !known.contains(*address);
        for address in addresses.iter().filter(is_closed) {
            tcp.push(TcpListener::bind(address).await.map_err(|error| named(address, error))?);
        }
        for address in optional.iter().filter(is_closed) {
            match TcpListener::bind(address).await {
                Ok(listener) => tcp.push(listener),
                Err(error) => tracing::warn!(%address, %error, "Port is taken"),
            }
        }
        let mut unix = Vec::new();
        for path in sockets {
            remove_dead_socket(path)?;
            unix.push(UnixListener::bind(path).map_err(|error| named(&path.display(), error))?);
        }
        Ok(Self { tcp: tcp.into_iter().map(|listener| (Port::Main, listener)).collect(), unix })
    }

    /// Binds further addresses, for one kind of port; a socket that is open already changes its kind.
    pub async fn add(&mut self, port: Port, addresses: &[SocketAddr]) -> io::Result<()> {
        for address in addresses {
            let open = self.tcp.iter_mut().find(|(_, listener)| listener.local_addr().is_ok_and(|own| own == *address));
            if let Some((kind, _)) = open {
                *kind = port;
                continue;
            }
            let listener = TcpListener::bind(address).await;
            let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"));
            self.tcp.push((port, listener.map_err(named)?));
        }
        Ok(())
    }

    pub fn addresses(&self) -> Vec<(Port, SocketAddr)> {
        self.tcp.iter().filter_map(|(port, listener)| Some((*port, listener.local_addr().ok()?))).collect()
    }
}

/// Removes a socket that refuses connections: it is left over from a daemon that was killed.
fn remove_dead_socket(path: &PathBuf) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Serves until `stop`, then waits up to `drain` for open requests.
pub async fn serve(listeners: Listeners, app: Arc<App>, idle: Duration, stop: CancellationToken, drain: Duration) {
    let connections = Connections {
        app,
        idle,
        stop: stop.clone(),
        tasks: TaskTracker::new(),
        slots: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
    };
    let acceptors = TaskTracker::new();
    for (port, listener) in listeners.tcp {
        let connections = connections.clone();
        acceptors.spawn(async move {
            connections
                .accept(Transport::Tcp, port, || async {
                    let (stream, _) = listener.accept().await?;
                    // Responses are small and written whole: Nagle's algorithm would only delay them.
                    stream.set_nodelay(true)?;
                    Ok(stream)
                })
                .await;
        });
    }
    for listener in listeners.unix {
        let connections = connections.clone();
        acceptors.spawn(async move {
            connections.accept(Transport::Unix, Port::Main, || async { Ok(listener.accept().await?.0) }).await;
        });
    }
    acceptors.close();
    acceptors.wait().await;
    connections.tasks.close();
    let _ = tokio::time::timeout(drain, connections.tasks.wait()).await;
}

#[derive(Clone)]
struct Connections {
    app: Arc<App>,
    idle: Duration,
    stop: CancellationToken,
    tasks: TaskTracker,
    slots: Arc<Semaphore>,
}

impl Connections {
    async fn accept<S, A, F>(&self, transport: Transport, port: Port, mut next: A)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: FnMut() -> F,
        F: Future<Output = io::Result<S>>,
    {
        loop {
            let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = next() => accepted,
                () = self.stop.cancelled() => return,
            };
            match accepted {
                Ok(stream) => {
                    let used = Arc::new(AtomicBool::new(false));
                    let connection = self.clone().connection(transport, port, stream, Arc::clone(&used));
                    let activity = Arc::clone(&self.app.activity);
                    self.tasks.spawn(async move {
                        connection.await;
                        if used.load(Ordering::Relaxed) {
                            activity.notify_one();
                        }
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "Cannot accept a connection");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    /// Sets `used` with the first request that is not a probe.
    async fn connection<S>(self, transport: Transport, port: Port, stream: S, used: Arc<AtomicBool>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let app = self.app;
        let service = service_fn(move |request: Request<Incoming>| {
            let app = Arc::clone(&app);
            if !port.is_probe(request.uri().path()) {
                used.store(true, Ordering::Relaxed);
            }
            async move {
                let request = request.map(Body::new);
                Ok::<_, Infallible>(match port {
                    Port::Main => app.handle(transport, request).await,
                    Port::Envd | Port::Interpreter => app.handle_e2b(port, request).await,
                })
            }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.idle).max_buf_size(MAX_BUFFER);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(Duration::from_secs(30)))
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(2 << 20)
            .max_concurrent_streams(256);
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        tokio::pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => return,
            () = self.stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        // An error of the connection is the client's; the task only has to end.
        let _ = connection.await;
    }
}
