//! The node behind the streaming protocols: logs, commands, attachment and port-forwarding of the Pods it runs.

use agent_sandbox_apiserver::node::{
    Duplex, ExecRequest, ExitStatus, LogOptions, LogStreams, NodeBackend, NodeError, PodRef, ProcessSession, StreamSet,
    TerminalSize,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;

use crate::node::{NodeHandle, PodKey, ServiceError};
use crate::runtime::{self, ExecSession, RuntimeError};
use crate::{logs, node};

/// Resizes that are still on their way; a terminal that is dragged sends many, only the last counts.
const RESIZES: usize = 8;

/// Answers streaming requests for the Pods of one node.
pub struct Backend(NodeHandle);

impl Backend {
    pub fn new(node: NodeHandle) -> Self {
        Self(node)
    }
}

#[async_trait]
impl NodeBackend for Backend {
    async fn logs(
        &self,
        pod: &PodRef,
        options: LogOptions,
    ) -> Result<BoxStream<'static, std::io::Result<Bytes>>, NodeError> {
        let chunks: node::LogChunks = self
            .0
            .logs(&key(pod), &options.container, options.previous, log_options(&options))
            .await
            .map_err(refusal)?;
        Ok(chunks.boxed())
    }

    async fn exec(&self, pod: &PodRef, request: ExecRequest) -> Result<ProcessSession, NodeError> {
        Ok(session(self.0.exec(&key(pod), &request.container, command(&request)).await.map_err(refusal)?))
    }

    async fn attach(&self, pod: &PodRef, container: &str, streams: StreamSet) -> Result<ProcessSession, NodeError> {
        Ok(session(self.0.attach(&key(pod), container, attachment(streams)).await.map_err(refusal)?))
    }

    async fn port_forward(&self, pod: &PodRef, port: u16) -> Result<Box<dyn Duplex>, NodeError> {
        Ok(Box::new(self.0.dial(&key(pod), port).await.map_err(refusal)?))
    }
}

/// The Pod that an API server speaks of, as the node knows it.
pub fn key(pod: &PodRef) -> PodKey {
    PodKey { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: Some(pod.uid.clone()) }
}

/// What an API server asks of a Pod's log, in the node's words.
pub fn log_options(options: &LogOptions) -> logs::LogOptions {
    logs::LogOptions {
        follow: options.follow,
        timestamps: options.timestamps,
        tail_lines: options.tail_lines,
        since: options.since,
        limit_bytes: options.limit_bytes,
        stream: match options.stream {
            LogStreams::All => logs::LogStream::All,
            LogStreams::Stdout => logs::LogStream::Stdout,
            LogStreams::Stderr => logs::LogStream::Stderr,
        },
    }
}

/// The command that an API server wants to run in a container, in the node's words.
pub fn command(request: &ExecRequest) -> runtime::ExecRequest {
    runtime::ExecRequest {
        command: request.command.clone(),
        stdin: request.streams.stdin,
        stdout: request.streams.stdout,
        stderr: request.streams.stderr,
        tty: request.streams.tty,
        ..runtime::ExecRequest::default()
    }
}

/// The streams of a container that an API server wants to join, in the node's words.
pub fn attachment(streams: StreamSet) -> runtime::AttachRequest {
    runtime::AttachRequest { stdin: streams.stdin, stdout: streams.stdout, stderr: streams.stderr }
}

/// Why a request into a Pod failed, as an API server tells it.
pub fn refusal(error: ServiceError) -> NodeError {
    let text = runtime::chain(&error);
    match error {
        ServiceError::NoPod { .. } => NodeError::NotFound(text),
        ServiceError::NotStarted { .. }
        | ServiceError::NoPrevious { .. }
        | ServiceError::Runtime(RuntimeError::NotRunning { .. }) => NodeError::BadRequest(text),
        ServiceError::NotListening { .. } => NodeError::Unavailable(text),
        ServiceError::Runtime(_) => NodeError::Internal(text),
    }
}

/// A session of the node as an API server carries it.
pub fn session(from: ExecSession) -> ProcessSession {
    let resize = from.resize.map(|apply| {
        let (sender, mut sizes) = mpsc::channel::<TerminalSize>(RESIZES);
        // Ends with the session, which owns the only sender.
        tokio::spawn(async move {
            while let Some(TerminalSize { columns, rows }) = sizes.recv().await {
                // The command may have ended meanwhile; then there is nothing left to resize.
                let _ = apply(runtime::TerminalSize { rows, columns });
            }
        });
        sender
    });
    let exit = from.exit.map(|outcome| match outcome {
        Ok(exit) => Ok(ExitStatus { code: exit.code }),
        Err(error) => Err(NodeError::Internal(error.to_string())),
    });
    ProcessSession {
        stdin: from.stdin.map(|stream| Box::into_pin(stream as Box<_>)),
        stdout: from.stdout.map(|stream| Box::into_pin(stream as Box<_>)),
        stderr: from.stderr.map(|stream| Box::into_pin(stream as Box<_>)),
        resize,
        exit: exit.boxed(),
    }
}
