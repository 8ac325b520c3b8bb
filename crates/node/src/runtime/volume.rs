//! Folders that hold data, and what keeps them from growing.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Which volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VolumeKey {
    /// Lives and dies with the Pod.
    PodEphemeral { pod: String, name: String },
    /// A PersistentVolume of ours, by its name.
    Persistent { name: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRequest {
    pub key: VolumeKey,
    /// `None`: the node's default bound, measured.
    pub limit_bytes: Option<u64>,
    /// Group that owns the volume's root (`fsGroup`), as seen in the Pod.
    pub group: Option<u32>,
}

/// A volume that exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// The folder to give as [`super::MountSource::Data`].
    pub path: PathBuf,
    pub mechanism: StorageMechanism,
}

/// What holds the limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StorageMechanism {
    /// A project quota of the file system.
    ProjectQuota,
    /// A file of that size, mounted through a loop device.
    LoopFile,
    /// Nothing: measured, and the Pod is evicted past the limit.
    #[default]
    Measured,
}

/// What a Pod uses on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorageUsage {
    /// Writable layer by container name.
    pub layers: Vec<(String, u64)>,
    /// Ephemeral volumes by name.
    pub volumes: Vec<(String, u64)>,
    /// What holds the limits of the writable layers.
    pub layer_mechanism: StorageMechanism,
}
