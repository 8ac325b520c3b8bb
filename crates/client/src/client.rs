//! The client: from a cluster and a way to connect to sandboxes that are ready to use.

use crate::{
    ClaimRequest, ClientError, Cluster, ClusterOptions, Connection, ContainerOptions, DirectOptions, SandboxHandle,
    TraceContext, Transport, TransportOptions, claims,
    error::is_conflict,
    lookup, manifest,
    transport::Links,
    undo::{Undo, finish},
    wait,
};
use agent_sandbox_api::v1beta1::{Sandbox, SandboxClaim};
use agent_sandbox_protocol::router_headers::DEFAULT_PORT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// How long a new sandbox may take to become ready unless told otherwise.
pub const READY_TIMEOUT: Duration = Duration::from_secs(180);

/// Creates, finds and deletes sandboxes.
#[derive(Clone)]
pub struct SandboxClient {
    cluster: Cluster,
    connection: Connection,
    port: u16,
    trace: Option<TraceContext>,
    send_pod_ip: bool,
    /// Connections to the router, by the namespace of the sandboxes that share them.
    links: Arc<Mutex<HashMap<String, Links>>>,
}

impl SandboxClient {
    /// The cluster of the environment, reached through a tunnel.
    pub async fn from_environment() -> Result<Self, ClientError> {
        Ok(Self::new(Cluster::find(&ClusterOptions::default()).await?, Connection::default()))
    }

    /// The engine on this machine; it is started when it does not run.
    pub async fn local() -> Result<Self, ClientError> {
        let options = ClusterOptions { local: true, start_local: true, ..ClusterOptions::default() };
        Ok(Self::new(Cluster::find(&options).await?, Connection::default()))
    }

    pub fn new(cluster: Cluster, connection: Connection) -> Self {
        Self { cluster, connection, port: DEFAULT_PORT, trace: None, send_pod_ip: false, links: Arc::default() }
    }

    /// The port on which the daemons listen, instead of 8888.
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Ties every call to a trace.
    pub fn with_trace(mut self, trace: Option<TraceContext>) -> Self {
        self.trace = trace;
        self
    }

    /// Tells routers the sandbox's address, as other clients do. Ours needs no hint.
    pub fn with_pod_ip_hint(mut self) -> Self {
        self.send_pod_ip = true;
        self
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Claims a sandbox from a pool or a template and waits until it is ready. When that fails, or the caller stops waiting, nothing is
    /// left behind.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<SandboxHandle, ClientError> {
        let claim = claims::create(self, request).await?;
        let sandbox = claim.bound_sandbox().unwrap_or_default().to_owned();
        let handle = self.handle(claim.namespace(), &sandbox, Some(claim.name_any()))?;
        let bound = claim.status.as_ref().and_then(|status| status.sandbox.as_ref());
        handle.transport().seen_at(bound.and_then(|bound| bound.pod_ips.as_deref()).unwrap_or_default());
        Ok(handle)
    }

    /// Makes a sandbox from an image and waits until it is ready. Where the node supports it, our daemon is put into the image.
    pub async fn create(
        &self,
        namespace: &str,
        name: &str,
        container: &ContainerOptions,
        expires_after: Option<Duration>,
        limit: Duration,
    ) -> Result<SandboxHandle, ClientError> {
        let api: Api<Sandbox> = Api::namespaced(self.cluster.client.clone(), namespace);
        let mut wanted = manifest::sandbox(name, container, expires_after.map(from_now));
        wanted.spec.pod_template = manifest::with_daemon(wanted.spec.pod_template);
        let (creating, undo_by) = (api.clone(), (api, name.to_owned()));
        let created = finish(async move {
            let created = creating.create(&PostParams::default(), &wanted).await?;
            Ok(Undo::new(undo_by.0, undo_by.1, created.uid().to_owned()))
        });
        let undo = created.await.map_err(|error| {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            if is_conflict(&error) {
                return ClientError::AlreadyExists { namespace, name };
            }
            ClientError::api(format!("create sandbox `{name}` in namespace `{namespace}`"))(error)
        })?;
        wait::sandbox_ready(&self.cluster.client, namespace, name, limit).await?;
        undo.keep();
        self.handle(namespace, name, None)
    }

    /// A sandbox by its own name or its claim's. It must exist; it may be suspended.
    pub async fn find(&self, namespace: &str, name: &str) -> Result<SandboxHandle, ClientError> {
        let found = lookup::find(&self.cluster.client, namespace, name).await?;
        let claim = found.claim.map(|claim| claim.name_any());
        self.handle(namespace, &found.sandbox.name_any(), claim)
    }

    /// A handle for a sandbox that is known to exist; nothing is asked.
    pub fn handle(&self, namespace: &str, name: &str, claim: Option<String>) -> Result<SandboxHandle, ClientError> {
        let client = self.cluster.client.clone();
        let options = TransportOptions {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            port: self.port,
            connection: self.connection.clone(),
            kube: Some(client.clone()),
            trace: self.trace.clone(),
            send_pod_ip: self.send_pod_ip,
        };
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let transport = Transport::linked(options, links.get(namespace).cloned())?;
        if let Some(shared) = transport.links() {
            links.entry(namespace.to_owned()).or_insert(shared);
        }
        Ok(SandboxHandle::new(Some(client), namespace.to_owned(), name.to_owned(), claim, transport))
    }

    /// Names of the claims in a namespace.
    pub async fn claims(&self, namespace: &str, selector: Option<&str>) -> Result<Vec<String>, ClientError> {
        let api: Api<SandboxClaim> = Api::namespaced(self.cluster.client.clone(), namespace);
        let params = selector.map_or_else(ListParams::default, |selector| ListParams::default().labels(selector));
        let list =
            api.list_metadata(&params).await.map_err(ClientError::api(format!("list claims in `{namespace}`")))?;
        Ok(list.items.iter().map(ResourceExt::name_any).collect())
    }

    /// Deletes a claim, by uid when one is given. One that is gone already is fine.
    pub async fn delete_claim(&self, namespace: &str, name: &str, uid: Option<String>) -> Result<(), ClientError> {
        let api: Api<SandboxClaim> = Api::namespaced(self.cluster.client.clone(), namespace);
        let preconditions = uid.map(|uid| kube::api::Preconditions { uid: Some(uid), resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        match api.delete(name, &params).await {
            Ok(_) => Ok(()),
            Err(error) if crate::error::is_not_found(&error) => Ok(()),
            Err(error) => Err(ClientError::api(format!("delete claim `{name}` in namespace `{namespace}`"))(error)),
        }
    }

    pub(crate) fn trace(&self) -> Option<&TraceContext> {
        self.trace.as_ref()
    }
}

/// Commands and files of a sandbox behind a router at a known address, without any cluster's API.
pub fn direct(options: DirectOptions, namespace: &str, name: &str, port: u16) -> Result<SandboxHandle, ClientError> {
    let transport = Transport::new(TransportOptions {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        port,
        connection: Connection::Direct(options),
        kube: None,
        trace: None,
        send_pod_ip: false,
    })?;
    Ok(SandboxHandle::new(None, namespace.to_owned(), name.to_owned(), None, transport))
}

/// That long from now, in whole seconds.
pub(crate) fn from_now(time: Duration) -> Time {
    let now = jiff::Timestamp::now();
    let then = now.checked_add(jiff::SignedDuration::try_from(time).unwrap_or(jiff::SignedDuration::MAX));
    let then = then.unwrap_or(jiff::Timestamp::MAX);
    Time(jiff::Timestamp::from_second(then.as_second()).unwrap_or(then))
}
