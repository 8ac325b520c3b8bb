//! Copies the files of a writable layer while its sandbox runs: once while everything goes on, and a second time, for
//! what has changed since, while the sandbox is frozen. Everything that overlayfs knows about a file is copied too:
//! whiteouts, marks of opaque folders, owners, attributes, hard links, holes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::tree;
use crate::changes::Marks;

/// Maximum depth of folders: each level holds two descriptors.
const MAX_DEPTH: usize = 400;

/// How far file times may lag behind a change: the resolution of the kernel's clock for them, and a reserve.
const CLOCK_MARGIN: i64 = 50_000_000;

/// Attributes with which overlayfs refers to other files by number. They would name files of the original.
const REFERENCES: [&[u8]; 4] = [b".overlay.origin", b".overlay.impure", b".overlay.uuid", b".overlay.nlink"];

/// Attributes that are data of the sandbox where overlayfs writes [`Marks::Trusted`]. An overlay that is mounted
/// without root would follow them.
const MARKS_WITHOUT_ROOT: &[u8] = b"user.overlay.";

/// A copy that can be brought up to date.
pub(crate) struct TreeCopy {
    from: PathBuf,
    to: PathBuf,
    /// The attributes that overlayfs wrote into the original.
    marks: Marks,
    /// Files with a later change are copied again.
    since: (i64, i64),
    /// Inode of each copied folder: a folder with another one was moved to its place, with files of any age.
    folders: HashMap<PathBuf, u64>,
}

impl TreeCopy {
    /// Copies a tree to `to`, which does not exist yet.
    pub(crate) fn take(from: &Path, to: &Path, marks: Marks) -> io::Result<Self> {
        // Writes everything out, so that each later write through a memory mapping changes the time of its file.
        rustix::fs::syncfs(File::open(from)?)?;
        let since = clock_of(to)?;
        let mut copy = Self { from: from.to_owned(), to: to.to_owned(), marks, since, folders: HashMap::new() };
        copy.pass(false)?;
        Ok(copy)
    }

    /// Copies what has changed since [`Self::take`]. Nothing may write to the original meanwhile.
    pub(crate) fn update(&mut self) -> io::Result<()> {
        self.pass(true)
    }

    fn pass(&mut self, update: bool) -> io::Result<()> {
        let from = open_folder(CWD, &self.from)?;
        if !update {
            fs::create_dir(&self.to)?;
        }
        let to = open_folder(CWD, &self.to)?;
        let mut pass = Pass { copy: self, update, links: HashMap::new(), top: to.try_clone()? };
        pass.folder(from.as_fd(), to.as_fd(), Path::new(""), 0)
    }

    fn changed(&self, stat: &Stat) -> bool {
        (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or_default()) >= self.since
    }
}

/// The present time as the file system of a path stamps it, less the margin.
fn clock_of(beside: &Path) -> io::Result<(i64, i64)> {
    let folder = beside.parent().unwrap_or(Path::new("."));
    let probe = rustix::fs::statat(CWD, folder, AtFlags::empty())?;
    // Changes the time of the folder without changing anything else.
    rustix::fs::chmodat(CWD, folder, Mode::from_raw_mode(probe.st_mode & 0o7777), AtFlags::empty())?;
    let now = rustix::fs::statat(CWD, folder, AtFlags::empty())?;
    let nanos = i64::try_from(now.st_ctime_nsec).unwrap_or_default() - CLOCK_MARGIN;
    Ok(if nanos < 0 { (now.st_ctime - 1, nanos + 1_000_000_000) } else { (now.st_ctime, nanos) })
}

struct Pass<'a> {
    copy: &'a mut TreeCopy,
    update: bool,
    /// The first copied path of each file with several names, in this pass.
    links: HashMap<u64, PathBuf>,
    top: OwnedFd,
}

impl Pass<'_> {
    fn folder(&mut self, from: BorrowedFd<'_>, to: BorrowedFd<'_>, path: &Path, depth: usize) -> io::Result<()> {
        if depth > MAX_DEPTH {
            let problem = format!("folders are nested more than {MAX_DEPTH} deep");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let names = names(from)?;
        if self.update {
            let kept: BTreeSet<&CStr> = names.iter().map(CString::as_c_str).collect();
            for name in self::names(to)?.iter().filter(|name| !kept.contains(name.as_c_str())) {
                remove(to, name)?;
            }
        }
        for name in &names {
            let stat = match rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // Removed since the names were read; the frozen pass sees the final state.
                Err(Errno::NOENT) if !self.update => continue,
                Err(error) => return Err(error.into()),
            };
            let inner = path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            match self.entry(from, to, name, &stat, &inner, depth) {
                Err(error) if !self.update && is_gone(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
                done => done.map_err(|error| at(&inner, error))?,
            }
        }
        let stat = rustix::fs::fstat(from)?;
        copy_attributes(from, to, self.copy.marks)?;
        set_metadata(to, &stat)
    }

    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        stat: &Stat,
        path: &Path,
        depth: usize,
    ) -> io::Result<()> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind.is_dir() {
            let known = self.copy.folders.insert(path.to_owned(), stat.st_ino);
            if known.is_none_or(|inode| inode != stat.st_ino) {
                remove(to, name)?;
                rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o700))?;
                if known.is_some() {
                    self.copy.folders.retain(|folder, _| folder == path || !folder.starts_with(path));
                }
            }
            let (inner, target) = (open_folder(from, name)?, open_folder(to, name)?);
            return self.folder(inner.as_fd(), target.as_fd(), path, depth + 1);
        }
        if self.update {
            let copied = rustix::fs::statat(to, name, AtFlags::SYMLINK_NOFOLLOW);
            if copied.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == kind) && !self.copy.changed(stat) {
                return Ok(());
            }
        }
        remove(to, name)?;
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&stat.st_ino)
                && rustix::fs::linkat(&self.top, first, to, name, AtFlags::empty()).is_ok()
            {
                return Ok(());
            }
            self.links.insert(stat.st_ino, path.to_owned());
        }
        match kind {
            FileType::RegularFile => copy_file(from, to, name, self.copy.marks),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(&target, to, name)?;
                set_metadata_of_name(to, name, stat, false)
            }
            _ => {
                rustix::fs::mknodat(to, name, kind, Mode::from_raw_mode(stat.st_mode & 0o7777), stat.st_rdev)?;
                set_metadata_of_name(to, name, stat, true)
            }
        }
    }
}

/// Whether a file or its folder was removed, or replaced by another kind, while it was being copied.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ESTALE))
}

fn at(path: &Path, error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(_) => io::Error::new(error.kind(), format!("{}: {error}", path.display())),
        None => error,
    }
}

fn copy_file(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr, marks: Marks) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let source = File::from(rustix::fs::openat(from, name, flags, Mode::empty())?);
    let stat = rustix::fs::fstat(&source)?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(Errno::NOENT.into());
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = File::from(rustix::fs::openat(to, name, flags, Mode::from_raw_mode(0o600))?);
    // Where the file system can share extents, the copy costs no space and no time.
    if rustix::fs::ioctl_ficlone(&target, &source).is_err() {
        copy_extents(&source, &target)?;
    }
    copy_attributes(source.as_fd(), target.as_fd(), marks)?;
    set_metadata(target.as_fd(), &stat)
}

/// Copies a file without its holes.
fn copy_extents(source: &File, target: &File) -> io::Result<()> {
    let mut at = 0;
    loop {
        let start = match rustix::fs::seek(source, SeekFrom::Data(at)) {
            Ok(start) => start,
            // No data behind this position.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(source, SeekFrom::Hole(start))?;
        copy_range(source, target, start, end)?;
        at = end;
    }
    target.set_len(source.metadata()?.len())
}

fn copy_range(source: &File, target: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut read, mut write) = (start, start);
    while read < end {
        let length = usize::try_from(end - read).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(source, Some(&mut read), target, Some(&mut write), length) {
            Ok(0) => break,
            Ok(_) => {}
            // A layer with a size limit is a file system of its own.
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP) => return copy_bytes(source, target, read, end),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn copy_bytes(source: &File, target: &File, mut at: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        let Some(part) = buffer.get_mut(..wanted) else { break };
        let length = source.read_at(part, at)?;
        if length == 0 {
            break;
        }
        target.write_all_at(part.get(..length).unwrap_or_default(), at)?;
        at += u64::try_from(length).unwrap_or(u64::MAX);
    }
    Ok(())
}

/// Copies all attributes but references to other files, and marks that only the sandbox can have made.
fn copy_attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>, marks: Marks) -> io::Result<()> {
    for name in attribute_names(to)? {
        if attribute(from, &name)?.is_none() {
            rustix::fs::fremovexattr(to, &*name)?;
        }
    }
    for (name, value) in copied_attributes(from, marks)? {
        rustix::fs::fsetxattr(to, &*name, &value, XattrFlags::empty())?;
    }
    Ok(())
}

/// The attributes of a file that a copy gets too.
fn copied_attributes(file: BorrowedFd<'_>, marks: Marks) -> io::Result<BTreeMap<CString, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for name in attribute_names(file)? {
        let is_foreign = marks == Marks::Trusted && name.to_bytes().starts_with(MARKS_WITHOUT_ROOT);
        if is_foreign || REFERENCES.iter().any(|reference| name.to_bytes().ends_with(reference)) {
            continue;
        }
        if let Some(value) = attribute(file, &name)? {
            found.insert(name, value);
        }
    }
    Ok(found)
}

/// Whether a writable layer is empty, and its top has the permissions and attributes of that of the layer below, each with
/// its own root user: then it changes nothing of what lies below.
pub(super) fn adds_nothing(upper: &Path, below: &Path, marks: Marks) -> io::Result<bool> {
    let (upper, below) = (open_folder(CWD, upper)?, open_folder(CWD, below)?);
    if !names(upper.as_fd())?.is_empty() {
        return Ok(false);
    }
    let (own, theirs) = (rustix::fs::fstat(&upper)?, rustix::fs::fstat(&below)?);
    let group = |stat: &Stat| stat.st_gid.wrapping_sub(stat.st_uid);
    Ok(own.st_mode == theirs.st_mode
        && group(&own) == group(&theirs)
        && copied_attributes(upper.as_fd(), marks)? == copied_attributes(below.as_fd(), marks)?)
}

fn attribute_names(file: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let length = match rustix::fs::flistxattr_query(file) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
        other => other?,
    };
    let mut list = vec![0; length];
    let length = rustix::fs::flistxattr(file, &mut list)?;
    list.truncate(length);
    Ok(list
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .filter_map(|name| CString::new(name).ok())
        .collect())
}

fn attribute(file: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; 64 * 1024];
    match rustix::fs::fgetxattr(file, name, &mut value) {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Owner first: a change of owner clears setuid bits.
fn set_metadata(file: BorrowedFd<'_>, stat: &Stat) -> io::Result<()> {
    rustix::fs::fchown(file, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    rustix::fs::fchmod(file, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    Ok(rustix::fs::futimens(file, &times(stat))?)
}

fn set_metadata_of_name(folder: BorrowedFd<'_>, name: &CStr, stat: &Stat, has_mode: bool) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::chownat(folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    if has_mode {
        rustix::fs::chmodat(folder, name, Mode::from_raw_mode(stat.st_mode & 0o7777), AtFlags::empty())?;
    }
    Ok(rustix::fs::utimensat(folder, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds, nanos: u64| Timespec { tv_sec: seconds, tv_nsec: i64::try_from(nanos).unwrap_or_default() };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Removes an entry of the copy, if there is one.
fn remove(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => tree::remove(
            &Path::new("/proc/self/fd").join(raw_name(folder)).join(std::ffi::OsStr::from_bytes(name.to_bytes())),
        ),
        Err(error) => Err(error.into()),
    }
}

fn raw_name(file: BorrowedFd<'_>) -> String {
    std::os::fd::AsRawFd::as_raw_fd(&file).to_string()
}

fn names(folder: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            found.push(entry.file_name().to_owned());
        }
    }
    Ok(found)
}

fn open_folder<P: rustix::path::Arg>(base: impl AsFd, name: P) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(base, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests;
