//! Streaming requests of the embedded API to Pods: the node serves real Pods, the in-process router the placeholder Pod
//! that represents it.

use super::{embedded_router::RouterHandle, router_objects};
use agent_sandbox_apiserver::UserInfo;
use agent_sandbox_node::{
    NodeHandle,
    kubelet::server::backend::{attach_request, exec_request, log_options, pod_error, pod_key, process_session},
};
use agent_sandbox_router::Caller;
use agent_sandbox_streams::backend::{
    ConnectionHandler, Duplex, ExecRequest, LogOptions, NodeBackend, NodeError, PodRef, ProcessSession, StreamSet,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
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
        Ok(process_session(
            self.node()?.exec(&pod_key(pod), &request.container, exec_request(&request)).await.map_err(pod_error)?,
        ))
    }

    async fn attach(&self, pod: &PodRef, container: &str, streams: StreamSet) -> Result<ProcessSession, NodeError> {
        Ok(process_session(
            self.node()?.attach(&pod_key(pod), container, attach_request(streams)).await.map_err(pod_error)?,
        ))
    }

    async fn port_forward(&self, pod: &PodRef, port: u16) -> Result<Box<dyn Duplex>, NodeError> {
        match self.router_of(pod) {
            None => Ok(Box::new(self.node()?.dial(&pod_key(pod), port).await.map_err(pod_error)?)),
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

/// The API server's user in the router's terms.
fn caller(user: &UserInfo) -> Caller {
    Caller {
        user: user.username.clone(),
        uid: user.uid.clone(),
        groups: user.groups.clone(),
        extra: user.extra.iter().cloned().collect(),
    }
}
