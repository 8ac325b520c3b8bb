//! Connections to sandboxes, kept per worker so that taking one never waits for another thread.
//!
//! An HTTP/1.1 connection has no task of its own: whoever holds the [`Lease`] drives it. That saves two task switches a
//! request, and a connection whose client went away is closed at once because its lease is dropped with the request.

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

use crate::body::UploadBody;
use crate::connect::{Stream, Target};

/// Common runtimes close idle connections after 5 s. Reusing one at that very moment would lose a request that must not
/// be repeated, so connections are given up earlier; opening a new one inside a cluster takes well under a millisecond.
const IDLE_REUSE: Duration = Duration::from_secs(4);
/// Idle connections to one sandbox; more than upstream's 16 because closing them under load costs more than memory.
const MAX_IDLE_PER_TARGET: usize = 512;
const MAX_IDLE: usize = 4096;
/// Idle HTTP/2 connections say goodbye properly, so they may be kept longer.
const H2_KEEP: Duration = Duration::from_secs(90);
/// Bounds the buffers of one connection.
const MAX_BUFFER: usize = 128 * 1024;

/// Connections are shared only within one incarnation of one Pod: an address may belong to somebody else later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PoolKey {
    incarnation: u64,
    addr: SocketAddr,
}

impl From<&Target> for PoolKey {
    fn from(target: &Target) -> Self {
        Self { incarnation: target.pod.as_ref().map_or(0, |pod| pod.incarnation), addr: target.addr }
    }
}

type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>;

/// Exclusive use of one HTTP/1.1 connection.
pub(crate) struct Lease {
    key: PoolKey,
    sender: http1::SendRequest<UploadBody>,
    /// `None` once the connection has ended.
    driver: Option<Driver>,
}

/// Why a request got no response.
pub(crate) struct SendError {
    pub(crate) error: hyper::Error,
    /// The request, if not a byte of it was sent.
    pub(crate) unsent: Option<Request<UploadBody>>,
}

impl Lease {
    /// Speaks HTTP/1.1 on a new connection.
    pub(crate) async fn open(key: PoolKey, stream: Stream) -> hyper::Result<Self> {
        let (sender, connection) =
            http1::Builder::new().max_buf_size(MAX_BUFFER).handshake(TokioIo::new(stream)).await?;
        Ok(Self { key, sender, driver: Some(Box::pin(connection.with_upgrades())) })
    }

    /// Moves the connection along; its end is noticed, not reported, because the response tells.
    pub(crate) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && driver.as_mut().poll(cx).is_ready()
        {
            // Dropping it answers a request that was still queued.
            self.driver = None;
        }
    }

    /// Sends a request and waits for the head of its response.
    pub(crate) async fn send(mut self, request: Request<UploadBody>) -> Result<(Response<Incoming>, Self), SendError> {
        let mut response = std::pin::pin!(self.sender.try_send_request(request));
        let result = std::future::poll_fn(|cx| {
            if let Some(driver) = &mut self.driver
                && driver.as_mut().poll(cx).is_ready()
            {
                self.driver = None;
            }
            // As in `DownBody`: only the driver can complete the response.
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

    /// Hands the driver to whoever waits for an upgrade.
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
    sender: http2::SendRequest<UploadBody>,
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
    /// A connection that is idle and alive, if there is one.
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
            if idle.since.elapsed() < IDLE_REUSE && idle.lease.is_usable(cx) {
                return Some(idle.lease);
            }
        }
    }

    /// Keeps a connection for the next request, unless it has ended or enough are kept.
    pub(crate) fn put(&self, mut lease: Lease) {
        if !lease.is_usable(&mut Context::from_waker(Waker::noop())) {
            return;
        }
        let mut connections = self.connections.lock();
        if connections.idle_count >= MAX_IDLE {
            return;
        }
        let kept = connections.idle.entry(lease.key).or_default();
        if kept.len() >= MAX_IDLE_PER_TARGET {
            return;
        }
        kept.push(Idle { lease, since: Instant::now() });
        connections.idle_count += 1;
        self.ensure_sweeper(&mut connections);
    }

    /// The HTTP/2 connection to a sandbox, if one is open.
    pub(crate) fn http2(&self, key: &PoolKey) -> Option<http2::SendRequest<UploadBody>> {
        let mut connections = self.connections.lock();
        let shared = connections.http2.get_mut(key)?;
        if shared.sender.is_closed() {
            connections.http2.remove(key);
            return None;
        }
        shared.used = Instant::now();
        Some(shared.sender.clone())
    }

    /// Speaks HTTP/2 (prior knowledge) on a new connection, which all later requests to the sandbox share.
    pub(crate) async fn open_http2(
        &self,
        key: PoolKey,
        stream: Stream,
    ) -> hyper::Result<http2::SendRequest<UploadBody>> {
        let (sender, connection) =
            http2::Builder::new(TokioExecutor::new()).timer(TokioTimer::new()).handshake(TokioIo::new(stream)).await?;
        // Ends by itself when the last sender is gone or the peer leaves.
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

    /// Starts the task that closes what nobody used for a while; it ends when nothing is kept, so that an idle router
    /// does not wake up at all.
    fn ensure_sweeper(&self, connections: &mut Connections) {
        if std::mem::replace(&mut connections.sweeping, true) {
            return;
        }
        let weak = Arc::downgrade(&self.connections);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(IDLE_REUSE).await;
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
            kept.retain(|idle| idle.since.elapsed() < IDLE_REUSE);
            !kept.is_empty()
        });
        self.idle_count = self.idle.values().map(Vec::len).sum();
        self.http2.retain(|_, shared| !shared.sender.is_closed() && shared.used.elapsed() < H2_KEEP);
    }
}
