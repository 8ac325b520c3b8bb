//! Writable layers: one per owner and container. A layer is kept when its Pod is removed, and used by the owner's next
//! Pod: this implements suspend and resume.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use super::atomic_file;
use crate::kernel::storage::Storage;
use crate::kernel::storage::sealed::{Below, SealedLayers};
use crate::kernel::storage::tree;

/// File with the digest of the image that a layer belongs to. Written last, so its presence also means that the layer
/// is complete.
pub(crate) const MARK: &str = "digest";

/// Describes the layer that is needed.
#[derive(Clone, Copy)]
pub(crate) struct LayerRequest<'a> {
    pub(crate) owner: &'a str,
    pub(crate) container: &'a str,
    /// Digest of the image below the layer.
    pub(crate) digest: &'a str,
    /// Size limit in bytes.
    pub(crate) limit: Option<u64>,
    /// Host uid of root inside the Pod, when files can be given to it.
    pub(crate) root: Option<u32>,
    /// The snapshot that the layer's files come from; `None` leaves an existing layer as it is.
    pub(crate) origin: Option<&'a str>,
}

/// A writable layer, ready to be mounted.
#[derive(Debug)]
pub(crate) struct WritableLayer {
    pub(crate) folder: PathBuf,
    /// What lies between it and the image.
    pub(crate) below: Below,
}

/// Finds or creates the layer of a container: a folder with `upper` and `work`. A layer of another image or snapshot
/// cannot be used, and is removed. `lowers` finds the sealed layers of the wanted snapshot.
pub(crate) fn ensure(
    base: &Path,
    wanted: LayerRequest<'_>,
    storage: &Storage,
    sealed: &SealedLayers,
    lowers: impl FnOnce() -> io::Result<Vec<String>>,
) -> io::Result<WritableLayer> {
    let LayerRequest { digest, root, .. } = wanted;
    let folder = base.join(single_component(wanted.owner)?).join(single_component(wanted.container)?);
    let mark = folder.join(MARK);
    if folder.exists() {
        // A layer with a limit may have to be mounted before it can be read.
        storage.ensure(&folder, None)?;
    }
    sealed.complete(&folder, storage)?;
    let below = Below::read(&folder)?;
    let of_origin = wanted.origin.is_none_or(|origin| below.origin.as_deref() == Some(origin));
    match fs::read_to_string(&mark) {
        Ok(found) if found == digest && of_origin => {
            // Left by a `volatile` overlay mount. The layer is intact as long as the machine has not crashed.
            match tree::remove(&folder.join("work/work/incompat")) {
                // Only root may enter overlay's own work folder; overlay creates it again when it is missing.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    storage.clear(&folder.join("work/work"))?
                }
                done => done?,
            }
            return Ok(WritableLayer { folder, below });
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Created by a node that died before it wrote the mark.
        }
        Err(error) => return Err(error),
    }
    // Before anything is removed: a snapshot that does not fit is an error, and the sandbox keeps its files.
    let below = match wanted.origin {
        Some(origin) => Below { origin: Some(origin.to_owned()), layers: lowers()? },
        None => Below::default(),
    };
    storage.remove(&folder)?;
    storage.ensure(&folder, wanted.limit)?;
    for name in ["upper", "work"] {
        let path = folder.join(name);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        if let Some(id) = root {
            lchown(&path, Some(id), Some(id))?;
        }
    }
    if below != Below::default() {
        below.write(&folder)?;
    }
    // Last, because only a complete layer has it. The caller syncs it to disk.
    atomic_file::replace_text(&mark, digest)?;
    Ok(WritableLayer { folder, below })
}

/// The key of one owner's layer of one container.
pub(crate) fn key(owner: &str, container: &str) -> String {
    format!("{owner}/{container}")
}

/// Rejects a name that is not a single path component, and could therefore lead out of the folder it is joined to.
pub(crate) fn single_component(name: &str) -> io::Result<&str> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(std::path::Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not the name of a folder"))),
    }
}

/// Digests of the images that layers belong to: those of running and of suspended sandboxes.
pub(crate) fn digests(base: &Path) -> std::collections::BTreeSet<String> {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    folders(base)
        .flat_map(|owner| folders(&owner).collect::<Vec<_>>())
        .filter_map(|layer| fs::read_to_string(layer.join(MARK)).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::storage::owned_files::FileAccess;

    #[test]
    fn names_never_lead_out_of_the_folder() {
        for wrong in ["", "/", "/etc", "..", ".", "a/b", "a/..", "../a", "a/"] {
            assert!(single_component(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(single_component("6ec4ce84-0929").unwrap(), "6ec4ce84-0929");
        let folder = tempfile::tempdir().unwrap();
        assert!(layer(folder.path(), "/", "etc", "d").is_err());
        assert!(layer(folder.path(), "o", "../../etc", "d").is_err());
    }

    fn layer(folder: &Path, owner: &str, container: &str, digest: &str) -> io::Result<PathBuf> {
        let wanted = LayerRequest { owner, container, digest, limit: None, root: None, origin: None };
        from_snapshot(folder, wanted, &[]).map(|layer| layer.folder)
    }

    fn from_snapshot(folder: &Path, wanted: LayerRequest<'_>, lowers: &[&str]) -> io::Result<WritableLayer> {
        let storage = Storage::new(folder, false, FileAccess::Direct);
        let lowers = || Ok(lowers.iter().map(|id| (*id).to_owned()).collect());
        ensure(folder, wanted, &storage, &SealedLayers::new(folder), lowers)
    }

    #[test]
    fn a_layer_is_made_anew_for_another_snapshot_and_kept_for_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let of = |origin: Option<&str>, lowers: &[&str]| {
            let wanted =
                LayerRequest { owner: "o", container: "c", digest: "sha256:1", limit: None, root: None, origin };
            from_snapshot(folder.path(), wanted, lowers)
        };
        let first = of(Some("one@1"), &["a"]).unwrap();
        assert_eq!(first.below.layers, ["a"]);
        fs::write(first.folder.join("upper/kept"), "").unwrap();
        assert!(of(Some("one@1"), &["ignored"]).unwrap().folder.join("upper/kept").exists());
        assert_eq!(of(None, &[]).unwrap().below.layers, ["a"], "a Pod that names no snapshot keeps what is there");
        let again = of(Some("one@2"), &["b"]).unwrap();
        assert!(!again.folder.join("upper/kept").exists());
        assert_eq!(again.below.layers, ["b"]);
    }

    #[test]
    fn a_snapshot_that_cannot_be_used_leaves_the_files_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let kept = layer(folder.path(), "o", "c", "sha256:1").unwrap().join("upper/kept");
        fs::write(&kept, "").unwrap();
        let wanted = LayerRequest {
            owner: "o",
            container: "c",
            digest: "sha256:1",
            limit: None,
            root: None,
            origin: Some("gone@1"),
        };
        let storage = Storage::new(folder.path(), false, FileAccess::Direct);
        let refused = ensure(folder.path(), wanted, &storage, &SealedLayers::new(folder.path()), || {
            Err(io::Error::other("no such snapshot"))
        });
        assert!(refused.is_err() && kept.exists());
    }

    #[test]
    fn a_layer_is_kept_for_the_same_image_and_dropped_for_another() {
        let folder = tempfile::tempdir().unwrap();
        let of = |digest| layer(folder.path(), "owner", "c", digest).unwrap();
        fs::write(of("sha256:1").join("upper/kept"), "bytes").unwrap();
        assert_eq!(fs::read_to_string(of("sha256:1").join("upper/kept")).unwrap(), "bytes");
        assert!(!of("sha256:2").join("upper/kept").exists());
    }

    #[test]
    fn a_layer_without_its_mark_is_created_again() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("owner/c/upper/half")).unwrap();
        let layer = layer(folder.path(), "owner", "c", "sha256:1").unwrap();
        assert!(!layer.join("upper/half").exists());
    }
}
