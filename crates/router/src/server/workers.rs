//! The threads that serve connections, and the distribution of accepted connections over them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use agent_sandbox_connections::Connection;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::connection::serve_accepted;
use super::tls::Acceptor;
use crate::state::{Shared, Worker};

/// Maximum number of connections that wait for one worker.
const WORKER_QUEUE: usize = 1024;

/// Where accepted connections are served.
pub(crate) enum Workers {
    /// On the caller's runtime.
    Local(Arc<Worker>),
    Threads(Vec<WorkerThread>),
}

/// A thread with its own runtime.
pub(crate) struct WorkerThread {
    queue: mpsc::Sender<Accepted>,
    load: Arc<AtomicUsize>,
}

struct Accepted {
    stream: std::net::TcpStream,
    peer: SocketAddr,
    tls: Option<Acceptor>,
    slot: Option<Arc<Connection>>,
    stop: CancellationToken,
    place: Place,
}

/// One connection in a worker's load; counted until it is dropped, however the connection ends.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(load: Arc<AtomicUsize>) -> Self {
        load.fetch_add(1, Ordering::Relaxed);
        Self(load)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Workers {
    /// Starts `threads` workers; with 0, connections are served on the caller's runtime.
    pub(crate) fn start(shared: &Arc<Shared>, threads: usize) -> io::Result<Self> {
        if threads == 0 {
            return Ok(Self::Local(Worker::new(Arc::clone(shared))));
        }
        (0..threads)
            .map(|number| WorkerThread::start(Arc::clone(shared), number))
            .collect::<io::Result<_>>()
            .map(Self::Threads)
    }

    pub(super) async fn dispatch(
        &self,
        shared: &Arc<Shared>,
        accepted: (TcpStream, SocketAddr),
        tls: Option<Acceptor>,
        slot: Option<Arc<Connection>>,
        stop: &CancellationToken,
    ) {
        let (stream, peer) = accepted;
        match self {
            Self::Local(worker) => {
                let connection = serve_accepted(Arc::clone(worker), stream, peer, tls, slot, stop.clone());
                shared.tasks.spawn(connection);
            }
            Self::Threads(threads) => {
                let Ok(stream) = stream.into_std() else { return };
                let least = threads.iter().min_by_key(|thread| thread.load.load(Ordering::Relaxed));
                let Some(thread) = least else { return };
                let accepted = Accepted {
                    stream,
                    peer,
                    tls,
                    slot,
                    stop: stop.clone(),
                    place: Place::take(Arc::clone(&thread.load)),
                };
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
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tracker = shared.tasks.clone();
        let run = async move {
            let worker = Worker::new(shared);
            while let Some(Accepted { stream, peer, tls, slot, stop, place }) = accepted.recv().await {
                let Ok(stream) = TcpStream::from_std(stream) else { continue };
                let worker = Arc::clone(&worker);
                tracker.spawn(async move {
                    let _place = place;
                    serve_accepted(worker, stream, peer, tls, slot, stop).await;
                });
            }
            // The router is dropped; open connections end with its drain.
            tracker.close();
            tracker.wait().await;
        };
        std::thread::Builder::new().name(format!("router-{number}")).spawn(move || runtime.block_on(run))?;
        Ok(Self { queue, load })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_is_never_served_leaves_the_load() {
        let load = Arc::new(AtomicUsize::new(0));
        let place = Place::take(Arc::clone(&load));
        assert_eq!(load.load(Ordering::Relaxed), 1);
        drop(place);
        assert_eq!(load.load(Ordering::Relaxed), 0);
    }
}
