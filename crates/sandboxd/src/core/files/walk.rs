//! Path resolution one component at a time, for what `openat2` does not resolve. Every directory on the path is held
//! open, `..` goes back to the directory opened before, and links are read and resolved here, never by the kernel.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, mkdirat, openat, readlinkat, statat};
use rustix::io::Errno;

use super::FileError;
use super::checks::{is_kernel_file_system, kind};
use super::root::{Follow, Located, Root};
use crate::core::paths::RelPath;

/// Maximum number of links in one resolution, as in the kernel.
const MAX_LINKS: usize = 40;

/// What to do about a missing parent directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Fails,
    Created,
}

struct Walk<'a> {
    root: &'a Root,
    open_directories: Vec<Arc<OwnedFd>>,
    pending: VecDeque<CString>,
    links: usize,
}

pub(super) fn walk(root: &Root, path: &RelPath, follow: Follow, missing: Missing) -> Result<Located, FileError> {
    let pending = path.components().iter().cloned().collect();
    let mut walk = Walk { root, open_directories: Vec::new(), pending, links: 0 };
    while let Some(name) = walk.pending.pop_front() {
        match name.to_bytes() {
            b"." => continue,
            b".." => {
                walk.open_directories.pop().ok_or(FileError::Escapes)?;
                continue;
            }
            _ => {}
        }
        let parent = Arc::clone(walk.current());
        let last = walk.pending.is_empty();
        match statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if kind(&stat) == FileType::Symlink && (!last || follow == Follow::Link) => {
                walk.follow_link(&parent, &name)?;
            }
            Ok(stat) if last => return Ok(entry(parent, name, Some(stat))),
            Ok(_) => walk.enter(&parent, &name)?,
            Err(Errno::NOENT) if last => return Ok(entry(parent, name, None)),
            Err(Errno::NOENT) if missing == Missing::Created => {
                match mkdirat(&parent, &name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => walk.enter(&parent, &name)?,
                    Err(errno) => return Err(errno.into()),
                }
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(Located::Directory(Arc::clone(walk.current())))
}

fn entry(parent: Arc<OwnedFd>, name: CString, stat: Option<Stat>) -> Located {
    Located::Entry { parent, name, stat: stat.map(Box::new) }
}

impl Walk<'_> {
    fn current(&self) -> &Arc<OwnedFd> {
        self.open_directories.last().unwrap_or_else(|| self.root.directory())
    }

    fn enter(&mut self, parent: &OwnedFd, name: &CString) -> Result<(), FileError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.open_directories.push(Arc::new(openat(parent, name, flags, Mode::empty())?));
        Ok(())
    }

    /// Replaces a link by its text. An absolute link is allowed if its text begins with a path of the root.
    fn follow_link(&mut self, parent: &OwnedFd, name: &CString) -> Result<(), FileError> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(FileError::Os(Errno::LOOP));
        }
        // Links in procfs may be magic: their text is not where they lead.
        if is_kernel_file_system(parent)? {
            return Err(FileError::Refused("a link of a kernel file system"));
        }
        let target = readlinkat(parent, name, Vec::new())?;
        let mut parts: Vec<CString> = target
            .to_bytes()
            .split(|byte| *byte == b'/')
            .filter(|part| !part.is_empty())
            .map(|part| CString::new(part).map_err(|_| FileError::Escapes))
            .collect::<Result<_, _>>()?;
        if target.to_bytes().starts_with(b"/") {
            self.open_directories.clear();
            let alias = self.root.aliases().iter().find(|alias| parts.starts_with(alias.components()));
            let depth = alias.ok_or(FileError::Escapes)?.components().len();
            parts.drain(..depth);
        }
        for part in parts.into_iter().rev() {
            self.pending.push_front(part);
        }
        Ok(())
    }
}
