//! What the router knows about a client connection: the peer, how it was authenticated, and whether it is idle.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use agent_sandbox_connections::Connection;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::auth::Caller;
use crate::config::Timeouts;
use crate::proxy::headers::Inbound;

/// First bytes of an HTTP/2 connection.
const HTTP2_PREFACE: &[u8] = b"PRI ";

/// What is known about the client of a connection before its first request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionAuth {
    /// Nothing: the configured authorisation applies.
    Unauthenticated,
    /// The API server authenticated this user, for a port-forward. No token is required and the `Host` is not checked;
    /// every request still needs the user's access to the sandbox's namespace.
    User(Arc<Caller>),
}

/// State of one client connection.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    pub(crate) peer: Option<IpAddr>,
    pub(crate) inbound: Inbound,
    pub(crate) auth: ConnectionAuth,
    /// The place of the connection among those of all peers, if these are limited.
    slot: Option<Arc<Connection>>,
    opened: Instant,
    /// Number of open requests.
    active: AtomicUsize,
    /// Milliseconds after `opened` of the last byte in either direction, plus one; 0 before the first byte.
    last_io: AtomicU64,
    /// The same for the first byte of an incomplete request head; 0 if there is none.
    head_since: AtomicU64,
    http2: AtomicBool,
    upgraded: AtomicBool,
}

impl ClientConnection {
    pub(crate) fn new(
        peer: Option<IpAddr>,
        tls: bool,
        auth: ConnectionAuth,
        slot: Option<Arc<Connection>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            peer,
            inbound: Inbound::new(peer, tls),
            auth,
            slot,
            opened: Instant::now(),
            active: AtomicUsize::new(0),
            last_io: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
            http2: AtomicBool::new(false),
            upgraded: AtomicBool::new(false),
        })
    }

    /// A request on this connection was let through.
    pub(crate) fn admitted(&self) {
        if let Some(slot) = &self.slot {
            slot.set_authenticated();
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.active.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn request_begins(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
    }

    pub(crate) fn request_ends(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// From now on the tunnel's limits apply instead.
    pub(crate) fn upgraded(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    fn record_io(&self, read: Option<&[u8]>) {
        let now = self.opened.elapsed().as_millis() as u64;
        let first = self.last_io.swap(now + 1, Ordering::Relaxed) == 0;
        let Some(bytes) = read else { return };
        if first && bytes.starts_with(HTTP2_PREFACE) {
            self.http2.store(true, Ordering::Relaxed);
        }
        // HTTP/2 frames between requests are not the start of a request head.
        if self.active.load(Ordering::Relaxed) == 0
            && !self.http2.load(Ordering::Relaxed)
            && self.head_since.load(Ordering::Relaxed) == 0
        {
            self.head_since.store(now + 1, Ordering::Relaxed);
        }
    }

    /// When the connection has been idle for too long; `None` while it is in use.
    fn idle_deadline(&self, limits: &IdleLimits) -> Option<Instant> {
        if self.active.load(Ordering::Relaxed) > 0 || self.upgraded.load(Ordering::Relaxed) {
            return None;
        }
        let since = |ms: u64| self.opened + Duration::from_millis(ms.saturating_sub(1));
        let (last_io, head) = (self.last_io.load(Ordering::Relaxed), self.head_since.load(Ordering::Relaxed));
        Some(match (last_io, head) {
            // No byte yet: the timeout for a request head applies.
            (0, _) => self.opened + limits.head_read,
            (_, 0) => since(last_io) + limits.client_idle,
            (_, head) => since(head) + limits.head_read,
        })
    }
}

/// Timeouts of an idle client connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleLimits {
    head_read: Duration,
    client_idle: Duration,
}

impl From<&Timeouts> for IdleLimits {
    fn from(timeouts: &Timeouts) -> Self {
        Self { head_read: timeouts.head_read, client_idle: timeouts.client_idle }
    }
}

/// Completes when the client has been idle for too long. It is polled with the connection; the timer is reset only when
/// the deadline is earlier than before or has passed, so that requests do not pay for it.
pub(crate) struct IdleTimeout {
    client: Arc<ClientConnection>,
    limits: IdleLimits,
    timer: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl IdleTimeout {
    pub(crate) fn new(client: Arc<ClientConnection>, limits: IdleLimits) -> Self {
        Self { client, limits, timer: None }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(deadline) = self.client.idle_deadline(&self.limits) else { return Poll::Pending };
            let (armed, timer) =
                self.timer.get_or_insert_with(|| (deadline, Box::pin(tokio::time::sleep_until(deadline))));
            if deadline < *armed {
                *armed = deadline;
                timer.as_mut().reset(deadline);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            *armed = deadline;
            timer.as_mut().reset(deadline);
        }
    }
}

/// A client's stream that reports every read and write to its [`ClientConnection`].
pub(crate) struct ActivityStream<S> {
    inner: S,
    client: Arc<ClientConnection>,
}

impl<S> ActivityStream<S> {
    pub(crate) fn new(inner: S, client: Arc<ClientConnection>) -> Self {
        Self { inner, client }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ActivityStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buf);
        if let Poll::Ready(Ok(())) = &result
            && buf.filled().len() > before
        {
            self.client.record_io(Some(&buf.filled()[before..]));
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ActivityStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        if result.is_ready() {
            self.client.record_io(None);
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        if result.is_ready() {
            self.client.record_io(None);
        }
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
