//! The kernel half: Pods as namespaces, cgroups, mounts and processes.
//!
//! The node's own process (many threads, asynchronous) decides and keeps state; everything that forks or changes
//! namespaces happens in single-threaded helpers, re-executed from a copy of this binary that cannot be written: one
//! spawner per node, which forks one supervisor per Pod, which forks the Pod's containers.
//!
//! A Pod's way through the modules: `kernel_runtime` decides and talks to supervisors, `supervisor` holds the Pod, and
//! `container` turns a forked process into the container's program. They use `host` (cgroups, user ids, what nodes
//! share on one machine), `image`, `storage`, `net` and, at the bottom, `sys` (system calls).

mod config;
mod container;
mod host;
mod image;
mod kernel_runtime;
mod net;
mod storage;
mod supervisor;
mod sys;

pub use config::{HelperProgram, KernelConfig, NodeDefaults};
pub use host::cgroup::PodUsage;
pub use host::node_registry::{Leftover, leftovers, remove_leftover};
pub use image::ImageAlias;
pub use kernel_runtime::KernelRuntime;
pub use storage::owned_files::remove_data;
pub use supervisor::plan::Isolation;

/// Runs a helper and exits when this process was started as one; see [`crate::helper_main`].
pub(crate) fn run_if_helper() {
    supervisor::spawner::run_if_helper();
    storage::owned_files::run_if_helper();
    net::pasta::run_if_helper();
}
