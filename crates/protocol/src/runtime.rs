//! The runtime dialect: what the published SDKs speak on port 8888 (`/execute`, `/upload`, `/download`, `/list`,
//! `/exists`).

use serde::{Deserialize, Serialize};

/// The fixed response of `GET /`; clients and probes compare it literally.
pub const ACTIVE: &str = r#"{"status":"ok","message":"Sandbox Runtime is active."}"#;

/// Prefix of every message about a command that could not be started or finished; clients search for it.
pub const LAUNCH_FAILURE_PREFIX: &str = "Failed to execute command: ";

/// Body of `POST /execute`. Unknown members are ignored.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct ExecuteRequest {
    pub command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
}

/// Response of `POST /execute`, always with status 200.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct ExecuteResponse {
    pub stdout: String,
    pub stderr: String,
    pub exit_code: i32,
    /// Absent from older servers.
    #[serde(default)]
    pub timed_out: bool,
}

/// One element of the array that `GET /list/{path}` returns.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct FileEntry {
    pub name: String,
    pub size: u64,
    #[serde(rename = "type")]
    pub kind: FileKind,
    /// Seconds since the epoch, with a fraction.
    pub mod_time: f64,
}

/// Type of an entry after links are followed; everything that is not a directory counts as a file.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    File,
    Directory,
}

/// Response of `GET /exists/{path}`: the path as received, decoded once.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct ExistsResponse {
    pub path: String,
    pub exists: bool,
}

/// Every other response with a text: uploads and errors.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Message {
    pub message: String,
}

/// One element of a 422 response.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct ValidationProblem {
    #[serde(rename = "type")]
    pub kind: String,
    pub loc: Vec<serde_json::Value>,
    pub msg: String,
    pub input: serde_json::Value,
}

/// Body of a 422 response.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct ValidationError {
    pub detail: Vec<ValidationProblem>,
}

/// `{"detail": "Not Found"}` and `{"detail": "Method Not Allowed"}`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Detail {
    pub detail: String,
}
