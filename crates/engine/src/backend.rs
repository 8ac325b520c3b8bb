//! Streaming requests of the embedded API to Pods: the node serves real Pods, the in-process router the placeholder Pod
//! that represents it.

use super::{embedded_router::RouterHandle, exec_history, guarded_stream::GuardedStream, router_objects};
use agent_sandbox_apiserver::UserInfo;
use agent_sandbox_node::{
    NodeHandle,
    kubelet::server::backend::{attach_request, exec_request, log_options, pod_error, pod_key, process_session},
};
use agent_sandbox_router::{ActivityGuard, Caller};
use agent_sandbox_streams::backend::{
    ConnectionHandler, Duplex, ExecRequest, LogOptions, NodeBackend, NodeError, PodRef, ProcessSession, StreamSet,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream::BoxStream};
use std::sync::{Arc, OnceLock};

/// Serves streaming requests. Clones share one node, which may be set after the first request has arrived.
#[derive(Clone, Default)]
pub struct Backend {
    node: Arc<OnceLock<NodeHandle>>,
    router: Option<RouterHandle>,
    /// The user on whose behalf requests are made.
    caller: Arc<Caller>,
}

impl Backend {
    pub(crate) fn new(node: NodeHandle, router: Option<RouterHandle>) -> Self {
        Self { node: Arc::new(node.into()), router, caller: Arc::default() }
    }

    /// The same node for the requests of one user.
    pub(crate) fn on_behalf_of(&self, user: &UserInfo) -> Self {
        Self { caller: Arc::new(caller(user)), ..self.clone() }
    }

    /// Sets the node that serves requests from now on. A node that is already set stays.
    pub fn serve(&self, node: NodeHandle) {
        let _ = self.node.set(node);
    }

    fn node(&self) -> Result<&NodeHandle, NodeError> {
        self.node.get().ok_or_else(|| NodeError::Unavailable("the node is still starting".to_owned()))
    }

    /// Counts a session as use of the Pod's Sandbox, which does not sleep meanwhile.
    async fn begin_session(&self, pod: &PodRef) -> Result<Option<ActivityGuard>, NodeError> {
        match &self.router {
            Some(router) => router.begin_session(pod).await,
            None => Ok(None),
        }
    }

    /// The router, if the Pod is its placeholder. In an engine without a router the name has no special meaning.
    fn router_of(&self, pod: &PodRef) -> Option<&RouterHandle> {
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
        if self.router_of(pod).is_some() {
            return Err(NodeError::BadRequest(
                "the router of a local engine writes to the engine's own log".to_owned(),
            ));
        }
        let wanted = log_options(&options);
        let chunks =
            self.node()?.logs(&pod_key(pod), &options.container, options.previous, wanted).await.map_err(pod_error)?;
        Ok(chunks.boxed())
    }

    async fn exec(&self, pod: &PodRef, request: ExecRequest) -> Result<ProcessSession, NodeError> {
        let guard = self.begin_session(pod).await?;
        let (node, key) = (self.node()?, pod_key(pod));
        let session = node.exec(&key, &request.container, exec_request(&request)).await.map_err(pod_error)?;
        let session = guarded(process_session(session), guard);
        // What runs in another container, with its secrets, is not for the sandbox to read.
        Ok(match node.has_sandboxd(&key, &request.container) {
            true => exec_history::record(session, &request.command, node.clone(), key),
            false => session,
        })
    }

    async fn attach(&self, pod: &PodRef, container: &str, streams: StreamSet) -> Result<ProcessSession, NodeError> {
        let guard = self.begin_session(pod).await?;
        let attached = self.node()?.attach(&pod_key(pod), container, attach_request(streams)).await;
        Ok(guarded(process_session(attached.map_err(pod_error)?), guard))
    }

    async fn port_forward(&self, pod: &PodRef, port: u16) -> Result<Box<dyn Duplex>, NodeError> {
        match self.router_of(pod) {
            None => {
                let guard = self.begin_session(pod).await?;
                let stream = self.node()?.dial(&pod_key(pod), port).await.map_err(pod_error)?;
                Ok(match guard {
                    Some(guard) => Box::new(GuardedStream::new(stream, guard)),
                    None => Box::new(stream),
                })
            }
            Some(_) if port != router_objects::PORT => {
                Err(NodeError::Unavailable(format!("the router listens on port {}, not {port}", router_objects::PORT)))
            }
            Some(router) => Ok(router.connect(self.caller.clone())),
        }
    }

    fn connection_handler(&self, pod: &PodRef, port: u16) -> Option<ConnectionHandler> {
        let router = self.router_of(pod).filter(|_| port == router_objects::PORT)?.clone();
        let caller = self.caller.clone();
        Some(Box::new(|connection| Box::pin(async move { router.serve(connection, caller).await })))
    }
}

/// The session, with a guard that is dropped when the process has ended or the client has gone.
fn guarded(session: ProcessSession, guard: Option<ActivityGuard>) -> ProcessSession {
    let Some(guard) = guard else { return session };
    let exit = session.exit.inspect(move |_| drop(guard)).boxed();
    ProcessSession { exit, ..session }
}

/// The API server's user in the router's terms.
pub(crate) fn caller(user: &UserInfo) -> Caller {
    Caller {
        user: user.username.clone(),
        uid: user.uid.clone(),
        groups: user.groups.clone(),
        extra: user.extra.iter().cloned().collect(),
    }
}
