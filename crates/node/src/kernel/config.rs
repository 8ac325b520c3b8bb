//! What an operator can choose about the kernel half, with the reasons for the defaults.

use std::path::{Path, PathBuf};

use super::images::BUILT_IN_ALIAS;
use super::plan::Walls;

/// Configuration of [`super::KernelRuntime`].
#[derive(Debug, Clone)]
pub struct KernelConfig {
    /// Everything this node keeps. Made 0700.
    pub data_dir: PathBuf,
    /// The program re-executed as spawner and supervisor.
    pub helper: HelperProgram,
    /// First host uid (and gid) of the range Pods get blocks of 65,536 ids from.
    pub first_id: u32,
    /// How many blocks the range has.
    pub id_blocks: u32,
    pub defaults: NodeDefaults,
    /// Host folders the image `host` shows besides `/usr`.
    pub host_paths: Vec<PathBuf>,
    /// Images used instead of others: last part of the name asked for, and the local image. Pulled and imported images of
    /// that name win.
    pub image_aliases: Vec<(String, String)>,
    /// Where images are kept; several nodes of one user may share a folder. `None` is a part of the data folder.
    pub image_dir: Option<PathBuf>,
    /// Registries asked instead of others: registry, and its mirror.
    pub registry_mirrors: Vec<(String, String)>,
    /// Network of Pod addresses (`10.88.0.0/16`); `None` takes the first of a short list that overlaps no route.
    pub pod_network: Option<String>,
    /// Pods end with this process, however it ends, instead of waiting for its next start: for nodes that are thrown away.
    pub pods_end_with_node: bool,
    /// How many supervisors are kept ready for Pods to come.
    pub ready_pods: usize,
    /// Prepare the image `host` at once, which the first Pod most likely wants.
    pub prepare_host: bool,
    /// Refuse Pods whose limits cannot be held, instead of saying so.
    pub strict_limits: bool,
    #[doc(hidden)]
    pub walls: Walls,
}

/// Bounds of Pods that ask for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeDefaults {
    pub memory_bytes: Option<u64>,
    pub cpu_millis: Option<u64>,
    pub pids: u64,
}

/// Where helpers come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelperProgram {
    /// This very program, which calls `helper_main` first.
    CurrentExecutable,
    /// Another program that does, for test harnesses whose `main` is not ours.
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
    /// Defaults around a data folder.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            helper: HelperProgram::CurrentExecutable,
            // Above the ranges of systemd and of subordinate ids, below the sign bit that some programs trip over.
            first_id: 1_879_048_192,
            id_blocks: 4_095,
            defaults: NodeDefaults { memory_bytes: None, cpu_millis: None, pids: 1_024 },
            host_paths: Vec::new(),
            image_aliases: vec![(BUILT_IN_ALIAS.0.to_owned(), BUILT_IN_ALIAS.1.to_owned())],
            image_dir: None,
            registry_mirrors: Vec::new(),
            pod_network: None,
            pods_end_with_node: false,
            // Covers a burst; each costs about half a megabyte.
            ready_pods: 8,
            prepare_host: true,
            strict_limits: false,
            walls: Walls::ALL,
        }
    }
}
