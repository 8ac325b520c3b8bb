//! Starts and stops a node: registration, DNS responder, volume binder, disk monitor and the manager of its Pods.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use agent_sandbox_egress::Gateway;
use agent_sandbox_egress::log::Log;
use k8s_openapi::api::core::v1::{ObjectReference, Taint};
use parking_lot::{Mutex, RwLock};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::kubelet::admission::Allowed;
use crate::kubelet::backoff::BackoffPolicy;
use crate::kubelet::context::{NodeContext, Settings};
use crate::kubelet::dns::{self, SharedNames};
use crate::kubelet::events::{EventRecorder, Severity};
use crate::kubelet::eviction::StoragePolicy;
use crate::kubelet::eviction::monitor::DiskMonitor;
use crate::kubelet::manager::{Command, Manager, PodRegistry};
use crate::kubelet::registration::{self, Health, Registration};
use crate::kubelet::resources::Allocatable;
use crate::kubelet::volumes::grants::{FolderGrants, GrantedFolder};
use crate::kubelet::{egress, owners, stopped_pods};
use crate::runtime::{ImageService, RuntimeError, SharedRuntime};

pub(super) mod exec_oom;
mod pod_requests;

pub use pod_requests::{LogChunks, PodKey, PodRequestError};

/// Reason of the event about a host that cannot enforce everything.
const WEAKER_ISOLATION: &str = "WeakerIsolation";

/// Options of a node. Everything but the data folder has a sensible default.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    pub node_name: String,
    /// Folder for logs and the node's own records; the runtime keeps its data beside them.
    pub data_dir: PathBuf,
    /// Path of the sandboxd program that is injected into containers.
    pub sandboxd: Option<PathBuf>,
    /// Also act as scheduler and volume binder, because the embedded API is the only control plane.
    pub embedded: bool,
    pub allow_host_paths: Vec<PathBuf>,
    pub backoff: BackoffPolicy,
    pub cluster_domain: String,
    /// Programs by runtime class handler, in addition to the well-known handlers.
    pub runtime_handlers: BTreeMap<String, String>,
    pub log_max_bytes: u64,
    pub log_max_files: u32,
    /// Addresses of this machine that the node registers and Pods see as host addresses.
    pub host_ips: Vec<String>,
    /// Port of the kubelet's HTTPS server, when one runs.
    pub kubelet_port: Option<u16>,
    /// Taints the node registers with, so that only Pods that tolerate them are bound to it.
    pub taints: Vec<Taint>,
    pub storage: StoragePolicy,
    /// Resolvers of names outside the cluster; those of this machine if not given.
    pub resolvers: Option<Vec<SocketAddr>>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            node_name: "local".to_owned(),
            data_dir: PathBuf::from("/var/lib/agent-sandbox"),
            sandboxd: None,
            embedded: true,
            allow_host_paths: Vec::new(),
            backoff: BackoffPolicy::default(),
            cluster_domain: "cluster.local".to_owned(),
            runtime_handlers: BTreeMap::new(),
            log_max_bytes: 10 << 20,
            log_max_files: 3,
            host_ips: vec!["127.0.0.1".to_owned()],
            kubelet_port: None,
            taints: Vec::new(),
            storage: StoragePolicy::default(),
            resolvers: None,
        }
    }
}

/// Errors of starting and stopping a node.
#[derive(Debug, Error)]
pub enum NodeError {
    #[error("cannot write to the folder {path}")]
    Folder {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot list the Pods that run on this machine")]
    List(#[source] RuntimeError),
    #[error("cannot remove {what}")]
    Remove {
        what: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Entry point for starting a node.
pub struct Node;

impl Node {
    /// Registers the node and runs its Pods until the handle stops it. Pods that are already running are recovered.
    pub async fn start(
        client: kube::Client,
        runtime: SharedRuntime,
        images: Arc<dyn ImageService>,
        options: NodeOptions,
    ) -> Result<NodeHandle, NodeError> {
        let log_dir = options.data_dir.join("pod-logs");
        tokio::fs::create_dir_all(&log_dir)
            .await
            .map_err(|source| NodeError::Folder { path: log_dir.clone(), source })?;
        crate::topdir::set_topdir_flag(&log_dir);
        let folders = FolderGrants::open(&options.data_dir)
            .map_err(|source| NodeError::Folder { path: options.data_dir.clone(), source })?;
        let (recorder, events) = EventRecorder::new(client.clone(), options.node_name.clone());
        let allocatable = machine_resources(&options.data_dir);
        let egress_refused = runtime.egress_proxy().err();
        let node = Arc::new(NodeContext {
            client: client.clone(),
            runtime,
            images,
            recorder,
            settings: settings(&options, log_dir, folders, egress_refused),
            host_ips: options.host_ips.clone(),
            allocatable,
            services: RwLock::default(),
        });
        report_weaknesses(&node);
        let registration = Registration {
            node_name: options.node_name.clone(),
            host_ips: options.host_ips.clone(),
            allocatable,
            labels: registration::labels(&options.node_name),
            kubelet_port: options.kubelet_port,
            taints: options.taints.clone(),
        };
        let (health, reported) = watch::channel(Health::default());
        let mut tasks =
            vec![tokio::spawn(events), tokio::spawn(registration::run(client.clone(), registration, reported))];
        if options.embedded {
            let binder = crate::kubelet::volume_binding::binder::Binder {
                client,
                runtime: node.runtime.clone(),
                node_name: options.node_name.clone(),
            };
            tasks.push(tokio::spawn(binder.run()));
        }
        let names = SharedNames::default();
        names.write().domain.clone_from(&options.cluster_domain);
        let upstreams = options.resolvers.clone();
        let upstreams = upstreams.unwrap_or_else(|| agent_sandbox_egress::upstreams(&node.settings.host_resolv_conf));
        let gateway = Arc::new(open_gateway(&node, &options, upstreams.clone())?);
        if let Some(address) = node.runtime.dns_address() {
            let egress = Arc::clone(&gateway);
            let responder = dns::server::Responder { names: Arc::clone(&names), upstreams, egress };
            tasks.push(tokio::spawn(dns::server::run((address, 53).into(), responder)));
        }
        if let Ok(address) = node.runtime.egress_proxy() {
            tasks.push(tokio::spawn(egress::serve(address, Arc::clone(&gateway))));
        }
        let registry = PodRegistry::default();
        let monitor = DiskMonitor {
            node: Arc::clone(&node),
            registry: Arc::clone(&registry),
            data_dir: options.data_dir.clone(),
            policy: options.storage,
            health,
            measured: HashMap::new(),
        };
        tasks.push(tokio::spawn(monitor.run()));
        let (commands, inbox) = mpsc::channel(16);
        let manager =
            Manager::open(Arc::clone(&node), Arc::clone(&registry), names, Arc::clone(&gateway), &options).await?;
        let running = tokio::spawn(manager.run(inbox));
        Ok(NodeHandle(Arc::new(Inner {
            node,
            gateway,
            registry,
            commands,
            manager: Mutex::new(Some(running)),
            tasks,
            options,
        })))
    }
}

/// The gateway of Pods with egress rules, and its log.
fn open_gateway(node: &NodeContext, options: &NodeOptions, upstreams: Vec<SocketAddr>) -> Result<Gateway, NodeError> {
    let path = options.data_dir.join(agent_sandbox_egress::log::FILE_NAME);
    let log = match node.runtime.egress_proxy() {
        Ok(_) => Some(Log::open(&path).map_err(|source| NodeError::Folder { path, source })?),
        Err(_) => None,
    };
    Ok(Gateway::new(upstreams, Arc::new(egress::RuntimePorts(node.runtime.clone())), log))
}

/// Reports once, about the node, what this host cannot enforce for any Pod.
fn report_weaknesses(node: &NodeContext) {
    let weaknesses = node.runtime.weaknesses();
    if weaknesses.is_empty() {
        return;
    }
    let about = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.settings.node_name.clone()),
        ..ObjectReference::default()
    };
    let list: Vec<String> = weaknesses.iter().map(|weak| format!("{}: {}", weak.kind.reason(), weak.message)).collect();
    node.recorder.about(about, Severity::Warning, WEAKER_ISOLATION, list.join("; "));
}

fn settings(
    options: &NodeOptions,
    log_dir: PathBuf,
    folders: FolderGrants,
    egress_refused: Option<String>,
) -> Settings {
    Settings {
        node_name: options.node_name.clone(),
        log_dir,
        // The runtime follows no symbolic links in the sources of mounts.
        sandboxd: options.sandboxd.as_ref().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())),
        allowed: Allowed { host_paths: options.allow_host_paths.clone(), folders, egress_refused },
        backoff: options.backoff,
        cluster_domain: options.cluster_domain.clone(),
        host_resolv_conf: std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default(),
        runtime_handlers: options.runtime_handlers.clone(),
        log_max_bytes: options.log_max_bytes,
        log_max_files: options.log_max_files,
        storage: options.storage,
    }
}

/// CPU, memory and disk of this machine.
fn machine_resources(data_dir: &std::path::Path) -> Allocatable {
    use crate::kubelet::resources::quantity::Milli;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total =
        meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:")?.trim().split(' ').next()?.parse::<i128>().ok());
    let disk = rustix::fs::statvfs(data_dir).map_or(0, |s| i128::from(s.f_blocks) * i128::from(s.f_frsize));
    Allocatable {
        cpu: Milli(cores as i128 * 1000),
        memory: Milli(total.unwrap_or(0) * 1024 * 1000),
        ephemeral_storage: Milli(disk * 1000),
    }
}

struct Inner {
    node: Arc<NodeContext>,
    gateway: Arc<Gateway>,
    registry: PodRegistry,
    commands: mpsc::Sender<Command>,
    manager: Mutex<Option<JoinHandle<()>>>,
    tasks: Vec<JoinHandle<()>>,
    options: NodeOptions,
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        if let Some(manager) = self.manager.lock().take() {
            manager.abort();
        }
    }
}

/// A running node. Cheap to clone; dropping the last clone stops the node and leaves its Pods running.
#[derive(Clone)]
pub struct NodeHandle(Arc<Inner>);

impl NodeHandle {
    /// Stops the node and leaves its Pods running; the next node process recovers them.
    pub async fn shutdown(&self) {
        let (done, finished) = oneshot::channel();
        if self.0.commands.send(Command::Release(done)).await.is_ok() {
            let _ = finished.await;
        }
        for task in &self.0.tasks {
            task.abort();
        }
        let manager = self.0.manager.lock().take();
        if let Some(manager) = manager {
            let _ = manager.await;
        }
    }

    /// Stops the node and every process of its Pods. Objects, volumes and writable layers stay, and the next node
    /// process starts the Pods again, whatever their restart policy is.
    pub async fn stop_all(&self) -> Result<(), NodeError> {
        self.shutdown().await;
        let runtime = &self.0.node.runtime;
        let pods = runtime.list().await.map_err(NodeError::List)?;
        let uids: Vec<String> = pods.iter().map(|p| p.sandbox.uid.clone()).collect();
        stopped_pods::write(&self.0.options.data_dir, &uids)
            .map_err(|source| NodeError::Folder { path: self.0.options.data_dir.clone(), source })?;
        let removals = uids.iter().map(|uid| async move {
            let removed = runtime.remove_pod(uid).await;
            removed.map_err(|source| NodeError::Remove { what: format!("pod {uid}"), source: Box::new(source) })
        });
        futures::future::try_join_all(removals).await.map(drop)
    }

    /// Stops the node and removes everything it stored: for temporary nodes.
    pub async fn purge(&self) -> Result<(), NodeError> {
        self.stop_all().await?;
        let runtime = &self.0.node.runtime;
        for owner in runtime.kept_owners().await.map_err(NodeError::List)? {
            let removed = runtime.delete_owner_storage(&owner).await;
            removed
                .map_err(|source| NodeError::Remove { what: format!("layers of {owner}"), source: Box::new(source) })?;
        }
        let (logs, owners, egress_log) = ("pod-logs", owners::FILE_NAME, agent_sandbox_egress::log::FILE_NAME);
        let data = &self.0.options.data_dir;
        let removed = [
            (logs, tokio::fs::remove_dir_all(data.join(logs)).await),
            (owners, tokio::fs::remove_file(data.join(owners)).await),
            (egress_log, tokio::fs::remove_file(data.join(egress_log)).await),
        ];
        for (part, removed) in removed {
            if let Err(source) = removed
                && source.kind() != std::io::ErrorKind::NotFound
            {
                let what = data.join(part).display().to_string();
                return Err(NodeError::Remove { what, source: Box::new(source) });
            }
        }
        stopped_pods::clear(&self.0.options.data_dir);
        Ok(())
    }

    /// Gives folders of the host to the Pod of a Sandbox that is about to be created.
    pub fn allow_folders(&self, namespace: &str, name: &str, folders: &[GrantedFolder]) -> std::io::Result<()> {
        self.0.node.settings.allowed.folders.allow(namespace, name, folders)
    }

    /// Counters of what Pods with egress rules asked for.
    pub fn egress_metrics(&self) -> &agent_sandbox_egress::Metrics {
        &self.0.gateway.metrics
    }

    /// Isolation and limits that this host enforces less strictly than a fully equipped one.
    pub fn weaknesses(&self) -> Vec<crate::runtime::Weakness> {
        self.0.node.runtime.weaknesses()
    }
}

#[cfg(test)]
mod tests;
