//! How Pods are run on this machine: what `up`, `run` and `node` share, and opening the runtime with it.

use super::sandboxd;
use agent_sandbox_node::{
    NodeOptions,
    kernel::{KernelConfig, KernelRuntime},
    pods::quantity::{self, QuantityError},
};
use anyhow::{Context as _, Result};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

/// What the operator chose; everything else is the node's own default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosting {
    pub(crate) pod_network: Option<String>,
    /// Host folders that Pods may show.
    pub(crate) host_paths: Vec<PathBuf>,
    /// Host folders that the image `host` shows.
    pub(crate) shown_paths: Vec<PathBuf>,
    pub(crate) pids: Option<u64>,
    pub(crate) memory: Option<String>,
    pub(crate) cpus: Option<String>,
    pub(crate) strict_limits: bool,
    /// Runtime classes and the programs that run their Pods.
    pub(crate) runtimes: BTreeMap<String, String>,
    pub(crate) mirrors: Vec<(String, String)>,
    /// Sandboxes end with this process, however it ends.
    pub(crate) throwaway: bool,
    /// Where images are kept, when not with the rest.
    pub(crate) images: Option<PathBuf>,
    /// First host user id of sandboxes, and the number of blocks.
    pub(crate) ids: Option<(u32, u32)>,
}

impl Hosting {
    /// Opens the runtime below `folder`, and gives the options for a node over it.
    pub(crate) async fn open(&self, folder: &Path) -> Result<(Arc<KernelRuntime>, NodeOptions)> {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let options = NodeOptions {
            data_dir: folder.to_owned(),
            sandboxd: Some(sandboxd::provide(folder, !self.throwaway)?),
            allow_host_paths: self.host_paths.clone(),
            runtime_handlers: self.runtimes.clone(),
            ..NodeOptions::default()
        };
        let runtime = KernelRuntime::open(self.kernel(folder)?).await.context("cannot isolate processes here")?;
        Ok((runtime, options))
    }

    fn kernel(&self, folder: &Path) -> Result<KernelConfig, QuantityError> {
        let mut config = KernelConfig::new(folder.join("kernel"));
        config.pod_network.clone_from(&self.pod_network);
        config.image_dir.clone_from(&self.images);
        config.host_paths.clone_from(&self.shown_paths);
        config.registry_mirrors.clone_from(&self.mirrors);
        config.strict_limits = self.strict_limits;
        config.pods_end_with_node = self.throwaway;
        if self.throwaway {
            // One Pod is all there will be.
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
    fn what_the_operator_chose_reaches_the_runtime() {
        let hosting = Hosting {
            pids: Some(64),
            memory: Some("1Gi".into()),
            cpus: Some("0.5".into()),
            ids: Some((1_000_000, 8)),
            strict_limits: true,
            ..Hosting::default()
        };
        let config = hosting.kernel(Path::new("/data")).unwrap();
        assert_eq!(config.defaults.pids, 64);
        assert_eq!(config.defaults.memory_bytes, Some(1 << 30));
        assert_eq!(config.defaults.cpu_millis, Some(500));
        assert_eq!((config.first_id, config.id_blocks, config.strict_limits), (1_000_000, 8, true));
        let plain = Hosting::default().kernel(Path::new("/data")).unwrap();
        assert_eq!(plain.defaults, KernelConfig::new("/data/kernel").defaults);
    }
}
