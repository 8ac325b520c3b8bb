//! Finished decisions the node hands to a Pod's supervisor: nothing in here is looked up or chosen again.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cgroup::{CgroupPlan, Setting};
use crate::runtime::{ContainerSpec, PodSandboxSpec, Weakness};

/// How many user and group ids a Pod has: the sixteen-bit range that images use.
pub(crate) const BLOCK_SIZE: u32 = 65_536;

/// The user that has no rights, in every distribution.
pub(crate) const NOBODY: u32 = 65_534;

/// What a Pod stands on: everything that can be made before it is known which Pod it is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroundPlan {
    pub(crate) ids: IdMode,
    /// The Pod's address: on its cable, or on its loopback interface when it has none.
    pub(crate) address: Ipv4Addr,
    pub(crate) veth: Option<VethPlan>,
    /// The Pod's group, relative to the node's.
    pub(crate) group: String,
    /// Its folders, without any limit.
    pub(crate) cgroup: CgroupPlan,
    /// The supervisor's own folder in the unified tree.
    #[serde(default)]
    pub(crate) supervisor_group: Option<PathBuf>,
    /// The Pod ends when nobody is connected to its supervisor any more, and leaves nothing behind.
    pub(crate) ends_with_node: bool,
    pub(crate) walls: Walls,
}

/// Everything a supervisor needs to make its Pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PodPlan {
    pub(crate) spec: PodSandboxSpec,
    /// The Pod's folder: socket, records, `etc` files.
    pub(crate) dir: PathBuf,
    #[serde(flatten)]
    pub(crate) ground: GroundPlan,
    /// The Pod's limits.
    pub(crate) limits: Vec<Setting>,
    /// An empty folder of the node's that every container builds its tree over, in a mount namespace of its own.
    #[serde(default)]
    pub(crate) stage: PathBuf,
    /// Folder that holds all image layers and skeletons: mounted once per container, shifted into the Pod's ids.
    pub(crate) images_dir: PathBuf,
    pub(crate) weaknesses: Vec<Weakness>,
}

/// The Pod's ground is a part of it like any other.
impl std::ops::Deref for PodPlan {
    type Target = GroundPlan;

    fn deref(&self) -> &GroundPlan {
        &self.ground
    }
}

/// Where a Pod's user ids come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum IdMode {
    /// As root: ids 0 to 65,535 inside are `first` and up outside.
    Block { first: u32 },
    /// Without privilege, with `newuidmap`: a block of the caller's subordinate ids. Set-up happens in a user namespace in which
    /// the caller is root and the block follows from 1 on; the Pod's own lies within it, and the caller is nobody there.
    Subordinate { first_uid: u32, first_gid: u32, count: u32 },
    /// Without privilege: only the caller's own id, whatever it is called inside.
    Single { uid: u32, gid: u32 },
}

impl IdMode {
    /// First host uid and how many there are.
    pub(crate) fn host_range(self) -> (u32, u32) {
        match self {
            Self::Block { first } => (first, BLOCK_SIZE),
            Self::Subordinate { first_uid, count, .. } => (first_uid, count),
            Self::Single { uid, .. } => (uid, 1),
        }
    }

    /// The host uid of root inside the Pod, as the process that sets up mounts sees it: that process has left the host's
    /// user namespace already when it is not privileged.
    pub(crate) fn root_seen_by_setup(self) -> (u32, u32) {
        match self {
            Self::Block { first } => (first, first),
            Self::Subordinate { .. } => (1, 1),
            Self::Single { .. } => (0, 0),
        }
    }

    /// Whether the Pod's ids are other than the caller's, in a user namespace of the whole Pod.
    pub(crate) fn has_block(self) -> bool {
        !matches!(self, Self::Single { .. })
    }

    /// An id of the Pod as the process that sets it up names it; `None` when the Pod has no such id.
    pub(crate) fn seen_by_setup(self, id: u32) -> Option<u32> {
        match self {
            Self::Block { first } => (id < BLOCK_SIZE).then_some(first).and_then(|first| first.checked_add(id)),
            Self::Subordinate { count, .. } if count < BLOCK_SIZE && id == NOBODY => Some(count),
            Self::Subordinate { count, .. } if count < BLOCK_SIZE => (id + 1 < count).then_some(1 + id),
            Self::Subordinate { count, .. } => (id < count).then_some(1 + id),
            Self::Single { .. } => None,
        }
    }

    /// The map of the Pod's user namespace. In a small block the last id is
    /// `nobody`, because programs count on there being one.
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

/// A Pod's own cable to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VethPlan {
    /// Name of the host's end; unique for ever, because a name still in tear-down cannot be used again.
    pub(crate) host_name: String,
    pub(crate) gateway: Ipv4Addr,
}

/// One container, with everything the node adds to its spec.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ContainerPlan {
    pub(crate) spec: ContainerSpec,
    /// Unique id of this attempt.
    pub(crate) id: String,
    /// Folder with `upper` and `work`: the writable layer.
    pub(crate) layer: PathBuf,
    pub(crate) cgroup: CgroupPlan,
    pub(crate) walls: Walls,
}

/// Each layer of isolation, so that a test can take exactly one away and see its attempt succeed. No Pod field reaches
/// this; the node always passes [`Walls::ALL`] outside tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walls {
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

impl Walls {
    /// Every wall standing.
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

impl Default for Walls {
    fn default() -> Self {
        Self::ALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_block_has_the_first_ids_and_nobody() {
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
