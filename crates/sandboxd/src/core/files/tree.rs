//! Operations on directory trees by descriptor: visiting, removing and copying never follow a link and never leave the
//! tree.

use std::ffi::{CStr, CString};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fchmod, mkdirat, openat, readlinkat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::checks::{is_kernel_file_system, kind};
use super::root::Located;
use super::write::{Permissions, Replacement};
use super::{FileError, Root};
use crate::core::paths::RelPath;

/// Maximum depth of a tree: each level holds a descriptor open.
const MAX_DEPTH: usize = 200;

/// An entry of a tree.
pub struct Visit<'a> {
    /// The directory that holds the entry.
    pub parent: BorrowedFd<'a>,
    pub name: &'a CStr,
    /// Path relative to the directory where the visit started.
    pub path: &'a RelPath,
    pub stat: &'a Stat,
}

impl Visit<'_> {
    pub fn kind(&self) -> FileType {
        kind(self.stat)
    }

    /// Opens the entry as a regular file; fails if the name now refers to something else.
    pub fn open_file(&self) -> Result<OwnedFd, FileError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(self.parent, self.name, flags, Mode::empty())?;
        super::checks::require_regular(&file)?;
        Ok(file)
    }

    pub fn link_target(&self) -> Result<CString, FileError> {
        Ok(readlinkat(self.parent, self.name, Vec::new())?)
    }
}

/// Visits everything below an open directory, parents first, names in order. Directories that cannot be read and kernel
/// file systems are skipped.
pub fn visit<F>(directory: &OwnedFd, mut each: F) -> Result<(), FileError>
where
    F: FnMut(&Visit<'_>) -> Result<ControlFlow<()>, FileError>,
{
    visit_to_depth(directory, MAX_DEPTH, &mut each)
}

/// The same, down to `depth` levels below the directory.
pub fn visit_to_depth<F>(directory: &OwnedFd, depth: usize, mut each: F) -> Result<(), FileError>
where
    F: FnMut(&Visit<'_>) -> Result<ControlFlow<()>, FileError>,
{
    visit_below(directory, &RelPath::default(), depth.min(MAX_DEPTH), &mut each).map(|_| ())
}

fn visit_below<F>(directory: &OwnedFd, path: &RelPath, depth: usize, each: &mut F) -> Result<ControlFlow<()>, FileError>
where
    F: FnMut(&Visit<'_>) -> Result<ControlFlow<()>, FileError>,
{
    if path.components().len() >= depth || is_kernel_file_system(directory)? {
        return Ok(ControlFlow::Continue(()));
    }
    for name in names(directory)? {
        let Ok(stat) = statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let below = path.child(name.clone());
        let visit = Visit { parent: directory.as_fd(), name: &name, path: &below, stat: &stat };
        if each(&visit)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        if kind(&stat) == FileType::Directory
            && let Ok(child) = open_directory(directory, &name)
            && visit_below(&child, &below, depth, each)?.is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

fn open_directory(parent: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

fn names(directory: &OwnedFd) -> Result<Vec<CString>, FileError> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Removes an entry; for a link, the link itself and never its target. A root directory is only emptied.
pub fn remove(located: &Located, recursive: bool) -> Result<(), FileError> {
    match located {
        Located::Directory(_) if !recursive => Err(FileError::Os(Errno::NOTEMPTY)),
        Located::Directory(_) => empty_directory(&located.open_directory()?, 0),
        Located::Entry { stat: None, .. } => Err(FileError::Os(Errno::NOENT)),
        Located::Entry { parent, name, .. } => {
            if is_kernel_file_system(parent)? {
                return Err(FileError::Refused("a directory of a kernel file system"));
            }
            if located.is_directory() && recursive {
                empty_directory(&located.open_directory()?, 0)?;
            }
            let flags = if located.is_directory() { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            Ok(unlinkat(parent, name, flags)?)
        }
    }
}

fn empty_directory(directory: &OwnedFd, depth: usize) -> Result<(), FileError> {
    if depth >= MAX_DEPTH {
        return Err(FileError::Os(Errno::NAMETOOLONG));
    }
    for name in names(directory)? {
        match unlinkat(directory, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(errno) => return Err(errno.into()),
        }
        let child = open_directory(directory, &name)?;
        empty_directory(&child, depth + 1)?;
        match unlinkat(directory, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Copies a file or a tree to a path that must not exist. Links are copied as links; devices and sockets are skipped.
pub fn copy(root: &Root, from: &Located, to: &RelPath) -> Result<(), FileError> {
    if !from.is_directory() {
        let (file, stat) = from.open_file()?;
        return copy_file(root, file, to, stat.st_mode & 0o7777);
    }
    let source = from.open_directory()?;
    make_directories(root, to, rustix::fs::fstat(&source)?.st_mode & 0o7777)?;
    visit(&source, |found| {
        let target = to.join(found.path);
        match found.kind() {
            FileType::Directory => make_directories(root, &target, found.stat.st_mode & 0o7777)?,
            FileType::RegularFile => copy_file(root, found.open_file()?, &target, found.stat.st_mode & 0o7777)?,
            FileType::Symlink => {
                if let Located::Entry { parent, name, .. } = root.locate(&target, super::Follow::Never)? {
                    symlinkat(&found.link_target()?, &parent, &name)?;
                }
            }
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn copy_file(root: &Root, file: OwnedFd, to: &RelPath, mode: u32) -> Result<(), FileError> {
    let replacement = Replacement::begin(&root.locate_creating_parents(to)?, Permissions::Exactly(mode))?;
    let mut source = std::fs::File::from(file);
    let mut target = std::fs::File::from(replacement.descriptor().try_clone()?);
    std::io::copy(&mut source, &mut target)?;
    replacement.commit(false)
}

/// Creates a directory and its parents; an existing directory keeps its permissions.
pub fn make_directories(root: &Root, path: &RelPath, mode: u32) -> Result<(), FileError> {
    match root.locate_creating_parents(path)? {
        Located::Directory(_) => Ok(()),
        located @ Located::Entry { stat: Some(_), .. } if located.is_directory() => Ok(()),
        Located::Entry { stat: Some(_), .. } => Err(FileError::Os(Errno::EXIST)),
        Located::Entry { parent, name, stat: None } => {
            mkdirat(&parent, &name, Mode::from_raw_mode(0o700))?;
            let made = open_directory(&parent, &name)?;
            Ok(fchmod(&made, Mode::from_raw_mode(mode))?)
        }
    }
}
