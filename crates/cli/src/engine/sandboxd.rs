//! The daemon that this binary carries: written once into the data folder, from where it is shown in sandboxes.

use anyhow::{Context as _, Result, bail};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

static CARRIED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandboxd"));

/// The path of a `sandboxd` that sandboxes can run: the carried one, else the one beside this program.
pub(crate) fn provide(folder: &Path) -> Result<PathBuf> {
    if CARRIED.is_empty() {
        let beside = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.join("sandboxd")));
        return match beside.filter(|path| path.is_file()) {
            Some(path) => Ok(path),
            None => bail!("this build carries no sandboxd and there is none beside it; build with `make build`"),
        };
    }
    let path = folder.join("sandboxd");
    let current = fs::read(&path).is_ok_and(|present| present == CARRIED);
    if !current {
        write(&path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(path)
}

/// By rename: sandboxes that run the old file keep it.
fn write(path: &Path) -> std::io::Result<()> {
    let partial = path.with_extension("partial");
    let _ = fs::remove_file(&partial);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(&partial)?;
    file.write_all(CARRIED)?;
    file.set_permissions(fs::Permissions::from_mode(0o755))?;
    file.sync_all()?;
    drop(file);
    fs::rename(&partial, path)
}
