//! A folder with untrusted content: every path is opened beneath it without following any link.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::entry::Entry;

/// Attributes of overlayfs itself, which a sandbox without root may not set and one with root may.
const OVERLAY_ATTRIBUTES: &[u8] = b"user.overlay.";

/// An open folder, and the paths beneath it.
#[derive(Debug)]
pub struct Tree {
    root: OwnedFd,
}

impl Tree {
    /// Opens a folder by a path that contains no link.
    pub fn open(path: &Path) -> io::Result<Self> {
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)? })
    }

    /// Opens a path beneath the root.
    pub(super) fn open_at(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        loop {
            match rustix::fs::openat2(&self.root, path, flags | OFlags::CLOEXEC, mode, resolve) {
                // The kernel gives up when a folder is renamed at the same moment.
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Opens a folder for reading its names.
    pub(super) fn folder(&self, path: &Path) -> io::Result<OwnedFd> {
        self.open_at(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// Opens the folder that contains `path`, and returns the last name.
    pub(super) fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = path.file_name().ok_or_else(|| io::Error::from(Errno::INVAL))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok((self.open_at(folder, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?, name))
    }

    /// The folder at a path or, if there is none, the nearest one above it.
    pub(super) fn nearest_folder(&self, path: &Path) -> io::Result<(PathBuf, Entry)> {
        for path in path.ancestors() {
            match self.open_at(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
                Err(error) if is_absent(&error) => {}
                other => return Ok((path.to_owned(), Entry::new(&rustix::fs::fstat(other?)?))),
            }
        }
        Err(Errno::NOENT.into())
    }

    /// The entry at a path; `None` if there is none, or if its folder is not a folder any more.
    pub fn entry(&self, path: &Path) -> io::Result<Option<Entry>> {
        match self.parent(path) {
            Ok((folder, name)) => stat(folder.as_fd(), name),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens a regular file for reading. A pipe or a device is not opened.
    pub fn file(&self, path: &Path) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(self.open_at(path, flags, Mode::empty())?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(Errno::INVAL.into()),
        }
    }

    /// The target of a link.
    pub fn link(&self, path: &Path) -> io::Result<OsString> {
        let (folder, name) = self.parent(path)?;
        let target = rustix::fs::readlinkat(&folder, name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }
}

/// Whether an error means that nothing is at a path: it, or a folder on the way, is missing or is not a folder.
pub(super) fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP))
}

/// The entry of a name in a folder.
pub(super) fn stat(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<Entry>> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(Entry::new(&found))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// All names of a folder that is open for reading.
pub(super) fn names(folder: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            found.push(OsStr::from_bytes(name).to_owned());
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The user attributes of a file or folder, without those of overlayfs.
pub(super) fn attributes(file: BorrowedFd<'_>) -> io::Result<BTreeMap<OsString, Vec<u8>>> {
    let length = match rustix::fs::flistxattr_query(file) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(BTreeMap::new()),
        other => other?,
    };
    let mut list = vec![0; length];
    let length = rustix::fs::flistxattr(file, &mut list)?;
    list.truncate(length);
    let mut found = BTreeMap::new();
    for name in list.split(|byte| *byte == 0) {
        if name.starts_with(b"user.") && !name.starts_with(OVERLAY_ATTRIBUTES) {
            let name = OsStr::from_bytes(name);
            let mut value = vec![0; 64 * 1024];
            let length = rustix::fs::fgetxattr(file, name, &mut value)?;
            value.truncate(length);
            found.insert(name.to_owned(), value);
        }
    }
    Ok(found)
}

/// Whether two files have the same bytes.
pub(super) fn same_content(one: &mut impl Read, other: &mut impl Read) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    loop {
        let first = fill(one, &mut left)?;
        let second = fill(other, &mut right)?;
        if left.get(..first) != right.get(..second) {
            return Ok(false);
        }
        if first == 0 {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
