//! Writes a sandbox's changes into the real folder. The sandbox decided every name and every byte, and other programs
//! may change the folder at the same time: every path is opened beneath the folder without following links, every file
//! is written beside its target and renamed over it, and the target is compared with what is expected just before.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::conflicts::{Base, Moved};
use super::entry::{Entry, Kind};
use super::layer::{Change, What};
use super::tree::{self, Tree};

/// Why one change could not be applied.
#[derive(Debug, Error)]
pub enum ApplyError {
    #[error("it was {} in the folder meanwhile", .0.name())]
    Moved(Moved),
    #[error("a {} is not applied", .0.name())]
    Special(Kind),
    #[error("it still changes in the sandbox; try again when nothing writes to it")]
    Busy,
    #[error("a folder above it is missing, or was replaced by a link or file")]
    NoFolder,
    #[error("the folder has files that the sandbox did not see")]
    NotEmpty,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for ApplyError {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// What became of a change.
#[derive(Debug)]
pub struct Applied {
    pub path: PathBuf,
    pub outcome: Result<(), ApplyError>,
}

/// Options of [`apply`].
#[derive(Debug, Clone, Copy, Default)]
pub struct ApplyOptions {
    /// Keep setuid, setgid and sticky bits.
    pub keep_special_bits: bool,
    /// Write over files that moved on meanwhile.
    pub overwrite: bool,
}

/// Applies changes: deletions first, the deepest first, then everything else, folders before what is in them. A change
/// that fails is reported, and the others go on. `base` learns what was applied.
pub fn apply(source: &Tree, upper: &Tree, base: &mut Base, changes: &[&Change], options: ApplyOptions) -> Vec<Applied> {
    let is_deletion = |change: &&&Change| change.what == What::Deleted;
    let deletions = changes.iter().rev().filter(|change| is_deletion(change));
    let others = changes.iter().filter(|change| !is_deletion(change));
    let mut job = Job { source, upper, base, options };
    let mut applied = Vec::with_capacity(changes.len());
    for change in deletions.chain(others) {
        applied.push(Applied { path: change.path.clone(), outcome: job.apply(change) });
    }
    // Only now: nothing could be created in a folder that is closed to its owner.
    for result in &mut applied {
        let change = changes.iter().find(|change| change.path == result.path && change.what != What::Deleted);
        let folder = change.and_then(|change| change.after).filter(|after| after.kind == Kind::Folder);
        if let (Some(after), Ok(())) = (folder, &result.outcome) {
            result.outcome = job.set_folder_mode(&result.path, &after);
        }
    }
    applied
}

struct Job<'a> {
    source: &'a Tree,
    upper: &'a Tree,
    base: &'a mut Base,
    options: ApplyOptions,
}

impl Job<'_> {
    fn apply(&mut self, change: &Change) -> Result<(), ApplyError> {
        let path = change.path.as_path();
        let (folder, name) = match self.source.parent(path) {
            Err(error) if tree::is_absent(&error) => return Err(ApplyError::NoFolder),
            other => other?,
        };
        let folder = folder.as_fd();
        let now = tree::stat(folder, name)?;
        if let Some(moved) = self.base.moved(path, now.as_ref()).filter(|_| !self.options.overwrite) {
            return Err(ApplyError::Moved(moved));
        }
        match change.after {
            None => delete(folder, name, now.as_ref())?,
            Some(after) => self.write(path, (folder, name), now.as_ref(), &after)?,
        }
        let now = tree::stat(folder, name)?;
        Ok(self.base.applied(path, now.as_ref())?)
    }

    fn write(
        &self,
        path: &Path,
        (folder, name): (BorrowedFd<'_>, &std::ffi::OsStr),
        now: Option<&Entry>,
        after: &Entry,
    ) -> Result<(), ApplyError> {
        // Files keep their owner; new ones get that of their folder.
        let above = Entry::new(&rustix::fs::fstat(folder)?);
        let owner = now.map_or((above.uid, above.gid), |now| (now.uid, now.gid));
        let replaces_folder = now.is_some_and(|now| now.kind == Kind::Folder) && after.kind != Kind::Folder;
        if replaces_folder {
            remove_folder(folder, name)?;
        }
        match after.kind {
            Kind::Folder => self.write_folder(path, (folder, name), now, after, owner),
            Kind::File | Kind::Link => {
                let temporary = temporary_name(path);
                remove_if_there(folder, &temporary)?;
                let written = match after.kind {
                    Kind::Link => self.stage_link(path, folder, &temporary, owner),
                    _ => self.stage_file(path, folder, &temporary, owner, after),
                };
                let renamed = written.and_then(|()| {
                    let still = tree::stat(folder, name)?;
                    let expected = now.filter(|_| !replaces_folder);
                    if still.as_ref() != expected && !self.options.overwrite {
                        return Err(ApplyError::Moved(Moved::Changed));
                    }
                    Ok(rustix::fs::renameat(folder, temporary.as_os_str(), folder, name)?)
                });
                if renamed.is_err() {
                    remove_if_there(folder, &temporary)?;
                }
                renamed
            }
            kind => Err(ApplyError::Special(kind)),
        }
    }

    fn write_folder(
        &self,
        path: &Path,
        (folder, name): (BorrowedFd<'_>, &std::ffi::OsStr),
        now: Option<&Entry>,
        after: &Entry,
        owner: (u32, u32),
    ) -> Result<(), ApplyError> {
        if now.is_none_or(|now| now.kind != Kind::Folder) {
            if now.is_some() {
                rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
            }
            rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(0o700))?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(folder, name, flags, Mode::empty())?;
        if now.is_none_or(|now| now.kind != Kind::Folder) {
            give(made.as_fd(), owner)?;
        }
        let from = self.upper.folder(path)?;
        copy_attributes(from.as_fd(), made.as_fd())?;
        Ok(rustix::fs::fchmod(&made, Mode::from_raw_mode(self.mode(after) | 0o700))?)
    }

    fn set_folder_mode(&self, path: &Path, after: &Entry) -> Result<(), ApplyError> {
        let folder = self.source.folder(path)?;
        Ok(rustix::fs::fchmod(&folder, Mode::from_raw_mode(self.mode(after)))?)
    }

    fn stage_link(
        &self,
        path: &Path,
        folder: BorrowedFd<'_>,
        temporary: &OsString,
        (uid, gid): (u32, u32),
    ) -> Result<(), ApplyError> {
        rustix::fs::symlinkat(self.upper.link(path)?, folder, temporary)?;
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        if rustix::process::geteuid().is_root() {
            rustix::fs::chownat(folder, temporary.as_os_str(), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    fn stage_file(
        &self,
        path: &Path,
        folder: BorrowedFd<'_>,
        temporary: &OsString,
        owner: (u32, u32),
        after: &Entry,
    ) -> Result<(), ApplyError> {
        let mut from = self.upper.file(path)?;
        let before = Entry::new(&rustix::fs::fstat(&from)?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made: OwnedFd = rustix::fs::openat(folder, temporary.as_os_str(), flags, Mode::from_raw_mode(0o600))?;
        let mut to = File::from(made);
        io::copy(&mut from, &mut to)?;
        // A file that changed while it was read may be half of each version.
        if Entry::new(&rustix::fs::fstat(&from)?) != before {
            return Err(ApplyError::Busy);
        }
        copy_attributes(from.as_fd(), to.as_fd())?;
        give(to.as_fd(), owner)?;
        rustix::fs::fchmod(&to, Mode::from_raw_mode(self.mode(after)))?;
        Ok(to.sync_data()?)
    }

    fn mode(&self, after: &Entry) -> u32 {
        if self.options.keep_special_bits { after.mode } else { after.mode & 0o777 }
    }
}

fn delete(folder: BorrowedFd<'_>, name: &std::ffi::OsStr, now: Option<&Entry>) -> Result<(), ApplyError> {
    match now {
        None => Ok(()),
        Some(now) if now.kind == Kind::Folder => remove_folder(folder, name),
        Some(_) => Ok(rustix::fs::unlinkat(folder, name, AtFlags::empty())?),
    }
}

fn remove_folder(folder: BorrowedFd<'_>, name: &std::ffi::OsStr) -> Result<(), ApplyError> {
    match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(ApplyError::NotEmpty),
        other => Ok(other?),
    }
}

fn remove_if_there(folder: BorrowedFd<'_>, name: &OsString) -> Result<(), ApplyError> {
    match rustix::fs::unlinkat(folder, name.as_os_str(), AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}

/// Root gives files to the owner of the folder; others own what they create.
fn give(file: BorrowedFd<'_>, (uid, gid): (u32, u32)) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    Ok(())
}

/// Copies user attributes, where the file system has any.
fn copy_attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    for (name, value) in tree::attributes(from)? {
        match rustix::fs::fsetxattr(to, name, &value, XattrFlags::empty()) {
            Err(Errno::NOTSUP) => break,
            other => other?,
        }
    }
    Ok(())
}

/// The name under which a file is written before it is renamed. It is the same each time, so that what a killed command
/// left behind is replaced by the next.
fn temporary_name(path: &Path) -> OsString {
    let hash = Sha256::digest(path.as_os_str().as_bytes());
    let text: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!(".agent-sandbox-apply-{text}").into()
}

#[cfg(test)]
mod tests;
