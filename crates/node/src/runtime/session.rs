//! Streams into and out of a running container.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};

use super::{Exit, RuntimeError, User};

/// A command to run in a running container. Unset fields use the container's values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExecRequest {
    pub command: Vec<String>,
    /// Added to the container's environment.
    pub env: Vec<(String, String)>,
    pub working_dir: Option<String>,
    pub user: Option<User>,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
    pub size: Option<TerminalSize>,
}

/// The streams of the container's first process to attach to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AttachRequest {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub rows: u16,
    pub columns: u16,
}

/// The open streams. Dropping `stdin` closes it for the process (without a terminal). Dropping `exit` before it is
/// resolved kills a command started by exec; an attached container continues.
pub struct ExecSession {
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// With a terminal both outputs arrive here.
    pub stdout: Option<Box<dyn AsyncRead + Send + Unpin>>,
    pub stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Present with a terminal.
    pub resize: Option<Arc<dyn Fn(TerminalSize) -> io::Result<()> + Send + Sync>>,
    /// Resolves when the process (for attach: the container) ended.
    pub exit: Pin<Box<dyn Future<Output = Result<Exit, RuntimeError>> + Send>>,
}

impl std::fmt::Debug for ExecSession {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ExecSession")
            .field("stdin", &self.stdin.is_some())
            .field("stdout", &self.stdout.is_some())
            .field("stderr", &self.stderr.is_some())
            .field("tty", &self.resize.is_some())
            .finish_non_exhaustive()
    }
}
