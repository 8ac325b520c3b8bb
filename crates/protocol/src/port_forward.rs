//! Kubernetes' port-forward over a WebSocket as a byte stream, for the client and the server side. The caller provides
//! the connection, on which the WebSocket handshake has already happened.
//!
//! Frames are read and written in place, without a task, a queue or a message object in between. Content is copied only
//! where it must be masked, which is when a client that is not inside TLS sends.

mod frame;

use frame::{Header, Kind, MAX_HEADER, apply};
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

/// Maximum content of a message that is copied in order to be masked.
const MAX_MASKED_CONTENT: usize = 64 * 1024 - 8 - 1;
/// Maximum content of a message that is sent without a copy.
const MAX_UNMASKED_CONTENT: usize = 512 * 1024;
/// Maximum number of bytes that are kept of an error message.
const MAX_ERROR_TEXT: usize = 4096;
/// Timeout for the other side to finish sending after our shutdown.
const LINGER: Duration = Duration::from_secs(10);
/// Channel number of the forwarded port's data.
const DATA: u8 = 0;
/// Channel number of the forwarded port's errors.
const ERROR: u8 = 1;
/// Content of a Close frame with status code 1000, normal closure.
const NORMAL_CLOSURE: [u8; 2] = 1000_u16.to_be_bytes();

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Masks the frames it sends. The first message it receives on each channel is the port's number.
    Client,
    /// A client that masks with a key of zeros, which leaves the content unchanged.
    ///
    /// Every frame of a client carries a masking key (RFC 6455, section 5.3), and any four bytes are valid: a server
    /// cannot tell. The RFC wants unpredictable keys so that a script in a browser cannot choose the bytes that a proxy
    /// on the path sees and could take for a request. Inside TLS no proxy sees the bytes, and no script is involved:
    /// masking would only cost two passes over all content, one on each side.
    ClientInTls,
    Server,
}

impl Side {
    /// The masking key of the next frame.
    fn mask(self) -> Option<[u8; 4]> {
        match self {
            Self::Client => Some(rand::random()),
            Self::ClientInTls => Some([0; 4]),
            Self::Server => None,
        }
    }
}

/// What a received message contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MessageContent {
    Data,
    ErrorText,
    Ignored,
}

/// The frame that is being read.
#[derive(Clone, Copy)]
struct Frame {
    header: Header,
    /// Bytes of content that have not been read yet.
    remaining: u64,
}

/// The one forwarded port of a WebSocket. Dropping it closes the connection.
pub struct PortForwardStream<S> {
    io: S,
    side: Side,
    /// Bytes that were read in search of a frame's header.
    buffer: [u8; MAX_HEADER],
    /// The part of `buffer` that has not been consumed yet.
    buffered: Range<usize>,
    frame: Option<Frame>,
    /// The kind of the current message: known from its first byte until its last frame.
    message: Option<MessageContent>,
    /// For each channel, whether its first message, which only repeats the port's number, has been received.
    opened: [bool; 2],
    /// Text received on the error channel.
    error_text: Vec<u8>,
    /// Content of the control frame that is being read.
    control: Vec<u8>,
    /// Set when no more data will be read; an `Err` is the reason.
    end: Option<Result<(), String>>,
    /// Content of the last ping that has not been answered yet.
    unanswered_ping: Option<Vec<u8>>,
    output: Vec<u8>,
    /// Number of bytes of `output` that have been sent.
    sent: usize,
    /// Content that is still missing from the frame begun last; no other frame may be sent before it.
    missing_content: usize,
    /// Whether content is waiting to be sent. The writer continues with it and is woken for it, so readers do not send
    /// it.
    writing: bool,
    /// Time limit for reading after shutdown; set by shutdown.
    closing: Option<Pin<Box<Sleep>>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> PortForwardStream<S> {
    /// The side that requested the port.
    pub fn client(io: S) -> Self {
        Self::new(io, Side::Client)
    }

    /// The side that requested the port, over a connection that is encrypted with TLS all the way to the server.
    pub fn client_in_tls(io: S) -> Self {
        Self::new(io, Side::ClientInTls)
    }

    /// The side that serves the port.
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
            buffer: [0; MAX_HEADER],
            buffered: 0..0,
            frame: None,
            message: None,
            opened: [side == Side::Server; 2],
            error_text: Vec::new(),
            control: Vec::new(),
            end: None,
            unanswered_ping: None,
            output: Vec::new(),
            sent: 0,
            missing_content: 0,
            writing: false,
            closing: None,
        }
    }

    /// Reports on the error channel why the port cannot be forwarded; the other side then ends.
    pub fn send_error(&mut self, message: &str) {
        self.push(Kind::Content { first: true }, &[&[ERROR], message.as_bytes()]);
    }

    /// One step of reading: a frame header, or some content. Pending only when nothing was read.
    fn step(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Some(frame) = self.frame else { return self.read_header(cx) };
        if frame.remaining == 0 {
            self.frame = None;
            self.finish_frame(frame.header);
            return Poll::Ready(Ok(()));
        }
        let content = matches!(frame.header.kind, Kind::Content { .. });
        match self.message.filter(|_| content) {
            Some(MessageContent::Data) => return self.read_content(cx, out, frame),
            _ if content && self.message.is_none() => {
                let channel = ready!(self.read_byte(cx, frame))?;
                self.message = channel.map(|channel| self.message_content(channel));
            }
            message => {
                let byte = ready!(self.read_byte(cx, frame))?;
                let target = match message {
                    Some(MessageContent::ErrorText) => &mut self.error_text,
                    Some(_) => return Poll::Ready(Ok(())),
                    None => &mut self.control,
                };
                target.extend(byte.filter(|_| target.len() < MAX_ERROR_TEXT));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn read_header(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((header, length)) = Header::read(&self.buffer[self.buffered.clone()])? else {
            if ready!(self.fill(cx))? == 0 {
                self.end = Some(Ok(()));
            }
            return Poll::Ready(Ok(()));
        };
        self.buffered.start += length;
        if header.mask.is_some() != (self.side == Side::Server) {
            let problem = "WebSocket frame with wrong masking: frames from a client must be masked, frames from a \
                           server must not";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, problem)));
        }
        self.control.clear();
        self.frame = Some(Frame { header, remaining: header.length });
        Poll::Ready(Ok(()))
    }

    /// Reads no more than a header may need, so that content is read directly into the caller's buffer.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.buffer.copy_within(self.buffered.clone(), 0);
        self.buffered = 0..self.buffered.len();
        let mut buffer = ReadBuf::new(&mut self.buffer[self.buffered.end..]);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
        let count = buffer.filled().len();
        self.buffered.end += count;
        Poll::Ready(Ok(count))
    }

    /// One byte of the frame; `None` at the end of the connection.
    fn read_byte(&mut self, cx: &mut Context<'_>, frame: Frame) -> Poll<io::Result<Option<u8>>> {
        if self.buffered.is_empty() && ready!(self.fill(cx))? == 0 {
            self.end = Some(Ok(()));
            return Poll::Ready(Ok(None));
        }
        let byte = &mut self.buffer[self.buffered.start..=self.buffered.start];
        if let Some(mask) = frame.header.mask {
            apply(byte, mask, frame.header.length - frame.remaining);
        }
        let byte = byte[0];
        self.buffered.start += 1;
        self.advance(1);
        Poll::Ready(Ok(Some(byte)))
    }

    fn read_content(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>, frame: Frame) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        if self.buffered.is_empty() {
            ready!(Pin::new(&mut (&mut self.io).take(frame.remaining)).poll_read(cx, out))?;
            if out.filled().len() == before {
                self.end = Some(Ok(()));
            }
        } else {
            let count =
                self.buffered.len().min(out.remaining()).min(usize::try_from(frame.remaining).unwrap_or(MAX_HEADER));
            out.put_slice(&self.buffer[self.buffered.start..self.buffered.start + count]);
            self.buffered.start += count;
        }
        let content = &mut out.filled_mut()[before..];
        if let Some(mask) = frame.header.mask {
            apply(content, mask, frame.header.length - frame.remaining);
        }
        let count = content.len() as u64;
        self.advance(count);
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, count: u64) {
        if let Some(frame) = &mut self.frame {
            frame.remaining -= count;
        }
    }

    /// What a message on this channel contains.
    fn message_content(&mut self, channel: u8) -> MessageContent {
        match self.opened.get_mut(usize::from(channel)).map(|opened| std::mem::replace(opened, true)) {
            Some(true) if channel == DATA => MessageContent::Data,
            Some(true) if self.side != Side::Server => MessageContent::ErrorText,
            _ => MessageContent::Ignored,
        }
    }

    /// Handles the end of a frame.
    fn finish_frame(&mut self, header: Header) {
        match header.kind {
            Kind::Ping => self.unanswered_ping = Some(std::mem::take(&mut self.control)),
            Kind::Pong => {}
            Kind::Close => self.end = Some(Ok(())),
            Kind::Content { .. } if header.last => {
                if self.message.take() == Some(MessageContent::ErrorText) {
                    self.end = Some(Err(String::from_utf8_lossy(&self.error_text).into_owned()));
                }
            }
            Kind::Content { .. } => {}
        }
    }

    /// Appends one frame to the output.
    fn push(&mut self, kind: Kind, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mask = self.side.mask();
        self.output.reserve(MAX_HEADER + length);
        Header { kind, last: true, mask, length: length as u64 }.write(&mut self.output);
        let start = self.output.len();
        for part in parts {
            self.output.extend_from_slice(part);
        }
        if let Some(mask) = mask {
            apply(&mut self.output[start..], mask, 0);
        }
    }

    /// Sends the pending output.
    fn send_output(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(ping) = self.unanswered_ping.take_if(|_| self.missing_content == 0) {
            self.push(Kind::Pong, &[&ping]);
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
        self.writing = self.missing_content > 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> PortForwardStream<S> {
    /// Sends one message with as much of the parts as fits into it.
    fn write_masked(&mut self, cx: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let (taken, parts) = first_bytes(parts, MAX_MASKED_CONTENT);
        if taken == 0 {
            return Poll::Ready(Ok(0));
        }
        let message: Vec<&[u8]> = std::iter::once(&[DATA][..]).chain(parts.iter().map(|part| &**part)).collect();
        self.push(Kind::Content { first: true }, &message);
        self.writing = true;
        // Output that cannot be sent now is sent before the next message, or by the flush.
        if let Poll::Ready(Err(error)) = self.send_output(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(taken))
    }

    /// Sends a frame header and the parts after it, without a copy. The next call continues a frame that is incomplete.
    fn write_through(&mut self, cx: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.missing_content == 0 {
            let (length, _) = first_bytes(parts, MAX_UNMASKED_CONTENT);
            if length == 0 {
                return Poll::Ready(Ok(0));
            }
            let mask = self.side.mask();
            Header { kind: Kind::Content { first: true }, last: true, mask, length: length as u64 + 1 }
                .write(&mut self.output);
            self.output.push(DATA);
            self.missing_content = length;
            self.writing = true;
        }
        let (_, content) = first_bytes(parts, self.missing_content);
        let waiting = self.output.len() - self.sent;
        let all: Vec<io::IoSlice<'_>> =
            std::iter::once(io::IoSlice::new(&self.output[self.sent..])).chain(content).collect();
        let count = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, &all))?;
        if count == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        let Some(content) = count.checked_sub(waiting).filter(|content| *content > 0) else {
            self.sent += count;
            // No byte of content was sent; the rest of the header goes first.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        self.output.clear();
        self.sent = 0;
        self.missing_content -= content;
        self.writing = self.missing_content > 0;
        Poll::Ready(Ok(content))
    }
}

/// The first bytes of the parts, up to `limit`: how many they are, and the parts they are in.
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

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for PortForwardStream<S> {
    /// Continues while there is data and room for it, because TLS returns at most 16 KiB at a time.
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = out.filled().len();
        while out.remaining() > 0 && this.end.is_none() {
            match this.step(cx, out) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => this.end = Some(Err(error.to_string())),
                Poll::Pending if out.filled().len() > before => break,
                Poll::Pending => {
                    let expired = this.closing.as_mut().is_some_and(|limit| limit.as_mut().poll(cx).is_ready());
                    if !expired {
                        // Pongs and the port's number do not wait for the next write.
                        if !this.writing && (!this.output.is_empty() || this.unanswered_ping.is_some()) {
                            ready!(this.send_output(cx))?;
                            ready!(Pin::new(&mut this.io).poll_flush(cx))?;
                        }
                        return Poll::Pending;
                    }
                    this.end = Some(Ok(()));
                }
            }
        }
        match &this.end {
            Some(Err(message)) if out.filled().len() == before => Poll::Ready(Err(io::Error::other(message.clone()))),
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for PortForwardStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, content: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(content)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.send_output(cx))?;
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
        ready!(self.send_output(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Sends a Close frame. Data of the other side is still read for up to [`LINGER`], because the protocol cannot
    /// close one direction alone.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closing.is_none() {
            self.closing = Some(Box::pin(tokio::time::sleep(LINGER)));
            // A Close frame cannot be sent in the middle of another frame: the connection just ends.
            if self.missing_content == 0 {
                self.push(Kind::Close, &[&NORMAL_CLOSURE]);
            }
        }
        self.poll_flush(cx)
    }
}

#[cfg(test)]
mod tests;
