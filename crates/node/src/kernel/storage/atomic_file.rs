//! Files that are replaced by rename, so that a reader sees the whole new content or the whole old one.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Replaces a JSON file atomically.
pub(crate) fn replace<T: Serialize>(path: &Path, record: &T) -> io::Result<()> {
    let (temporary, _) = write_beside(path, record)?;
    fs::rename(temporary, path)
}

/// Replaces a text file atomically. The temporary file's name begins with a dot.
pub(crate) fn replace_text(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}"));
    fs::write(&temporary, text)?;
    fs::rename(temporary, path)
}

/// Syncs a file and its directory entry to disk.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    fs::File::open(path)?.sync_all()?;
    match path.parent() {
        Some(folder) => fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// As [`replace`], and synced to disk: for files that must survive a loss of power.
pub(crate) fn replace_durably<T: Serialize>(path: &Path, record: &T) -> io::Result<()> {
    let (temporary, file) = write_beside(path, record)?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    sync(path)
}

fn write_beside<T: Serialize>(path: &Path, record: &T) -> io::Result<(PathBuf, fs::File)> {
    let temporary = path.with_extension("tmp");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(&serde_json::to_vec(record).map_err(io::Error::other)?)?;
    Ok((temporary, file))
}

pub(crate) fn read<T: serde::de::DeserializeOwned>(path: &Path) -> io::Result<T> {
    serde_json::from_slice(&fs::read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
