//! Streams of JSON lines: events of a command and changes of a file watch.

use crate::{ClientError, CommandEvent};
use agent_sandbox_protocol::native::{Event, Output};
use base64::Engine;
use bytes::{Buf, Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use serde::de::DeserializeOwned;

/// Maximum length of a line: one chunk of output as base64, with room to spare.
const MAX_LINE: usize = 1 << 20;

/// Reader of JSON lines from a response body.
pub(crate) struct JsonLines<B = Incoming> {
    body: B,
    buffer: BytesMut,
    max_line: usize,
}

/// Why reading a line failed.
pub(crate) enum LinesError {
    /// The connection broke.
    Connection(String),
    /// A line is invalid.
    Content(String),
}

impl<B: Body<Data = Bytes, Error: std::fmt::Display> + Unpin> JsonLines<B> {
    pub(crate) fn new(response: Response<B>) -> Self {
        Self::with_limit(response, MAX_LINE)
    }

    /// For lines of at most `max_line` bytes.
    pub(crate) fn with_limit(response: Response<B>, max_line: usize) -> Self {
        Self { body: response.into_body(), buffer: BytesMut::new(), max_line }
    }

    /// The next line; `None` at the end.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LinesError> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(searched + end);
                self.buffer.advance(1);
                searched = 0;
                if line.is_empty() {
                    continue;
                }
                let parsed = serde_json::from_slice(&line);
                return parsed.map(Some).map_err(|error| LinesError::Content(error.to_string()));
            }
            searched = self.buffer.len();
            if searched > self.max_line {
                return Err(LinesError::Content(format!("a line longer than {} bytes", self.max_line)));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(LinesError::Connection(error.to_string())),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(LinesError::Connection("it ended in the middle of a line".to_owned())),
            }
        }
    }
}

/// Converts a wire event to a [`CommandEvent`]; an error event becomes an error.
pub(crate) fn command_event(wire: Event, name: &str, operation: &str) -> Result<CommandEvent, ClientError> {
    Ok(match wire {
        Event::Started { id, pid } => CommandEvent::Started { id, pid },
        Event::Stdout(output) => CommandEvent::Stdout { offset: output.offset, data: data(output)? },
        Event::Stderr(output) => CommandEvent::Stderr { offset: output.offset, data: data(output)? },
        Event::Skipped { offset, bytes } => CommandEvent::Skipped { offset, bytes },
        Event::Exit { exit_code, signal, timed_out } => CommandEvent::Exit { exit_code, signal, timed_out },
        Event::Error { code, message } => {
            let (name, operation) = (name.to_owned(), operation.to_owned());
            let status = code.status().as_u16();
            return Err(ClientError::Refused {
                name,
                operation,
                status,
                code: Some(code),
                message,
                body: Bytes::new(),
            });
        }
    })
}

fn data(output: Output) -> Result<Bytes, ClientError> {
    match (output.text, output.base64) {
        (Some(text), _) => Ok(text.into()),
        (None, Some(encoded)) => decode(&encoded),
        (None, None) => Ok(Bytes::new()),
    }
}

/// Decodes the base64 in a response.
pub(crate) fn decode(encoded: &str) -> Result<Bytes, ClientError> {
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded);
    decoded.map(Bytes::from).map_err(|error| ClientError::Stream {
        operation: "read the command's output".to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })
}
