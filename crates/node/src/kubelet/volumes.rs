//! Prepares the volumes of a Pod: folders from the runtime, files written here, claims resolved to the folders of their
//! volumes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, PodSpec, Volume};
use kube::api::Api;
use thiserror::Error;

use crate::kubelet::context::NodeContext;
use crate::kubelet::downward_api::Addresses;
use crate::kubelet::eviction::VolumeStorage;
use crate::kubelet::references::Sources;
use crate::kubelet::resources::quantity;
use crate::runtime::{RuntimeError, VolumeKey, VolumeRequest};

pub mod copied;
pub mod files;
pub mod grants;
pub mod host_path;
pub mod mounts;
pub mod refresh;

use files::{FilesContext, FilesError};
use grants::FolderAccess;
use mounts::{MountError, PreparedVolume, VolumeKind};

/// Why a Pod's volumes cannot be prepared (event `FailedMount`).
#[derive(Debug, Error)]
pub enum VolumeError {
    #[error("volume {0:?}: persistentvolumeclaim {1:?} not found")]
    NoClaim(String, String),
    #[error("volume {0:?}: persistentvolumeclaim {1:?} is not bound yet")]
    Unbound(String, String),
    #[error(
        "volume {0:?}: persistentvolume {1:?} was not provisioned by this node; use a claim of this node's storage class"
    )]
    Foreign(String, String),
    #[error("volume {0:?}: persistentvolume {1:?} belongs to another claim")]
    Claimed(String, String),
    #[error("volume {0:?}: hostPath {1} {2}")]
    HostPath(String, String, &'static str),
    #[error("volume {volume:?}")]
    Files {
        volume: String,
        #[source]
        source: FilesError,
    },
    #[error("volume {volume:?}")]
    Runtime {
        volume: String,
        #[source]
        source: RuntimeError,
    },
    #[error("volume {volume:?}: cannot read its persistentvolume")]
    Read {
        volume: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("volume {0:?}: the task that writes its files ended early")]
    Task(String),
}

/// Prepares every volume of the spec. Idempotent: called again after a failure or a restart of the node.
pub async fn prepare(
    node: &NodeContext,
    pod: &Pod,
    spec: &PodSpec,
    sources: &Sources,
    pod_ips: Vec<String>,
) -> Result<BTreeMap<String, PreparedVolume>, VolumeError> {
    let addresses = Addresses { pod_ips, host_ips: node.host_ips.clone() };
    let group = spec.security_context.as_ref().and_then(|s| s.fs_group).and_then(|g| u32::try_from(g).ok());
    let copied = copied::copied(pod);
    let mut out = BTreeMap::new();
    for volume in spec.volumes.iter().flatten() {
        let prepared = match mounts::kind(volume)? {
            VolumeKind::Memory { .. } => PreparedVolume::Memory,
            VolumeKind::Ephemeral { limit } => {
                let uid = pod.metadata.uid.clone().unwrap_or_default();
                let key = VolumeKey::PodEphemeral { pod: uid, name: volume.name.clone() };
                ensure(node, &volume.name, VolumeRequest { key, limit_bytes: limit, group }, false).await?
            }
            VolumeKind::Claim { claim, read_only } => {
                let request = claim_request(node, &volume.name, &claim, sources, group).await?;
                ensure(node, &volume.name, request, read_only).await?
            }
            VolumeKind::Files => PreparedVolume::Folder {
                path: write_files(node, pod, spec, volume, sources, &addresses, group).await?,
                read_only: true,
                storage: None,
            },
            VolumeKind::Host { path, type_ } => {
                let copied = copied.get(&volume.name).copied();
                let wanted = wanted_access(pod, spec, &volume.name);
                let granted = node.settings.allowed.folders.permits(pod, &path, wanted);
                prepare_host_path(node, &volume.name, path, &type_, HostAccess { copied, granted }).await?
            }
        };
        out.insert(volume.name.clone(), prepared);
    }
    Ok(out)
}

async fn ensure(
    node: &NodeContext,
    volume: &str,
    request: VolumeRequest,
    read_only: bool,
) -> Result<PreparedVolume, VolumeError> {
    let (key, limit) = (request.key.clone(), request.limit_bytes);
    let made = node.runtime.ensure_volume(request).await;
    let made = made.map_err(|source| VolumeError::Runtime { volume: volume.to_owned(), source })?;
    let storage = Some(VolumeStorage { key, limit, mechanism: made.mechanism });
    Ok(PreparedVolume::Folder { path: made.path, read_only, storage })
}

/// The runtime's volume request for a bound claim whose volume was provisioned by this node.
async fn claim_request(
    node: &NodeContext,
    volume: &str,
    claim: &str,
    sources: &Sources,
    group: Option<u32>,
) -> Result<VolumeRequest, VolumeError> {
    let missing = || VolumeError::NoClaim(volume.to_owned(), claim.to_owned());
    let found: &PersistentVolumeClaim = sources.claims.get(claim).ok_or_else(missing)?;
    let bound = found.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let name = found.spec.as_ref().and_then(|s| s.volume_name.clone()).filter(|n| bound && !n.is_empty());
    let name = name.ok_or_else(|| VolumeError::Unbound(volume.to_owned(), claim.to_owned()))?;
    let volumes: Api<PersistentVolume> = Api::all(node.client.clone());
    let read = volumes.get(&name).await;
    let persistent =
        read.map_err(|source| VolumeError::Read { volume: volume.to_owned(), source: Box::new(source) })?;
    if !crate::kubelet::volume_binding::is_provisioned_by(&persistent, &node.settings.node_name) {
        return Err(VolumeError::Foreign(volume.to_owned(), name));
    }
    if !crate::kubelet::volume_binding::belongs_to(&persistent, found) {
        return Err(VolumeError::Claimed(volume.to_owned(), name));
    }
    let capacity = persistent.spec.as_ref().and_then(|s| s.capacity.as_ref()).and_then(|c| c.get("storage"));
    let limit_bytes = capacity.and_then(|q| quantity::of(q).ok()).map(quantity::Milli::units_u64).filter(|l| *l > 0);
    Ok(VolumeRequest { key: VolumeKey::Persistent { name }, limit_bytes, group })
}

async fn write_files(
    node: &NodeContext,
    pod: &Pod,
    spec: &PodSpec,
    volume: &Volume,
    sources: &Sources,
    addresses: &Addresses,
    group: Option<u32>,
) -> Result<PathBuf, VolumeError> {
    let failed = |source| VolumeError::Files { volume: volume.name.clone(), source };
    let context = FilesContext { pod, spec, sources, addresses, node: &node.allocatable };
    let content = files::files_of(volume, context).map_err(failed)?.unwrap_or_default();
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let root = node.runtime.pod_dir(uid).join("files").join(&volume.name);
    let folder = root.clone();
    let generation = format!("{}", jiff::Timestamp::now().as_microsecond());
    let written = tokio::task::spawn_blocking(move || files::write(&folder, &content, &generation, group)).await;
    written.map_err(|_| VolumeError::Task(volume.name.clone()))?.map_err(failed)?;
    Ok(root)
}

/// What a Pod wants to do with a `hostPath` volume.
pub(crate) fn wanted_access(pod: &Pod, spec: &PodSpec, volume: &str) -> FolderAccess {
    match copied::copied(pod).contains_key(volume) {
        true => FolderAccess::Copy,
        false if mounts::is_written(spec, volume) => FolderAccess::Write,
        false => FolderAccess::Read,
    }
}

/// How a Pod has a host path.
struct HostAccess {
    /// Set for a folder of which the Pod gets a copy: whether its changes are private.
    copied: Option<bool>,
    /// The operator gave it to this Pod.
    granted: bool,
}

/// Opens a host path and checks it against its declared type. Admission has already checked that it is allowed.
async fn prepare_host_path(
    node: &NodeContext,
    volume: &str,
    path: PathBuf,
    type_: &str,
    HostAccess { copied, granted }: HostAccess,
) -> Result<PreparedVolume, VolumeError> {
    let fail = |what| VolumeError::HostPath(volume.to_owned(), path.display().to_string(), what);
    let mut roots = node.settings.allowed.host_paths.clone();
    let create = type_ == "DirectoryOrCreate" && copied.is_none() && !granted;
    // Below the root of the file system no link is followed: one that a sandbox put into another folder that was given
    // to it would lead out of that.
    roots.extend(granted.then(|| PathBuf::from("/")));
    let asked = path.clone();
    let found = tokio::task::spawn_blocking(move || host_path::resolve(&roots, &asked, create)).await;
    let found = match found.map_err(|_| VolumeError::Task(volume.to_owned()))? {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(fail("does not exist")),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(fail("leads through a symbolic link, which is not followed"));
        }
        Err(_) => return Err(fail("cannot be opened")),
    };
    match type_ {
        "Directory" | "DirectoryOrCreate" if !found.kind.is_dir() => Err(fail("is not a directory")),
        "File" | "FileOrCreate" if !found.kind.is_file() => Err(fail("is not a file")),
        "Socket" | "CharDevice" | "BlockDevice" => Err(fail("is of a type this node does not mount")),
        _ => match copied {
            None => Ok(PreparedVolume::Host { path: found.path }),
            Some(_) if !found.kind.is_dir() => Err(fail("is not a folder, and only folders can be copied")),
            Some(private) => Ok(PreparedVolume::Copy { path: found.path, private }),
        },
    }
}
