//! The native API under `/sandbox/v1`: commands with streaming and re-attachment, files, tar, watches, ports, usage.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Path prefix of the API.
pub const PREFIX: &str = "/sandbox/v1";
/// Path of the list of ports.
pub const PORTS_PATH: &str = "/sandbox/v1/ports";
/// The port on which the daemon serves this API.
pub const DAEMON_PORT: u16 = crate::router_headers::DEFAULT_PORT;

/// A retried request with the same key gets the result of the first one. Requires [`BOOT_ID_HEADER`] too.
pub const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";

/// The boot id (from [`Info`]) that an idempotency key belongs to. It changes with every start of the daemon.
pub const BOOT_ID_HEADER: &str = "sandbox-boot-id";

/// Response of `GET /sandbox/v1`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Info {
    pub version: String,
    /// Changes whenever the daemon loses its record of idempotency keys.
    pub boot_id: String,
    pub base_dir: String,
    pub root_dir: String,
    pub shell: String,
    pub uid: u32,
    pub gid: u32,
    /// Whether the daemon supports `user` in an [`ExecRequest`].
    pub can_change_user: bool,
    pub uptime_seconds: u64,
}

/// Body of `POST /sandbox/v1/exec` and `POST /sandbox/v1/processes`; first message of a WebSocket on either.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecRequest {
    /// Text for the shell. Either this or `argv`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Relative to the base directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Name or number, optionally `user:group`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
    /// Text written to standard input, which is then closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// Maximum number of bytes of each stream that are returned, or kept for replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_limit: Option<usize>,
    /// Return output as base64 instead of text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub base64: bool,
    /// Streaming only: keep the process running when the client disconnects.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detach: bool,
}

/// A terminal's size in characters.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

/// Resource limits of one process, as `setrlimit` understands them.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_size_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
}

impl Limits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Response of `POST /sandbox/v1/exec`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ExecResult {
    /// 128 + N when signal N ended the command, 124 when it timed out.
    pub exit_code: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// Bytes that the command wrote; more than were returned when the output was truncated.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub timed_out: bool,
    pub duration_ms: u64,
}

/// One process in responses under `/sandbox/v1/processes`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ProcessInfo {
    pub id: i32,
    pub pid: i32,
    pub argv: Vec<String>,
    pub running: bool,
    pub terminal: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    #[serde(default)]
    pub timed_out: bool,
    /// RFC 3339.
    pub started_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Offsets of the oldest output still kept and of the next byte to be written.
    pub output_start: u64,
    pub output_end: u64,
}

/// Response of `GET /sandbox/v1/processes`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct ProcessList {
    pub processes: Vec<ProcessInfo>,
}

/// One line of a stream (`application/x-ndjson`), one event of `text/event-stream`, one text message of a WebSocket.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Event {
    Started {
        id: i32,
        pid: i32,
    },
    /// Exactly one of `text` and `base64` is set: `text` unless the bytes are not UTF-8.
    Stdout(Output),
    Stderr(Output),
    /// Output that was overwritten before this client read it.
    Skipped {
        offset: u64,
        bytes: u64,
    },
    #[serde(rename_all = "camelCase")]
    Exit {
        exit_code: i32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        #[serde(default)]
        timed_out: bool,
    },
    Error {
        code: ErrorCode,
        message: String,
    },
}

/// A piece of output.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Output {
    pub offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// Control messages of a client, as text messages of a WebSocket. Binary messages are standard input.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
pub enum Input {
    Stdin { text: String },
    EndOfInput,
    Resize { columns: u16, rows: u16 },
    Signal { signal: String },
}

/// Body of `POST …/signal`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// `TERM`, `SIGTERM` or `15`.
    pub signal: String,
}

/// Error response of every endpoint.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct ErrorBody {
    pub code: ErrorCode,
    pub message: String,
}

/// Machine-readable reason of an [`ErrorBody`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum ErrorCode {
    Invalid,
    NotFound,
    Denied,
    Conflict,
    /// The idempotency key belongs to an earlier boot or was evicted: whether the command ran is unknown.
    OutcomeUnknown,
    TooLarge,
    MethodNotAllowed,
    Unavailable,
    Internal,
}

impl ErrorCode {
    pub const fn status(self) -> http::StatusCode {
        match self {
            Self::Invalid => http::StatusCode::BAD_REQUEST,
            Self::NotFound => http::StatusCode::NOT_FOUND,
            Self::Denied => http::StatusCode::FORBIDDEN,
            Self::Conflict | Self::OutcomeUnknown => http::StatusCode::CONFLICT,
            Self::TooLarge => http::StatusCode::PAYLOAD_TOO_LARGE,
            Self::MethodNotAllowed => http::StatusCode::METHOD_NOT_ALLOWED,
            Self::Unavailable => http::StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => http::StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// Type of a file; links are not followed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum FileType {
    File,
    Directory,
    Link,
    Other,
}

/// One file in responses under `/sandbox/v1/files`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FileInfo {
    pub path: String,
    pub name: String,
    #[serde(rename = "type")]
    pub kind: FileType,
    pub size: u64,
    /// Octal permission bits.
    pub mode: String,
    pub uid: u32,
    pub gid: u32,
    /// RFC 3339 with nanoseconds.
    pub modified_at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
}

/// Response of listings and globs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FileList {
    pub entries: Vec<FileInfo>,
    /// Whether more files matched than were returned.
    #[serde(default)]
    pub truncated: bool,
}

/// Body of `POST /sandbox/v1/files/{operation}`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileOperation {
    /// Path to create or change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Octal permission bits, such as `0755`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Replace an existing file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overwrite: bool,
}

/// One line that matched a content search.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Match {
    pub path: String,
    pub line: u64,
    pub text: String,
}

/// Response of `GET /sandbox/v1/files/search`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SearchResult {
    pub matches: Vec<Match>,
    pub files_searched: u64,
    #[serde(default)]
    pub truncated: bool,
}

/// One line of `GET /sandbox/v1/files/watch`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Change {
    pub path: String,
    pub change: ChangeKind,
}

/// What happened to a file.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum ChangeKind {
    /// The watch is established; every later change is reported.
    Watching,
    Created,
    Modified,
    Removed,
    MovedFrom,
    MovedTo,
    Attributes,
    /// Events were lost; read the directory again.
    Overflow,
}

/// Response of `PUT /sandbox/v1/files/tar`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Unpacked {
    pub files: u64,
    pub bytes: u64,
}

/// One listening socket.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Port {
    pub port: u16,
    pub address: String,
    pub protocol: String,
}

/// Response of `GET /sandbox/v1/ports`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Ports {
    pub ports: Vec<Port>,
}

/// Response of `GET /sandbox/v1/usage`: usage of the sandbox's cgroup, where the daemon can read it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_microseconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    pub daemon_memory_bytes: u64,
    pub running_commands: u64,
    pub disk_total_bytes: u64,
    pub disk_free_bytes: u64,
}
