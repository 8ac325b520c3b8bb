//! What all actors of a node share: the API client, the runtime and the node's settings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::kubelet::admission::Allowed;
use crate::kubelet::backoff::BackoffPolicy;
use crate::kubelet::container::service_env::Services;
use crate::kubelet::events::EventRecorder;
use crate::kubelet::eviction::StoragePolicy;
use crate::kubelet::resources::Allocatable;
use crate::runtime::{ImageService, SharedRuntime};

/// Settings that apply to all Pods of the node.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: String,
    /// Folder of container logs by Pod uid; the logs of a Pod are removed with its object.
    pub log_dir: PathBuf,
    /// Path of the sandboxd program; without it, containers that need sandboxd fail with an error that says so.
    pub sandboxd: Option<PathBuf>,
    pub allowed: Allowed,
    pub backoff: BackoffPolicy,
    pub cluster_domain: String,
    pub host_resolv_conf: String,
    /// Programs by runtime class handler, in addition to the well-known handlers.
    pub runtime_handlers: BTreeMap<String, String>,
    pub log_max_bytes: u64,
    pub log_max_files: u32,
    pub storage: StoragePolicy,
}

/// Shared state of the node, given to every actor.
pub struct NodeContext {
    pub client: kube::Client,
    pub runtime: SharedRuntime,
    pub images: Arc<dyn ImageService>,
    pub recorder: EventRecorder,
    pub settings: Settings,
    pub host_ips: Vec<String>,
    pub allocatable: Allocatable,
    /// All Services, for the service environment variables of containers.
    pub services: RwLock<Services>,
}

impl NodeContext {
    /// Folder of a Pod's logs.
    pub fn pod_log_dir(&self, uid: &str) -> PathBuf {
        self.settings.log_dir.join(uid)
    }

    /// Log file of one attempt of a container.
    pub fn log_path(&self, uid: &str, container: &str, attempt: u32) -> PathBuf {
        self.pod_log_dir(uid).join(container).join(format!("{attempt}.log"))
    }
}
