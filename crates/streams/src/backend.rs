//! The interface to the component that runs Pods: logs, exec, attach and port-forward.
//!
//! The stream server checks the request, the Pod and the container name, speaks the client's streaming protocol, and
//! passes plain byte streams to a [`NodeBackend`]. A backend has no knowledge of HTTP, SPDY or WebSocket.

use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// A Pod as stored at the time of the request. The uid distinguishes two Pods that had the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// Why the node failed a request. The message is shown to the user.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NodeError {
    /// The node has no such Pod or container (any more).
    #[error("{0}")]
    NotFound(String),
    /// The Pod exists but its state does not allow the operation, such as logs of a container that never started.
    #[error("{0}")]
    BadRequest(String),
    /// No process listens on the port yet, or no node is attached. A retry may succeed.
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Internal(String),
}

/// A two-way byte stream, such as a connection to a port inside a Pod.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Serves one connection until it ends.
pub type ConnectionHandler = Box<dyn FnOnce(Box<dyn Duplex>) -> BoxFuture<'static, ()> + Send>;

pub type BoxReader = Pin<Box<dyn AsyncRead + Send>>;
pub type BoxWriter = Pin<Box<dyn AsyncWrite + Send>>;

/// Validated options of a log request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub container: String,
    pub follow: bool,
    /// Return the output of the container's previous run.
    pub previous: bool,
    pub timestamps: bool,
    /// Number of existing lines to return, counted from the end; `None` returns all.
    pub tail_lines: Option<u64>,
    pub since: Option<Timestamp>,
    /// Maximum number of bytes to return.
    pub limit_bytes: Option<u64>,
    pub stream: LogStreams,
}

/// Which of the container's two outputs to return.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogStreams {
    #[default]
    All,
    Stdout,
    Stderr,
}

/// A command to run inside a container, beside the container's own processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    pub container: String,
    pub command: Vec<String>,
    /// User to run as, by name or id, instead of the container's.
    pub user: Option<String>,
    pub streams: StreamSet,
}

/// Which streams the client requested. With `tty`, stdout and stderr arrive merged on stdout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamSet {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

/// The exit code of a command; 128 + signal number if a signal killed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitStatus {
    pub code: i32,
}

/// A running exec command, or an attachment to a container's main process.
///
/// Dropping `stdin` sends end-of-file to the process. Dropping the whole session means that the client disconnected:
/// the node then kills an exec command, and leaves a container's main process running.
pub struct ProcessSession {
    pub stdin: Option<BoxWriter>,
    pub stdout: Option<BoxReader>,
    pub stderr: Option<BoxReader>,
    pub resize: Option<mpsc::Sender<TerminalSize>>,
    pub exit: BoxFuture<'static, Result<ExitStatus, NodeError>>,
}

/// The node side of the streaming subresources of Pods. Callers have authorized the request already.
#[async_trait]
pub trait NodeBackend: Send + Sync + 'static {
    async fn logs(
        &self,
        pod: &PodRef,
        options: LogOptions,
    ) -> Result<BoxStream<'static, std::io::Result<Bytes>>, NodeError>;

    async fn exec(&self, pod: &PodRef, request: ExecRequest) -> Result<ProcessSession, NodeError>;

    async fn attach(&self, pod: &PodRef, container: &str, streams: StreamSet) -> Result<ProcessSession, NodeError>;

    /// Connects to a port on the Pod's own loopback address.
    async fn port_forward(&self, pod: &PodRef, port: u16) -> Result<Box<dyn Duplex>, NodeError>;

    /// A handler for a port that this process serves itself (a placeholder Pod for a component of this process). `None`
    /// for all other ports: the caller then connects with [`port_forward`](Self::port_forward).
    fn connection_handler(&self, _pod: &PodRef, _port: u16) -> Option<ConnectionHandler> {
        None
    }
}

/// The backend while no node is attached: every request fails with [`NodeError::Unavailable`].
#[derive(Debug, Default)]
pub struct NoNode;

impl NoNode {
    fn error() -> NodeError {
        NodeError::Unavailable("this API server runs no Pods: no node is attached to it".into())
    }
}

#[async_trait]
impl NodeBackend for NoNode {
    async fn logs(&self, _: &PodRef, _: LogOptions) -> Result<BoxStream<'static, std::io::Result<Bytes>>, NodeError> {
        Err(Self::error())
    }

    async fn exec(&self, _: &PodRef, _: ExecRequest) -> Result<ProcessSession, NodeError> {
        Err(Self::error())
    }

    async fn attach(&self, _: &PodRef, _: &str, _: StreamSet) -> Result<ProcessSession, NodeError> {
        Err(Self::error())
    }

    async fn port_forward(&self, _: &PodRef, _: u16) -> Result<Box<dyn Duplex>, NodeError> {
        Err(Self::error())
    }
}
