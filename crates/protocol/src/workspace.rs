//! The sandboxd dialect's REST half: the file system under `/v1`, health and metadata.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::runtime::FileKind;

/// Error body under `/v1`, followed by a newline on the wire.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct ErrorBody {
    pub code: ErrorCode,
    pub message: String,
}

/// Machine-readable reason of an [`ErrorBody`].
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    PermissionDenied,
    NotFound,
    InvalidArgument,
    Conflict,
    Internal,
    Unavailable,
}

impl ErrorCode {
    /// The HTTP status every error with this code is sent with.
    pub const fn status(self) -> http::StatusCode {
        match self {
            Self::PermissionDenied => http::StatusCode::FORBIDDEN,
            Self::NotFound => http::StatusCode::NOT_FOUND,
            Self::InvalidArgument => http::StatusCode::BAD_REQUEST,
            Self::Conflict => http::StatusCode::CONFLICT,
            Self::Internal => http::StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => http::StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Response of `GET /v1/files/{directory}`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Listing {
    pub path: String,
    pub entries: Vec<Entry>,
}

/// One directory entry, sorted by name in a [`Listing`].
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub size: i64,
    #[serde(rename = "type")]
    pub kind: FileKind,
    /// RFC 3339, UTC, whole seconds.
    pub modified_at: String,
    /// Four octal digits.
    pub mode: String,
}

/// Response of `GET /v1/health`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Health {
    pub status: String,
    pub uptime_seconds: u64,
}

/// Response of `GET /v1/metadata`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Metadata {
    pub env: BTreeMap<String, String>,
}

/// Whether `/v1/metadata` may show a variable: it has the prefix, and its name does not look like that of a secret.
pub fn is_public_variable(name: &str, prefix: &str) -> bool {
    const SECRET_HINTS: [&str; 10] =
        ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CRED", "KEY", "AUTH", "BEARER", "PRIVATE", "CERT"];
    let prefix = if prefix.is_empty() { "SANDBOX_" } else { prefix };
    let upper = name.to_ascii_uppercase();
    name.starts_with(prefix) && !SECRET_HINTS.iter().any(|hint| upper.contains(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D-080
    #[test]
    fn metadata_hides_variables_whose_names_look_like_secrets() {
        let shown: Vec<&str> = [
            "SANDBOX_ID",
            "SANDBOX_API_TOKEN",
            "SANDBOX_SSH_KEY",
            "SANDBOX_AUTH_HEADER",
            "SANDBOX_TLS_CERT",
            "SANDBOX_PRIVATE_URL",
            "KUBERNETES_SERVICE_HOST",
        ]
        .into_iter()
        .filter(|name| is_public_variable(name, ""))
        .collect();
        assert_eq!(shown, ["SANDBOX_ID"]);
    }
}
