//! The egress log: what sandboxes asked for and what was decided, a JSON object per line, in a file of bounded size.

use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use agent_sandbox_telemetry::{LineWriter, RotatingFile};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Size at which the file is rotated, and the number of rotated files that are kept.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
pub const KEPT: u32 = 3;
/// Name of the file in a node's data folder.
pub const FILE_NAME: &str = "egress.jsonl";

/// What a sandbox did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Dns,
    Http,
    Tls,
    /// Another protocol on a connection that was diverted to the proxy.
    Tcp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Allow,
    Deny,
    /// Allowed, but the destination did not answer.
    Fail,
}

/// One line of the log. Members that are empty are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When the connection or request ended.
    pub time: Timestamp,
    pub namespace: String,
    pub sandbox: String,
    pub protocol: Protocol,
    pub decision: Outcome,
    /// The name that was asked for, or that the connection names.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The server name of a TLS handshake.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sni: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Ipv4Addr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// Path of a plain HTTP request, without its query.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes_sent: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes_received: u64,
    /// The rule that allowed or denied it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Why it was denied or failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Takes records without waiting for the disk. Cheap to clone.
#[derive(Clone)]
pub struct Log(Arc<LineWriter>);

impl Log {
    /// Opens the log in a file, which is private to its owner.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = RotatingFile::open(path, MAX_BYTES, KEPT)?;
        Ok(Self(Arc::new(LineWriter::start("egress-log", Box::new(file))?)))
    }

    pub(crate) fn write(&self, record: &Record) {
        match serde_json::to_string(record) {
            Ok(mut line) => {
                line.push('\n');
                self.0.write(&line);
            }
            Err(error) => tracing::warn!(%error, "Cannot encode a record of the egress log"),
        }
    }
}
