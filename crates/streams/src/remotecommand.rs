//! The client's streams of one exec or attach (Kubernetes' remotecommand protocol), independent of the transport.

pub mod spdy;

use std::io;

use async_trait::async_trait;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::backend::{ExitStatus, NodeError, TerminalSize};

/// The command's exit status, or why it could not run.
pub type Outcome = Result<ExitStatus, NodeError>;

/// The client's end of an exec or attach session.
pub struct ClientStreams {
    /// Closed when the client closes its stdin.
    pub stdin: mpsc::Receiver<Bytes>,
    pub resize: mpsc::Receiver<TerminalSize>,
    pub output: Box<dyn Output>,
    /// Cancelled when the client disconnects.
    pub disconnected: CancellationToken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    Stdout,
    Stderr,
}

/// The direction towards the client.
#[async_trait]
pub trait Output: Send + Sync {
    async fn write(&self, stream: OutputStream, bytes: Bytes) -> io::Result<()>;

    /// Sends the outcome and closes the streams and the connection in the order that clients expect.
    async fn finish(self: Box<Self>, outcome: &Outcome);
}

/// Version of the remotecommand protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Errors as plain text; no terminal resizing.
    V1,
    /// As V1, with a fixed order of closing streams.
    V2,
    /// Adds terminal resizing.
    V3,
    /// Adds the exit code, as a `Status`.
    V4,
    /// Adds closing of single channels (WebSocket only).
    V5,
}

impl Version {
    pub fn from_protocol(protocol: &str) -> Self {
        match protocol {
            "v5.channel.k8s.io" => Self::V5,
            "v4.channel.k8s.io" | "v4.base64.channel.k8s.io" => Self::V4,
            "v3.channel.k8s.io" => Self::V3,
            "v2.channel.k8s.io" => Self::V2,
            _ => Self::V1,
        }
    }

    pub fn supports_resize(self) -> bool {
        self >= Self::V3
    }

    /// The bytes for the error stream. Before V4, success is reported as no bytes.
    pub fn report(self, outcome: &Outcome) -> Bytes {
        if self >= Self::V4 {
            return status(outcome).to_string().into();
        }
        match outcome {
            Ok(ExitStatus { code: 0 }) => Bytes::new(),
            Ok(ExitStatus { code }) => format!("command terminated with non-zero exit code: {code}").into(),
            Err(error) => error.to_string().into(),
        }
    }
}

fn status(outcome: &Outcome) -> Value {
    match outcome {
        Ok(ExitStatus { code: 0 }) => json!({"metadata": {}, "status": "Success"}),
        Ok(ExitStatus { code }) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("command terminated with non-zero exit code: {code}"),
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        Err(error) => {
            let (code, reason) = match error {
                NodeError::NotFound(_) => (404, "NotFound"),
                NodeError::BadRequest(_) => (400, "BadRequest"),
                NodeError::Unavailable(_) => (503, "ServiceUnavailable"),
                NodeError::Internal(_) => (500, "InternalError"),
            };
            json!({
                "metadata": {},
                "status": "Failure",
                "message": error.to_string(),
                "reason": reason,
                "details": {"causes": [{"message": error.to_string()}]},
                "code": code,
            })
        }
    }
}

#[derive(Deserialize)]
struct WireSize {
    #[serde(rename = "Width")]
    width: u16,
    #[serde(rename = "Height")]
    height: u16,
}

/// Parses terminal sizes from a byte stream of JSON objects that arrives in chunks of any size.
#[derive(Default)]
pub struct SizeReader {
    buffer: Vec<u8>,
}

impl SizeReader {
    /// Maximum number of unparsed bytes. A size takes about thirty bytes, so more is invalid input and is discarded.
    const LIMIT: usize = 4096;

    /// Adds bytes and returns the last complete size; earlier ones are outdated.
    pub fn push(&mut self, bytes: &[u8]) -> Option<TerminalSize> {
        self.buffer.extend_from_slice(bytes);
        let mut parsed = serde_json::Deserializer::from_slice(&self.buffer).into_iter::<WireSize>();
        let mut latest = None;
        let mut used = 0;
        let mut invalid = false;
        while let Some(next) = parsed.next() {
            match next {
                Ok(size) => {
                    latest = Some(TerminalSize { columns: size.width, rows: size.height });
                    used = parsed.byte_offset();
                }
                Err(error) => {
                    invalid = !error.is_eof();
                    break;
                }
            }
        }
        self.buffer.drain(..used);
        if invalid || self.buffer.len() > Self::LIMIT {
            self.buffer.clear();
        }
        latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_across_chunk_boundaries_and_invalid_input_is_discarded() {
        let mut reader = SizeReader::default();
        assert_eq!(reader.push(br#"{"Width":80,"Hei"#), None);
        assert_eq!(reader.push(b"ght\":24}\n"), Some(TerminalSize { columns: 80, rows: 24 }));
        let two = br#"{"Width":1,"Height":2}{"Width":3,"Height":4}"#;
        assert_eq!(reader.push(two), Some(TerminalSize { columns: 3, rows: 4 }));
        assert_eq!(reader.push(b"}}}"), None);
        assert_eq!(reader.push(br#"{"Width":70000,"Height":1}"#), None);
        for _ in 0..100 {
            reader.push(&[b'['; 1000]);
        }
        assert!(reader.buffer.len() <= SizeReader::LIMIT);
        reader.buffer.clear();
        assert_eq!(reader.push(br#"{"Width":5,"Height":6}"#), Some(TerminalSize { columns: 5, rows: 6 }));
    }

    #[test]
    fn exit_codes_are_sent_as_a_status_since_version_four() {
        let failed = Ok(ExitStatus { code: 3 });
        let report: Value = serde_json::from_slice(&Version::V4.report(&failed)).unwrap();
        assert_eq!(report["reason"], "NonZeroExitCode");
        assert_eq!(report["details"]["causes"][0], json!({"reason": "ExitCode", "message": "3"}));
        let success: Value = serde_json::from_slice(&Version::V5.report(&Ok(ExitStatus { code: 0 }))).unwrap();
        assert_eq!(success, json!({"metadata": {}, "status": "Success"}));
        assert!(Version::V1.report(&Ok(ExitStatus { code: 0 })).is_empty());
    }
}
