//! A forwarded port as a byte stream: the channels of Kubernetes' port-forward over a WebSocket, for either side. What carries the
//! WebSocket is the caller's, and its handshake is done.
//!
//! Frames are read and written in place, without a task, a queue or a message in between. Content is copied only where it has to be
//! masked, which is on the way out of a client that is not inside TLS.

mod frame;

use frame::{Head, Kind, MAX_HEAD, apply};
use std::{
    io,
    ops::Range,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    time::Sleep,
};

/// Content of a message that is copied to be masked.
const CHUNK: usize = 64 * 1024 - 8 - 1;
/// Content of a message that is not copied.
const LARGEST: usize = 512 * 1024;
/// How much of an error's text is kept.
const MAX_WORDS: usize = 4096;
/// How long the answer to a finished input may take to end.
const LINGER: Duration = Duration::from_secs(10);
/// The forwarded port's channel; the one after it tells errors.
const DATA: u8 = 0;
const ERROR: u8 = 1;
/// The goodbye of an end without a complaint.
const NORMAL: [u8; 2] = 1000_u16.to_be_bytes();

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Masks what it sends, and is told the port's number first.
    Client,
    /// The same with a key of zeros, which leaves content as it is.
    ///
    /// Every frame of a client carries a key (RFC 6455, section 5.3), and any four bytes are one: no server can tell. What the RFC wants
    /// of keys, that nobody guesses them, keeps a script in a browser from choosing the bytes that a proxy on the way sees and takes for
    /// a request of its own. Inside TLS nobody on the way sees any, and there is no script: masking would only cost two passes over all
    /// content, one on each side.
    ClientInTls,
    Server,
}

impl Side {
    /// The key of the next frame.
    fn mask(self) -> Option<[u8; 4]> {
        match self {
            Self::Client => Some(rand::random()),
            Self::ClientInTls => Some([0; 4]),
            Self::Server => None,
        }
    }
}

/// What becomes of a message's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Data,
    Words,
    Nothing,
}

/// The frame whose content comes next.
#[derive(Clone, Copy)]
struct Frame {
    head: Head,
    left: u64,
}

/// The one forwarded port of a WebSocket. Dropping it closes the connection.
pub struct Channel<S> {
    io: S,
    side: Side,
    /// Bytes that were read to find a frame's head.
    head: [u8; MAX_HEAD],
    held: Range<usize>,
    frame: Option<Frame>,
    /// Known from a message's first byte on, to its last frame.
    message: Option<Use>,
    /// The first message of each channel repeats the port's number.
    opened: [bool; 2],
    /// What the error channel says.
    words: Vec<u8>,
    /// Content of the control frame that is being read.
    control: Vec<u8>,
    end: Option<Result<(), String>>,
    /// The last ping that was not answered yet.
    echo: Option<Vec<u8>>,
    output: Vec<u8>,
    sent: usize,
    /// Content that the frame begun last is still owed; nothing else may be sent before it.
    owed: usize,
    /// Whether content waits to be sent: whoever wrote it goes on with it and is woken for it, so that readers leave it alone.
    writing: bool,
    /// Set once we have said that we are done.
    closing: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Channel<S> {
    /// The end that asked for the port.
    pub fn client(io: S) -> Self {
        Self::new(io, Side::Client)
    }

    /// The same over a connection that is encrypted with TLS all the way to the server.
    pub fn client_in_tls(io: S) -> Self {
        Self::new(io, Side::ClientInTls)
    }

    /// The end that has the port.
    pub fn server(io: S, port: u16) -> Self {
        let mut channel = Self::new(io, Side::Server);
        for number in [DATA, ERROR] {
            channel.push(Kind::Content { first: true }, &[&[number], &port.to_le_bytes()]);
        }
        channel
    }

    fn new(io: S, side: Side) -> Self {
        Self {
            io,
            side,
            head: [0; MAX_HEAD],
            held: 0..0,
            frame: None,
            message: None,
            opened: [side == Side::Server; 2],
            words: Vec::new(),
            control: Vec::new(),
            end: None,
            echo: None,
            output: Vec::new(),
            sent: 0,
            owed: 0,
            writing: false,
            closing: None,
        }
    }

    /// Says why the port cannot be had; the other side then ends.
    pub fn complain(&mut self, words: &str) {
        self.push(Kind::Content { first: true }, &[&[ERROR], words.as_bytes()]);
    }

    /// One step of reading: a head, or some content. Pending only when nothing was done.
    fn step(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(frame) = self.frame else { return self.read_head(cx) };
        if frame.left == 0 {
            self.frame = None;
            self.finish(frame.head);
            return Poll::Ready(Ok(()));
        }
        let content = matches!(frame.head.kind, Kind::Content { .. });
        match self.message.filter(|_| content) {
            Some(Use::Data) => return self.read_content(cx, out, frame),
            _ if content && self.message.is_none() => {
                let channel = ready!(self.read_byte(cx, frame))?;
                self.message = channel.map(|channel| self.use_of(channel));
            }
            meant => {
                let byte = ready!(self.read_byte(cx, frame))?;
                let kept = match meant {
                    Some(Use::Words) => &mut self.words,
                    Some(_) => return Poll::Ready(Ok(())),
                    None => &mut self.control,
                };
                kept.extend(byte.filter(|_| kept.len() < MAX_WORDS));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn read_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((head, length)) = Head::read(&self.head[self.held.clone()])? else {
            if ready!(self.fill(cx))? == 0 {
                self.end = Some(Ok(()));
            }
            return Poll::Ready(Ok(()));
        };
        self.held.start += length;
        if head.mask.is_some() != (self.side == Side::Server) {
            let words = "a frame is masked on the wrong way, or not masked on the right one";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, words)));
        }
        self.control.clear();
        self.frame = Some(Frame { head, left: head.length });
        Poll::Ready(Ok(()))
    }

    /// Reads no more than a head may need: content is read straight to where it belongs.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.head.copy_within(self.held.clone(), 0);
        self.held = 0..self.held.len();
        let mut buffer = ReadBuf::new(&mut self.head[self.held.end..]);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
        let count = buffer.filled().len();
        self.held.end += count;
        Poll::Ready(Ok(count))
    }

    /// One byte of the frame; none at the end of the connection.
    fn read_byte(&mut self, cx: &mut Context<'_>, frame: Frame) -> Poll<io::Result<Option<u8>>> {
        if self.held.is_empty() && ready!(self.fill(cx))? == 0 {
            self.end = Some(Ok(()));
            return Poll::Ready(Ok(None));
        }
        let byte = &mut self.head[self.held.start..=self.held.start];
        if let Some(mask) = frame.head.mask {
            apply(byte, mask, frame.head.length - frame.left);
        }
        let byte = byte[0];
        self.held.start += 1;
        self.advance(1);
        Poll::Ready(Ok(Some(byte)))
    }

    fn read_content(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>, frame: Frame) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        if self.held.is_empty() {
            ready!(Pin::new(&mut (&mut self.io).take(frame.left)).poll_read(cx, out))?;
            if out.filled().len() == before {
                self.end = Some(Ok(()));
            }
        } else {
            let count = self.held.len().min(out.remaining()).min(usize::try_from(frame.left).unwrap_or(MAX_HEAD));
            out.put_slice(&self.head[self.held.start..self.held.start + count]);
            self.held.start += count;
        }
        let content = &mut out.filled_mut()[before..];
        if let Some(mask) = frame.head.mask {
            apply(content, mask, frame.head.length - frame.left);
        }
        let count = content.len() as u64;
        self.advance(count);
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, count: u64) {
        if let Some(frame) = &mut self.frame {
            frame.left -= count;
        }
    }

    fn use_of(&mut self, channel: u8) -> Use {
        match self.opened.get_mut(usize::from(channel)).map(|opened| std::mem::replace(opened, true)) {
            Some(true) if channel == DATA => Use::Data,
            Some(true) if self.side != Side::Server => Use::Words,
            _ => Use::Nothing,
        }
    }

    /// A frame has come to its end.
    fn finish(&mut self, head: Head) {
        match head.kind {
            Kind::Ping => self.echo = Some(std::mem::take(&mut self.control)),
            Kind::Pong => {}
            Kind::Close => self.end = Some(Ok(())),
            Kind::Content { .. } if head.last => {
                if self.message.take() == Some(Use::Words) {
                    self.end = Some(Err(String::from_utf8_lossy(&self.words).into_owned()));
                }
            }
            Kind::Content { .. } => {}
        }
    }

    /// Puts one frame into the output.
    fn push(&mut self, kind: Kind, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mask = self.side.mask();
        self.output.reserve(MAX_HEAD + length);
        Head { kind, last: true, mask, length: length as u64 }.write(&mut self.output);
        let start = self.output.len();
        for part in parts {
            self.output.extend_from_slice(part);
        }
        if let Some(mask) = mask {
            apply(&mut self.output[start..], mask, 0);
        }
    }

    /// Sends what waits.
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(echo) = self.echo.take_if(|_| self.owed == 0) {
            self.push(Kind::Pong, &[&echo]);
        }
        while self.sent < self.output.len() {
            let count = ready!(Pin::new(&mut self.io).poll_write(cx, &self.output[self.sent..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += count;
        }
        self.output.clear();
        self.sent = 0;
        self.writing = self.owed > 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Channel<S> {
    /// One message for all parts, as far as they fit into it.
    fn write_masked(&mut self, cx: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let (taken, parts) = first_bytes(parts, CHUNK);
        if taken == 0 {
            return Poll::Ready(Ok(0));
        }
        let message: Vec<&[u8]> = std::iter::once(&[DATA][..]).chain(parts.iter().map(|part| &**part)).collect();
        self.push(Kind::Content { first: true }, &message);
        self.writing = true;
        // What cannot be sent now is sent before the next message, or by the flush.
        if let Poll::Ready(Err(error)) = self.drain(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(taken))
    }

    /// A head, and behind it the parts as they are. A frame that is not whole yet is gone on with by the next call.
    fn write_through(&mut self, cx: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.owed == 0 {
            let (length, _) = first_bytes(parts, LARGEST);
            if length == 0 {
                return Poll::Ready(Ok(0));
            }
            let mask = self.side.mask();
            Head { kind: Kind::Content { first: true }, last: true, mask, length: length as u64 + 1 }
                .write(&mut self.output);
            self.output.push(DATA);
            self.owed = length;
            self.writing = true;
        }
        let (_, content) = first_bytes(parts, self.owed);
        let waiting = self.output.len() - self.sent;
        let all: Vec<io::IoSlice<'_>> =
            std::iter::once(io::IoSlice::new(&self.output[self.sent..])).chain(content).collect();
        let count = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, &all))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        let Some(content) = count.checked_sub(waiting).filter(|content| *content > 0) else {
            self.sent += count;
            // Not even a byte of content went out; what is left of the head goes first.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        self.output.clear();
        self.sent = 0;
        self.owed -= content;
        self.writing = self.owed > 0;
        Poll::Ready(Ok(content))
    }
}

/// As many of the first bytes as are allowed: how many, and the parts that they are in.
fn first_bytes<'a>(parts: &'a [io::IoSlice<'_>], limit: usize) -> (usize, Vec<io::IoSlice<'a>>) {
    let mut left = limit;
    let mut taken = Vec::with_capacity(parts.len() + 1);
    for part in parts {
        let count = part.len().min(left);
        left -= count;
        taken.push(io::IoSlice::new(&part[..count]));
    }
    (limit - left, taken)
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Channel<S> {
    /// Goes on while there is something to read and room for it: TLS hands out 16 KiB at a time.
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = out.filled().len();
        while out.remaining() > 0 && this.end.is_none() {
            match this.step(cx, out) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => this.end = Some(Err(error.to_string())),
                Poll::Pending if out.filled().len() > before => break,
                Poll::Pending => {
                    let late = this.closing.as_mut().is_some_and(|limit| limit.as_mut().poll(cx).is_ready());
                    if !late {
                        // Answers to pings, and the port's number, do not wait for the next write.
                        if !this.writing && (!this.output.is_empty() || this.echo.is_some()) {
                            ready!(this.drain(cx))?;
                            ready!(Pin::new(&mut this.io).poll_flush(cx))?;
                        }
                        return Poll::Pending;
                    }
                    this.end = Some(Ok(()));
                }
            }
        }
        match &this.end {
            Some(Err(words)) if out.filled().len() == before => Poll::Ready(Err(io::Error::other(words.clone()))),
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Channel<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, content: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(content)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.drain(cx))?;
        if self.closing.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        match self.side {
            Side::Client => self.write_masked(cx, parts),
            Side::ClientInTls | Side::Server => self.write_through(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.drain(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Says that nothing more comes. What the other side still has to say is read for a while: the protocol cannot close one direction
    /// alone.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closing.is_none() {
            self.closing = Some(Box::pin(tokio::time::sleep(LINGER)));
            // In the middle of a frame nothing can be said: the connection just ends.
            if self.owed == 0 {
                self.push(Kind::Close, &[&NORMAL]);
            }
        }
        self.poll_flush(cx)
    }
}

#[cfg(test)]
mod tests;
