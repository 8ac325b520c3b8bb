//! Writable layers: one per owner and container, kept when the Pod goes, given to the owner's next Pod. That is what
//! suspend and resume are made of.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use super::storage::Storage;
use super::supervisor::records;
use super::tree;

/// The file that says which image a layer lies over, and that it is complete.
pub(crate) const MARK: &str = "digest";

/// Which layer is wanted.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) owner: &'a str,
    pub(crate) container: &'a str,
    /// Of the image it lies over.
    pub(crate) digest: &'a str,
    /// Most bytes it may hold.
    pub(crate) limit: Option<u64>,
    /// The host's name of root inside, when files can be given to it.
    pub(crate) root: Option<u32>,
}

/// Finds (or makes) the layer of a container: a folder with `upper` and `work`. A layer made over another image is of no
/// use, and is thrown away.
pub(crate) fn ensure(base: &Path, wanted: Wanted<'_>, storage: &Storage) -> io::Result<PathBuf> {
    let Wanted { digest, root, .. } = wanted;
    let folder = base.join(one_name(wanted.owner)?).join(one_name(wanted.container)?);
    let mark = folder.join(MARK);
    if folder.exists() {
        // One with a limit may have to be mounted before it can be looked at.
        storage.ensure(&folder, None)?;
    }
    match fs::read_to_string(&mark) {
        Ok(found) if found == digest => {
            // Left by a mount that was told not to write out; the layer is as whole as the machine's uptime.
            match tree::remove(&folder.join("work/work/incompat")) {
                // Overlay closes its own folder to everybody but root, and makes it anew when it is missing.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    storage.clear(&folder.join("work/work"))?
                }
                done => done?,
            }
            return Ok(folder);
        }
        Ok(_) => storage.remove(&folder)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Made by a node that died before it wrote the mark.
            storage.remove(&folder)?;
        }
        Err(error) => return Err(error),
    }
    storage.ensure(&folder, wanted.limit)?;
    for name in ["upper", "work"] {
        let path = folder.join(name);
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        if let Some(id) = root {
            lchown(&path, Some(id), Some(id))?;
        }
    }
    // Last: only a complete layer has it. The caller writes it through to the disk.
    records::replace_text(&mark, digest)?;
    Ok(folder)
}

/// A name of one owner's layer of one container.
pub(crate) fn key(owner: &str, container: &str) -> String {
    format!("{owner}/{container}")
}

/// Refuses what would lead out of the folder it is joined to.
pub(crate) fn one_name(name: &str) -> io::Result<&str> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(std::path::Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not the name of a folder"))),
    }
}

/// The images that layers lie over, by digest: those of running sandboxes and of suspended ones.
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
    use crate::kernel::hands::Hands;

    #[test]
    fn names_from_outside_never_lead_out_of_the_folder() {
        for wrong in ["", "/", "/etc", "..", ".", "a/b", "a/..", "../a", "a/"] {
            assert!(one_name(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(one_name("6ec4ce84-0929").unwrap(), "6ec4ce84-0929");
        let folder = tempfile::tempdir().unwrap();
        assert!(layer(folder.path(), "/", "etc", "d").is_err());
        assert!(layer(folder.path(), "o", "../../etc", "d").is_err());
    }

    fn layer(folder: &Path, owner: &str, container: &str, digest: &str) -> io::Result<PathBuf> {
        let wanted = Wanted { owner, container, digest, limit: None, root: None };
        ensure(folder, wanted, &Storage::new(folder, false, Hands::Own))
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
    fn a_layer_without_its_mark_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("owner/c/upper/half")).unwrap();
        let layer = layer(folder.path(), "owner", "c", "sha256:1").unwrap();
        assert!(!layer.join("upper/half").exists());
    }
}
