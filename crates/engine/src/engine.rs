//! The engine in one process: API, controller, node and router, started in that order and stopped in the opposite one.

use crate::{
    Backend, DataDir, EngineError, NodeConfig, RequestContext, StopError, control, crds,
    creation_defaults::CreationDefaults,
    embedded_router::{EmbeddedRouter, RouterSecret},
    idle,
    metrics::{self, MetricsServer},
    router_objects, snapshots,
    tokens::TokenContext,
    usage::NodeUsage,
};
use agent_sandbox_api::{conversion, groups};
use agent_sandbox_apiserver::{ApiServer, Config as ApiConfig, Converter, Listener, ListenerConfig};
use agent_sandbox_controller::{Config as ControllerConfig, Controller};
use agent_sandbox_node::{
    Node, NodeError, NodeHandle, PodKey, PodRequestError,
    kernel::KernelRuntime,
    runtime::{ExecRequest, ExecSession},
};
use agent_sandbox_telemetry::audit::{AuditConfig, AuditLog};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// Name of cluster, user and context in the kubeconfig.
const CONTEXT: &str = "agent-sandbox";
/// Timeout for the controller's start. Everything that it reads is in this process, so that a longer start is a fault.
const CONTROLLER_START_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of ports after the wanted one that are tried for the API when it may have another port.
const NEXT_PORTS: u16 = 100;
/// Time that a new Sandbox's first status waits for its Pod. Most Pods run within milliseconds on one machine, and the
/// status then needs one write instead of two.
const FIRST_STATUS_DELAY: Duration = Duration::from_secs(1);
/// Timeout for requests under way when the engine stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for stopping all sandboxes. Each takes up to its grace period, which is 30 s by default.
pub(crate) const STOP_SANDBOXES_TIMEOUT: Duration = Duration::from_secs(60);

/// Where an engine keeps its objects and sandboxes.
pub enum Persistence {
    /// Everything survives in this folder.
    Folder(DataDir),
    /// Objects live in memory, sandboxes in this folder, which is removed with the engine. The engine then has a node
    /// and an API without kinds of our own: no controller, no listener.
    Ephemeral(PathBuf),
}

/// What an engine is started with.
pub struct EngineConfig {
    pub persistence: Persistence,
    pub listen: ListenConfig,
    /// How sandboxes are run.
    pub node: NodeConfig,
    /// Where audit records go; `None` writes none.
    pub audit: Option<AuditConfig>,
}

/// Where an engine listens. A listener that is `None` is not opened.
#[derive(Default)]
pub struct ListenConfig {
    pub api: Option<SocketAddr>,
    /// If the API's port is in use, one of the next ports is taken instead.
    pub api_port_may_change: bool,
    pub router: Option<SocketAddr>,
    /// The router serves requests without a token.
    pub allow_unauthenticated_router: bool,
    pub metrics: Option<SocketAddr>,
    /// Path of the control socket, for other commands of the same user.
    pub control: Option<PathBuf>,
}

impl ListenConfig {
    /// Refuses addresses beyond this machine for listeners without TLS: tokens would travel readable. The API has TLS.
    fn check(&self) -> Result<(), EngineError> {
        let plain = [("router", "--router-listen", self.router), ("metrics", "--metrics-listen", self.metrics)];
        for (what, flag, address) in plain {
            if let Some(address) = address.filter(|address| !address.ip().to_canonical().is_loopback()) {
                return Err(EngineError::Exposed { what, flag, address });
            }
        }
        Ok(())
    }
}

/// A running engine.
pub struct Engine {
    api: ApiServer,
    listener: Option<Listener>,
    node: NodeHandle,
    kernel: Arc<KernelRuntime>,
    controller: Option<Controller>,
    router: Option<EmbeddedRouter>,
    metrics: Option<MetricsServer>,
    audit: Option<AuditLog>,
    stop: CancellationToken,
    /// The control socket's server, and the task that keeps the router's objects in every namespace.
    background_tasks: Vec<AbortOnDropHandle<()>>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Ends the controller and the router, also when the engine is dropped without `shutdown`.
        self.stop.cancel();
    }
}

impl Engine {
    /// Starts every part. If one fails, those that have started are stopped. Parts that do not depend on each other
    /// start concurrently.
    pub async fn start(config: EngineConfig) -> Result<Self, EngineError> {
        let (api_folder, node_folder) = match &config.persistence {
            Persistence::Folder(data) => (Some(data.api()), data.node()),
            Persistence::Ephemeral(folder) => (None, folder.clone()),
        };
        let persistent = api_folder.is_some();
        let audit = config.audit.as_ref().map(AuditConfig::open).transpose()?;
        let api_config = ApiConfig {
            data_dir: api_folder,
            no_fsync: !persistent,
            converter: Some(Arc::new(VersionConverter)),
            mutating_admission: Some(Arc::new(CreationDefaults::default())),
            audit: audit.clone(),
        };
        config.listen.check()?;
        let open_api = async { ApiServer::open(api_config).await.map_err(EngineError::OpenStorage) };
        let (api, (kernel, options)) = tokio::try_join!(open_api, config.node.open(&node_folder))?;
        let client = api.client_without_managed_fields();
        let node_name = options.node_name.clone();
        let start_node = async { Ok(Node::start(client.clone(), kernel.clone(), kernel.clone(), options).await?) };
        let install = async {
            match persistent {
                true => {
                    tokio::try_join!(crds::install(&client), router_objects::create_system_namespace(&client)).map(drop)
                }
                false => Ok(()),
            }
        };
        let (node, ()) = tokio::try_join!(start_node, install)?;
        let mut engine = Self {
            api,
            listener: None,
            node,
            kernel,
            controller: None,
            router: None,
            metrics: None,
            audit: audit.clone(),
            stop: CancellationToken::new(),
            background_tasks: Vec::new(),
        };
        if persistent {
            engine.start_services(config, audit, node_name.clone()).await?;
        }
        let router = engine.router.as_ref().map(EmbeddedRouter::handle);
        let backend = Backend::new(engine.node.clone(), router);
        engine.api.attach_node_for(move |user| Arc::new(backend.on_behalf_of(user)));
        engine.api.attach_usage(NodeUsage { kernel: engine.kernel.clone(), node_name });
        Ok(engine)
    }

    /// Starts the parts that only a persistent engine has: controller, listeners, and objects that clients look for.
    async fn start_services(
        &mut self,
        config: EngineConfig,
        audit: Option<AuditLog>,
        node_name: String,
    ) -> Result<(), EngineError> {
        let (client, listen) = (self.api.client_without_managed_fields(), config.listen);
        let mut settings = ControllerConfig::default();
        settings.sandbox.first_status_delay = FIRST_STATUS_DELAY;
        settings.sandbox.enforces_egress = true;
        settings.audit = audit.clone();
        let controller = Controller::start(client.clone(), settings, self.stop.child_token());
        let controller_metrics = controller.metrics.clone();
        self.controller = Some(controller);
        if let (Some(address), Persistence::Folder(data)) = (listen.api, &config.persistence) {
            let attempts = if listen.api_port_may_change { NEXT_PORTS } else { 0 };
            self.listener = Some(self.listen(address, attempts, data.kubeconfig()).await?);
        }
        if let Some(address) = listen.router {
            let required = !listen.allow_unauthenticated_router;
            let secret = match &config.persistence {
                Persistence::Folder(data) if !required || self.listener.is_some() => {
                    RouterSecret { path: router_secret(data)?, required }
                }
                _ => return Err(EngineError::NoAdminToken),
            };
            let stop = self.stop.child_token();
            self.router = Some(EmbeddedRouter::open(&self.api, self.node.clone(), address, secret, audit, stop).await?);
        }
        let controller_page: metrics::Page = Arc::new(move || controller_metrics.render());
        if let Some(address) = listen.metrics {
            let mut pages = vec![controller_page.clone()];
            pages.extend(self.router.as_ref().map(EmbeddedRouter::metrics));
            let node = self.node.clone();
            pages.push(Arc::new(move || metrics::egress(node.egress_metrics())));
            self.metrics = Some(MetricsServer::open(address, pages).await?);
        }
        if let (Some(path), Persistence::Folder(data)) = (listen.control, &config.persistence) {
            let socket = control::open(&path).map_err(|source| EngineError::ListenControl { path, source })?;
            let context = RequestContext {
                runtime: self.kernel.clone(),
                node: Some(self.node.clone()),
                metrics: controller_page,
            };
            let tokens = TokenContext { api: self.api.clone(), data: data.clone() };
            let serving = tokio::spawn(control::serve(socket, context, tokens));
            self.background_tasks.push(AbortOnDropHandle::new(serving));
        }
        let layers = Arc::new(snapshots::Layers(self.kernel.clone()));
        let snapshotter = agent_sandbox_snapshotter::run(client.clone(), layers, node_name);
        self.background_tasks.push(AbortOnDropHandle::new(tokio::spawn(snapshotter)));
        self.background_tasks.push(AbortOnDropHandle::new(tokio::spawn(router_objects::maintain(client))));
        if let Some(controller) = &self.controller {
            let at_work = tokio::time::timeout(CONTROLLER_START_TIMEOUT, controller.wait_until_running()).await;
            let seconds = CONTROLLER_START_TIMEOUT.as_secs();
            at_work.map_err(|_| EngineError::ControllerNotReady { seconds })?.map_err(EngineError::Controller)?;
        }
        Ok(())
    }

    /// Opens the API's listener. A port in use is replaced by the next free one, up to `attempts` times.
    async fn listen(&self, wanted: SocketAddr, attempts: u16, path: PathBuf) -> Result<Listener, EngineError> {
        let mut address = wanted;
        loop {
            let config = ListenerConfig {
                address,
                name: CONTEXT.to_owned(),
                kubeconfig: Some(path.clone()),
                ..ListenerConfig::default()
            };
            match self.api.listen(config).await {
                Err(error) if is_in_use(&error) && address.port() < wanted.port().saturating_add(attempts) => {
                    address.set_port(address.port() + 1);
                }
                outcome => return outcome.map_err(|error| EngineError::ListenApi(Box::new(error))),
            }
        }
    }

    /// An in-process client with all permissions.
    pub fn client(&self) -> Client {
        self.api.client()
    }

    /// The API's URL; empty without a listener.
    pub fn api_url(&self) -> String {
        self.listener.as_ref().map(|listener| format!("https://{}", listener.address())).unwrap_or_default()
    }

    /// Waits until no process but the daemons has run in any sandbox, and no client was connected, for `limit`.
    pub async fn wait_until_idle(&self, limit: Duration) {
        let api = self.listener.as_ref().map(|listener| listener.address());
        let router = self.router.as_ref().map(|router| router.address());
        let kernel = self.kernel.clone();
        idle::wait_until_idle(api.into_iter().chain(router).collect(), limit, move || kernel.usage().len()).await;
    }

    /// The API's port; `None` without a listener.
    pub fn api_port(&self) -> Option<u16> {
        self.listener.as_ref().map(|listener| listener.address().port())
    }

    /// The router's URL; empty without a listener.
    pub fn router_url(&self) -> String {
        self.router.as_ref().map(|router| format!("http://{}", router.address())).unwrap_or_default()
    }

    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(MetricsServer::address)
    }

    /// The runtime that runs the sandboxes.
    pub fn kernel(&self) -> &Arc<KernelRuntime> {
        &self.kernel
    }

    /// Runs a command in the first container of a Pod.
    pub async fn exec(&self, pod: &Pod, request: ExecRequest) -> Result<ExecSession, PodRequestError> {
        let container =
            pod.spec.as_ref().and_then(|spec| spec.containers.first()).map(|container| container.name.clone());
        let key = PodKey { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any(), uid: pod.uid() };
        self.node.exec(&key, &container.unwrap_or_default(), request).await
    }

    /// Stops every sandbox's processes; objects, volumes and layers stay for the next start.
    pub async fn stop_sandboxes(&self) -> Result<(), StopError> {
        let stopped = tokio::time::timeout(STOP_SANDBOXES_TIMEOUT, self.node.stop_all()).await;
        Ok(stopped.map_err(|_| StopError::SandboxTimeout)??)
    }

    /// Ends the engine and leaves running sandboxes to the next one.
    pub async fn shutdown(mut self) {
        // Before the API closes, so that none of these tasks sees failing requests.
        self.background_tasks.clear();
        self.api.close_streams().await;
        if let Some(router) = self.router.take() {
            router.close().await;
        }
        if let Some(listener) = self.listener.take() {
            listener.shutdown(SHUTDOWN_TIMEOUT).await;
        }
        self.stop.cancel();
        if let Some(controller) = self.controller.take() {
            // The controller has already logged the error that it ended with.
            let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, controller.wait()).await;
        }
        self.node.shutdown().await;
        self.kernel.close();
        self.api.close();
        if let Some(audit) = self.audit.take() {
            audit.flush().await;
        }
    }

    /// Ends an ephemeral engine and removes everything that it created.
    pub async fn remove(self) -> Result<(), NodeError> {
        self.node.purge().await?;
        self.shutdown().await;
        Ok(())
    }
}

/// Whether a listener could not be opened because another process has its port.
fn is_in_use(error: &dyn std::error::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::AddrInUse)
}

/// The file with the secret of scoped tokens, created if there is none.
fn router_secret(data: &DataDir) -> Result<PathBuf, EngineError> {
    let failed = |source| EngineError::WriteFile { path: data.router_secret(), source };
    data.create_router_secret().map_err(failed)
}

/// Converts our kinds between their versions inside this process; on a cluster the conversion webhook does it.
struct VersionConverter;

impl Converter for VersionConverter {
    fn handles(&self, group: &str, _kind: &str) -> bool {
        group == groups::CORE || group == groups::EXTENSIONS
    }

    fn convert(&self, object: serde_json::Value, desired: &str) -> Result<serde_json::Value, String> {
        conversion::convert(object, desired).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_without_tls_stay_on_this_machine() {
        let check = |router: &str, metrics: &str, api: &str| {
            let parse = |text: &str| text.parse().ok();
            ListenConfig { router: parse(router), metrics: parse(metrics), api: parse(api), ..ListenConfig::default() }
                .check()
        };
        for local in ["127.0.0.1:8080", "[::1]:8080", "127.9.9.9:0", "[::ffff:127.0.0.1]:1"] {
            assert!(check(local, local, "0.0.0.0:6443").is_ok(), "{local}");
        }
        for exposed in ["0.0.0.0:8080", "[::]:8080", "192.168.1.7:8080", "[::ffff:10.0.0.1]:1"] {
            let router = check(exposed, "", "").unwrap_err().to_string();
            assert!(router.contains("--router-listen") && router.contains("127.0.0.1:"), "{router}");
            let metrics = check("127.0.0.1:0", exposed, "").unwrap_err().to_string();
            assert!(metrics.contains("--metrics-listen"), "{metrics}");
        }
    }
}
