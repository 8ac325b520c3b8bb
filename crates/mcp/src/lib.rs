//! The MCP server: sandboxes, commands and files as tools for models, with the tool names, arguments and results of
//! upstream's server.
//!
//! A session can access only what it created: claims, snapshots and the Sandboxes made from them have a label with the
//! session id, and every call first looks for that label. The server has no state of its own that could disagree with the cluster.

mod arguments;
mod calls;
mod http;
mod ports;
mod runtime_api;
mod sandboxes;
mod server;
mod settings;
mod snapshots;
mod token;
mod tools;

pub use http::{HttpOptions, serve_http};
pub use sandboxes::{Defaults, Sandboxes};
pub use settings::{DEFAULT_SESSION_KEY, Settings, SettingsError};
pub use token::BearerToken;

use rmcp::ServiceExt as _;
use server::Server;
use thiserror::Error;

/// Why the server could not start or stopped.
#[derive(Debug, Error)]
pub enum McpError {
    #[error("cannot listen on {address}")]
    Listen {
        address: String,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "{address} can be reached from other machines, over plain HTTP; name the hosts that clients use with --allowed-host, or allow any with --allowed-host '*'"
    )]
    Exposed { address: String },
    #[error("cannot {operation} the token file {}", path.display())]
    TokenFile {
        path: std::path::PathBuf,
        operation: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("{} holds no usable token: at least {min_length} printable characters without spaces are needed", path.display())]
    Token { path: std::path::PathBuf, min_length: usize },
    #[error("the client on standard input did not begin an MCP session: {0}")]
    Handshake(String),
    #[error("{0:?} cannot be a session's id: letters, digits, '-', '_' and '.', at most 63")]
    Session(String),
}

/// Serves one client on standard input and output until it closes them. With a given `session`, a restarted client
/// finds its sandboxes again.
pub async fn serve_stdio(sandboxes: Sandboxes, session: Option<String>) -> Result<(), McpError> {
    let session = session.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    if !is_label_value(&session) {
        return Err(McpError::Session(session));
    }
    let server = Server::of_one_session(sandboxes, session);
    let running = server.serve(rmcp::transport::stdio()).await;
    let running = running.map_err(|error| McpError::Handshake(error.to_string()))?;
    let ended = running.waiting().await;
    tracing::debug!(?ended, "Session ended");
    Ok(())
}

/// True if a text is a valid label value. Session ids are used as such.
fn is_label_value(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63 && bytes.iter().copied().all(inner) && edge(bytes.first()) && edge(bytes.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_ids_are_label_values() {
        assert!(is_label_value("d2c1b0b6-7d0a-4a1e-9d0e-1d2f3a4b5c6d") && is_label_value("a"));
        for wrong in ["", "-a", "a-", "a b", "a=b,c", &"x".repeat(64)] {
            assert!(!is_label_value(wrong), "{wrong:?}");
        }
    }
}
