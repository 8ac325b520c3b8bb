//! The entries of a directory with what a listing shows about each.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Stat, statat};

use super::refuse::kind;
use super::root::{Follow, Located, Root};
use super::{FileError, walk};
use crate::paths::RelPath;

/// One entry: links carry the data of what they lead to.
#[derive(Debug)]
pub struct Entry {
    pub name: CString,
    pub stat: Stat,
    /// The entry itself is a link.
    pub link: bool,
}

impl Entry {
    pub fn is_directory(&self) -> bool {
        kind(&self.stat) == FileType::Directory
    }
}

/// Reads a directory in its own order. Entries that cannot be looked at, lead nowhere or lead out of the root are left
/// out: one bad entry never costs the others.
pub fn read_directory(root: &Root, located: &Located, path: &RelPath) -> Result<Vec<Entry>, FileError> {
    let directory = Arc::new(located.open_directory()?);
    let mut entries = Vec::new();
    for found in Dir::read_from(&*directory)? {
        let found = found?;
        let name = found.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if let Some(entry) = look_at(root, &directory, path, name) {
            entries.push(entry);
        }
    }
    Ok(entries)
}

fn look_at(root: &Root, directory: &OwnedFd, path: &RelPath, name: &CStr) -> Option<Entry> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    if kind(&stat) != FileType::Symlink {
        return Some(Entry { name: name.to_owned(), stat, link: false });
    }
    let target = walk::walk(root, &path.child(name.to_owned()), Follow::Link, walk::Missing::Fails).ok()?;
    Some(Entry { name: name.to_owned(), stat: target.stat().ok()??, link: true })
}
