//! Connects the streaming protocols to the node: logs, exec, attach and port-forward for the Pods it runs.

use agent_sandbox_streams::backend::{
    Duplex, ExecRequest, ExitStatus, LogOptions, LogStreams, NodeBackend, NodeError, PodRef, ProcessSession, StreamSet,
    TerminalSize,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;

use crate::kubelet::node::{NodeHandle, PodKey, PodRequestError};
use crate::kubelet::{logs, node};
use crate::runtime::{self, ExecSession, RuntimeError};

/// Capacity of the queue of terminal resizes.
const RESIZE_QUEUE: usize = 8;

/// Serves streaming requests for the Pods of one node.
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
            .logs(&pod_key(pod), &options.container, options.previous, log_options(&options))
            .await
            .map_err(pod_error)?;
        Ok(chunks.boxed())
    }

    async fn exec(&self, pod: &PodRef, request: ExecRequest) -> Result<ProcessSession, NodeError> {
        Ok(process_session(
            self.0.exec(&pod_key(pod), &request.container, exec_request(&request)).await.map_err(pod_error)?,
        ))
    }

    async fn attach(&self, pod: &PodRef, container: &str, streams: StreamSet) -> Result<ProcessSession, NodeError> {
        Ok(process_session(self.0.attach(&pod_key(pod), container, attach_request(streams)).await.map_err(pod_error)?))
    }

    async fn port_forward(&self, pod: &PodRef, port: u16) -> Result<Box<dyn Duplex>, NodeError> {
        Ok(Box::new(self.0.dial(&pod_key(pod), port).await.map_err(pod_error)?))
    }
}

/// Converts the Pod reference of a request.
pub fn pod_key(pod: &PodRef) -> PodKey {
    PodKey { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: Some(pod.uid.clone()) }
}

/// Converts the log options of a request.
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

/// Converts an exec request.
pub fn exec_request(request: &ExecRequest) -> runtime::ExecRequest {
    runtime::ExecRequest {
        command: request.command.clone(),
        user: request.user.clone().map(|user| runtime::User { user, ..runtime::User::default() }),
        // As containerd does: without a type of terminal, programs such as `clear` and `less` fail.
        env: if request.streams.tty { vec![("TERM".to_owned(), "xterm".to_owned())] } else { Vec::new() },
        stdin: request.streams.stdin,
        stdout: request.streams.stdout,
        stderr: request.streams.stderr,
        tty: request.streams.tty,
        ..runtime::ExecRequest::default()
    }
}

/// Converts the streams of an attach request.
pub fn attach_request(streams: StreamSet) -> runtime::AttachRequest {
    runtime::AttachRequest { stdin: streams.stdin, stdout: streams.stdout, stderr: streams.stderr }
}

/// Converts the error of a request to a Pod; it decides the HTTP status.
pub fn pod_error(error: PodRequestError) -> NodeError {
    let text = runtime::chain(&error);
    match error {
        PodRequestError::NoPod { .. } => NodeError::NotFound(text),
        PodRequestError::NotStarted { .. }
        | PodRequestError::NoPrevious { .. }
        | PodRequestError::Runtime(RuntimeError::NotRunning { .. }) => NodeError::BadRequest(text),
        PodRequestError::NotListening { .. } => NodeError::Unavailable(text),
        PodRequestError::Runtime(_) => NodeError::Internal(text),
    }
}

/// Converts a session of the runtime.
pub fn process_session(from: ExecSession) -> ProcessSession {
    let resize = from.resize.map(|apply| {
        let (sender, mut sizes) = mpsc::channel::<TerminalSize>(RESIZE_QUEUE);
        // The task ends with the session, which owns the only sender.
        tokio::spawn(async move {
            while let Some(TerminalSize { columns, rows }) = sizes.recv().await {
                // Fails when the command has ended; there is then nothing left to resize.
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
