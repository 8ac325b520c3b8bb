//! One command's streams as the client sees them, whichever protocol carries them.

pub mod spdy;

use std::io;

use async_trait::async_trait;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::node::{ExitStatus, NodeError, TerminalSize};

/// How the command ended, or why it could not run.
pub type Outcome = Result<ExitStatus, NodeError>;

/// The client's end: what it types, where output goes, whether it is still there.
pub struct Remote {
    /// Closed at the client's end of input.
    pub stdin: mpsc::Receiver<Bytes>,
    pub resize: mpsc::Receiver<TerminalSize>,
    pub output: Box<dyn Output>,
    /// Fires when the client has gone.
    pub gone: CancellationToken,
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

    /// Reports the outcome and closes the connection in the order that clients expect.
    async fn finish(self: Box<Self>, outcome: &Outcome);
}

/// Version of the remote-command protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Plain error text, no resizing.
    V1,
    /// As the first, with a fixed order of closing.
    V2,
    /// Adds resizing.
    V3,
    /// Adds the exit code, as a `Status`.
    V4,
    /// Adds closing of single channels (WebSocket only).
    V5,
}

impl Version {
    pub fn named(protocol: &str) -> Self {
        match protocol {
            "v5.channel.k8s.io" => Self::V5,
            "v4.channel.k8s.io" | "v4.base64.channel.k8s.io" => Self::V4,
            "v3.channel.k8s.io" => Self::V3,
            "v2.channel.k8s.io" => Self::V2,
            _ => Self::V1,
        }
    }

    pub fn resizes(self) -> bool {
        self >= Self::V3
    }

    /// The bytes for the error channel; before version 4 success is silence.
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

/// Reads terminal sizes from a byte stream of JSON objects, which may be cut anywhere.
#[derive(Default)]
pub struct SizeReader {
    buffer: Vec<u8>,
}

impl SizeReader {
    /// A size takes some thirty bytes; what is longer is not a size.
    const LIMIT: usize = 4096;

    /// The latest size that is complete; earlier ones are outdated.
    pub fn push(&mut self, bytes: &[u8]) -> Option<TerminalSize> {
        self.buffer.extend_from_slice(bytes);
        let mut parsed = serde_json::Deserializer::from_slice(&self.buffer).into_iter::<WireSize>();
        let mut latest = None;
        let mut used = 0;
        let mut broken = false;
        while let Some(next) = parsed.next() {
            match next {
                Ok(size) => {
                    latest = Some(TerminalSize { columns: size.width, rows: size.height });
                    used = parsed.byte_offset();
                }
                Err(error) => {
                    broken = !error.is_eof();
                    break;
                }
            }
        }
        self.buffer.drain(..used);
        if broken || self.buffer.len() > Self::LIMIT {
            self.buffer.clear();
        }
        latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_may_be_cut_anywhere_and_nonsense_is_dropped() {
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
    fn exit_codes_travel_as_a_status_since_version_four() {
        let failed = Ok(ExitStatus { code: 3 });
        let report: Value = serde_json::from_slice(&Version::V4.report(&failed)).unwrap();
        assert_eq!(report["reason"], "NonZeroExitCode");
        assert_eq!(report["details"]["causes"][0], json!({"reason": "ExitCode", "message": "3"}));
        let success: Value = serde_json::from_slice(&Version::V5.report(&Ok(ExitStatus { code: 0 }))).unwrap();
        assert_eq!(success, json!({"metadata": {}, "status": "Success"}));
        assert!(Version::V1.report(&Ok(ExitStatus { code: 0 })).is_empty());
    }
}
