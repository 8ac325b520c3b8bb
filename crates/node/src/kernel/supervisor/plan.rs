//! Complete plans that the node passes to a Pod's supervisor, which looks up and decides nothing. Plans are saved on
//! disk, so names of fields must not change.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::kernel::host::cgroup::{CgroupPlan, Setting};
use crate::kernel::storage::sealed::LowerLayer;
use crate::runtime::{ContainerSpec, PodSandboxSpec, Weakness};

/// Number of user and group ids of a Pod: the sixteen-bit range that images use.
pub(crate) const BLOCK_SIZE: u32 = 65_536;

/// The uid and gid of `nobody` in every distribution.
pub(crate) const NOBODY: u32 = 65_534;

/// The base of a Pod: everything that can be created before the Pod is known (cgroups, namespaces, veth).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PodBasePlan {
    pub(crate) ids: IdMode,
    /// The Pod's address: on its veth, or on its loopback interface if it has none.
    pub(crate) address: Ipv4Addr,
    pub(crate) veth: Option<VethPlan>,
    /// The Pod's cgroup, relative to the node's.
    pub(crate) group: String,
    /// The folders of that cgroup, without limits.
    pub(crate) cgroup: CgroupPlan,
    /// The supervisor's own cgroup in the unified hierarchy.
    #[serde(default)]
    pub(crate) supervisor_group: Option<PathBuf>,
    /// The Pod ends when the last connection to its supervisor closes, and removes its cgroups.
    pub(crate) ends_with_node: bool,
    #[serde(rename = "walls")]
    pub(crate) isolation: Isolation,
}

/// Everything a supervisor needs to create its Pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PodPlan {
    pub(crate) spec: PodSandboxSpec,
    /// The Pod's folder: socket, records, `etc` files.
    pub(crate) dir: PathBuf,
    #[serde(flatten)]
    pub(crate) base: PodBasePlan,
    /// The Pod's limits.
    pub(crate) limits: Vec<Setting>,
    /// An empty folder of the node over which every container mounts its root, in a mount namespace of its own.
    #[serde(default)]
    pub(crate) stage: PathBuf,
    /// Folder with all image layers and skeletons: mounted once per container, id-mapped into the Pod's ids.
    pub(crate) images_dir: PathBuf,
    pub(crate) weaknesses: Vec<Weakness>,
}

/// The fields of the base are used like the Pod's own.
impl std::ops::Deref for PodPlan {
    type Target = PodBasePlan;

    fn deref(&self) -> &PodBasePlan {
        &self.base
    }
}

/// The source of a Pod's user ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum IdMode {
    /// As root: ids 0 to 65,535 inside are mapped to `first` and up outside.
    Block { first: u32 },
    /// Without privilege, with `newuidmap`: a block of the caller's subordinate ids. Set-up happens in a user namespace
    /// in which the caller is root and the block is mapped from 1 on. The Pod's own user namespace is nested in that
    /// one and does not map the caller.
    Subordinate { first_uid: u32, first_gid: u32, count: u32 },
    /// Without privilege: only the caller's own id, under any number inside.
    Single { uid: u32, gid: u32 },
}

impl IdMode {
    /// First host uid and number of ids.
    pub(crate) fn host_range(self) -> (u32, u32) {
        match self {
            Self::Block { first } => (first, BLOCK_SIZE),
            Self::Subordinate { first_uid, count, .. } => (first_uid, count),
            Self::Single { uid, .. } => (uid, 1),
        }
    }

    /// The ids of the Pod's root as seen by the process that sets up mounts. Without privilege, that process has
    /// already left the host's user namespace.
    pub(crate) fn root_seen_by_setup(self) -> (u32, u32) {
        match self {
            Self::Block { first } => (first, first),
            Self::Subordinate { .. } => (1, 1),
            Self::Single { .. } => (0, 0),
        }
    }

    /// Whether the Pod has ids other than the caller's, in a user namespace of the whole Pod.
    pub(crate) fn has_block(self) -> bool {
        !matches!(self, Self::Single { .. })
    }

    /// An id of the Pod as seen by the process that sets it up; `None` if the Pod has no such id.
    pub(crate) fn seen_by_setup(self, id: u32) -> Option<u32> {
        match self {
            Self::Block { first } => (id < BLOCK_SIZE).then_some(first).and_then(|first| first.checked_add(id)),
            Self::Subordinate { count, .. } if count < BLOCK_SIZE && id == NOBODY => Some(count),
            Self::Subordinate { count, .. } if count < BLOCK_SIZE => (id + 1 < count).then_some(1 + id),
            Self::Subordinate { count, .. } => (id < count).then_some(1 + id),
            Self::Single { .. } => None,
        }
    }

    /// The id map of the Pod's user namespace. In a small block the last id is `nobody`, because programs rely on it.
    pub(crate) fn map(self) -> String {
        match self {
            Self::Block { first } => format!("0 {first} {BLOCK_SIZE}"),
            Self::Subordinate { count, .. } if count < BLOCK_SIZE => {
                format!("0 1 {}\n{NOBODY} {count} 1", count - 1)
            }
            Self::Subordinate { count, .. } => format!("0 1 {count}"),
            Self::Single { .. } => String::new(),
        }
    }

    /// Whether set-up happens as the host's root.
    pub(crate) fn is_privileged(self) -> bool {
        matches!(self, Self::Block { .. })
    }
}

/// A Pod's veth pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VethPlan {
    /// Name of the host's end; never reused, because the name of an interface that is still being removed is not
    /// available.
    pub(crate) host_name: String,
    pub(crate) gateway: Ipv4Addr,
}

/// A container with everything the node adds to its spec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ContainerPlan {
    pub(crate) spec: ContainerSpec,
    /// Unique id of this attempt.
    pub(crate) id: String,
    /// The writable layer: a folder with `upper` and `work`.
    pub(crate) layer: PathBuf,
    /// Layers of snapshots between it and the image, topmost first.
    #[serde(default)]
    pub(crate) sealed: Vec<LowerLayer>,
    /// Folders of the copies that the container mounts, by volume.
    #[serde(default)]
    pub(crate) copies: BTreeMap<String, PathBuf>,
    pub(crate) cgroup: CgroupPlan,
    #[serde(rename = "walls")]
    pub(crate) isolation: Isolation,
}

/// Switches for each layer of isolation, so that a test can disable exactly one and see its escape attempt succeed. No
/// Pod field reaches this; outside tests the node always passes [`Isolation::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    pub user_namespace: bool,
    pub network_namespace: bool,
    pub pid_namespace: bool,
    pub capabilities: bool,
    pub no_new_privileges: bool,
    pub seccomp: bool,
    pub landlock: bool,
    pub masks: bool,
    pub limits: bool,
    pub private_root: bool,
}

impl Isolation {
    /// All layers enabled.
    pub const ALL: Self = Self {
        user_namespace: true,
        network_namespace: true,
        pid_namespace: true,
        capabilities: true,
        no_new_privileges: true,
        seccomp: true,
        landlock: true,
        masks: true,
        limits: true,
        private_root: true,
    };
}

impl Default for Isolation {
    fn default() -> Self {
        Self::ALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_block_maps_the_first_ids_and_the_user_nobody() {
        let small = IdMode::Subordinate { first_uid: 100_000, first_gid: 200_000, count: 2_048 };
        assert_eq!(small.map(), "0 1 2047\n65534 2048 1");
        let seen = [0, 1_000, 2_046, 2_047, 65_533, NOBODY].map(|id| small.seen_by_setup(id));
        assert_eq!(seen, [Some(1), Some(1_001), Some(2_047), None, None, Some(2_048)]);
    }

    #[test]
    fn a_whole_block_has_every_id_of_sixteen_bits() {
        let whole = IdMode::Subordinate { first_uid: 100_000, first_gid: 200_000, count: BLOCK_SIZE };
        assert_eq!((whole.map().as_str(), whole.seen_by_setup(NOBODY)), ("0 1 65536", Some(65_535)));
        assert_eq!(whole.seen_by_setup(BLOCK_SIZE), None);
        let block = IdMode::Block { first: 1 << 30 };
        assert_eq!((block.seen_by_setup(5), block.seen_by_setup(BLOCK_SIZE)), (Some((1 << 30) + 5), None));
    }
}
