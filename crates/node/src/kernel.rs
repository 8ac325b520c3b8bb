//! The kernel half: Pods as namespaces, control groups, mounts and processes.
//!
//! The node's own process (many threads, asynchronous) decides and keeps books; everything that forks or changes
//! namespaces happens in single-threaded helpers re-executed from a sealed copy of this binary: one spawner per node, which
//! forks one supervisor per Pod, which forks the Pod's containers.

mod cgroup;
mod config;
mod hands;
mod host_image;
mod ids;
mod images;
mod launch;
mod layers;
mod leftovers;
mod link;
mod net;
mod oci;
mod plan;
mod rootfs;
mod runtime;
mod seccomp;
mod share;
mod spawner;
mod storage;
mod supervisor;
mod sys;
mod termination;
mod tree;
mod unmounts;
mod usage;
mod user;
mod walls;
mod wire;

pub use config::{HelperProgram, KernelConfig, NodeDefaults};
pub use hands::remove_data;
pub use images::ImageAlias;
pub use leftovers::{Stray, remove_stray, strays};
pub use plan::Walls;
pub use runtime::KernelRuntime;
pub use usage::PodUsage;

/// Becomes a helper when this process was started as one; see [`crate::helper_main`].
pub(crate) fn take_over() {
    spawner::take_over();
    hands::take_over();
    net::egress::take_over();
}
