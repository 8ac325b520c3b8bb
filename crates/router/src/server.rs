//! Accepts connections, distributes them over the workers, and drains them at the end.

pub(crate) mod client_connection;
mod connection;
pub(crate) mod probes;
pub(crate) mod tls;
pub(crate) mod workers;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use agent_sandbox_connections::Connections;
use futures::FutureExt as _;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub(crate) use connection::serve_stream;

use crate::state::Shared;
use tls::Acceptor;
use workers::Workers;

/// Delay after a failed accept. The usual cause is a lack of descriptors, so an immediate retry would fail again.
pub(crate) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Limit on the connections accepted in the last round; larger than any listener's backlog.
const MAX_ACCEPT_QUEUE: usize = 4096;
const OVERLOADED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 39\r\n\r\n{\"detail\":\"The router is overloaded.\"}\n";

/// Accepts until `shutdown`, then drains.
pub(crate) async fn serve(
    shared: &Arc<Shared>,
    workers: &Workers,
    listener: TcpListener,
    tls: Option<Acceptor>,
    shutdown: CancellationToken,
) {
    let stop = shared.stop.clone();
    let limits = &shared.config.limits;
    let peers = (limits.per_peer && limits.connections > 0).then(|| Connections::new(limits.connections));
    let peers = peers.as_ref();
    accept_until(shared, workers, &listener, tls.as_ref(), peers, &stop, shutdown.cancelled()).await;
    shared.draining.store(true, Ordering::Relaxed);
    let delay = shared.config.timeouts.drain_delay;
    if !delay.is_zero() {
        // While load balancers notice the drain, every response closes its connection.
        accept_until(shared, workers, &listener, tls.as_ref(), peers, &stop, tokio::time::sleep(delay)).await;
    }
    drain_accept_queue(shared, workers, &listener, tls.as_ref(), peers, &stop).await;
    drop(listener);
    stop.cancel();
    shared.tasks.close();
    if timeout(shared.config.timeouts.shutdown, shared.tasks.wait()).await.is_err() {
        tracing::warn!("Drain timeout expired; closing the remaining connections");
        shared.abort.cancel();
        // Tunnels send close frames for up to a second; everything else ends at once.
        let _ = timeout(Duration::from_secs(2), shared.tasks.wait()).await;
    }
}

async fn accept_until(
    shared: &Arc<Shared>,
    workers: &Workers,
    listener: &TcpListener,
    tls: Option<&Acceptor>,
    peers: Option<&Arc<Connections>>,
    stop: &CancellationToken,
    end: impl Future<Output = ()>,
) {
    let mut end = std::pin::pin!(end);
    loop {
        let accepted = tokio::select! {
            // Check for the end first, also under a flood of connections.
            biased;
            () = &mut end => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(accepted) => serve_or_refuse(shared, workers, accepted, tls, peers, stop).await,
            Err(error) => {
                tracing::warn!(%error, "Accepting a connection failed");
                if let Some(peers) = peers {
                    peers.make_room();
                }
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

/// Serves the connections that the kernel has already accepted: their clients consider them open.
async fn drain_accept_queue(
    shared: &Arc<Shared>,
    workers: &Workers,
    listener: &TcpListener,
    tls: Option<&Acceptor>,
    peers: Option<&Arc<Connections>>,
    stop: &CancellationToken,
) {
    for _ in 0..MAX_ACCEPT_QUEUE {
        match listener.accept().now_or_never() {
            Some(Ok(accepted)) => serve_or_refuse(shared, workers, accepted, tls, peers, stop).await,
            Some(Err(_)) | None => return,
        }
    }
}

async fn serve_or_refuse(
    shared: &Arc<Shared>,
    workers: &Workers,
    accepted: (TcpStream, SocketAddr),
    tls: Option<&Acceptor>,
    peers: Option<&Arc<Connections>>,
    stop: &CancellationToken,
) {
    let limit = shared.config.limits.connections;
    let slot = peers.map(|peers| peers.add(accepted.1));
    let full = match &slot {
        Some(slot) => slot.is_none(),
        None => limit > 0 && shared.connections.load(Ordering::Relaxed) >= limit,
    };
    if full {
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
    // Responses are streamed: send small packets at once (no Nagle's algorithm).
    let _ = accepted.0.set_nodelay(true);
    workers.dispatch(shared, accepted, tls.cloned(), slot.flatten(), stop).await;
}
