//! The embedded API's way to Pods: the node for real ones, the in-process router for the Pod that only stands for it.

use super::{gateway::Door, router_objects};
use agent_sandbox_apiserver::node::{
    Duplex, ExecRequest, ExitStatus, LogOptions, LogStreams, NodeBackend, NodeError, PodRef, ProcessSession, StreamSet,
    TerminalSize,
};
use agent_sandbox_node::{
    NodeHandle, PodKey, ServiceError, logs,
    runtime::{self, ExecSession},
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream::BoxStream};
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc;

/// Resizes that are still on their way; a terminal that is dragged sends many, only the last counts.
const RESIZES: usize = 8;

/// Answers streaming requests. Clones share one node, which may be given later than the first request comes.
#[derive(Clone, Default)]
pub(crate) struct Backend {
    node: Arc<OnceLock<NodeHandle>>,
    router: Option<Door>,
}

impl Backend {
    pub(crate) fn new(node: NodeHandle, router: Option<Door>) -> Self {
        Self { node: Arc::new(node.into()), router }
    }

    /// From now on requests go to this node; the first one stays.
    pub(crate) fn serve(&self, node: NodeHandle) {
        let _ = self.node.set(node);
    }

    fn node(&self) -> Result<&NodeHandle, NodeError> {
        self.node.get().ok_or_else(|| NodeError::Unavailable("the node is still starting".to_owned()))
    }

    /// Only where there is a router does a Pod stand for it; elsewhere the name is anybody's.
    fn door(&self, pod: &PodRef) -> Option<&Door> {
        self.router.as_ref().filter(|_| pod.name == router_objects::POD)
    }
}

#[async_trait]
impl NodeBackend for Backend {
    async fn logs(
        &self,
        pod: &PodRef,
        options: LogOptions,
    ) -> Result<BoxStream<'static, std::io::Result<Bytes>>, NodeError> {
        if self.door(pod).is_some() {
            return Err(NodeError::BadRequest(
                "the router of a local engine writes to the engine's own log".to_owned(),
            ));
        }
        let wanted = logs::LogOptions {
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
        };
        let chunks =
            self.node()?.logs(&key(pod), &options.container, options.previous, wanted).await.map_err(refusal)?;
        Ok(chunks.boxed())
    }

    async fn exec(&self, pod: &PodRef, request: ExecRequest) -> Result<ProcessSession, NodeError> {
        let wanted = runtime::ExecRequest {
            command: request.command,
            stdin: request.streams.stdin,
            stdout: request.streams.stdout,
            stderr: request.streams.stderr,
            tty: request.streams.tty,
            ..runtime::ExecRequest::default()
        };
        Ok(session(self.node()?.exec(&key(pod), &request.container, wanted).await.map_err(refusal)?))
    }

    async fn attach(&self, pod: &PodRef, container: &str, streams: StreamSet) -> Result<ProcessSession, NodeError> {
        let wanted = runtime::AttachRequest { stdin: streams.stdin, stdout: streams.stdout, stderr: streams.stderr };
        Ok(session(self.node()?.attach(&key(pod), container, wanted).await.map_err(refusal)?))
    }

    async fn port_forward(&self, pod: &PodRef, port: u16) -> Result<Box<dyn Duplex>, NodeError> {
        match self.door(pod) {
            None => Ok(Box::new(self.node()?.dial(&key(pod), port).await.map_err(refusal)?)),
            Some(_) if port != router_objects::PORT => {
                Err(NodeError::Unavailable(format!("the router listens on port {}, not {port}", router_objects::PORT)))
            }
            Some(door) => Ok(door.connect()),
        }
    }
}

fn key(pod: &PodRef) -> PodKey {
    PodKey { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: Some(pod.uid.clone()) }
}

fn refusal(error: ServiceError) -> NodeError {
    let text = error.to_string();
    match error {
        ServiceError::NoPod { .. } => NodeError::NotFound(text),
        ServiceError::NotStarted { .. } | ServiceError::NoPrevious { .. } => NodeError::BadRequest(text),
        ServiceError::NotListening { .. } => NodeError::Unavailable(text),
        ServiceError::Runtime(_) => NodeError::Internal(text),
    }
}

fn session(from: ExecSession) -> ProcessSession {
    let resize = from.resize.map(|apply| {
        let (sender, mut sizes) = mpsc::channel::<TerminalSize>(RESIZES);
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
