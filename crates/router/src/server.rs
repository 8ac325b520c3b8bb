//! Accepts connections, spreads them over workers, and drains them in the end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt as _;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::client_side::{ClientSide, QuietGuard, Trust, Watched};
use crate::proxy;
use crate::tls::Acceptor;
use crate::worker::{Shared, Worker};

/// After a failed accept (usually: no descriptors left) there is no point in trying at once.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A TLS handshake may take so long.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// More than any listener's backlog; bounds the last round of accepting.
const MAX_QUEUED: usize = 4096;
/// Connections that may wait for one worker.
const WORKER_QUEUE: usize = 1024;
/// Bounds the read buffer of one client connection; heads larger than this are refused.
const MAX_BUFFER: usize = 128 * 1024;
/// The same for a connection that somebody else has opened and authenticated: what it carries was decrypted in between, and goes on in
/// larger pieces with fewer wake-ups.
const MAX_TRUSTED_BUFFER: usize = 512 * 1024;
const MAX_HEADERS: usize = 128;
const OVERLOADED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 39\r\n\r\n{\"detail\":\"The router is overloaded.\"}\n";

/// Where accepted connections go.
pub(crate) enum Crew {
    /// The caller's runtime.
    Local(Arc<Worker>),
    Threads(Vec<WorkerThread>),
}

/// A thread with a runtime of its own.
pub(crate) struct WorkerThread {
    queue: mpsc::Sender<Accepted>,
    load: Arc<AtomicUsize>,
}

struct Accepted {
    stream: std::net::TcpStream,
    peer: SocketAddr,
    tls: Option<Acceptor>,
    stop: CancellationToken,
}

impl Crew {
    /// Starts `threads` workers, or none to serve where the caller is.
    pub(crate) fn start(shared: &Arc<Shared>, threads: usize) -> io::Result<Self> {
        if threads == 0 {
            return Ok(Self::Local(Worker::new(Arc::clone(shared))));
        }
        (0..threads)
            .map(|number| WorkerThread::start(Arc::clone(shared), number))
            .collect::<io::Result<_>>()
            .map(Self::Threads)
    }

    async fn dispatch(
        &self,
        shared: &Arc<Shared>,
        accepted: (TcpStream, SocketAddr),
        tls: Option<Acceptor>,
        stop: &CancellationToken,
    ) {
        let (stream, peer) = accepted;
        match self {
            Self::Local(worker) => {
                let connection = serve_accepted(Arc::clone(worker), stream, peer, tls, stop.clone());
                shared.tasks.spawn(connection);
            }
            Self::Threads(threads) => {
                let Ok(stream) = stream.into_std() else { return };
                let least = threads.iter().min_by_key(|thread| thread.load.load(Ordering::Relaxed));
                let Some(thread) = least else { return };
                thread.load.fetch_add(1, Ordering::Relaxed);
                let accepted = Accepted { stream, peer, tls, stop: stop.clone() };
                if thread.queue.send(accepted).await.is_err() {
                    tracing::error!("A worker thread has ended; a connection was dropped");
                }
            }
        }
    }
}

impl WorkerThread {
    fn start(shared: Arc<Shared>, number: usize) -> io::Result<Self> {
        let (queue, mut accepted) = mpsc::channel::<Accepted>(WORKER_QUEUE);
        let load = Arc::new(AtomicUsize::new(0));
        let theirs = Arc::clone(&load);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tracker = shared.tasks.clone();
        let run = async move {
            let worker = Worker::new(shared);
            while let Some(Accepted { stream, peer, tls, stop }) = accepted.recv().await {
                let Ok(stream) = TcpStream::from_std(stream) else { continue };
                let (worker, load) = (Arc::clone(&worker), Arc::clone(&theirs));
                tracker.spawn(async move {
                    serve_accepted(worker, stream, peer, tls, stop).await;
                    load.fetch_sub(1, Ordering::Relaxed);
                });
            }
            // The router is gone; what it still serves ends with its drain.
            tracker.close();
            tracker.wait().await;
        };
        std::thread::Builder::new().name(format!("router-{number}")).spawn(move || runtime.block_on(run))?;
        Ok(Self { queue, load })
    }
}

/// Accepts until `shutdown`, then drains.
pub(crate) async fn serve(
    shared: &Arc<Shared>,
    crew: &Crew,
    listener: TcpListener,
    tls: Option<Acceptor>,
    shutdown: CancellationToken,
) {
    let stop = shared.stop.clone();
    accept_until(shared, crew, &listener, tls.as_ref(), &stop, shutdown.cancelled()).await;
    shared.draining.store(true, Ordering::Relaxed);
    let delay = shared.config.timeouts.drain_delay;
    if !delay.is_zero() {
        // Every response now closes its connection, while load balancers learn to go elsewhere.
        accept_until(shared, crew, &listener, tls.as_ref(), &stop, tokio::time::sleep(delay)).await;
    }
    empty_queue(shared, crew, &listener, tls.as_ref(), &stop).await;
    drop(listener);
    stop.cancel();
    shared.tasks.close();
    if timeout(shared.config.timeouts.shutdown, shared.tasks.wait()).await.is_err() {
        tracing::warn!("Drain time is over; closing what is still open");
        shared.abort.cancel();
        // Tunnels say goodbye within a second; everything else ends at once.
        let _ = timeout(Duration::from_secs(2), shared.tasks.wait()).await;
    }
}

async fn accept_until(
    shared: &Arc<Shared>,
    crew: &Crew,
    listener: &TcpListener,
    tls: Option<&Acceptor>,
    stop: &CancellationToken,
    end: impl Future<Output = ()>,
) {
    let mut end = std::pin::pin!(end);
    loop {
        let accepted = tokio::select! {
            // A flood of connections must not outshout the signal to stop.
            biased;
            () = &mut end => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(accepted) => admit(shared, crew, accepted, tls, stop).await,
            Err(error) => {
                tracing::warn!(%error, "Accepting a connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Takes in the connections that the kernel has already accepted for us: they belong to somebody.
async fn empty_queue(
    shared: &Arc<Shared>,
    crew: &Crew,
    listener: &TcpListener,
    tls: Option<&Acceptor>,
    stop: &CancellationToken,
) {
    for _ in 0..MAX_QUEUED {
        match listener.accept().now_or_never() {
            Some(Ok(accepted)) => admit(shared, crew, accepted, tls, stop).await,
            Some(Err(_)) | None => return,
        }
    }
}

async fn admit(
    shared: &Arc<Shared>,
    crew: &Crew,
    accepted: (TcpStream, SocketAddr),
    tls: Option<&Acceptor>,
    stop: &CancellationToken,
) {
    let limit = shared.config.limits.connections;
    if limit > 0 && shared.connections.load(Ordering::Relaxed) >= limit {
        let (mut stream, _) = accepted;
        if tls.is_none() {
            shared.tasks.spawn(async move {
                let _ = timeout(Duration::from_secs(1), async {
                    stream.write_all(OVERLOADED).await?;
                    stream.shutdown().await
                })
                .await;
            });
        }
        return;
    }
    // Latency counts more than packets: responses stream.
    let _ = accepted.0.set_nodelay(true);
    crew.dispatch(shared, accepted, tls.cloned(), stop).await;
}

/// Counts a connection while it lives.
struct Counted(Arc<Shared>);

impl Counted {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve_accepted(
    worker: Arc<Worker>,
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Acceptor>,
    stop: CancellationToken,
) {
    let _counted = Counted::new(&worker.shared);
    let peer = agent_sandbox_protocol::address::canonical(peer.ip());
    let client = ClientSide::new(Some(peer), tls.is_some(), Trust::None);
    match tls {
        None => serve_connection(worker, Watched::new(stream, Arc::clone(&client)), client, stop).await,
        Some(acceptor) => match timeout(HANDSHAKE_DEADLINE, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                serve_connection(worker, Watched::new(stream, Arc::clone(&client)), client, stop).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake timed out"),
        },
    }
}

/// Serves one connection that somebody else has opened.
pub(crate) async fn serve_stream<S>(worker: &Arc<Worker>, stream: S, trust: Trust)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let _counted = Counted::new(&worker.shared);
    let client = ClientSide::new(None, false, trust);
    let stop = worker.shared.stop.clone();
    serve_connection(Arc::clone(worker), Watched::new(stream, Arc::clone(&client)), client, stop).await;
}

/// Serves HTTP/1.1 or HTTP/2, whichever the client speaks, until it leaves, falls quiet or is drained.
async fn serve_connection<S>(worker: Arc<Worker>, stream: S, client: Arc<ClientSide>, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let buffer = match &client.trust {
        Trust::None => MAX_BUFFER,
        Trust::Authenticated(_) => MAX_TRUSTED_BUFFER,
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
    let mut guard = QuietGuard::new(Arc::clone(&client), (&shared.config.timeouts).into());
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
        guard.poll(cx)
    })
    .await;
}
