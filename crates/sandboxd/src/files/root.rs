//! A directory that confines every path: resolution never trusts a name twice, so that a link swapped between a check
//! and a use changes nothing.
//!
//! The quick way is one `openat2` of the parent directory. Whatever that call cannot or will not resolve (absolute
//! links, kernels and sandboxes without it) is decided by the component-wise walk of [`super::walk`], which holds a
//! descriptor for every directory on the way.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, statat};
use rustix::io::Errno;

use super::FileError;
use super::refuse::{kind, require_directory, require_regular};
use super::walk::{Missing, walk};
use crate::paths::RelPath;

/// Whether a link in the last component is followed or is itself the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    Link,
    Never,
}

/// A confining directory, held open.
#[derive(Debug)]
pub struct Root {
    directory: Arc<OwnedFd>,
    /// Spellings of this directory that an absolute link may start with.
    spellings: Vec<RelPath>,
    whole: bool,
    quick: AtomicBool,
}

/// Where a path leads, without having opened it.
#[derive(Debug)]
pub enum Located {
    /// A directory that has no name of its own here: the root, or what a link to `..` led to.
    Directory(Arc<OwnedFd>),
    /// A name in a directory; `stat` is `None` when nothing is there yet.
    Entry { parent: Arc<OwnedFd>, name: CString, stat: Option<Box<Stat>> },
}

impl Root {
    /// Opens an existing directory as a root.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let canonical = std::fs::canonicalize(path)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&canonical, flags, Mode::empty())?;
        let mut spellings = vec![RelPath::of_directory(&canonical)?];
        if path.is_absolute()
            && let Ok(given) = RelPath::of_directory(path)
            && !spellings.contains(&given)
        {
            spellings.push(given);
        }
        let whole = canonical == Path::new("/");
        Ok(Self { directory: Arc::new(directory), spellings, whole, quick: AtomicBool::new(true) })
    }

    pub fn directory(&self) -> &Arc<OwnedFd> {
        &self.directory
    }

    pub(super) fn spellings(&self) -> &[RelPath] {
        &self.spellings
    }

    /// The root is the whole file system: no link can leave it.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// The canonical path of the root in this process's own view.
    pub fn canonical(&self) -> PathBuf {
        Path::new("/").join(self.spellings[0].as_os_string())
    }

    /// Finds a path that may or may not exist; its parent must.
    pub fn locate(&self, path: &RelPath, follow: Follow) -> Result<Located, FileError> {
        match self.locate_quickly(path, follow) {
            Some(located) => Ok(located),
            None => walk(self, path, follow, Missing::Fails),
        }
    }

    /// Finds a path for writing, creating missing parent directories on the way.
    pub fn locate_creating_parents(&self, path: &RelPath) -> Result<Located, FileError> {
        match self.locate_quickly(path, Follow::Link) {
            Some(located) => Ok(located),
            None => walk(self, path, Follow::Link, Missing::Created),
        }
    }

    /// One `openat2`, or `None` when the careful walk has to decide (about failures, too).
    fn locate_quickly(&self, path: &RelPath, follow: Follow) -> Option<Located> {
        let (name, parents) = match path.components().split_last() {
            None => return Some(Located::Directory(Arc::clone(&self.directory))),
            Some(split) => split,
        };
        let parent = if parents.is_empty() {
            Arc::clone(&self.directory)
        } else {
            Arc::new(self.open_beneath(&parents.iter().map(|part| part.to_bytes()).collect::<Vec<_>>().join(&b'/'))?)
        };
        let stat = match statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if kind(&stat) == FileType::Symlink && follow == Follow::Link => return None,
            Ok(stat) => Some(Box::new(stat)),
            Err(Errno::NOENT) => None,
            Err(_) => return None,
        };
        Some(Located::Entry { parent, name: name.clone(), stat })
    }

    fn open_beneath(&self, path: &[u8]) -> Option<OwnedFd> {
        if !self.quick.load(Ordering::Relaxed) {
            return None;
        }
        // Below `/` an absolute link may start over; below any other directory it has to be judged by the walk.
        let confine = if self.whole { ResolveFlags::IN_ROOT } else { ResolveFlags::BENEATH };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat2(&self.directory, path, flags, Mode::empty(), confine | ResolveFlags::NO_MAGICLINKS) {
            Ok(directory) => Some(directory),
            Err(Errno::NOSYS | Errno::PERM) => {
                self.quick.store(false, Ordering::Relaxed);
                None
            }
            Err(_) => None,
        }
    }
}

impl Located {
    pub fn stat(&self) -> Result<Option<Stat>, FileError> {
        match self {
            Self::Directory(directory) => Ok(Some(rustix::fs::fstat(directory)?)),
            Self::Entry { stat, .. } => Ok(stat.as_deref().copied()),
        }
    }

    pub fn exists(&self) -> bool {
        match self {
            Self::Directory(_) => true,
            Self::Entry { stat, .. } => stat.is_some(),
        }
    }

    pub fn is_directory(&self) -> bool {
        match self {
            Self::Directory(_) => true,
            Self::Entry { stat, .. } => stat.as_ref().is_some_and(|stat| kind(stat) == FileType::Directory),
        }
    }

    /// Opens a regular file for reading.
    pub fn open_file(&self) -> Result<(OwnedFd, Stat), FileError> {
        let (parent, name, stat) = match self {
            Self::Directory(_) => return Err(FileError::Os(Errno::ISDIR)),
            Self::Entry { stat: None, .. } => return Err(FileError::Os(Errno::NOENT)),
            Self::Entry { parent, name, stat: Some(stat) } => (parent, name, stat),
        };
        // Looked at before opening, because opening a device can already have an effect; and again after, because the
        // name may have changed hands. O_NONBLOCK keeps a FIFO that slipped in between from hanging us.
        match kind(stat) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(FileError::Os(Errno::ISDIR)),
            _ => return Err(FileError::Refused("not a regular file")),
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = open_final(parent.as_fd(), name, flags)?;
        let stat = require_regular(&file)?;
        Ok((file, stat))
    }

    /// Opens a directory for reading its entries.
    pub fn open_directory(&self) -> Result<OwnedFd, FileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match self {
            Self::Directory(directory) => openat(directory, c".", flags, Mode::empty())?,
            Self::Entry { stat: None, .. } => return Err(FileError::Os(Errno::NOENT)),
            Self::Entry { parent, name, .. } if self.is_directory() => open_final(parent.as_fd(), name, flags)?,
            Self::Entry { .. } => return Err(FileError::Os(Errno::NOTDIR)),
        };
        require_directory(&directory)?;
        Ok(directory)
    }
}

/// Opens a name that was seen not to be a link; a link found here was swapped in and is refused.
fn open_final(parent: BorrowedFd<'_>, name: &CString, flags: OFlags) -> Result<OwnedFd, FileError> {
    match openat(parent, name, flags, Mode::empty()) {
        Err(Errno::LOOP) => Err(FileError::Escapes),
        other => Ok(other?),
    }
}
