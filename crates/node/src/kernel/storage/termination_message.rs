//! The file in which a container may leave a termination message. A container can fill, truncate or extend the file at
//! will, so it is read only in part. It is on a small file system in memory that ends with the container; only that of
//! an OCI runtime's container is on disk, where the container's storage limit applies.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Kubernetes' limit of a message.
pub(crate) const MAX_BYTES: usize = 4096;

/// Where the file lies in the folder of a container's writable layer, beside `upper` and `work`.
fn path(layer: &Path) -> PathBuf {
    layer.join("message")
}

/// Makes the file, or empties the one that an earlier attempt of the container left.
pub(crate) fn create(layer: &Path) -> io::Result<PathBuf> {
    let path = path(layer);
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW).open(&path)?;
    // Every user that the container may run as writes it.
    file.set_permissions(Permissions::from_mode(0o666))?;
    Ok(path)
}

/// Removes the file that an earlier version of the node left.
pub(crate) fn remove(layer: &Path) -> io::Result<()> {
    match fs::remove_file(path(layer)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The end of the file in a layer's folder.
pub(crate) fn read(layer: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path(layer))?;
    end_of(&file, max_bytes)
}

/// The end of a message's file, as kubelets report it.
pub(crate) fn end_of(mut file: &File, max_bytes: usize) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(max_bytes as u64)))?;
    let mut bytes = Vec::with_capacity(max_bytes);
    file.take(max_bytes as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_huge_file_is_read() {
        let layer = tempfile::tempdir().unwrap();
        create(layer.path()).unwrap();
        assert_eq!(read(layer.path(), 4096).unwrap(), b"");
        let file = OpenOptions::new().write(true).open(path(layer.path())).unwrap();
        file.set_len(3 << 30).unwrap();
        let bytes = read(layer.path(), 4096).unwrap();
        assert_eq!((bytes.len(), bytes.capacity()), (4096, 4096));
        fs::write(path(layer.path()), "first, last").unwrap();
        assert_eq!(read(layer.path(), 4).unwrap(), b"last");
    }

    #[test]
    fn an_attempt_starts_with_an_empty_file() {
        let layer = tempfile::tempdir().unwrap();
        create(layer.path()).unwrap();
        fs::write(path(layer.path()), "old").unwrap();
        create(layer.path()).unwrap();
        assert_eq!(read(layer.path(), 4096).unwrap(), b"");
        assert_eq!(fs::metadata(path(layer.path())).unwrap().permissions().mode() & 0o777, 0o666);
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let layer = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", path(layer.path())).unwrap();
        assert!(read(layer.path(), 4096).is_err());
    }
}
