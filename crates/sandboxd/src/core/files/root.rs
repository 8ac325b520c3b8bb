//! A directory that confines every path. Names are resolved once, to open descriptors, so that a link that is swapped
//! between a check and a use has no effect.
//!
//! The fast path is one `openat2` of the parent directory. What this call cannot resolve (absolute links, or a kernel
//! or sandbox without the call) is resolved by [`super::walk`], one component at a time, with every directory on the
//! path held open.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, statat};
use rustix::io::Errno;

use super::FileError;
use super::checks::{kind, require_directory, require_regular};
use super::walk::{Missing, walk};
use crate::core::paths::RelPath;

/// Whether a symbolic link in the last component is followed, or is itself the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    Link,
    Never,
}

/// A confining directory, held open.
#[derive(Debug)]
pub struct Root {
    directory: Arc<OwnedFd>,
    /// Absolute paths of this directory that the text of an absolute link may begin with.
    aliases: Vec<RelPath>,
    is_file_system_root: bool,
    openat2_works: AtomicBool,
}

/// Where a path leads; the last component is not opened.
#[derive(Debug)]
pub enum Located {
    /// A directory without a name below the root: the root itself, or the directory that a link to `..` leads to.
    Directory(Arc<OwnedFd>),
    /// A name in a directory; `stat` is `None` if nothing has this name.
    Entry { parent: Arc<OwnedFd>, name: CString, stat: Option<Box<Stat>> },
}

impl Root {
    /// Opens an existing directory as a root.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let canonical = std::fs::canonicalize(path)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&canonical, flags, Mode::empty())?;
        let mut aliases = vec![RelPath::of_directory(&canonical)?];
        if path.is_absolute()
            && let Ok(given) = RelPath::of_directory(path)
            && !aliases.contains(&given)
        {
            aliases.push(given);
        }
        let is_file_system_root = canonical == Path::new("/");
        Ok(Self { directory: Arc::new(directory), aliases, is_file_system_root, openat2_works: AtomicBool::new(true) })
    }

    pub fn directory(&self) -> &Arc<OwnedFd> {
        &self.directory
    }

    pub(super) fn aliases(&self) -> &[RelPath] {
        &self.aliases
    }

    /// The root is `/`: no link can leave it.
    pub fn is_file_system_root(&self) -> bool {
        self.is_file_system_root
    }

    /// The canonical path of the root as this process sees it.
    pub fn canonical(&self) -> PathBuf {
        if self.is_file_system_root {
            return PathBuf::from("/");
        }
        Path::new("/").join(self.aliases[0].as_os_string())
    }

    /// Finds a path. Its parent must exist, the last component may be missing.
    pub fn locate(&self, path: &RelPath, follow: Follow) -> Result<Located, FileError> {
        match self.locate_with_openat2(path, follow) {
            Some(located) => Ok(located),
            None => walk(self, path, follow, Missing::Fails),
        }
    }

    /// Finds a path for writing and creates missing parent directories.
    pub fn locate_creating_parents(&self, path: &RelPath) -> Result<Located, FileError> {
        match self.locate_with_openat2(path, Follow::Link) {
            Some(located) => Ok(located),
            None => walk(self, path, Follow::Link, Missing::Created),
        }
    }

    /// Resolves with one `openat2`; `None` means that the walk has to decide, also about failures.
    fn locate_with_openat2(&self, path: &RelPath, follow: Follow) -> Option<Located> {
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
        if !self.openat2_works.load(Ordering::Relaxed) {
            return None;
        }
        // Below `/` an absolute link may be resolved from the root again; below any other directory the walk has to
        // check it.
        let confine = if self.is_file_system_root { ResolveFlags::IN_ROOT } else { ResolveFlags::BENEATH };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat2(&self.directory, path, flags, Mode::empty(), confine | ResolveFlags::NO_MAGICLINKS) {
            Ok(directory) => Some(directory),
            Err(Errno::NOSYS | Errno::PERM) => {
                self.openat2_works.store(false, Ordering::Relaxed);
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
        // Checked before opening, because opening a device can have an effect, and again after, because the name may
        // now refer to another file. O_NONBLOCK keeps the open from blocking on a FIFO that was swapped in.
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

/// Opens a name that was not a symbolic link when it was checked; a link found now was swapped in and is refused.
fn open_final(parent: BorrowedFd<'_>, name: &CString, flags: OFlags) -> Result<OwnedFd, FileError> {
    match openat(parent, name, flags, Mode::empty()) {
        Err(Errno::LOOP) => Err(FileError::Escapes),
        other => Ok(other?),
    }
}
