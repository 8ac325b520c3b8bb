//! Configuration of the kernel half, with the reasons for the defaults.

use std::path::{Path, PathBuf};

use crate::kernel::image::BUILT_IN_ALIAS;
use crate::kernel::supervisor::plan::Isolation;

/// Configuration of [`super::KernelRuntime`].
#[derive(Debug, Clone)]
pub struct KernelConfig {
    /// Folder for everything this node stores. Created with mode 0700.
    pub data_dir: PathBuf,
    /// The program re-executed as spawner and supervisor.
    pub helper: HelperProgram,
    /// First host uid (and gid) of the range from which Pods get blocks of 65,536 ids.
    pub first_id: u32,
    /// Number of blocks in the range.
    pub id_blocks: u32,
    pub defaults: NodeDefaults,
    /// Host folders the image `host` shows besides `/usr`.
    pub host_paths: Vec<PathBuf>,
    /// Image aliases: the last part of the requested name, and the local image to use. Pulled and imported images of
    /// that name take precedence.
    pub image_aliases: Vec<(String, String)>,
    /// Folder of images; several nodes of one user may share it. `None` uses a part of the data folder.
    pub image_dir: Option<PathBuf>,
    /// Registry mirrors: registry, and its mirror.
    pub registry_mirrors: Vec<(String, String)>,
    /// Network of Pod addresses (`10.88.0.0/16`); `None` chooses one that overlaps no route.
    pub pod_network: Option<String>,
    /// Pods end with this process, however it exits, instead of waiting for its next start: for temporary nodes.
    pub pods_end_with_node: bool,
    /// Number of supervisors kept ready for future Pods.
    pub ready_pods: usize,
    /// Prepare the image `host` at once, because the first Pod most likely uses it.
    pub prepare_host: bool,
    /// Reject Pods whose limits cannot be enforced, instead of only reporting that.
    pub strict_limits: bool,
    #[doc(hidden)]
    pub isolation: Isolation,
}

/// Limits of Pods that set none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeDefaults {
    pub memory_bytes: Option<u64>,
    pub cpu_millis: Option<u64>,
    pub pids: u64,
}

/// The program that is executed as a helper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelperProgram {
    /// This program, which calls `helper_main` first.
    CurrentExecutable,
    /// Another program that does, for test harnesses whose `main` cannot be changed.
    Path(PathBuf),
}

impl HelperProgram {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::CurrentExecutable => Path::new("/proc/self/exe"),
            Self::Path(path) => path,
        }
    }
}

impl KernelConfig {
    /// Default configuration for a data folder.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            helper: HelperProgram::CurrentExecutable,
            // Above the ranges of systemd and of subordinate ids, below the sign bit that some programs mishandle.
            first_id: 1_879_048_192,
            id_blocks: 4_095,
            defaults: NodeDefaults { memory_bytes: None, cpu_millis: None, pids: 1_024 },
            host_paths: Vec::new(),
            image_aliases: vec![(BUILT_IN_ALIAS.0.to_owned(), BUILT_IN_ALIAS.1.to_owned())],
            image_dir: None,
            registry_mirrors: Vec::new(),
            pod_network: None,
            pods_end_with_node: false,
            // Enough for a burst; each costs about half a megabyte.
            ready_pods: 8,
            prepare_host: true,
            strict_limits: false,
            isolation: Isolation::ALL,
        }
    }
}
