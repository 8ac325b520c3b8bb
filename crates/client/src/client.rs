//! The client: creates, finds and deletes sandboxes in a cluster.

use crate::{
    ClaimRequest, ClientError, Cluster, ClusterOptions, Connection, ContainerOptions, DirectOptions, LocalEngine,
    SandboxHandle, TraceContext, Transport, TransportOptions, claims,
    cleanup::{DeleteOnDrop, run_to_completion},
    error::is_conflict,
    lookup, manifest,
    transport::ConnectionPools,
    wait,
};
use agent_sandbox_api::v1beta1::{Sandbox, SandboxClaim};
use agent_sandbox_protocol::router_headers::DEFAULT_PORT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Default timeout until a new sandbox is ready.
pub const READY_TIMEOUT: Duration = Duration::from_secs(180);

/// Creates, finds and deletes sandboxes.
#[derive(Clone)]
pub struct SandboxClient {
    cluster: Cluster,
    connection: Connection,
    port: u16,
    trace: Option<TraceContext>,
    send_pod_ip: bool,
    /// Connection pools to the router, by namespace. Sandboxes of one namespace share them.
    pools: Arc<Mutex<HashMap<String, ConnectionPools>>>,
}

impl SandboxClient {
    /// A client for the cluster that the environment selects, with connections through a port-forward tunnel. A local
    /// engine that was used before is started if it is selected and does not run.
    pub async fn from_environment() -> Result<Self, ClientError> {
        let options = ClusterOptions { start_local: LocalEngine::was_used(None), ..ClusterOptions::default() };
        Ok(Self::new(Cluster::find(&options).await?, Connection::default()))
    }

    /// A client for the local engine, which is started if it does not run.
    pub async fn local() -> Result<Self, ClientError> {
        let options = ClusterOptions { local: true, start_local: true, ..ClusterOptions::default() };
        Ok(Self::new(Cluster::find(&options).await?, Connection::default()))
    }

    pub fn new(cluster: Cluster, connection: Connection) -> Self {
        Self { cluster, connection, port: DEFAULT_PORT, trace: None, send_pod_ip: false, pools: Arc::default() }
    }

    /// Sets the port of the daemons, instead of 8888.
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Adds a trace context to every request.
    pub fn with_trace(mut self, trace: Option<TraceContext>) -> Self {
        self.trace = trace;
        self
    }

    /// Sends the sandbox's Pod IP to the router, as other clients do. Our router does not need it.
    pub fn with_pod_ip_hint(mut self) -> Self {
        self.send_pod_ip = true;
        self
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Claims a sandbox from a pool or a template and waits until it is ready. If that fails or the future is dropped,
    /// a claim with a generated name is deleted again.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<SandboxHandle, ClientError> {
        let claim = claims::create(self, request).await?;
        let sandbox = claim.bound_sandbox().unwrap_or_default().to_owned();
        let handle = self.handle(claim.namespace(), &sandbox, Some(claim.name_any()))?;
        let bound = claim.status.as_ref().and_then(|status| status.sandbox.as_ref());
        handle.transport().set_pod_ips(bound.and_then(|bound| bound.pod_ips.as_deref()).unwrap_or_default());
        Ok(handle)
    }

    /// Creates a sandbox from an image and waits until it is ready. Nodes that support it add our daemon to the
    /// container.
    pub async fn create(
        &self,
        namespace: &str,
        name: &str,
        container: &ContainerOptions,
        expires_after: Option<Duration>,
        limit: Duration,
    ) -> Result<SandboxHandle, ClientError> {
        let mut wanted = manifest::sandbox(name, container, expires_after.map(from_now));
        wanted.spec.pod_template = manifest::with_daemon(wanted.spec.pod_template);
        self.create_sandbox(namespace, wanted, limit, async |_| Ok::<(), ClientError>(())).await?;
        self.handle(namespace, name, None)
    }

    /// Creates a Sandbox as it is given, lets `complete` add what belongs to it, and waits until it is ready. If any of
    /// that fails or the future is dropped, the Sandbox is deleted again.
    pub async fn create_sandbox<E: From<ClientError>>(
        &self,
        namespace: &str,
        wanted: Sandbox,
        limit: Duration,
        complete: impl AsyncFnOnce(Sandbox) -> Result<(), E>,
    ) -> Result<(), E> {
        let api: Api<Sandbox> = Api::namespaced(self.cluster.client.clone(), namespace);
        let name = wanted.name_any();
        let (creating, target) = (api.clone(), (api, name.clone()));
        let created = run_to_completion(async move {
            let created = creating.create(&PostParams::default(), &wanted).await?;
            let cleanup = DeleteOnDrop::new(target.0, target.1, created.uid().to_owned());
            Ok((created, cleanup))
        });
        let (created, cleanup) = created.await.map_err(|error| {
            let (namespace, name) = (namespace.to_owned(), name.clone());
            if is_conflict(&error) {
                return ClientError::AlreadyExists { namespace, name };
            }
            ClientError::api(format!("create sandbox `{name}` in namespace `{namespace}`"))(error)
        })?;
        complete(created.clone()).await?;
        wait::new_sandbox_ready(&self.cluster.client, namespace, &created, limit).await?;
        cleanup.disarm();
        Ok(())
    }

    /// Finds a sandbox by its own name or by that of its claim. It may be suspended.
    pub async fn find(&self, namespace: &str, name: &str) -> Result<SandboxHandle, ClientError> {
        let found = lookup::find(&self.cluster.client, namespace, name).await?;
        let claim = found.claim.map(|claim| claim.name_any());
        self.handle(namespace, &found.sandbox.name_any(), claim)
    }

    /// A handle for a sandbox that is known to exist. Sends no request.
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
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let transport = Transport::with_pools(options, pools.get(namespace).cloned())?;
        if let Some(shared) = transport.pools() {
            pools.entry(namespace.to_owned()).or_insert(shared);
        }
        Ok(SandboxHandle::new(Some(client), namespace.to_owned(), name.to_owned(), claim, transport))
    }

    /// Names of the claims in a namespace.
    pub async fn claims(&self, namespace: &str, selector: Option<&str>) -> Result<Vec<String>, ClientError> {
        let list = self.claims_metadata(namespace, selector).await?;
        Ok(list.into_iter().filter_map(|metadata| metadata.name).collect())
    }

    /// Metadata of the claims in a namespace.
    pub async fn claims_metadata(
        &self,
        namespace: &str,
        selector: Option<&str>,
    ) -> Result<Vec<ObjectMeta>, ClientError> {
        let api: Api<SandboxClaim> = Api::namespaced(self.cluster.client.clone(), namespace);
        let params = selector.map_or_else(ListParams::default, |selector| ListParams::default().labels(selector));
        let list =
            api.list_metadata(&params).await.map_err(ClientError::api(format!("list claims in `{namespace}`")))?;
        Ok(list.items.into_iter().map(|item| item.metadata).collect())
    }

    /// Deletes a claim, with the uid as precondition if given. A missing claim is not an error.
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

/// A handle for a sandbox behind a router at a known address, without access to the Kubernetes API.
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

/// The current time plus `time`, in whole seconds.
pub(crate) fn from_now(time: Duration) -> Time {
    let now = jiff::Timestamp::now();
    let then = now.checked_add(jiff::SignedDuration::try_from(time).unwrap_or(jiff::SignedDuration::MAX));
    let then = then.unwrap_or(jiff::Timestamp::MAX);
    Time(jiff::Timestamp::from_second(then.as_second()).unwrap_or(then))
}
