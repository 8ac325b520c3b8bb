//! What the node uses of the host besides Pods: cgroups, blocks of user ids, and the registry of nodes on this machine.

pub(crate) mod cgroup;
pub(crate) mod ids;
pub(crate) mod node_registry;
pub(crate) mod process;
pub(crate) mod resources;
pub(crate) mod user_limits;
