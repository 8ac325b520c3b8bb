//! Kinds of volumes, and the mounts of a container. Pure.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};
use thiserror::Error;

use crate::kubelet::container::env::Environment;
use crate::kubelet::container::expand::expand;
use crate::kubelet::eviction::VolumeStorage;
use crate::kubelet::resources::quantity::{self, QuantityError};
use crate::runtime::{Mount, MountSource};

/// The kind of a volume on this node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum VolumeKind {
    /// A folder that is removed with the Pod.
    Ephemeral { limit: Option<u64> },
    /// A tmpfs that is created with the Pod's sandbox.
    Memory { limit: Option<u64> },
    /// A PersistentVolumeClaim, by name.
    Claim { claim: String, read_only: bool },
    /// Files that the node writes, see [`files`](crate::kubelet::volumes::files).
    Files,
    /// A path of the host.
    Host { path: PathBuf, type_: String },
}

/// Why a volume cannot be used.
#[derive(Debug, Error, Eq, PartialEq)]
pub enum MountError {
    #[error(
        "volume {0:?} is of a kind this node does not support; use emptyDir, persistentVolumeClaim, configMap, secret, downwardAPI, projected or hostPath"
    )]
    UnsupportedVolume(String),
    #[error("container {container:?} mounts {volume:?}, which the Pod does not have")]
    NoVolume { container: String, volume: String },
    #[error("subPath {0:?} must be relative and must not contain '..'")]
    BadSubPath(String),
    #[error("subPath is not supported on hostPath volume {0:?}; give the full path in the volume")]
    SubPathOfHost(String),
    #[error("container {0:?} mounts the copied volume {1:?} twice; a copy has one place")]
    CopiedTwice(String, String),
    #[error("mountPath {0:?} must be absolute and must not contain '..'")]
    BadMountPath(String),
    #[error("volume {volume:?}")]
    Size {
        volume: String,
        #[source]
        source: QuantityError,
    },
}

/// The kind of a volume.
pub fn kind(volume: &Volume) -> Result<VolumeKind, MountError> {
    if let Some(source) = &volume.empty_dir {
        let limit = source.size_limit.as_ref().map(quantity::of).transpose();
        let limit = limit.map_err(|source| MountError::Size { volume: volume.name.clone(), source })?;
        let limit = limit.map(quantity::Milli::units_u64).filter(|l| *l > 0);
        return Ok(match source.medium.as_deref() {
            Some("Memory") => VolumeKind::Memory { limit },
            _ => VolumeKind::Ephemeral { limit },
        });
    }
    if let Some(source) = &volume.persistent_volume_claim {
        return Ok(VolumeKind::Claim { claim: source.claim_name.clone(), read_only: source.read_only == Some(true) });
    }
    if let Some(source) = &volume.host_path {
        return Ok(VolumeKind::Host {
            path: source.path.clone().into(),
            type_: source.type_.clone().unwrap_or_default(),
        });
    }
    let files = volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some();
    if files { Ok(VolumeKind::Files) } else { Err(MountError::UnsupportedVolume(volume.name.clone())) }
}

/// Names and size limits of the memory volumes.
pub fn memory_volumes(spec: &PodSpec) -> BTreeMap<String, Option<u64>> {
    let volumes = spec.volumes.iter().flatten();
    volumes
        .filter_map(|volume| match kind(volume) {
            Ok(VolumeKind::Memory { limit }) => Some((volume.name.clone(), limit)),
            _ => None,
        })
        .collect()
}

/// Whether a container mounts a path of the host so that it can be written.
pub fn writes_host_paths(spec: &PodSpec) -> bool {
    let volumes = spec.volumes.iter().flatten();
    volumes.filter(|volume| volume.host_path.is_some()).any(|volume| is_written(spec, &volume.name))
}

/// Whether a container mounts the volume so that it can be written.
pub fn is_written(spec: &PodSpec, volume: &str) -> bool {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut mounts = containers.flat_map(|container| container.volume_mounts.iter().flatten());
    mounts.any(|mount| mount.read_only != Some(true) && mount.name == volume)
}

/// A volume that is ready to be mounted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PreparedVolume {
    Folder {
        path: PathBuf,
        read_only: bool,
        storage: Option<VolumeStorage>,
    },
    Memory,
    Host {
        path: PathBuf,
    },
    /// A private, writable copy of a folder of the host.
    Copy {
        path: PathBuf,
        private: bool,
    },
}

/// The volumes that store data on disk, with their limits.
pub fn storage(prepared: &BTreeMap<String, PreparedVolume>) -> BTreeMap<String, VolumeStorage> {
    let with_data = prepared.iter().filter_map(|(name, volume)| match volume {
        PreparedVolume::Folder { storage: Some(storage), .. } => Some((name.clone(), storage.clone())),
        _ => None,
    });
    with_data.collect()
}

/// The mounts of one container, in the order of the spec.
pub fn mounts(
    container: &Container,
    prepared: &BTreeMap<String, PreparedVolume>,
    environment: &Environment,
) -> Result<Vec<Mount>, MountError> {
    container
        .volume_mounts
        .iter()
        .flatten()
        .map(|mount| {
            let volume = prepared.get(&mount.name).ok_or_else(|| MountError::NoVolume {
                container: container.name.clone(),
                volume: mount.name.clone(),
            })?;
            let expanded = mount.sub_path_expr.as_deref().map(|expr| expand(expr, |name| environment.get(name)));
            let sub_path = expanded.or_else(|| mount.sub_path.clone()).filter(|s| !s.is_empty());
            if let Some(sub) = &sub_path
                && !Path::new(sub).components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir))
            {
                return Err(MountError::BadSubPath(sub.clone()));
            }
            let target = Path::new(&mount.mount_path);
            if !target.is_absolute() || target.components().any(|c| c == Component::ParentDir) {
                return Err(MountError::BadMountPath(mount.mount_path.clone()));
            }
            let (source, volume_read_only) = match volume {
                PreparedVolume::Folder { path, read_only, .. } => {
                    (MountSource::Data { path: path.clone(), sub_path }, *read_only)
                }
                PreparedVolume::Memory => (MountSource::Memory { volume: mount.name.clone(), sub_path }, false),
                PreparedVolume::Host { .. } | PreparedVolume::Copy { .. } if sub_path.is_some() => {
                    return Err(MountError::SubPathOfHost(mount.name.clone()));
                }
                PreparedVolume::Host { path } => (MountSource::Host { path: path.clone() }, false),
                PreparedVolume::Copy { path, private } => {
                    let mounts = container.volume_mounts.iter().flatten();
                    if mounts.filter(|other| other.name == mount.name).count() > 1 {
                        return Err(MountError::CopiedTwice(container.name.clone(), mount.name.clone()));
                    }
                    let source =
                        MountSource::Copy { path: path.clone(), volume: mount.name.clone(), private: *private };
                    return Ok(Mount { source, target: mount.mount_path.clone(), read_only: false });
                }
            };
            let read_only = volume_read_only || mount.read_only == Some(true);
            Ok(Mount { source, target: mount.mount_path.clone(), read_only })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn one(volume: Value) -> Result<VolumeKind, MountError> {
        kind(&serde_json::from_value(volume).unwrap())
    }

    #[test]
    fn each_supported_volume_has_a_kind_and_the_others_are_named() {
        assert_eq!(
            one(json!({"name": "v", "emptyDir": {"sizeLimit": "1Mi"}})),
            Ok(VolumeKind::Ephemeral { limit: Some(1 << 20) })
        );
        assert_eq!(one(json!({"name": "v", "emptyDir": {"medium": "Memory"}})), Ok(VolumeKind::Memory { limit: None }));
        assert_eq!(one(json!({"name": "v", "secret": {"secretName": "s"}})), Ok(VolumeKind::Files));
        assert!(matches!(
            one(json!({"name": "v", "persistentVolumeClaim": {"claimName": "c", "readOnly": true}})),
            Ok(VolumeKind::Claim { read_only: true, .. })
        ));
        assert!(matches!(one(json!({"name": "v", "hostPath": {"path": "/x"}})), Ok(VolumeKind::Host { .. })));
        assert_eq!(
            one(json!({"name": "v", "nfs": {"server": "s", "path": "/"}})),
            Err(MountError::UnsupportedVolume("v".into()))
        );
        assert!(matches!(one(json!({"name": "v", "emptyDir": {"sizeLimit": "many"}})), Err(MountError::Size { .. })));
    }

    #[test]
    fn only_a_writable_mount_of_a_host_path_writes_to_the_host() {
        let writes = |mount: Value| {
            let volumes = json!([{"name": "h", "hostPath": {"path": "/srv"}}, {"name": "e", "emptyDir": {}}]);
            let spec = json!({"volumes": volumes, "containers": [{"name": "a", "volumeMounts": [mount]}]});
            writes_host_paths(&serde_json::from_value(spec).unwrap())
        };
        assert!(writes(json!({"name": "h", "mountPath": "/x"})));
        assert!(!writes(json!({"name": "h", "mountPath": "/x", "readOnly": true})));
        assert!(!writes(json!({"name": "e", "mountPath": "/x"})));
    }

    fn mounted(mount: Value) -> Result<Mount, MountError> {
        let container: Container = serde_json::from_value(json!({"name": "a", "volumeMounts": [mount]})).unwrap();
        let prepared = BTreeMap::from([
            ("d".to_owned(), PreparedVolume::Folder { path: "/data/d".into(), read_only: false, storage: None }),
            ("r".to_owned(), PreparedVolume::Folder { path: "/data/r".into(), read_only: true, storage: None }),
            ("m".to_owned(), PreparedVolume::Memory),
            ("h".to_owned(), PreparedVolume::Host { path: "/srv".into() }),
        ]);
        let environment = Environment { variables: vec![("WHO".into(), "me".into())], skipped: vec![] };
        mounts(&container, &prepared, &environment).map(|mut all| all.remove(0))
    }

    #[test]
    fn mounts_follow_volume_and_mount() {
        let data =
            |path: &str, sub: Option<&str>| MountSource::Data { path: path.into(), sub_path: sub.map(str::to_owned) };
        let got = mounted(json!({"name": "d", "mountPath": "/x", "subPathExpr": "u/$(WHO)"})).unwrap();
        assert_eq!(got, Mount { source: data("/data/d", Some("u/me")), target: "/x".into(), read_only: false });
        assert!(mounted(json!({"name": "d", "mountPath": "/x", "readOnly": true})).unwrap().read_only);
        assert!(mounted(json!({"name": "r", "mountPath": "/x"})).unwrap().read_only);
        let memory = mounted(json!({"name": "m", "mountPath": "/m"})).unwrap().source;
        assert_eq!(memory, MountSource::Memory { volume: "m".into(), sub_path: None });
        assert_eq!(
            mounted(json!({"name": "h", "mountPath": "/m"})).unwrap().source,
            MountSource::Host { path: "/srv".into() }
        );
    }

    #[test]
    fn paths_that_could_leave_the_volume_are_refused() {
        for mount in [
            json!({"name": "d", "mountPath": "/x", "subPath": "../y"}),
            json!({"name": "d", "mountPath": "/x", "subPath": "/y"}),
            json!({"name": "d", "mountPath": "/x", "subPath": "a/../../y"}),
            json!({"name": "d", "mountPath": "x"}),
            json!({"name": "d", "mountPath": "/x/../y"}),
            json!({"name": "h", "mountPath": "/x", "subPath": "y"}),
            json!({"name": "none", "mountPath": "/x"}),
        ] {
            assert!(mounted(mount.clone()).is_err(), "{mount}");
        }
    }
}
