//! How Pods are run on this machine: the settings that `up`, `run` and `node` share, and opening the runtime with them.

use crate::{EngineError, sandboxd};
use agent_sandbox_node::{
    NodeOptions,
    kernel::{KernelConfig, KernelRuntime},
    kubelet::resources::quantity::{self, QuantityError},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The operator's settings; `None` means the node's own default.
#[derive(Clone, Debug, Default)]
pub struct NodeConfig {
    pub pod_network: Option<String>,
    /// Host folders that Pods may mount with hostPath.
    pub host_paths: Vec<PathBuf>,
    /// Host folders that the image `host` contains besides /usr.
    pub shown_paths: Vec<PathBuf>,
    /// Maximum number of processes per Pod.
    pub pids: Option<u64>,
    /// Memory limit of Pods without one, as a Kubernetes quantity.
    pub memory: Option<String>,
    /// CPU limit of Pods without one, as a Kubernetes quantity.
    pub cpus: Option<String>,
    /// Refuse Pods whose limits cannot be enforced here.
    pub strict_limits: bool,
    /// OCI runtime programs by runtime class.
    pub runtimes: BTreeMap<String, String>,
    /// Registries and their mirrors.
    pub mirrors: Vec<(String, String)>,
    /// Sandboxes end with this process, however it ends, and nothing is kept for a next start.
    pub ephemeral: bool,
    /// Folder of the image store; `None` puts it into the node's own folder.
    pub images: Option<PathBuf>,
    /// First host user id of sandboxes, and the number of blocks of 65,536 ids.
    pub ids: Option<(u32, u32)>,
}

impl NodeConfig {
    /// Opens the runtime below `folder`, and returns it with the options for a node over it.
    pub async fn open(&self, folder: &Path) -> Result<(Arc<KernelRuntime>, NodeOptions), EngineError> {
        std::fs::create_dir_all(folder)
            .map_err(|source| EngineError::CreateFolder { path: folder.to_owned(), source })?;
        let options = NodeOptions {
            data_dir: folder.to_owned(),
            sandboxd: Some(sandboxd::extract(folder, !self.ephemeral)?),
            allow_host_paths: self.host_paths.clone(),
            runtime_handlers: self.runtimes.clone(),
            ..NodeOptions::default()
        };
        let runtime = KernelRuntime::open(self.kernel_config(folder)?).await.map_err(EngineError::OpenRuntime)?;
        Ok((runtime, options))
    }

    fn kernel_config(&self, folder: &Path) -> Result<KernelConfig, QuantityError> {
        let mut config = KernelConfig::new(folder.join("kernel"));
        config.pod_network.clone_from(&self.pod_network);
        config.image_dir.clone_from(&self.images);
        config.host_paths.clone_from(&self.shown_paths);
        config.registry_mirrors.clone_from(&self.mirrors);
        config.strict_limits = self.strict_limits;
        config.pods_end_with_node = self.ephemeral;
        if self.ephemeral {
            // An ephemeral engine runs one Pod: there is no second one to prepare for.
            config.ready_pods = 0;
        }
        config.defaults.pids = self.pids.unwrap_or(config.defaults.pids);
        if let Some(text) = &self.memory {
            config.defaults.memory_bytes = Some(quantity::parse(text)?.units_u64());
        }
        if let Some(text) = &self.cpus {
            config.defaults.cpu_millis = u64::try_from(quantity::parse(text)?.0).ok();
        }
        if let Some((first, blocks)) = self.ids {
            (config.first_id, config.id_blocks) = (first, blocks);
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_operator_reach_the_runtime() {
        let chosen = NodeConfig {
            pids: Some(64),
            memory: Some("1Gi".into()),
            cpus: Some("0.5".into()),
            ids: Some((1_000_000, 8)),
            strict_limits: true,
            ..NodeConfig::default()
        };
        let config = chosen.kernel_config(Path::new("/data")).unwrap();
        assert_eq!(config.defaults.pids, 64);
        assert_eq!(config.defaults.memory_bytes, Some(1 << 30));
        assert_eq!(config.defaults.cpu_millis, Some(500));
        assert_eq!((config.first_id, config.id_blocks, config.strict_limits), (1_000_000, 8, true));
        let plain = NodeConfig::default().kernel_config(Path::new("/data")).unwrap();
        assert_eq!(plain.defaults, KernelConfig::new("/data/kernel").defaults);
    }
}
