//! The sandboxd that is embedded in this program: written once into the data folder, from where sandboxes mount it.

use crate::EngineError;
use std::{
    fs,
    io::Write as _,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// Hash of the embedded file, computed by the build script.
const HASH: &str = env!("AGENT_SANDBOX_SANDBOXD_HASH");

/// Empty in a build without a static sandboxd.
static EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandboxd"));

/// Returns the path of a `sandboxd` that sandboxes can run: the embedded one, else the one beside this program.
///
/// `durable` syncs the file, so that it survives a loss of power.
pub(crate) fn extract(folder: &Path, durable: bool) -> Result<PathBuf, EngineError> {
    if EMBEDDED.is_empty() {
        let beside = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.join("sandboxd")));
        return beside.filter(|path| path.is_file()).ok_or(EngineError::NoSandboxd);
    }
    let (path, hash_path) = (folder.join("sandboxd"), folder.join("sandboxd.word"));
    // Size and hash are compared instead of the content: reading the embedded file would keep its pages in memory for
    // good.
    let complete = fs::metadata(&path).is_ok_and(|metadata| metadata.len() == EMBEDDED.len() as u64);
    let current = complete && fs::read_to_string(&hash_path).is_ok_and(|hash| hash == HASH);
    if !current {
        write(&path, durable).map_err(|source| EngineError::WriteFile { path: path.clone(), source })?;
        fs::write(&hash_path, HASH).map_err(|source| EngineError::WriteFile { path: hash_path, source })?;
    }
    Ok(path)
}

/// Replaces the file by rename: sandboxes that run the old file keep it.
fn write(path: &Path, durable: bool) -> std::io::Result<()> {
    let partial = path.with_extension("partial");
    let _ = fs::remove_file(&partial);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(&partial)?;
    file.write_all(EMBEDDED)?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    if durable {
        file.sync_all()?;
    }
    drop(file);
    fs::rename(&partial, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_file_is_written_once_and_again_when_it_differs() {
        if EMBEDDED.is_empty() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = extract(folder.path(), false).unwrap();
        let written = || fs::metadata(&path).unwrap().modified().unwrap();
        let first = written();
        assert_eq!(fs::read(&path).unwrap(), EMBEDDED);
        extract(folder.path(), false).unwrap();
        assert_eq!(written(), first, "it was there");
        fs::write(folder.path().join("sandboxd.word"), "another").unwrap();
        fs::write(&path, vec![0; EMBEDDED.len()]).unwrap();
        extract(folder.path(), false).unwrap();
        assert_eq!(fs::read(&path).unwrap(), EMBEDDED, "another version wrote it");
    }
}
