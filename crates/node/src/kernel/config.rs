//! Configuration of the kernel half, with the reasons for the defaults.

use std::path::{Path, PathBuf};

use crate::kernel::host::resources::{RESERVED_MEMORY, machine_memory, processors};
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
    /// Folder of copies of host folders, for a temporary node whose copies outlive it. `None` keeps them beside the
    /// writable layers.
    pub copies_dir: Option<PathBuf>,
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

/// Limits of Pods that set none; `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeDefaults {
    pub memory_bytes: Option<u64>,
    pub cpu_millis: Option<u64>,
    /// CPU weight of Pods without a CPU request, as a request.
    pub cpu_request_millis: u64,
    pub pids: Option<u64>,
}

/// A Pod gets at least this much memory by default, on a machine that has it.
const LEAST_MEMORY: u64 = 512 * MEBIBYTE;

const MEBIBYTE: u64 = 1 << 20;

impl NodeDefaults {
    /// The defaults for this machine.
    pub fn of_machine() -> Self {
        Self::new(machine_memory(), processors())
    }

    /// Half of the memory, so that one Pod that runs out of memory is killed before its neighbours are; all CPUs but
    /// one, or three quarters of fewer than four, so that one Pod cannot stop the rest of the machine. The kernel
    /// rounds memory limits to pages; whole mebibytes are the limit that it then reports.
    fn new(memory: Option<u64>, processors: u64) -> Self {
        let share = |all: u64| {
            let half = all / 2 / MEBIBYTE * MEBIBYTE;
            half.max(LEAST_MEMORY).min(all.saturating_sub(RESERVED_MEMORY).max(half))
        };
        Self {
            memory_bytes: memory.map(share),
            cpu_millis: Some((processors.saturating_sub(1) * 1_000).max(processors * 750)),
            // Pods that request more precede those that request nothing. The kernel's own default is that of a whole
            // core.
            cpu_request_millis: 100,
            pids: Some(1_024),
        }
    }
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
            defaults: NodeDefaults::of_machine(),
            host_paths: Vec::new(),
            image_aliases: vec![(BUILT_IN_ALIAS.0.to_owned(), BUILT_IN_ALIAS.1.to_owned())],
            image_dir: None,
            copies_dir: None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pod_leaves_memory_and_cpu_to_the_machine() {
        let defaults = |gib: u64, processors| {
            let found = NodeDefaults::new(Some(gib << 30), processors);
            (found.memory_bytes.unwrap() >> 20, found.cpu_millis.unwrap())
        };
        assert_eq!(defaults(24, 8), (12 << 10, 7_000));
        assert_eq!(defaults(8, 4), (4 << 10, 3_000));
        assert_eq!(defaults(4, 2), (2 << 10, 1_500));
        assert_eq!(defaults(1, 1), (512, 750));
        assert_eq!(NodeDefaults::new(Some(600 << 20), 1).memory_bytes, Some(300 << 20), "the rest of a small machine");
        assert_eq!(NodeDefaults::new(None, 1).memory_bytes, None, "/proc/meminfo cannot be read");
    }
}
