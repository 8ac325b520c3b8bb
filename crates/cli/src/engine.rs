//! The engine in one process: API, controller, node and router, started in that order and stopped in the opposite one.

mod backend;
mod gateway;
pub(crate) mod install;
mod router_objects;
mod sandboxd;

use crate::data::DataDir;
use agent_sandbox_api::{conversion, groups};
use agent_sandbox_apiserver::{ApiServer, Config as ApiConfig, Converter, Listener, ListenerConfig};
use agent_sandbox_controller::{Config as ControllerConfig, Controller};
use agent_sandbox_node::{
    Node, NodeHandle, NodeOptions, PodKey,
    kernel::{KernelConfig, KernelRuntime},
    runtime::{ExecRequest, ExecSession},
};
use anyhow::{Context as _, Result};
use gateway::Gateway;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

/// Name of cluster, user and context in the kubeconfig.
const CONTEXT: &str = "agent-sandbox";
/// Requests under way get this long when the engine stops.
const GRACE: Duration = Duration::from_secs(2);

/// Whether an engine is kept or thrown away.
pub(crate) enum Persistence {
    /// Everything survives in this folder.
    Folder(DataDir),
    /// Objects live in memory, sandboxes in this folder, which is removed with the engine.
    Throwaway(PathBuf),
}

/// What an engine is started with. A listener that is `None` is not opened.
pub(crate) struct EngineConfig {
    pub(crate) persistence: Persistence,
    pub(crate) api_listen: Option<SocketAddr>,
    pub(crate) router_listen: Option<SocketAddr>,
    /// Anybody who reaches the router may use it.
    pub(crate) router_open: bool,
    /// Host folders that Pods may show.
    pub(crate) host_paths: Vec<PathBuf>,
}

/// A running engine.
pub(crate) struct Engine {
    api: ApiServer,
    listener: Option<Listener>,
    node: NodeHandle,
    kernel: Arc<KernelRuntime>,
    controller: Option<Controller>,
    gateway: Option<Gateway>,
    stop: CancellationToken,
    _router_objects: Option<AbortOnDropHandle<()>>,
}

impl Engine {
    /// Starts every part; whatever fails takes the others down with it.
    pub(crate) async fn start(config: EngineConfig) -> Result<Self> {
        let (api_folder, node_folder, kubeconfig) = match &config.persistence {
            Persistence::Folder(data) => (Some(data.api()), data.node(), Some(data.kubeconfig())),
            Persistence::Throwaway(folder) => (None, folder.clone(), None),
        };
        let whole = api_folder.is_some();
        let stop = CancellationToken::new();
        let api_config = ApiConfig { data_dir: api_folder, no_fsync: !whole, converter: Some(Arc::new(OwnKinds)) };
        let api = ApiServer::open(api_config).await.context("cannot open the API's storage")?;
        let client = api.client();
        let mut engine_stop = Some(stop.clone().drop_guard());
        let (node, kernel) = start_node(client.clone(), node_folder, &config.host_paths).await?;
        let (mut controller, mut gateway, mut router_objects, mut listener) = (None, None, None, None);
        if whole {
            install::definitions(&client).await?;
            controller = Some(Controller::start(client.clone(), ControllerConfig::default(), stop.child_token()));
            if let Some(address) = config.api_listen {
                let door =
                    ListenerConfig { address, name: CONTEXT.to_owned(), kubeconfig, ..ListenerConfig::default() };
                listener = Some(api.listen(door).await.context("cannot open the API to clients")?);
            }
            if let Some(address) = config.router_listen {
                let token = listener.as_ref().and_then(|listener| admin_token(listener.kubeconfig()));
                anyhow::ensure!(
                    token.is_some() || config.router_open,
                    "the API gave out no token for the router to ask for"
                );
                let token = token.filter(|_| !config.router_open);
                gateway = Some(Gateway::open(client.clone(), node.clone(), address, token, stop.child_token()).await?);
            }
            router_objects::create_system_namespace(&client).await?;
            router_objects = Some(AbortOnDropHandle::new(tokio::spawn(router_objects::keep(client.clone()))));
        }
        api.attach_node(backend::Backend::new(node.clone(), gateway.as_ref().map(Gateway::door)));
        if let Some(guard) = engine_stop.take() {
            guard.disarm();
        }
        Ok(Self { api, listener, node, kernel, controller, gateway, stop, _router_objects: router_objects })
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

async fn start_node(
    client: Client,
    folder: PathBuf,
    host_paths: &[PathBuf],
) -> Result<(NodeHandle, Arc<KernelRuntime>)> {
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let daemon = sandboxd::provide(&folder)?;
    let runtime =
        KernelRuntime::open(KernelConfig::new(folder.join("kernel"))).await.context("cannot isolate processes here")?;
    let options = NodeOptions {
        data_dir: folder,
        sandboxd: Some(daemon),
        allow_host_paths: host_paths.to_vec(),
        ..NodeOptions::default()
    };
    Ok((Node::start(client, runtime.clone(), runtime.clone(), options).await?, runtime))
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
