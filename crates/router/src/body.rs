//! The two bodies of an exchange: what the client uploads and what the sandbox answers. Both stream; neither buffers.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::exchange::Exchange;
use crate::pool::Lease;

/// Shared between an upload and the wait for its response.
#[derive(Debug)]
pub(crate) struct UploadState {
    started: Instant,
    /// Milliseconds from the start to the last frame, so that a wait can tell a slow upload from a slow sandbox.
    progress_ms: AtomicU64,
    too_large: AtomicBool,
}

impl UploadState {
    fn begin() -> Arc<Self> {
        Arc::new(Self { started: Instant::now(), progress_ms: AtomicU64::new(0), too_large: AtomicBool::new(false) })
    }

    fn progress(&self) {
        self.progress_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// When the last frame went by.
    pub(crate) fn last_progress(&self) -> Instant {
        self.started + Duration::from_millis(self.progress_ms.load(Ordering::Relaxed))
    }

    pub(crate) fn too_large(&self) -> bool {
        self.too_large.load(Ordering::Relaxed)
    }
}

/// The client's request body on its way to the sandbox.
pub(crate) struct UploadBody {
    inner: Option<Incoming>,
    state: Option<Arc<UploadState>>,
    /// Bytes that may still come; `None` for no limit.
    remaining: Option<u64>,
}

/// Why an upload was broken off.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("reading the client's body failed")]
    Client(#[source] hyper::Error),
    #[error("body is too large")]
    TooLarge,
}

impl UploadBody {
    /// Takes a request's body; `limit` 0 means none.
    pub(crate) fn new(inner: Incoming, limit: u64) -> Self {
        if inner.is_end_stream() {
            return Self::empty();
        }
        Self { inner: Some(inner), state: Some(UploadState::begin()), remaining: (limit > 0).then_some(limit) }
    }

    pub(crate) fn empty() -> Self {
        Self { inner: None, state: None, remaining: None }
    }

    pub(crate) fn state(&self) -> Option<Arc<UploadState>> {
        self.state.clone()
    }
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = &mut *self;
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        let frame = match std::task::ready!(Pin::new(inner).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(UploadError::Client(error)))),
            None => return Poll::Ready(None),
        };
        if let Some(state) = &this.state {
            state.progress();
        }
        if let (Some(remaining), Some(data)) = (&mut this.remaining, frame.data_ref()) {
            match remaining.checked_sub(data.remaining() as u64) {
                Some(rest) => *remaining = rest,
                None => {
                    if let Some(state) = &this.state {
                        state.too_large.store(true, Ordering::Relaxed);
                    }
                    return Poll::Ready(Some(Err(UploadError::TooLarge)));
                }
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

/// A response body: our own few bytes, or the sandbox's stream together with whatever keeps it going.
pub(crate) struct DownBody {
    source: Source,
    /// Accounts for the exchange when dropped.
    exchange: Option<Box<Exchange>>,
    idle: Option<IdleLimit>,
}

enum Source {
    Own(Option<Bytes>),
    /// HTTP/1.1 from the sandbox: the connection is driven right here, by whoever reads the body.
    Leased {
        body: Incoming,
        lease: Option<Lease>,
    },
    /// HTTP/2 from the sandbox: its connection has a driver of its own.
    Shared(Incoming),
}

/// Ends a stream that moves nothing for too long.
struct IdleLimit {
    limit: Duration,
    /// Made at the first wait: most bodies never wait.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Why a response was broken off after its head.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DownError {
    #[error("the sandbox broke off its response")]
    Upstream(#[source] hyper::Error),
    #[error("the stream was idle for too long")]
    Idle,
}

impl DownBody {
    pub(crate) fn own(bytes: Bytes) -> Self {
        Self { source: Source::Own(Some(bytes)), exchange: None, idle: None }
    }

    pub(crate) fn leased(body: Incoming, lease: Lease, exchange: Box<Exchange>, idle: Option<Duration>) -> Self {
        let mut this = Self {
            source: Source::Leased { body, lease: Some(lease) },
            exchange: Some(exchange),
            idle: idle.map(|limit| IdleLimit { limit, timer: None }),
        };
        this.release_if_ended();
        this
    }

    pub(crate) fn shared(body: Incoming, exchange: Box<Exchange>, idle: Option<Duration>) -> Self {
        Self {
            source: Source::Shared(body),
            exchange: Some(exchange),
            idle: idle.map(|limit| IdleLimit { limit, timer: None }),
        }
    }

    /// Gives the connection back as soon as the body is complete: readers need not ask again after the last byte.
    fn release_if_ended(&mut self) {
        if let Source::Leased { body, lease } = &mut self.source
            && body.is_end_stream()
            && let (Some(lease), Some(exchange)) = (lease.take(), &self.exchange)
        {
            exchange.worker().pool.put(lease);
        }
    }

    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.source {
            Source::Own(bytes) => Poll::Ready(bytes.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b)))),
            Source::Shared(body) => Pin::new(body).poll_frame(cx),
            Source::Leased { body, lease } => {
                if let Some(lease) = lease {
                    lease.drive(cx);
                }
                // Only driving the connection can make the body ready, and that was just done with the real waker;
                // registering another one here would wake this very task once more for every frame.
                Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
            }
        }
    }

    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(idle) = &mut self.idle else { return Poll::Pending };
        let limit = idle.limit;
        idle.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit))).as_mut().poll(cx)
    }
}

impl Body for DownBody {
    type Data = Bytes;
    type Error = DownError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = &mut *self;
        match this.poll_source(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let (Some(exchange), Some(data)) = (&mut this.exchange, frame.data_ref()) {
                    exchange.add_bytes_out(data.remaining() as u64);
                }
                if let Some(IdleLimit { limit, timer: Some(timer) }) = &mut this.idle {
                    timer.as_mut().reset(Instant::now() + *limit);
                }
                this.release_if_ended();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                if let Some(exchange) = &mut this.exchange {
                    exchange.broken_off();
                }
                Poll::Ready(Some(Err(DownError::Upstream(error))))
            }
            Poll::Ready(None) => {
                this.release_if_ended();
                Poll::Ready(None)
            }
            Poll::Pending => this.poll_idle(cx).map(|()| Some(Err(DownError::Idle))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Own(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Source::Leased { body, .. } | Source::Shared(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Source::Leased { body, .. } | Source::Shared(body) => body.size_hint(),
        }
    }
}
