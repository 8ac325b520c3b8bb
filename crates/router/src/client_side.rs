//! The client's side of a connection: who it is, and whether it has gone quiet.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::authz::Caller;
use crate::config::Timeouts;
use crate::forward::Inbound;

/// First bytes of an HTTP/2 connection.
const HTTP2_PREFACE: &[u8] = b"PRI ";

/// What is known about the client of a connection before its first request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Nothing: the configured authorisation applies.
    None,
    /// The API server authenticated this user, for a port-forward. No token is required and the `Host` is not checked;
    /// every request still needs the user's access to the sandbox's namespace.
    Authenticated(Arc<Caller>),
}

/// What is known about one client connection.
#[derive(Debug)]
pub(crate) struct ClientSide {
    pub(crate) peer: Option<IpAddr>,
    pub(crate) inbound: Inbound,
    pub(crate) trust: Trust,
    opened: Instant,
    /// Requests under way.
    active: AtomicUsize,
    /// Milliseconds after `opened` of the last byte either way.
    last_io: AtomicU64,
    /// The same for the first byte of an unfinished request head, plus one; 0 when there is none.
    head_since: AtomicU64,
    http2: AtomicBool,
    upgraded: AtomicBool,
}

impl ClientSide {
    pub(crate) fn new(peer: Option<IpAddr>, tls: bool, trust: Trust) -> Arc<Self> {
        Arc::new(Self {
            peer,
            inbound: Inbound::new(peer, tls),
            trust,
            opened: Instant::now(),
            active: AtomicUsize::new(0),
            last_io: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
            http2: AtomicBool::new(false),
            upgraded: AtomicBool::new(false),
        })
    }

    pub(crate) fn request_begins(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
    }

    pub(crate) fn request_ends(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// From now on the tunnel's limits apply.
    pub(crate) fn upgraded(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    fn moved(&self, read: Option<&[u8]>) {
        let now = self.opened.elapsed().as_millis() as u64;
        let first = self.last_io.swap(now + 1, Ordering::Relaxed) == 0;
        let Some(bytes) = read else { return };
        if first && bytes.starts_with(HTTP2_PREFACE) {
            self.http2.store(true, Ordering::Relaxed);
        }
        // HTTP/2 frames between requests are no unfinished head.
        if self.active.load(Ordering::Relaxed) == 0
            && !self.http2.load(Ordering::Relaxed)
            && self.head_since.load(Ordering::Relaxed) == 0
        {
            self.head_since.store(now + 1, Ordering::Relaxed);
        }
    }

    /// When the connection has been quiet for too long, if it is quiet at all.
    fn quiet_deadline(&self, limits: &QuietLimits) -> Option<Instant> {
        if self.active.load(Ordering::Relaxed) > 0 || self.upgraded.load(Ordering::Relaxed) {
            return None;
        }
        let since = |ms: u64| self.opened + Duration::from_millis(ms.saturating_sub(1));
        let (last_io, head) = (self.last_io.load(Ordering::Relaxed), self.head_since.load(Ordering::Relaxed));
        Some(match (last_io, head) {
            // Nothing at all yet: a connection that says nothing is worth no more than an unfinished head.
            (0, _) => self.opened + limits.head_read,
            (_, 0) => since(last_io) + limits.client_idle,
            (_, head) => since(head) + limits.head_read,
        })
    }
}

/// How long a client may be quiet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuietLimits {
    head_read: Duration,
    client_idle: Duration,
}

impl From<&Timeouts> for QuietLimits {
    fn from(timeouts: &Timeouts) -> Self {
        Self { head_read: timeouts.head_read, client_idle: timeouts.client_idle }
    }
}

/// Completes when the client has been quiet for too long. Polled with its connection; the timer is moved only when a
/// deadline comes nearer or has passed, so requests do not pay for it.
pub(crate) struct QuietGuard {
    client: Arc<ClientSide>,
    limits: QuietLimits,
    timer: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl QuietGuard {
    pub(crate) fn new(client: Arc<ClientSide>, limits: QuietLimits) -> Self {
        Self { client, limits, timer: None }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Some(deadline) = self.client.quiet_deadline(&self.limits) else { return Poll::Pending };
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

/// A client's stream that tells its [`ClientSide`] about every byte.
pub(crate) struct Watched<S> {
    inner: S,
    client: Arc<ClientSide>,
}

impl<S> Watched<S> {
    pub(crate) fn new(inner: S, client: Arc<ClientSide>) -> Self {
        Self { inner, client }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buf);
        if let Poll::Ready(Ok(())) = &result
            && buf.filled().len() > before
        {
            self.client.moved(Some(&buf.filled()[before..]));
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, buf);
        if result.is_ready() {
            self.client.moved(None);
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
            self.client.moved(None);
        }
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
