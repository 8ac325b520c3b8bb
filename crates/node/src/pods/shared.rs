//! What all Pods of a node share: the API, the runtime, and the node's own settings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;

use super::backoff::BackoffPolicy;
use super::links::Services;
use super::recorder::Recorder;
use super::refuse::Allowed;
use super::resources::Allocatable;
use crate::evict::StoragePolicy;
use crate::runtime::{ImageService, SharedRuntime};

/// Settings that Pods are run by.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: String,
    /// Logs of containers are kept here, by Pod uid, until the Pod object goes.
    pub log_dir: PathBuf,
    /// Our daemon for containers that get it; without one such containers fail with a clear message.
    pub sandboxd: Option<PathBuf>,
    pub allowed: Allowed,
    pub backoff: BackoffPolicy,
    pub cluster_domain: String,
    pub host_resolv_conf: String,
    /// Runtime class handlers to programs, beyond the well-known names.
    pub runtime_handlers: BTreeMap<String, String>,
    pub log_max_bytes: u64,
    pub log_max_files: u32,
    pub storage: StoragePolicy,
}

/// Handed to every Pod's actor.
pub struct Shared {
    pub client: kube::Client,
    pub runtime: SharedRuntime,
    pub images: Arc<dyn ImageService>,
    pub recorder: Recorder,
    pub settings: Settings,
    pub host_ips: Vec<String>,
    pub allocatable: Allocatable,
    /// The Services there are, for variables that name them.
    pub services: RwLock<Services>,
}

impl Shared {
    /// The folder of a Pod's logs.
    pub fn pod_log_dir(&self, uid: &str) -> PathBuf {
        self.settings.log_dir.join(uid)
    }

    /// The log of one attempt of a container.
    pub fn log_path(&self, uid: &str, container: &str, attempt: u32) -> PathBuf {
        self.pod_log_dir(uid).join(container).join(format!("{attempt}.log"))
    }
}
