//! The engine in one process: API, controller, node and router, started in that order and stopped in the opposite one.

use crate::{
    Backend, DataDir, EngineError, NodeConfig, RequestContext, StopError, control, crds,
    creation_defaults::CreationDefaults,
    embedded_router::EmbeddedRouter,
    metrics::{self, MetricsServer},
    router_objects,
};
use agent_sandbox_api::{conversion, groups};
use agent_sandbox_apiserver::{ApiServer, Config as ApiConfig, Converter, Listener, ListenerConfig};
use agent_sandbox_controller::{Config as ControllerConfig, Controller};
use agent_sandbox_node::{
    Node, NodeError, NodeHandle, PodKey, PodRequestError,
    kernel::KernelRuntime,
    runtime::{ExecRequest, ExecSession},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// Name of cluster, user and context in the kubeconfig.
const CONTEXT: &str = "agent-sandbox";
/// Timeout for the controller's start. Everything that it reads is in this process, so that a longer start is a fault.
const CONTROLLER_START_TIMEOUT: Duration = Duration::from_secs(60);
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
}

/// Where an engine listens. A listener that is `None` is not opened.
#[derive(Default)]
pub struct ListenConfig {
    pub api: Option<SocketAddr>,
    pub router: Option<SocketAddr>,
    /// The router serves requests without a token.
    pub allow_unauthenticated_router: bool,
    pub metrics: Option<SocketAddr>,
    /// Path of the control socket, for other commands of the same user.
    pub control: Option<PathBuf>,
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
        let api_config = ApiConfig {
            data_dir: api_folder,
            no_fsync: !persistent,
            converter: Some(Arc::new(VersionConverter)),
            mutating_admission: Some(Arc::new(CreationDefaults::default())),
        };
        let open_api = async { ApiServer::open(api_config).await.map_err(EngineError::OpenStorage) };
        let (api, (kernel, options)) = tokio::try_join!(open_api, config.node.open(&node_folder))?;
        let client = api.client_without_managed_fields();
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
            stop: CancellationToken::new(),
            background_tasks: Vec::new(),
        };
        if persistent {
            engine.start_services(config).await?;
        }
        let router = engine.router.as_ref().map(EmbeddedRouter::handle);
        let backend = Backend::new(engine.node.clone(), router);
        engine.api.attach_node_for(move |user| Arc::new(backend.on_behalf_of(user)));
        Ok(engine)
    }

    /// Starts the parts that only a persistent engine has: controller, listeners, and objects that clients look for.
    async fn start_services(&mut self, config: EngineConfig) -> Result<(), EngineError> {
        let (client, listen) = (self.api.client_without_managed_fields(), config.listen);
        let mut settings = ControllerConfig::default();
        settings.sandbox.first_status_delay = FIRST_STATUS_DELAY;
        let controller = Controller::start(client.clone(), settings, self.stop.child_token());
        let controller_metrics = controller.metrics.clone();
        self.controller = Some(controller);
        if let (Some(address), Persistence::Folder(data)) = (listen.api, &config.persistence) {
            let listener = ListenerConfig {
                address,
                name: CONTEXT.to_owned(),
                kubeconfig: Some(data.kubeconfig()),
                ..ListenerConfig::default()
            };
            let listener = self.api.listen(listener).await.map_err(|error| EngineError::ListenApi(Box::new(error)))?;
            self.listener = Some(listener);
        }
        if let Some(address) = listen.router {
            let token = self.listener.as_ref().and_then(|listener| admin_token(listener.kubeconfig()));
            if token.is_none() && !listen.allow_unauthenticated_router {
                return Err(EngineError::NoAdminToken);
            }
            let token = token.filter(|_| !listen.allow_unauthenticated_router);
            let stop = self.stop.child_token();
            self.router = Some(EmbeddedRouter::open(&self.api, self.node.clone(), address, token, stop).await?);
        }
        let controller_page: metrics::Page = Arc::new(move || controller_metrics.render());
        if let Some(address) = listen.metrics {
            let mut pages = vec![controller_page.clone()];
            pages.extend(self.router.as_ref().map(EmbeddedRouter::metrics));
            self.metrics = Some(MetricsServer::open(address, pages).await?);
        }
        if let Some(path) = listen.control {
            let socket = control::open(&path).map_err(|source| EngineError::ListenControl { path, source })?;
            let context = RequestContext { runtime: self.kernel.clone(), metrics: controller_page };
            self.background_tasks.push(AbortOnDropHandle::new(tokio::spawn(control::serve(socket, context))));
        }
        self.background_tasks.push(AbortOnDropHandle::new(tokio::spawn(router_objects::maintain(client))));
        if let Some(controller) = &self.controller {
            let at_work = tokio::time::timeout(CONTROLLER_START_TIMEOUT, controller.wait_until_running()).await;
            let seconds = CONTROLLER_START_TIMEOUT.as_secs();
            at_work.map_err(|_| EngineError::ControllerNotReady { seconds })?.map_err(EngineError::Controller)?;
        }
        Ok(())
    }

    /// An in-process client with all permissions.
    pub fn client(&self) -> Client {
        self.api.client()
    }

    /// The API's URL; empty without a listener.
    pub fn api_url(&self) -> String {
        self.listener.as_ref().map(|listener| format!("https://{}", listener.address())).unwrap_or_default()
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
    }

    /// Ends an ephemeral engine and removes everything that it created.
    pub async fn remove(self) -> Result<(), NodeError> {
        self.node.purge().await?;
        self.shutdown().await;
        Ok(())
    }
}

/// The administrator's token from the API's kubeconfig.
fn admin_token(kubeconfig: &str) -> Option<String> {
    let file: serde_json::Value = serde_saphyr::from_str(kubeconfig).ok()?;
    file["users"][0]["user"]["token"].as_str().map(str::to_owned)
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
