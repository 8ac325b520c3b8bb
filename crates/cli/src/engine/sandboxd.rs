//! The daemon that this binary carries: written once into the data folder, from where it is shown in sandboxes.

use anyhow::{Context as _, Result, bail};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

/// A word made from what is carried.
const WORD: &str = env!("AGENT_SANDBOX_SANDBOXD_WORD");

static CARRIED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandboxd"));

/// The path of a `sandboxd` that sandboxes can run: the carried one, else the one beside this program.
///
/// A folder that lasts wants a file that survives a loss of power.
pub(crate) fn provide(folder: &Path, lasting: bool) -> Result<PathBuf> {
    if CARRIED.is_empty() {
        let beside = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.join("sandboxd")));
        return match beside.filter(|path| path.is_file()) {
            Some(path) => Ok(path),
            None => bail!("this build carries no sandboxd and there is none beside it; build with `make build`"),
        };
    }
    let (path, note) = (folder.join("sandboxd"), folder.join("sandboxd.word"));
    // Reading both to compare them would keep their size in memory for good.
    let whole = fs::metadata(&path).is_ok_and(|metadata| metadata.len() == CARRIED.len() as u64);
    let current = whole && fs::read_to_string(&note).is_ok_and(|word| word == WORD);
    if !current {
        write(&path, lasting).with_context(|| format!("cannot write {}", path.display()))?;
        fs::write(&note, WORD).with_context(|| format!("cannot write {}", note.display()))?;
    }
    Ok(path)
}

/// By rename: sandboxes that run the old file keep it.
fn write(path: &Path, lasting: bool) -> std::io::Result<()> {
    let partial = path.with_extension("partial");
    let _ = fs::remove_file(&partial);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(&partial)?;
    file.write_all(CARRIED)?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    if lasting {
        file.sync_all()?;
    }
    drop(file);
    fs::rename(&partial, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_carried_daemon_is_written_once_and_again_when_it_is_not_what_it_was() {
        if CARRIED.is_empty() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = provide(folder.path(), false).unwrap();
        let written = || fs::metadata(&path).unwrap().modified().unwrap();
        let first = written();
        assert_eq!(fs::read(&path).unwrap(), CARRIED);
        provide(folder.path(), false).unwrap();
        assert_eq!(written(), first, "it was there");
        fs::write(folder.path().join("sandboxd.word"), "another").unwrap();
        fs::write(&path, vec![0; CARRIED.len()]).unwrap();
        provide(folder.path(), false).unwrap();
        assert_eq!(fs::read(&path).unwrap(), CARRIED, "another version wrote it");
    }
}
