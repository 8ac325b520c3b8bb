//! Directory listings.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Stat, statat};

use super::checks::kind;
use super::root::{Follow, Located, Root};
use super::{FileError, walk};
use crate::core::paths::RelPath;

/// One entry of a directory. For a symbolic link, `stat` is that of the link's target.
#[derive(Debug)]
pub struct Entry {
    pub name: CString,
    pub stat: Stat,
    /// The entry itself is a symbolic link.
    pub link: bool,
}

impl Entry {
    pub fn is_directory(&self) -> bool {
        kind(&self.stat) == FileType::Directory
    }
}

/// Reads a directory, in the order of the file system. Entries that cannot be read, dangling links and links out of the
/// root are skipped, so that one bad entry does not fail the listing.
pub fn read_directory(root: &Root, located: &Located, path: &RelPath) -> Result<Vec<Entry>, FileError> {
    let directory = Arc::new(located.open_directory()?);
    let mut entries = Vec::new();
    for found in Dir::read_from(&*directory)? {
        let found = found?;
        let name = found.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if let Some(entry) = stat_entry(root, &directory, path, name) {
            entries.push(entry);
        }
    }
    Ok(entries)
}

fn stat_entry(root: &Root, directory: &OwnedFd, path: &RelPath, name: &CStr) -> Option<Entry> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    if kind(&stat) != FileType::Symlink {
        return Some(Entry { name: name.to_owned(), stat, link: false });
    }
    let target = walk::walk(root, &path.child(name.to_owned()), Follow::Link, walk::Missing::Fails).ok()?;
    Some(Entry { name: name.to_owned(), stat: target.stat().ok()??, link: true })
}
