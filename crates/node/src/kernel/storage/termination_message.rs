//! The file in which a container may leave a termination message. A container can fill, truncate or extend the file at
//! will, so it lies where its storage limit applies and is read only in part.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

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

/// The end of the file, as kubelets report it.
pub(crate) fn read(layer: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    let mut file: File = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path(layer))?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(max_bytes as u64)))?;
    let mut bytes = Vec::with_capacity(max_bytes);
    file.take(max_bytes as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

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
