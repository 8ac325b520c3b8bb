//! Finished decisions the node hands to a Pod's supervisor: nothing in here is looked up or chosen again.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cgroup::{CgroupPlan, Setting};
use crate::runtime::{ContainerSpec, PodSandboxSpec, Weakness};

/// How many user and group ids a Pod has: the sixteen-bit range that images use.
pub(crate) const BLOCK_SIZE: u32 = 65_536;

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
    /// Without privilege, with `newuidmap`: the same, from the caller's subordinate ids.
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
            Self::Subordinate { .. } | Self::Single { .. } => (0, 0),
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
