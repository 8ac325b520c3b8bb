//! Streams of lines: a command's events and a watch's changes, as they arrive.

use crate::{ClientError, CommandEvent};
use agent_sandbox_protocol::native::{Event, Output};
use base64::Engine;
use bytes::{Buf, Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

/// The longest line: one piece of output as base64, and room.
const MAX_LINE: usize = 1 << 20;

/// Lines of JSON in an answer's body.
pub(crate) struct Lines {
    body: Incoming,
    buffer: BytesMut,
}

/// How a stream of lines ended.
pub(crate) enum Broken {
    /// The connection, not the content.
    Connection(String),
    /// A line that is not what it should be.
    Content(String),
}

impl Lines {
    pub(crate) fn new(answer: Response<Incoming>) -> Self {
        Self { body: answer.into_body(), buffer: BytesMut::new() }
    }

    /// The next line; none at the end.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Broken> {
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
                return parsed.map(Some).map_err(|error| Broken::Content(error.to_string()));
            }
            searched = self.buffer.len();
            if searched > MAX_LINE {
                return Err(Broken::Content(format!("a line longer than {MAX_LINE} bytes")));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(Broken::Connection(error.to_string())),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Broken::Connection("it ended in the middle of a line".to_owned())),
            }
        }
    }
}

/// A wire event as the SDK's; an event that is an error becomes one.
pub(crate) fn event(wire: Event, name: &str, operation: &str) -> Result<CommandEvent, ClientError> {
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

/// Bytes from the base64 of an answer.
pub(crate) fn decode(encoded: &str) -> Result<Bytes, ClientError> {
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded);
    decoded.map(Bytes::from).map_err(|error| ClientError::Stream {
        operation: "read the command's output".to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })
}
