//! A byte tunnel between two upgraded connections, with limits. An idle tunnel holds no buffer.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::config::UpgradeLimits;
use crate::observability::audit::PendingRecord;
use crate::proxy::websocket::{CloseCode, FrameTracker, close_to_backend, close_to_client};

/// Maximum number of bytes per read. All tunnels of a thread share the buffer.
const CHUNK: usize = 64 * 1024;
/// Timeout for sending close frames.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Idle timeout after one side has finished, so that a half-closed tunnel whose client is gone does not stay open
/// forever.
const HALF_OPEN_TIMEOUT: Duration = Duration::from_secs(60);

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// Why a tunnel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Both sides finished, or one failed.
    Closed,
    Idle,
    Lifetime,
    TooBig,
    Draining,
}

impl End {
    fn close_code(self) -> Option<CloseCode> {
        match self {
            Self::Closed => None,
            Self::Idle | Self::Lifetime | Self::Draining => Some(CloseCode::GoingAway),
            Self::TooBig => Some(CloseCode::TooBig),
        }
    }
}

/// One direction of the tunnel.
#[derive(Default)]
struct Flow {
    /// Bytes that are read but not written yet.
    unwritten: Vec<u8>,
    written: usize,
    read_ended: bool,
    ended: bool,
    bytes: u64,
    frames: Option<FrameTracker>,
    too_big: bool,
    /// Gets a copy of the first bytes.
    audit: Option<PendingRecord>,
}

impl Flow {
    fn new(frames: Option<FrameTracker>) -> Self {
        Self { frames, ..Self::default() }
    }

    /// Whether a frame could be inserted here without breaking another one.
    fn at_boundary(&self) -> bool {
        self.unwritten.is_empty() && self.frames.as_ref().is_some_and(FrameTracker::at_boundary)
    }

    fn poll<R, W>(&mut self, cx: &mut Context<'_>, from: &mut R, to: &mut W) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        loop {
            while self.written < self.unwritten.len() {
                let count = ready!(Pin::new(&mut *to).poll_write(cx, &self.unwritten[self.written..]))?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.written += count;
                self.bytes += count as u64;
            }
            if !self.unwritten.is_empty() {
                self.unwritten = Vec::new();
                self.written = 0;
            }
            if self.read_ended {
                ready!(Pin::new(&mut *to).poll_shutdown(cx))?;
                self.ended = true;
                return Poll::Ready(Ok(()));
            }
            if SCRATCH.with_borrow_mut(|scratch| self.poll_move(cx, from, to, scratch))?.is_pending() {
                // Nothing more to read for now: flush, so that written bytes do not wait in a TLS buffer.
                ready!(Pin::new(&mut *to).poll_flush(cx))?;
                return Poll::Pending;
            }
            if self.too_big {
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Reads once and writes as much of it as possible; only the remainder is copied.
    fn poll_move<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
        scratch: &mut [u8],
    ) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut buffer = ReadBuf::new(scratch);
        ready!(Pin::new(from).poll_read(cx, &mut buffer))?;
        let data = buffer.filled();
        if data.is_empty() {
            self.read_ended = true;
            return Poll::Ready(Ok(()));
        }
        if let Some(audit) = &self.audit {
            audit.capture(data);
        }
        if let Some(frames) = &mut self.frames
            && frames.feed(data).is_err()
        {
            self.too_big = true;
            return Poll::Ready(Ok(()));
        }
        let written = match Pin::new(to).poll_write(cx, data) {
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => 0,
        };
        self.bytes += written as u64;
        if written < data.len() {
            self.unwritten = data[written..].to_vec();
        }
        Poll::Ready(Ok(()))
    }
}

/// The result of a tunnel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) end: End,
    pub(crate) to_client: u64,
}

/// Copies in both directions until both sides finish, a limit is reached, or `abort` is cancelled.
pub(crate) async fn run<C, B>(
    mut client: C,
    mut backend: B,
    websocket: bool,
    limits: &UpgradeLimits,
    abort: &CancellationToken,
    audit: Option<PendingRecord>,
) -> Report
where
    C: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let tracker = || websocket.then(|| FrameTracker::new(limits.max_message_bytes));
    let mut up = Flow { audit, ..Flow::new(tracker()) };
    let mut down = Flow::new(tracker());
    let mut timers = Timers::new(limits);
    let mut aborted = std::pin::pin!(abort.cancelled());
    let end = poll_fn(|cx| {
        let before = up.bytes + down.bytes;
        for ended in [
            (!up.ended).then(|| up.poll(cx, &mut client, &mut backend)),
            (!down.ended).then(|| down.poll(cx, &mut backend, &mut client)),
        ] {
            if let Some(Poll::Ready(Err(_))) = ended {
                return Poll::Ready(End::Closed);
            }
        }
        if up.too_big || down.too_big {
            return Poll::Ready(End::TooBig);
        }
        // WebSockets have no half-open state; other protocols may.
        if (up.ended && down.ended) || (websocket && (up.ended || down.ended)) {
            return Poll::Ready(End::Closed);
        }
        if aborted.as_mut().poll(cx).is_ready() {
            return Poll::Ready(End::Draining);
        }
        timers.poll(cx, up.bytes + down.bytes != before, up.ended || down.ended)
    })
    .await;
    if let Some(code) = end.close_code() {
        send_close_frames(&mut client, &mut backend, &up, &down, code).await;
    }
    Report { end, to_client: down.bytes }
}

/// Sends both ends of a WebSocket a close frame with the reason, unless that would break another frame.
async fn send_close_frames<C, B>(client: &mut C, backend: &mut B, up: &Flow, down: &Flow, code: CloseCode)
where
    C: AsyncWrite + Unpin,
    B: AsyncWrite + Unpin,
{
    let to_client = async {
        if down.at_boundary() {
            client.write_all(&close_to_client(code)).await?;
        }
        client.shutdown().await
    };
    let to_backend = async {
        // No byte of a refused message was passed on to the backend.
        if up.at_boundary() {
            backend.write_all(&close_to_backend(code)).await?;
        }
        backend.shutdown().await
    };
    // Best effort: the peers may be gone.
    let _ = timeout(CLOSE_TIMEOUT, futures::future::join(to_client, to_backend)).await;
}

/// The idle and lifetime timers; they are reset only when they fire.
struct Timers {
    idle: Option<Duration>,
    moved: Instant,
    idle_timer: Option<Pin<Box<Sleep>>>,
    lifetime_timer: Option<Pin<Box<Sleep>>>,
}

impl Timers {
    fn new(limits: &UpgradeLimits) -> Self {
        Self {
            idle: limits.idle,
            moved: Instant::now(),
            idle_timer: limits.idle.map(|idle| Box::pin(sleep(idle))),
            lifetime_timer: limits.lifetime.map(|lifetime| Box::pin(sleep(lifetime))),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, moved: bool, half_open: bool) -> Poll<End> {
        if moved {
            self.moved = Instant::now();
        }
        if half_open && self.idle.is_none_or(|idle| idle > HALF_OPEN_TIMEOUT) {
            self.idle = Some(HALF_OPEN_TIMEOUT);
            self.idle_timer = Some(Box::pin(sleep(HALF_OPEN_TIMEOUT)));
        }
        if let Some(timer) = &mut self.lifetime_timer
            && timer.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(End::Lifetime);
        }
        let (Some(idle), Some(timer)) = (self.idle, &mut self.idle_timer) else { return Poll::Pending };
        while timer.as_mut().poll(cx).is_ready() {
            let due = self.moved + idle;
            if due <= Instant::now() {
                return Poll::Ready(End::Idle);
            }
            timer.as_mut().reset(due);
        }
        Poll::Pending
    }
}
