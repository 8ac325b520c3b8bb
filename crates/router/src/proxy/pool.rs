//! Connections to sandboxes, pooled per worker, so that taking one never waits for another thread.
//!
//! An HTTP/1.1 connection has no task of its own: the holder of its [`Lease`] drives it. That saves two task switches
//! per request, and closes a connection as soon as its client disconnects, because the lease is dropped with the
//! request.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;

use crate::proxy::body::RequestBody;
use crate::proxy::connector::Stream;
use crate::resolve::Endpoint;

/// Maximum age of an idle connection. Common runtimes close idle connections after 5 s; reusing one at that moment
/// would lose a request that must not be repeated, so connections are dropped earlier. Opening a new one inside a
/// cluster takes well under a millisecond.
const MAX_IDLE_AGE: Duration = Duration::from_secs(4);
/// Maximum number of idle connections to one endpoint; more than upstream's 16 because closing them under load costs
/// more than memory.
const MAX_IDLE_PER_ENDPOINT: usize = 512;
const MAX_IDLE: usize = 4096;
/// Idle HTTP/2 connections are kept longer, because the peer announces their end with GOAWAY.
const H2_IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum size of the buffers of one connection.
const MAX_BUFFER: usize = 128 * 1024;

/// Key of pooled connections. They are reused only within one incarnation of one Pod: its address may belong to another
/// Pod later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolKey {
    incarnation: u64,
    addr: SocketAddr,
}

impl From<&Endpoint> for PoolKey {
    fn from(endpoint: &Endpoint) -> Self {
        Self { incarnation: endpoint.pod.as_ref().map_or(0, |pod| pod.incarnation), addr: endpoint.addr }
    }
}

type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// Exclusive use of one HTTP/1.1 connection.
pub(crate) struct Lease {
    key: PoolKey,
    sender: http1::SendRequest<RequestBody>,
    /// `None` once the connection has ended.
    driver: Option<Driver>,
}

/// Why a request got no response.
pub(crate) struct SendError {
    pub(crate) error: hyper::Error,
    /// The request, if no byte of it was sent.
    pub(crate) unsent: Option<Request<RequestBody>>,
}

impl Lease {
    /// Starts HTTP/1.1 on a new connection.
    pub(crate) async fn open(key: PoolKey, stream: Stream) -> hyper::Result<Self> {
        let (sender, connection) =
            http1::Builder::new().max_buf_size(MAX_BUFFER).handshake(TokioIo::new(stream)).await?;
        Ok(Self { key, sender, driver: Some(Box::pin(connection.with_upgrades())) })
    }

    /// Polls the connection. Its end is not reported here, because the response reports it.
    pub(crate) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && driver.as_mut().poll(cx).is_ready()
        {
            // Dropping the driver fails a request that is still queued.
            self.driver = None;
        }
    }

    /// Sends a request and waits for the head of its response.
    pub(crate) async fn send(mut self, request: Request<RequestBody>) -> Result<(Response<Incoming>, Self), SendError> {
        let mut response = std::pin::pin!(self.sender.try_send_request(request));
        let result = std::future::poll_fn(|cx| {
            if let Some(driver) = &mut self.driver
                && driver.as_mut().poll(cx).is_ready()
            {
                self.driver = None;
            }
            // As in `ResponseBody`: only the driver can complete the response.
            response.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        })
        .await;
        match result {
            Ok(response) => Ok((response, self)),
            Err(mut error) => {
                let unsent = error.take_message();
                Err(SendError { error: error.into_error(), unsent })
            }
        }
    }

    /// The driver, for the completion of an upgrade.
    pub(crate) fn into_driver(self) -> Option<Driver> {
        self.driver
    }

    /// Whether another request can be sent right now.
    fn is_usable(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        self.driver.is_some() && self.sender.is_ready()
    }
}

struct Idle {
    lease: Lease,
    since: Instant,
}

struct SharedConnection {
    sender: http2::SendRequest<RequestBody>,
    used: Instant,
}

#[derive(Default)]
struct Connections {
    idle: HashMap<PoolKey, Vec<Idle>>,
    idle_count: usize,
    http2: HashMap<PoolKey, SharedConnection>,
    sweeping: bool,
}

/// Idle and shared connections of one worker.
#[derive(Default)]
pub(crate) struct Pool {
    connections: Arc<Mutex<Connections>>,
}

impl Pool {
    /// An idle, usable connection, if there is one.
    pub(crate) async fn take(&self, key: &PoolKey) -> Option<Lease> {
        std::future::poll_fn(|cx| Poll::Ready(self.take_now(key, cx))).await
    }

    fn take_now(&self, key: &PoolKey, cx: &mut Context<'_>) -> Option<Lease> {
        loop {
            let mut idle = {
                let mut connections = self.connections.lock();
                let idle = connections.idle.get_mut(key)?.pop()?;
                connections.idle_count -= 1;
                idle
            };
            if idle.since.elapsed() < MAX_IDLE_AGE && idle.lease.is_usable(cx) {
                return Some(idle.lease);
            }
        }
    }

    /// Returns a connection to the pool, unless it has ended or the pool is full.
    pub(crate) fn put(&self, mut lease: Lease) {
        if !lease.is_usable(&mut Context::from_waker(Waker::noop())) {
            return;
        }
        let mut connections = self.connections.lock();
        if connections.idle_count >= MAX_IDLE {
            return;
        }
        let kept = connections.idle.entry(lease.key).or_default();
        if kept.len() >= MAX_IDLE_PER_ENDPOINT {
            return;
        }
        kept.push(Idle { lease, since: Instant::now() });
        connections.idle_count += 1;
        self.ensure_sweeper(&mut connections);
    }

    /// The HTTP/2 connection to a sandbox, if one is open.
    pub(crate) fn http2(&self, key: &PoolKey) -> Option<http2::SendRequest<RequestBody>> {
        let mut connections = self.connections.lock();
        let shared = connections.http2.get_mut(key)?;
        if shared.sender.is_closed() {
            connections.http2.remove(key);
            return None;
        }
        shared.used = Instant::now();
        Some(shared.sender.clone())
    }

    /// Starts HTTP/2 (prior knowledge) on a new connection, which later requests to the sandbox share.
    pub(crate) async fn open_http2(
        &self,
        key: PoolKey,
        stream: Stream,
    ) -> hyper::Result<http2::SendRequest<RequestBody>> {
        let (sender, connection) =
            http2::Builder::new(TokioExecutor::new()).timer(TokioTimer::new()).handshake(TokioIo::new(stream)).await?;
        // Ends when the last sender is dropped or the peer closes the connection.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "HTTP/2 connection to a sandbox ended");
            }
        });
        let mut connections = self.connections.lock();
        connections.http2.insert(key, SharedConnection { sender: sender.clone(), used: Instant::now() });
        self.ensure_sweeper(&mut connections);
        Ok(sender)
    }

    /// Starts the task that closes connections that were idle for too long. It ends when the pool is empty, so that an
    /// idle router never wakes up.
    fn ensure_sweeper(&self, connections: &mut Connections) {
        if std::mem::replace(&mut connections.sweeping, true) {
            return;
        }
        let weak = Arc::downgrade(&self.connections);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(MAX_IDLE_AGE).await;
                let Some(connections) = weak.upgrade() else { return };
                let mut connections = connections.lock();
                connections.sweep();
                if connections.idle.is_empty() && connections.http2.is_empty() {
                    connections.sweeping = false;
                    return;
                }
            }
        });
    }
}

impl Connections {
    fn sweep(&mut self) {
        self.idle.retain(|_, kept| {
            kept.retain(|idle| idle.since.elapsed() < MAX_IDLE_AGE);
            !kept.is_empty()
        });
        self.idle_count = self.idle.values().map(Vec::len).sum();
        self.http2.retain(|_, shared| !shared.sender.is_closed() && shared.used.elapsed() < H2_IDLE_TIMEOUT);
    }
}
