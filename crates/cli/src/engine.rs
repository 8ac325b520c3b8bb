//! The engine in one process: API, controller, node and router, started in that order and stopped in the opposite one.

mod backend;
mod completion;
mod control;
mod definitions;
mod gateway;
mod hosting;
pub(crate) mod install;
mod metrics;
mod requests;
mod router_objects;
mod sandboxd;

use crate::data::DataDir;
use agent_sandbox_api::{conversion, groups};
use agent_sandbox_apiserver::{ApiServer, Config as ApiConfig, Converter, Listener, ListenerConfig};
use agent_sandbox_controller::{Config as ControllerConfig, Controller};
use agent_sandbox_node::{
    Node, NodeHandle, PodKey,
    kernel::KernelRuntime,
    runtime::{ExecRequest, ExecSession},
};
use anyhow::{Context as _, Result};
use completion::Completion;
use gateway::Gateway;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use metrics::MetricsServer;
use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub(crate) use backend::Backend;
pub(crate) use control::ask as ask_engine;
pub(crate) use hosting::Hosting;
pub(crate) use requests::{EngineReply, EngineRequest, Login, Parts, perform};

/// Name of cluster, user and context in the kubeconfig.
const CONTEXT: &str = "agent-sandbox";
/// Everything that the controller asks for is in this process: more than this is a fault.
const CONTROLLER_START: Duration = Duration::from_secs(60);
/// Most Pods run within milliseconds here: a Sandbox's first status waits so long for them, and then says it all in one write.
const FIRST_WORD: Duration = Duration::from_secs(1);
/// Requests under way get this long when the engine stops.
const GRACE: Duration = Duration::from_secs(2);

/// Whether an engine is kept or thrown away.
pub(crate) enum Persistence {
    /// Everything survives in this folder.
    Folder(DataDir),
    /// Objects live in memory, sandboxes in this folder, which is removed with the engine.
    Throwaway(PathBuf),
}

/// What an engine is started with.
pub(crate) struct EngineConfig {
    pub(crate) persistence: Persistence,
    pub(crate) doors: Doors,
    /// How sandboxes are run.
    pub(crate) hosting: Hosting,
}

/// Where an engine listens. A door that is `None` is not opened.
#[derive(Default)]
pub(crate) struct Doors {
    pub(crate) api: Option<SocketAddr>,
    pub(crate) router: Option<SocketAddr>,
    /// Anybody who reaches the router may use it.
    pub(crate) router_open: bool,
    pub(crate) metrics: Option<SocketAddr>,
    /// The socket for other commands of the same user.
    pub(crate) control: Option<PathBuf>,
}

/// A running engine.
pub(crate) struct Engine {
    api: ApiServer,
    listener: Option<Listener>,
    node: NodeHandle,
    kernel: Arc<KernelRuntime>,
    controller: Option<Controller>,
    gateway: Option<Gateway>,
    metrics: Option<MetricsServer>,
    stop: CancellationToken,
    /// The router's objects and the control socket, kept up while the engine runs.
    chores: Vec<AbortOnDropHandle<()>>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Ends the controller and the router, however the engine ends.
        self.stop.cancel();
    }
}

impl Engine {
    /// Starts every part; whatever fails takes the others down with it. What does not need each other starts together.
    pub(crate) async fn start(config: EngineConfig) -> Result<Self> {
        let (api_folder, node_folder) = match &config.persistence {
            Persistence::Folder(data) => (Some(data.api()), data.node()),
            Persistence::Throwaway(folder) => (None, folder.clone()),
        };
        let whole = api_folder.is_some();
        let api_config = ApiConfig {
            data_dir: api_folder,
            no_fsync: !whole,
            converter: Some(Arc::new(OwnKinds)),
            completer: Some(Arc::new(Completion::default())),
        };
        let open_api = async { ApiServer::open(api_config).await.context("cannot open the API's storage") };
        let (api, (kernel, options)) = tokio::try_join!(open_api, config.hosting.open(&node_folder))?;
        let client = api.lean_client();
        let start_node = async { Ok(Node::start(client.clone(), kernel.clone(), kernel.clone(), options).await?) };
        let install = async {
            match whole {
                true => {
                    tokio::try_join!(definitions::install(&client), router_objects::create_system_namespace(&client))
                        .map(drop)
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
            gateway: None,
            metrics: None,
            stop: CancellationToken::new(),
            chores: Vec::new(),
        };
        if whole {
            engine.open_doors(config).await?;
        }
        let door = engine.gateway.as_ref().map(Gateway::door);
        let backend = Backend::new(engine.node.clone(), door);
        engine.api.attach_node_for(move |user| Arc::new(backend.on_behalf_of(user)));
        Ok(engine)
    }

    /// The parts that only a lasting engine has: controller, listeners, and objects that clients look for.
    async fn open_doors(&mut self, config: EngineConfig) -> Result<()> {
        let (client, doors) = (self.api.lean_client(), config.doors);
        let mut settings = ControllerConfig::default();
        settings.sandbox.first_word = FIRST_WORD;
        let controller = Controller::start(client.clone(), settings, self.stop.child_token());
        let controller_metrics = controller.metrics.clone();
        self.controller = Some(controller);
        if let (Some(address), Persistence::Folder(data)) = (doors.api, &config.persistence) {
            let door = ListenerConfig {
                address,
                name: CONTEXT.to_owned(),
                kubeconfig: Some(data.kubeconfig()),
                ..ListenerConfig::default()
            };
            self.listener = Some(self.api.listen(door).await.context("cannot open the API to clients")?);
        }
        if let Some(address) = doors.router {
            let token = self.listener.as_ref().and_then(|listener| admin_token(listener.kubeconfig()));
            anyhow::ensure!(
                token.is_some() || doors.router_open,
                "the API gave out no token for the router to ask for"
            );
            let token = token.filter(|_| !doors.router_open);
            let stop = self.stop.child_token();
            self.gateway = Some(Gateway::open(&self.api, self.node.clone(), address, token, stop).await?);
        }
        let controller_page: metrics::Page = Arc::new(move || controller_metrics.render());
        if let Some(address) = doors.metrics {
            let mut pages = vec![controller_page.clone()];
            pages.extend(self.gateway.as_ref().map(Gateway::metrics));
            self.metrics = Some(MetricsServer::open(address, pages).await?);
        }
        if let Some(path) = doors.control {
            let socket = control::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
            let serving =
                tokio::spawn(control::serve(socket, Parts { runtime: self.kernel.clone(), metrics: controller_page }));
            self.chores.push(AbortOnDropHandle::new(serving));
        }
        self.chores.push(AbortOnDropHandle::new(tokio::spawn(router_objects::keep(client))));
        if let Some(controller) = &self.controller {
            let at_work = tokio::time::timeout(CONTROLLER_START, controller.at_work()).await;
            at_work
                .context("the controller does not come to work; its log says why")?
                .context("the controller ended")?;
        }
        Ok(())
    }

    /// An in-process client with every right.
    pub(crate) fn client(&self) -> Client {
        self.api.client()
    }

    pub(crate) fn api_url(&self) -> String {
        self.listener.as_ref().map(|listener| format!("https://{}", listener.address())).unwrap_or_default()
    }

    pub(crate) fn router_url(&self) -> String {
        self.gateway.as_ref().map(|gateway| format!("http://{}", gateway.address())).unwrap_or_default()
    }

    pub(crate) fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(MetricsServer::address)
    }

    /// What runs the sandboxes.
    pub(crate) fn kernel(&self) -> &Arc<KernelRuntime> {
        &self.kernel
    }

    /// Runs a command in the first container of a Pod.
    pub(crate) async fn exec(&self, pod: &Pod, request: ExecRequest) -> Result<ExecSession> {
        let container =
            pod.spec.as_ref().and_then(|spec| spec.containers.first()).map(|container| container.name.clone());
        let key = PodKey { namespace: pod.namespace().unwrap_or_default(), name: pod.name_any(), uid: pod.uid() };
        Ok(self.node.exec(&key, &container.unwrap_or_default(), request).await?)
    }

    /// Stops every sandbox's processes; objects, volumes and layers stay for the next start.
    pub(crate) async fn stop_sandboxes(&self) -> Result<()> {
        Ok(self.node.stop_all().await?)
    }

    /// Ends the engine and leaves running sandboxes to the next one.
    pub(crate) async fn shutdown(mut self) {
        // First, so that none of them finds the API closing.
        self.chores.clear();
        self.api.close_streams().await;
        if let Some(gateway) = self.gateway.take() {
            gateway.close().await;
        }
        if let Some(listener) = self.listener.take() {
            listener.shutdown(GRACE).await;
        }
        self.stop.cancel();
        if let Some(controller) = self.controller.take() {
            // A controller that ended with an error has said so in the log.
            let _ = tokio::time::timeout(GRACE, controller.wait()).await;
        }
        self.node.shutdown().await;
        self.kernel.close();
        self.api.close();
    }

    /// Ends a throw-away engine and removes everything that it made.
    pub(crate) async fn remove(self) -> Result<()> {
        self.node.purge().await?;
        self.shutdown().await;
        Ok(())
    }
}

/// The administrator's token, as the kubeconfig gives it.
fn admin_token(kubeconfig: &str) -> Option<String> {
    let file: serde_json::Value = serde_saphyr::from_str(kubeconfig).ok()?;
    file["users"][0]["user"]["token"].as_str().map(str::to_owned)
}

/// Converts our kinds between their versions inside this process.
struct OwnKinds;

impl Converter for OwnKinds {
    fn handles(&self, group: &str, _kind: &str) -> bool {
        group == groups::CORE || group == groups::EXTENSIONS
    }

    fn convert(&self, object: serde_json::Value, desired: &str) -> std::result::Result<serde_json::Value, String> {
        conversion::convert(object, desired).map_err(|error| error.to_string())
    }
}
