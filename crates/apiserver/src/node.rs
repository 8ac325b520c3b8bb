//! What the API needs from whoever runs the Pods: logs, commands, attachment and port-forwarding.
//!
//! The API checks the request, the Pod and the container name, speaks the client's streaming protocol, and hands plain
//! byte streams to a [`NodeBackend`]. The backend knows nothing of HTTP, SPDY or WebSockets.

use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

/// A Pod as stored at the time of the request; the uid tells two Pods of one name apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// Why the node did not do what was asked. The message reaches the user.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NodeError {
    /// The Pod or container is not (or no longer) known to the node.
    #[error("{0}")]
    NotFound(String),
    /// The Pod is known but not in a state that allows this, such as logs of a container that never started.
    #[error("{0}")]
    BadRequest(String),
    /// Nothing listens on the port yet, or nobody runs Pods here. Worth another attempt.
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Internal(String),
}

/// A two-way byte stream, such as a connection to a port inside a Pod.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Serves the connection that it is given.
pub type Answer = Box<dyn FnOnce(Box<dyn Duplex>) -> BoxFuture<'static, ()> + Send>;

pub type BoxReader = Pin<Box<dyn AsyncRead + Send>>;
pub type BoxWriter = Pin<Box<dyn AsyncWrite + Send>>;

/// Which lines of a container's output are wanted, after validation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub container: String,
    pub follow: bool,
    /// The output of the container's previous attempt.
    pub previous: bool,
    pub timestamps: bool,
    /// Only the last so many lines; `None` means all, `Some(0)` none of the existing ones.
    pub tail_lines: Option<u64>,
    pub since: Option<Timestamp>,
    /// The stream ends after so many bytes.
    pub limit_bytes: Option<u64>,
    pub stream: LogStreams,
}

/// Which of the container's two outputs is wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogStreams {
    #[default]
    All,
    Stdout,
    Stderr,
}

/// A command to run beside a container's own processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    pub container: String,
    pub command: Vec<String>,
    pub streams: StreamSet,
}

/// Which streams the client asked for. With `tty`, output and error output arrive as one.
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

/// How a command ended. A death by signal is reported as 128 + signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExitStatus {
    pub code: i32,
}

/// A running command (or an attachment to a container's own process).
///
/// Dropping `stdin` is end-of-file for the command. Dropping the whole session means the client has gone: a command is
/// ended, a container's own process is left alone.
pub struct ProcessSession {
    pub stdin: Option<BoxWriter>,
    pub stdout: Option<BoxReader>,
    pub stderr: Option<BoxReader>,
    pub resize: Option<mpsc::Sender<TerminalSize>>,
    pub exit: BoxFuture<'static, Result<ExitStatus, NodeError>>,
}

/// The node side of the streaming subresources of Pods.
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

    /// How to serve a port of a Pod that only stands for a part of this process; none where a connection has to be made.
    fn answer(&self, _pod: &PodRef, _port: u16) -> Option<Answer> {
        None
    }
}

/// The backend of an API server that runs no Pods: every request is refused with a clear message.
#[derive(Debug, Default)]
pub struct NoNode;

impl NoNode {
    fn refusal() -> NodeError {
        NodeError::Unavailable("this API server runs no Pods: no node is attached to it".into())
    }
}

#[async_trait]
impl NodeBackend for NoNode {
    async fn logs(&self, _: &PodRef, _: LogOptions) -> Result<BoxStream<'static, std::io::Result<Bytes>>, NodeError> {
        Err(Self::refusal())
    }

    async fn exec(&self, _: &PodRef, _: ExecRequest) -> Result<ProcessSession, NodeError> {
        Err(Self::refusal())
    }

    async fn attach(&self, _: &PodRef, _: &str, _: StreamSet) -> Result<ProcessSession, NodeError> {
        Err(Self::refusal())
    }

    async fn port_forward(&self, _: &PodRef, _: u16) -> Result<Box<dyn Duplex>, NodeError> {
        Err(Self::refusal())
    }
}
