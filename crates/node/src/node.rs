//! A running node: watches Pods, gives each an actor, and answers for them.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Taint;
use parking_lot::{Mutex, RwLock};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::dns::{self, SharedNames};
use crate::evict::StoragePolicy;
use crate::pods::backoff::BackoffPolicy;
use crate::pods::recorder::Recorder;
use crate::pods::refuse::Allowed;
use crate::pods::resources::Allocatable;
use crate::pods::shared::{Settings, Shared};
use crate::register::{self, Health, Registration};
use crate::runtime::{ImageService, RuntimeError, SharedRuntime};

mod manager;
mod owners;
mod pressure;
mod service;
mod stopped;

pub use service::{LogChunks, PodKey, ServiceError};

use manager::{Command, Manager, Registry};
use pressure::Monitor;

/// How a node is run. Everything has a sensible default but the folder.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    pub node_name: String,
    /// Where the node keeps logs and its own notes; the runtime keeps its data beside them.
    pub data_dir: PathBuf,
    /// Our daemon, for containers that get it.
    pub sandboxd: Option<PathBuf>,
    /// Act as scheduler and as binder of claims too: there is no control plane but the embedded API.
    pub embedded: bool,
    pub allow_host_paths: Vec<PathBuf>,
    pub backoff: BackoffPolicy,
    pub cluster_domain: String,
    /// Runtime class handlers to programs, beyond the well-known names.
    pub runtime_handlers: BTreeMap<String, String>,
    pub log_max_bytes: u64,
    pub log_max_files: u32,
    /// The machine's addresses as Pods and people see them.
    pub host_ips: Vec<String>,
    /// The port of the TLS server, when one runs.
    pub kubelet_port: Option<u16>,
    /// Taints the node registers with, so that only Pods which tolerate them are bound to it.
    pub taints: Vec<Taint>,
    pub storage: StoragePolicy,
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
        }
    }
}

/// Why a node did not start.
#[derive(Debug, Error)]
pub enum NodeError {
    #[error("cannot make the folder {path}")]
    Folder {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot find out which Pods run here")]
    List(#[source] RuntimeError),
    #[error("the node has stopped")]
    Stopped,
    #[error("cannot remove {what}")]
    Remove {
        what: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Starts nodes.
pub struct Node;

impl Node {
    /// Registers the node and runs its Pods until the handle is told to stop. Pods that already run are taken over.
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
        crate::spread::unrelated(&log_dir);
        let (recorder, events) = Recorder::new(client.clone(), options.node_name.clone());
        let allocatable = machine_resources(&options.data_dir);
        let shared = Arc::new(Shared {
            client: client.clone(),
            runtime,
            images,
            recorder,
            settings: settings(&options, log_dir),
            host_ips: options.host_ips.clone(),
            allocatable,
            services: RwLock::default(),
        });
        let registration = Registration {
            node_name: options.node_name.clone(),
            host_ips: options.host_ips.clone(),
            allocatable,
            labels: register::labels(&options.node_name),
            kubelet_port: options.kubelet_port,
            taints: options.taints.clone(),
        };
        let (health, reported) = watch::channel(Health::default());
        let mut tasks = vec![tokio::spawn(events), tokio::spawn(register::run(client.clone(), registration, reported))];
        if options.embedded {
            let binder = crate::storage::binder::Binder {
                client,
                runtime: shared.runtime.clone(),
                node_name: options.node_name.clone(),
            };
            tasks.push(tokio::spawn(binder.run()));
        }
        let names = SharedNames::default();
        names.write().domain.clone_from(&options.cluster_domain);
        if let Some(address) = shared.runtime.dns_address() {
            let upstreams = dns::server::upstreams(&shared.settings.host_resolv_conf);
            let responder = dns::server::Responder { names: Arc::clone(&names), upstreams };
            tasks.push(tokio::spawn(dns::server::run((address, 53).into(), responder)));
        }
        let registry = Registry::default();
        let monitor = Monitor {
            shared: Arc::clone(&shared),
            registry: Arc::clone(&registry),
            data_dir: options.data_dir.clone(),
            policy: options.storage,
            health,
            measured: HashMap::new(),
        };
        tasks.push(tokio::spawn(monitor.run()));
        let (commands, inbox) = mpsc::channel(16);
        let manager = Manager::open(Arc::clone(&shared), Arc::clone(&registry), names, &options).await?;
        let running = tokio::spawn(manager.run(inbox));
        Ok(NodeHandle(Arc::new(Inner {
            shared,
            registry,
            commands,
            manager: Mutex::new(Some(running)),
            tasks,
            options,
        })))
    }
}

fn settings(options: &NodeOptions, log_dir: PathBuf) -> Settings {
    Settings {
        node_name: options.node_name.clone(),
        log_dir,
        // The runtime follows no link on the way to what it mounts for a Pod.
        sandboxd: options.sandboxd.as_ref().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())),
        allowed: Allowed { host_paths: options.allow_host_paths.clone() },
        backoff: options.backoff,
        cluster_domain: options.cluster_domain.clone(),
        host_resolv_conf: std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default(),
        runtime_handlers: options.runtime_handlers.clone(),
        log_max_bytes: options.log_max_bytes,
        log_max_files: options.log_max_files,
        storage: options.storage,
    }
}

/// What the machine has.
fn machine_resources(data_dir: &std::path::Path) -> Allocatable {
    use crate::pods::quantity::Milli;
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
    shared: Arc<Shared>,
    registry: Registry,
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

/// A running node. Cheap to clone; when the last clone goes, the node lets go of its Pods and they run on.
#[derive(Clone)]
pub struct NodeHandle(Arc<Inner>);

impl NodeHandle {
    /// Ends the node and leaves its Pods running, to be taken over by the next one.
    pub async fn shutdown(&self) {
        let (done, finished) = oneshot::channel();
        if self.0.commands.send(Command::LetGo(done)).await.is_ok() {
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

    /// Ends the node and every process of its Pods. Objects, volumes and writable layers stay, and the next node starts the
    /// Pods again as if nothing had happened to them.
    pub async fn stop_all(&self) -> Result<(), NodeError> {
        self.shutdown().await;
        let runtime = &self.0.shared.runtime;
        let pods = runtime.list().await.map_err(NodeError::List)?;
        let uids: Vec<String> = pods.iter().map(|p| p.sandbox.uid.clone()).collect();
        stopped::write(&self.0.options.data_dir, &uids)
            .map_err(|source| NodeError::Folder { path: self.0.options.data_dir.clone(), source })?;
        let removals = uids.iter().map(|uid| async move {
            let removed = runtime.remove_pod(uid).await;
            removed.map_err(|source| NodeError::Remove { what: format!("pod {uid}"), source: Box::new(source) })
        });
        futures::future::try_join_all(removals).await.map(drop)
    }

    /// Ends the node and removes everything it kept: for nodes that are thrown away.
    pub async fn purge(&self) -> Result<(), NodeError> {
        self.stop_all().await?;
        let runtime = &self.0.shared.runtime;
        for owner in runtime.kept_owners().await.map_err(NodeError::List)? {
            let removed = runtime.forget_owner(&owner).await;
            removed
                .map_err(|source| NodeError::Remove { what: format!("layers of {owner}"), source: Box::new(source) })?;
        }
        let (logs, owners) = ("pod-logs", owners::LEDGER);
        let data = &self.0.options.data_dir;
        let removed = [
            (logs, tokio::fs::remove_dir_all(data.join(logs)).await),
            (owners, tokio::fs::remove_file(data.join(owners)).await),
        ];
        for (part, removed) in removed {
            if let Err(source) = removed
                && source.kind() != std::io::ErrorKind::NotFound
            {
                let what = data.join(part).display().to_string();
                return Err(NodeError::Remove { what, source: Box::new(source) });
            }
        }
        stopped::clear(&self.0.options.data_dir);
        Ok(())
    }

    /// What this host cannot hold as strongly as a fully equipped one.
    pub fn weaknesses(&self) -> Vec<crate::runtime::Weakness> {
        self.0.shared.runtime.weaknesses()
    }
}

/// The Pods of a node by uid, for those who ask about them.
pub(crate) type Pods = RwLock<std::collections::HashMap<String, Arc<crate::pods::actor::Handle>>>;

#[cfg(test)]
mod tests;
