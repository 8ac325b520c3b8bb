//! The two bodies of an exchange: the client's request body and the response body. Both are streamed, neither is
//! buffered.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::observability::audit::PendingRecord;
use crate::proxy::exchange::{CredentialEnd, Exchange};
use crate::proxy::pool::Lease;

/// Size of a refused request's body up to which it is read, so that the connection stays usable.
const DISCARDED_BYTES: u64 = 64 * 1024;
/// Timeout for reading it.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads what is left of the body of a refused request, if it is small and its size is known; whether all of it was
/// read. `None` is a body that was passed on.
pub(super) async fn discard(body: Option<Incoming>) -> bool {
    match body {
        Some(body) if body.size_hint().upper().is_some_and(|bytes| bytes <= DISCARDED_BYTES) => {
            let read = tokio::time::timeout(DISCARD_TIMEOUT, body.collect()).await;
            read.is_ok_and(|read| read.is_ok())
        }
        _ => false,
    }
}

/// Progress of an upload, shared with the wait for its response.
#[derive(Debug)]
pub(crate) struct UploadProgress {
    started: Instant,
    /// Milliseconds from the start to the last frame. The wait uses it to tell a slow upload from a slow sandbox.
    progress_ms: AtomicU64,
    too_large: AtomicBool,
}

impl UploadProgress {
    fn begin() -> Arc<Self> {
        Arc::new(Self { started: Instant::now(), progress_ms: AtomicU64::new(0), too_large: AtomicBool::new(false) })
    }

    fn record(&self) {
        self.progress_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Time of the last frame.
    pub(crate) fn last_progress(&self) -> Instant {
        self.started + Duration::from_millis(self.progress_ms.load(Ordering::Relaxed))
    }

    pub(crate) fn too_large(&self) -> bool {
        self.too_large.load(Ordering::Relaxed)
    }
}

/// The client's request body on its way to the sandbox.
pub(crate) struct RequestBody {
    inner: Option<Incoming>,
    progress: Option<Arc<UploadProgress>>,
    /// Number of bytes that may still come; `None` means no limit.
    remaining: Option<u64>,
    /// Gets a copy of the body's beginning.
    audit: Option<PendingRecord>,
}

/// Why an upload was aborted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestBodyError {
    #[error("reading the client's body failed")]
    Client(#[source] hyper::Error),
    #[error("body is too large")]
    TooLarge,
}

impl RequestBody {
    /// Wraps a request's body; `limit` 0 means no limit.
    pub(crate) fn new(inner: Incoming, limit: u64, audit: Option<PendingRecord>) -> Self {
        if inner.is_end_stream() {
            return Self::empty();
        }
        let remaining = (limit > 0).then_some(limit);
        Self { inner: Some(inner), progress: Some(UploadProgress::begin()), remaining, audit }
    }

    pub(crate) fn empty() -> Self {
        Self { inner: None, progress: None, remaining: None, audit: None }
    }

    pub(crate) fn progress(&self) -> Option<Arc<UploadProgress>> {
        self.progress.clone()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = &mut *self;
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        let frame = match std::task::ready!(Pin::new(inner).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(RequestBodyError::Client(error)))),
            None => return Poll::Ready(None),
        };
        if let Some(progress) = &this.progress {
            progress.record();
        }
        if let (Some(audit), Some(data)) = (&this.audit, frame.data_ref()) {
            audit.capture(data);
        }
        if let (Some(remaining), Some(data)) = (&mut this.remaining, frame.data_ref()) {
            match remaining.checked_sub(data.remaining() as u64) {
                Some(rest) => *remaining = rest,
                None => {
                    if let Some(progress) = &this.progress {
                        progress.too_large.store(true, Ordering::Relaxed);
                    }
                    return Poll::Ready(Some(Err(RequestBodyError::TooLarge)));
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

/// A response body: bytes of the router itself, or the sandbox's stream together with its connection.
pub(crate) struct ResponseBody {
    source: Source,
    /// Records the exchange when dropped.
    exchange: Option<Box<Exchange>>,
    idle: Option<IdleLimit>,
    /// The stream is aborted at the end of the credential it was requested with.
    credential_end: Option<CredentialEnd>,
}

enum Source {
    Bytes(Option<Bytes>),
    /// HTTP/1.1 from the sandbox: polling the body also drives the connection.
    Leased {
        body: Incoming,
        lease: Option<Lease>,
    },
    /// HTTP/2 from the sandbox: the connection is driven by a separate task.
    Shared(Incoming),
}

/// Aborts a stream that transfers nothing for too long.
struct IdleLimit {
    limit: Duration,
    /// Created at the first wait: most bodies never wait.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Why a response was aborted after its head.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResponseBodyError {
    #[error("the sandbox aborted its response")]
    Upstream(#[source] hyper::Error),
    #[error("the stream was idle for too long")]
    Idle,
    #[error("the credential has expired, was revoked or gives no access any more")]
    CredentialEnded,
}

impl ResponseBody {
    pub(crate) fn from_bytes(bytes: Bytes) -> Self {
        Self { source: Source::Bytes(Some(bytes)), exchange: None, idle: None, credential_end: None }
    }

    pub(crate) fn leased(body: Incoming, lease: Lease, exchange: Box<Exchange>, idle: Option<Duration>) -> Self {
        let mut this = Self {
            source: Source::Leased { body, lease: Some(lease) },
            exchange: Some(exchange),
            idle: idle.map(|limit| IdleLimit { limit, timer: None }),
            credential_end: None,
        };
        this.release_if_ended();
        this
    }

    pub(crate) fn shared(body: Incoming, exchange: Box<Exchange>, idle: Option<Duration>) -> Self {
        Self {
            source: Source::Shared(body),
            exchange: Some(exchange),
            idle: idle.map(|limit| IdleLimit { limit, timer: None }),
            credential_end: None,
        }
    }

    /// Aborts the stream when `credential_end` completes.
    pub(crate) fn ending_with(mut self, credential_end: Option<CredentialEnd>) -> Self {
        self.credential_end = credential_end.filter(|_| !self.is_end_stream());
        self
    }

    /// Returns the connection to the pool as soon as the body is complete: readers do not have to poll again after the
    /// last byte.
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
            Source::Bytes(bytes) => Poll::Ready(bytes.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b)))),
            Source::Shared(body) => Pin::new(body).poll_frame(cx),
            Source::Leased { body, lease } => {
                if let Some(lease) = lease {
                    lease.drive(cx);
                }
                // Only driving the connection can make the body ready, and that was just done with the real waker.
                // Registering it here as well would wake this task a second time for every frame.
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

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ResponseBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = &mut *self;
        if this.credential_end.as_mut().is_some_and(|end| end.as_mut().poll(cx).is_ready()) {
            this.credential_end = None;
            return Poll::Ready(Some(Err(ResponseBodyError::CredentialEnded)));
        }
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
                    exchange.record_upstream_abort();
                }
                Poll::Ready(Some(Err(ResponseBodyError::Upstream(error))))
            }
            Poll::Ready(None) => {
                this.release_if_ended();
                Poll::Ready(None)
            }
            Poll::Pending => this.poll_idle(cx).map(|()| Some(Err(ResponseBodyError::Idle))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Bytes(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Source::Leased { body, .. } | Source::Shared(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Bytes(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Source::Leased { body, .. } | Source::Shared(body) => body.size_hint(),
        }
    }
}
