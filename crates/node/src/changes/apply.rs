//! Writes a sandbox's changes into the real folder. The sandbox decided every name and every byte, and other programs
//! may change the folder at the same time: every path is opened beneath the folder without following links, everything
//! new is completed beside its target and then takes its place in one step, and the target is compared with what is
//! expected just before. A command that is killed, or a full disk, leaves the old file or the new one.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Uid, XattrFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::conflicts::{self, Base, Moved};
use super::entry::{Entry, Kind};
use super::layer::{Change, What};
use super::record::Stamp;
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
    #[error("it was kept, because what replaces its folder could not be written")]
    Kept,
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

/// Applies changes: deletions first, the deepest first, then everything else, folders before what is in them. What was
/// in a folder that a file or link replaces is deleted when the replacement is complete beside it. A change that fails
/// is reported, and the others go on. `base` learns what was applied.
pub fn apply(source: &Tree, upper: &Tree, base: &mut Base, changes: &[&Change], options: ApplyOptions) -> Vec<Applied> {
    // The deletions in each folder that something else replaces.
    let mut replaced: BTreeMap<&Path, Vec<&Change>> =
        changes.iter().filter(|change| replaces_folder(change)).map(|change| (&*change.path, Vec::new())).collect();
    let mut job = Job { source, upper, base, options, applied: Vec::with_capacity(changes.len()) };
    for change in changes.iter().rev().filter(|change| change.what == What::Deleted) {
        match change.path.ancestors().skip(1).find(|above| replaced.contains_key(above)) {
            Some(above) => replaced.entry(above).or_default().push(change),
            None => job.apply(change, &[]),
        }
    }
    for change in changes.iter().filter(|change| change.what != What::Deleted) {
        let contents = replaced.get(change.path.as_path()).map_or(&[][..], Vec::as_slice);
        job.apply(change, contents);
    }
    let mut applied = std::mem::take(&mut job.applied);
    // Only now: nothing could be created in a folder that is closed to its owner.
    for result in &mut applied {
        let change = changes.iter().find(|change| change.path == result.path && change.what != What::Deleted);
        let folder = change.and_then(|change| change.after).filter(|after| after.kind == Kind::Folder);
        if let (Some(after), Ok(())) = (folder, &result.outcome) {
            result.outcome = job.keeping_names(&result.path, |job| job.set_folder_mode(&result.path, &after));
        }
    }
    applied
}

/// Whether a file or link takes the place of a folder.
fn replaces_folder(change: &Change) -> bool {
    let is_folder = |entry: Entry| entry.kind == Kind::Folder;
    change.before.is_some_and(is_folder) && change.after.is_some_and(|after| !is_folder(after))
}

struct Job<'a> {
    source: &'a Tree,
    upper: &'a Tree,
    base: &'a mut Base,
    options: ApplyOptions,
    applied: Vec<Applied>,
}

impl Job<'_> {
    /// Applies a change; `contents` are the deletions in the folder that it replaces.
    fn apply(&mut self, change: &Change, contents: &[&Change]) {
        let before = self.applied.len();
        let in_folder = conflicts::above(&change.path);
        let outcome = self.keeping_names(in_folder, |job| match change.after {
            Some(after) if after.kind == Kind::Folder => {
                job.keeping_names(&change.path, |job| job.try_apply(change, contents))
            }
            _ => job.try_apply(change, contents),
        });
        if self.applied.len() == before {
            // The replacement could not be written.
            let kept = contents.iter().map(|change| (change.path.clone(), ApplyError::Kept));
            self.applied.extend(kept.map(|(path, error)| Applied { path, outcome: Err(error) }));
        }
        self.applied.push(Applied { path: change.path.clone(), outcome });
    }

    /// Changes something in a folder. If its names were known before, they are known afterwards.
    fn keeping_names(
        &mut self,
        folder: &Path,
        work: impl FnOnce(&mut Self) -> Result<(), ApplyError>,
    ) -> Result<(), ApplyError> {
        let known = self.base.knows_names(self.source, folder);
        let outcome = work(self);
        if known { outcome.and(self.base.note_names(self.source, folder).map_err(ApplyError::Io)) } else { outcome }
    }

    fn try_apply(&mut self, change: &Change, contents: &[&Change]) -> Result<(), ApplyError> {
        let path = change.path.as_path();
        let (folder, name) = match self.source.parent(path) {
            Err(error) if tree::is_absent(&error) => return Err(ApplyError::NoFolder),
            other => other?,
        };
        let folder = folder.as_fd();
        let now = tree::stat(folder, name)?;
        if let Some(moved) = self.base.moved(self.source, path, now.as_ref()).filter(|_| !self.options.overwrite) {
            return Err(ApplyError::Moved(moved));
        }
        match change.after {
            None => delete(folder, name, now.as_ref())?,
            Some(after) if after.kind == Kind::Folder && now.is_some_and(|now| now.kind == Kind::Folder) => {
                self.fill_folder(path, open_folder(folder, name)?.as_fd(), &after)?;
            }
            Some(after) => self.replace(path, (folder, name), now.as_ref(), &after, contents)?,
        }
        let now = tree::stat(folder, name)?;
        Ok(self.base.applied(path, now.as_ref())?)
    }

    /// Puts something new at a path, completed under another name first.
    fn replace(
        &mut self,
        path: &Path,
        (folder, name): (BorrowedFd<'_>, &OsStr),
        now: Option<&Entry>,
        after: &Entry,
        contents: &[&Change],
    ) -> Result<(), ApplyError> {
        // Files keep their owner; new ones get that of their folder.
        let above = Entry::new(&rustix::fs::fstat(folder)?);
        let owner = now.map_or((above.uid, above.gid), |now| (now.uid, now.gid));
        let temporary = temporary_name(path);
        remove_if_there(folder, &temporary)?;
        let staged = match after.kind {
            Kind::Folder => self.stage_folder(path, folder, &temporary, owner, after),
            Kind::Link => self.stage_link(path, folder, &temporary, owner),
            Kind::File => self.stage_file(path, folder, &temporary, owner, after),
            kind => return Err(ApplyError::Special(kind)),
        };
        let placed = staged.and_then(|()| {
            contents.iter().for_each(|change| self.apply(change, &[]));
            let still = tree::stat(folder, name)?;
            if still.as_ref().map(Stamp::of) != now.map(Stamp::of) && !self.options.overwrite {
                return Err(ApplyError::Moved(Moved::Changed));
            }
            place(folder, &temporary, name, after, still.as_ref())
        });
        if placed.is_err() {
            remove_if_there(folder, &temporary)?;
        }
        placed
    }

    fn stage_folder(
        &self,
        path: &Path,
        folder: BorrowedFd<'_>,
        temporary: &OsString,
        owner: (u32, u32),
        after: &Entry,
    ) -> Result<(), ApplyError> {
        rustix::fs::mkdirat(folder, temporary.as_os_str(), Mode::from_raw_mode(0o700))?;
        let made = open_folder(folder, temporary)?;
        give(made.as_fd(), owner)?;
        self.fill_folder(path, made.as_fd(), after)
    }

    /// Sets attributes and mode of a folder, which stays open to its owner.
    fn fill_folder(&self, path: &Path, made: BorrowedFd<'_>, after: &Entry) -> Result<(), ApplyError> {
        let from = self.upper.folder(path)?;
        copy_attributes(from.as_fd(), made)?;
        Ok(rustix::fs::fchmod(made, Mode::from_raw_mode(self.mode(after) | 0o700))?)
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
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made: OwnedFd = rustix::fs::openat(folder, temporary.as_os_str(), flags, Mode::from_raw_mode(0o600))?;
        let mut to = File::from(made);
        copy_whole(&mut from, &mut to)?;
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

/// Copies a file, unless something writes to it meanwhile. Writing to a mapped file changes its times late or never:
/// what was read must be there still when all of it was read.
fn copy_whole(from: &mut (impl Read + Seek), to: &mut (impl Read + Write + Seek)) -> Result<(), ApplyError> {
    io::copy(from, to)?;
    from.rewind()?;
    to.rewind()?;
    if tree::same_content(from, to)? { Ok(()) } else { Err(ApplyError::Busy) }
}

/// Gives what is complete under a temporary name its own name, in one step, and removes what had it.
fn place(
    folder: BorrowedFd<'_>,
    temporary: &OsString,
    name: &OsStr,
    after: &Entry,
    now: Option<&Entry>,
) -> Result<(), ApplyError> {
    let is_folder = |entry: &Entry| entry.kind == Kind::Folder;
    // The kernel puts files in the place of files, but neither a file in that of a folder nor a folder in that of a file.
    let Some(now) = now.filter(|now| is_folder(now) != is_folder(after)) else {
        return Ok(rustix::fs::renameat(folder, temporary.as_os_str(), folder, name)?);
    };
    if is_folder(now) && !tree::names(open_folder(folder, name)?.as_fd())?.is_empty() {
        return Err(ApplyError::NotEmpty);
    }
    let exchange = || rustix::fs::renameat_with(folder, temporary.as_os_str(), folder, name, RenameFlags::EXCHANGE);
    match exchange() {
        // Some network file systems cannot exchange.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            delete(folder, name, Some(now))?;
            return Ok(rustix::fs::renameat(folder, temporary.as_os_str(), folder, name)?);
        }
        other => other?,
    }
    let removed = delete(folder, temporary, Some(now));
    if removed.is_err() {
        // Something was put into the folder at this moment.
        exchange()?;
    }
    removed
}

fn open_folder(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(folder, name, flags, Mode::empty())?)
}

fn delete(folder: BorrowedFd<'_>, name: &OsStr, now: Option<&Entry>) -> Result<(), ApplyError> {
    match now {
        None => Ok(()),
        Some(now) if now.kind == Kind::Folder => remove_folder(folder, name),
        Some(_) => Ok(rustix::fs::unlinkat(folder, name, AtFlags::empty())?),
    }
}

fn remove_folder(folder: BorrowedFd<'_>, name: &OsStr) -> Result<(), ApplyError> {
    match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(ApplyError::NotEmpty),
        other => Ok(other?),
    }
}

fn remove_if_there(folder: BorrowedFd<'_>, name: &OsStr) -> Result<(), ApplyError> {
    delete(folder, name, tree::stat(folder, name)?.as_ref())
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
