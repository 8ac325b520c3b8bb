//! The embedded API's way to Pods: the node for real ones, the in-process router for the Pod that only stands for it.

use super::{gateway::Door, router_objects};
use agent_sandbox_apiserver::{
    UserInfo,
    node::{Answer, Duplex, ExecRequest, LogOptions, NodeBackend, NodeError, PodRef, ProcessSession, StreamSet},
};
use agent_sandbox_node::{
    NodeHandle,
    kubelet::backend::{attachment, command, key, log_options, refusal, session},
};
use agent_sandbox_router::Caller;
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use std::sync::{Arc, OnceLock};

/// Answers streaming requests. Clones share one node, which may be given later than the first request comes.
#[derive(Clone, Default)]
pub(crate) struct Backend {
    node: Arc<OnceLock<NodeHandle>>,
    router: Option<Door>,
    /// The user on whose behalf requests are made.
    caller: Arc<Caller>,
}

impl Backend {
    pub(crate) fn new(node: NodeHandle, router: Option<Door>) -> Self {
        Self { node: Arc::new(node.into()), router, caller: Arc::default() }
    }

    /// The same node for the requests of one user.
    pub(crate) fn on_behalf_of(&self, user: &UserInfo) -> Self {
        Self { caller: Arc::new(caller(user)), ..self.clone() }
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
        let wanted = log_options(&options);
        let chunks =
            self.node()?.logs(&key(pod), &options.container, options.previous, wanted).await.map_err(refusal)?;
        Ok(chunks.boxed())
    }

    async fn exec(&self, pod: &PodRef, request: ExecRequest) -> Result<ProcessSession, NodeError> {
        Ok(session(self.node()?.exec(&key(pod), &request.container, command(&request)).await.map_err(refusal)?))
    }

    async fn attach(&self, pod: &PodRef, container: &str, streams: StreamSet) -> Result<ProcessSession, NodeError> {
        Ok(session(self.node()?.attach(&key(pod), container, attachment(streams)).await.map_err(refusal)?))
    }

    async fn port_forward(&self, pod: &PodRef, port: u16) -> Result<Box<dyn Duplex>, NodeError> {
        match self.door(pod) {
            None => Ok(Box::new(self.node()?.dial(&key(pod), port).await.map_err(refusal)?)),
            Some(_) if port != router_objects::PORT => {
                Err(NodeError::Unavailable(format!("the router listens on port {}, not {port}", router_objects::PORT)))
            }
            Some(door) => Ok(door.connect(self.caller.clone())),
        }
    }

    fn answer(&self, pod: &PodRef, port: u16) -> Option<Answer> {
        let door = self.door(pod).filter(|_| port == router_objects::PORT)?.clone();
        let caller = self.caller.clone();
        Some(Box::new(|connection| Box::pin(async move { door.admit(connection, caller).await })))
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
