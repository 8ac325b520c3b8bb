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

#[cfg(any(test, fuzzing))]
pub(crate) use container::user::fuzz as fuzz_user;
#[cfg(any(test, fuzzing))]
pub(crate) use image::fuzzing::{documents as fuzz_image_documents, import as fuzz_import, layer as fuzz_layer};

pub use config::{HelperProgram, KernelConfig, NodeDefaults};
pub use host::cgroup::{ContainerUsage, PodUsage};
pub use host::node_registry::{Leftover, leftovers, remove_leftover};
pub use host::resources::machine_usage;
pub use image::ImageAlias;
pub use kernel_runtime::{KernelRuntime, SnapshotRequest, SnapshotTaken};
pub(crate) use storage::atomic_file::replace_durably;
pub use storage::owned_files::remove_data;
pub use storage::snapshot_count::SnapshotCount;
pub use supervisor::plan::Isolation;

/// Gives the calling thread a mount namespace of its own.
#[cfg(test)]
pub(crate) fn unshare_mounts() -> std::io::Result<()> {
    sys::unshare(libc::CLONE_NEWNS)?;
    sys::make_private_recursive(c"/")
}

/// Runs a helper and exits when this process was started as one; see [`crate::helper_main`].
pub(crate) fn run_if_helper() {
    supervisor::spawner::run_if_helper();
    storage::owned_files::run_if_helper();
    net::pasta::run_if_helper();
    // A library in another program may start an engine from a thread that blocks all signals; such an engine could not
    // be stopped.
    sys::default_signals(&[]);
}
