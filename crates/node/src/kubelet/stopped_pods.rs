//! A file with the uids of Pods that were stopped on purpose, so that the next node process starts them again instead
//! of reporting a crash.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("stopped.json")
}

/// Writes the file, atomically by rename.
pub(super) fn write(data_dir: &Path, uids: &[String]) -> io::Result<()> {
    let fresh = data_dir.join("stopped.json.new");
    std::fs::write(&fresh, serde_json::to_vec(uids)?)?;
    std::fs::rename(fresh, path(data_dir))
}

/// Reads and removes the file.
pub(super) fn take(data_dir: &Path) -> BTreeSet<String> {
    let text = std::fs::read(path(data_dir)).unwrap_or_default();
    clear(data_dir);
    serde_json::from_slice(&text).unwrap_or_default()
}

pub(super) fn clear(data_dir: &Path) {
    let _ = std::fs::remove_file(path(data_dir));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        assert!(take(dir.path()).is_empty());
        write(dir.path(), &["a".into(), "b".into()]).unwrap();
        assert_eq!(take(dir.path()).into_iter().collect::<Vec<_>>(), ["a", "b"]);
        assert!(take(dir.path()).is_empty());
    }
}
