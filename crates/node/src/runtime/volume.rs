//! Volumes: folders with data, and how their size is limited.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Identifies a volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VolumeKey {
    /// Removed with the Pod.
    PodEphemeral { pod: String, name: String },
    /// A PersistentVolume of this node, by its name.
    Persistent { name: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRequest {
    pub key: VolumeKey,
    /// `None`: the node's default limit, measured.
    pub limit_bytes: Option<u64>,
    /// Group that owns the volume's root (`fsGroup`), as seen in the Pod.
    pub group: Option<u32>,
}

/// An existing volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// The folder to use as [`super::MountSource::Data`].
    pub path: PathBuf,
    pub mechanism: StorageMechanism,
}

/// The mechanism that enforces the limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StorageMechanism {
    /// A project quota of the file system.
    ProjectQuota,
    /// A loop file of that size, mounted through a loop device.
    LoopFile,
    /// Not enforced: measured, and the Pod is evicted when it exceeds the limit.
    #[default]
    Measured,
}

/// Disk usage of a Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorageUsage {
    /// Writable layer by container name.
    pub layers: Vec<(String, u64)>,
    /// Ephemeral volumes by name.
    pub volumes: Vec<(String, u64)>,
    /// The mechanism that limits the writable layers.
    pub layer_mechanism: StorageMechanism,
    /// Inodes of the layers and volumes whose number of inodes the file system does not limit.
    pub inodes: u64,
}

/// Disk usage of one volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeUsage {
    pub bytes: u64,
    /// 0 if the file system limits them.
    pub inodes: u64,
}
