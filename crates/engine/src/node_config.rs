//! How Pods are run on this machine: the settings that `up`, `run` and `node` share, and opening the runtime with them.

use crate::{EngineError, sandboxd};
use agent_sandbox_node::{
    NodeOptions,
    kernel::{KernelConfig, KernelRuntime},
    kubelet::{
        eviction::StoragePolicy,
        resources::quantity::{self, Milli, QuantityError},
    },
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Name of the runtime's folder in the node's.
pub(crate) const KERNEL_FOLDER: &str = "kernel";

/// The operator's settings; `None` means the node's own default.
#[derive(Clone, Debug, Default)]
pub struct NodeConfig {
    pub pod_network: Option<String>,
    /// Host folders that Pods may mount with hostPath.
    pub host_paths: Vec<PathBuf>,
    /// Host folders that the image `host` contains besides /usr.
    pub shown_paths: Vec<PathBuf>,
    /// Maximum number of processes per Pod.
    pub pids: DefaultLimit,
    /// Memory and CPU limit of Pods without one.
    pub memory: DefaultLimit,
    pub cpus: DefaultLimit,
    /// Bytes, and files and folders, of Pods on storage without a limit of its own.
    pub storage: DefaultLimit,
    pub inodes: DefaultLimit,
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
    /// Folder of copies of host folders that outlive an ephemeral engine; `None` puts them into the node's own folder.
    pub copies: Option<PathBuf>,
    /// First host user id of sandboxes, and the number of blocks of 65,536 ids.
    pub ids: Option<(u32, u32)>,
}

/// A limit of Pods that set none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DefaultLimit {
    /// What the node computes for this machine.
    #[default]
    OfMachine,
    Unlimited,
    /// A Kubernetes quantity.
    Quantity(String),
}

impl DefaultLimit {
    /// Replaces the machine's own default, in thousandths of the unit.
    fn or_default(&self, default: Option<Milli>) -> Result<Option<Milli>, QuantityError> {
        match self {
            Self::OfMachine => Ok(default),
            Self::Unlimited => Ok(None),
            Self::Quantity(text) => quantity::parse(text).map(Some),
        }
    }

    /// Replaces a default in whole units.
    fn replace(&self, default: &mut Option<u64>) -> Result<(), QuantityError> {
        let units = |found: Milli| found.units_u64();
        *default = self.or_default(default.map(|units| Milli(i128::from(units) * 1_000)))?.map(units);
        Ok(())
    }

    /// Replaces a default in thousandths of a unit.
    fn replace_millis(&self, default: &mut Option<u64>) -> Result<(), QuantityError> {
        let millis = |found: Milli| u64::try_from(found.0.max(0)).unwrap_or(u64::MAX);
        *default = self.or_default(default.map(|millis| Milli(millis.into())))?.map(millis);
        Ok(())
    }
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
            storage: self.storage_policy()?,
            ..NodeOptions::default()
        };
        let runtime = KernelRuntime::open(self.kernel_config(folder)?).await.map_err(EngineError::OpenRuntime)?;
        Ok((runtime, options))
    }

    fn storage_policy(&self) -> Result<StoragePolicy, QuantityError> {
        let mut policy = StoragePolicy::default();
        let (mut bytes, mut inodes) = (Some(policy.default_limit), Some(policy.default_inodes));
        self.storage.replace(&mut bytes)?;
        self.inodes.replace(&mut inodes)?;
        (policy.default_limit, policy.default_inodes) = (bytes.unwrap_or(u64::MAX), inodes.unwrap_or(u64::MAX));
        Ok(policy)
    }

    fn kernel_config(&self, folder: &Path) -> Result<KernelConfig, QuantityError> {
        let mut config = KernelConfig::new(folder.join(KERNEL_FOLDER));
        config.pod_network.clone_from(&self.pod_network);
        config.image_dir.clone_from(&self.images);
        config.copies_dir.clone_from(&self.copies);
        config.host_paths.clone_from(&self.shown_paths);
        config.registry_mirrors.clone_from(&self.mirrors);
        config.strict_limits = self.strict_limits;
        config.pods_end_with_node = self.ephemeral;
        if self.ephemeral {
            // An ephemeral engine runs one Pod: there is no second one to prepare for.
            config.ready_pods = 0;
        }
        self.pids.replace(&mut config.defaults.pids)?;
        self.memory.replace(&mut config.defaults.memory_bytes)?;
        self.cpus.replace_millis(&mut config.defaults.cpu_millis)?;
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
            pids: DefaultLimit::Quantity("64".into()),
            memory: DefaultLimit::Quantity("1Gi".into()),
            cpus: DefaultLimit::Quantity("0.5".into()),
            ids: Some((1_000_000, 8)),
            strict_limits: true,
            ..NodeConfig::default()
        };
        let config = chosen.kernel_config(Path::new("/data")).unwrap();
        assert_eq!(config.defaults.pids, Some(64));
        assert_eq!(config.defaults.memory_bytes, Some(1 << 30));
        assert_eq!(config.defaults.cpu_millis, Some(500));
        assert_eq!((config.first_id, config.id_blocks, config.strict_limits), (1_000_000, 8, true));
        let plain = NodeConfig::default().kernel_config(Path::new("/data")).unwrap();
        assert_eq!(plain.defaults, KernelConfig::new("/data/kernel").defaults);
        assert_eq!(NodeConfig::default().storage_policy().unwrap(), StoragePolicy::default());
        let none = || DefaultLimit::Unlimited;
        let few = NodeConfig { storage: none(), inodes: DefaultLimit::Quantity("500".into()), ..NodeConfig::default() };
        let policy = few.storage_policy().unwrap();
        assert_eq!((policy.default_limit, policy.default_inodes), (u64::MAX, 500));
        let free = NodeConfig { pids: none(), memory: none(), cpus: none(), ..NodeConfig::default() };
        let defaults = free.kernel_config(Path::new("/data")).unwrap().defaults;
        assert_eq!((defaults.pids, defaults.memory_bytes, defaults.cpu_millis), (None, None, None));
    }
}
