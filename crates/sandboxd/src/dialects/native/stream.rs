//! A process's output as a stream of events: one JSON object per line, or server-sent events.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use agent_sandbox_protocol::native::{Event, Output};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::Frame;

use crate::core::processes::log::{Chunk, Reader, Stream};
use crate::core::processes::managed::{Ended, Process, TerminateOnDisconnect};
use crate::core::processes::reaper::Exit;
use crate::http_io::body::{Body, with_type};

/// Maximum number of output bytes in one event.
const MAX_CHUNK: usize = 16 * 1024;

/// Encoding of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Lines,
    ServerSent,
}

impl Format {
    /// The stream format that a request accepts, if any.
    pub(super) fn accepted(headers: &HeaderMap) -> Option<Self> {
        let accept = headers.get(header::ACCEPT)?.to_str().ok()?;
        if accept.contains("text/event-stream") {
            Some(Self::ServerSent)
        } else if accept.contains("application/x-ndjson") {
            Some(Self::Lines)
        } else {
            None
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Lines => "application/x-ndjson",
            Self::ServerSent => "text/event-stream",
        }
    }

    pub(super) fn encode<T: serde::Serialize>(self, event: &T) -> Bytes {
        let mut bytes = match self {
            Self::Lines => Vec::new(),
            Self::ServerSent => b"data: ".to_vec(),
        };
        // Events always serialise, and writing to memory does not fail.
        let _ = serde_json::to_writer(&mut bytes, event);
        bytes.extend_from_slice(if self == Self::Lines { b"\n" } else { b"\n\n" });
        bytes.into()
    }
}

/// The events of one attached client: started, output, exit.
#[derive(Debug)]
pub(super) struct Events {
    process: Arc<Process>,
    reader: Reader,
    state: State,
    follow: bool,
    _guard: Option<TerminateOnDisconnect>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Output,
    Done,
}

impl Events {
    /// Events from `offset`: with `follow` until the process ends, else only those that exist. The client that the
    /// process depends on reads losslessly.
    pub(super) fn new(process: Arc<Process>, offset: u64, follow: bool, guard: Option<TerminateOnDisconnect>) -> Self {
        let reader = process.log.reader(offset, guard.is_some());
        Self { process, reader, state: State::Start, follow, _guard: guard }
    }

    pub(super) async fn next_raw(&mut self) -> Option<RawEvent> {
        match self.state {
            State::Start => {
                self.state = State::Output;
                Some(RawEvent::Event(Event::Started { id: self.process.id, pid: self.process.pid() }))
            }
            State::Output => {
                let chunk =
                    if self.follow { self.reader.next(MAX_CHUNK).await } else { self.reader.try_next(MAX_CHUNK) };
                match chunk {
                    Some(chunk) => Some(RawEvent::Chunk(chunk)),
                    None => {
                        self.state = State::Done;
                        if self.follow {
                            return Some(RawEvent::Event(exit_event(self.process.wait().await)));
                        }
                        self.process.ended().map(|ended| RawEvent::Event(exit_event(ended)))
                    }
                }
            }
            State::Done => None,
        }
    }

    async fn next(&mut self) -> Option<Event> {
        Some(match self.next_raw().await? {
            RawEvent::Event(event) => event,
            RawEvent::Chunk(Chunk::Skipped { offset, bytes }) => Event::Skipped { offset, bytes },
            RawEvent::Chunk(Chunk::Output { stream, offset, bytes }) => {
                let output = to_output(offset, &bytes);
                match stream {
                    Stream::Stdout => Event::Stdout(output),
                    Stream::Stderr => Event::Stderr(output),
                }
            }
        })
    }
}

/// An event before its output is encoded as JSON.
#[derive(Debug)]
pub(super) enum RawEvent {
    Event(Event),
    Chunk(Chunk),
}

fn to_output(offset: u64, bytes: &[u8]) -> Output {
    match std::str::from_utf8(bytes) {
        Ok(text) => Output { offset, text: Some(text.to_owned()), base64: None },
        Err(_) => Output { offset, text: None, base64: Some(STANDARD.encode(bytes)) },
    }
}

pub(super) fn exit_event(ended: Ended) -> Event {
    let signal = match ended.exit {
        Exit::Signal(signal) => Some(signal),
        Exit::Code(_) => None,
    };
    let exit_code = if ended.timed_out { 124 } else { ended.exit.shell_code() };
    Event::Exit { exit_code, signal, timed_out: ended.timed_out }
}

/// A streaming response. If the client disconnects, its body is dropped and the guard with it.
pub(super) fn respond(
    process: Arc<Process>,
    offset: u64,
    follow: bool,
    format: Format,
    guard: Option<Option<TerminateOnDisconnect>>,
) -> Response<Body> {
    let events = Events::new(process, offset, follow, guard.flatten());
    let stream = futures::stream::unfold(events, move |mut events| async move {
        let event = events.next().await?;
        Some((format.encode(&event), events))
    });
    respond_with(format, stream)
}

/// A response from a stream of encoded events.
pub(super) fn respond_with<S>(format: Format, stream: S) -> Response<Body>
where
    S: futures::Stream<Item = Bytes> + Send + 'static,
{
    let mut response = with_type(StatusCode::OK, format.content_type(), Body::new(Frames { stream: Box::pin(stream) }));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

struct Frames {
    stream: Pin<Box<dyn futures::Stream<Item = Bytes> + Send>>,
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.stream.as_mut().poll_next(context).map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
    }
}
