//! Directory trees that sandboxes have written: removed and measured without following links, at any depth.
//!
//! A sandbox may nest folders until paths are far longer than any system call accepts, and deeper than a stack or a
//! descriptor table allows. Nothing here uses a path below the top, unbounded recursion, or more than a few descriptors
//! at a time.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Maximum number of names read from a folder at a time: a folder may contain millions.
const BATCH: usize = 4_096;

/// Depth up to which folders are emptied in place; deeper ones are first moved to the top.
const DEPTH: usize = 16;

/// Disk usage of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Bytes on disk; files with several names are counted once.
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

/// Removes a tree, regardless of the permissions inside; a missing one is fine. Links are removed, never followed.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let top = match open_for_removal(CWD, path) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let mut remover = Remover { top: top.as_fd(), moved: 0 };
    while remover.empty(top.as_fd(), 0)? {}
    match rustix::fs::rmdir(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

struct Remover<'a> {
    top: BorrowedFd<'a>,
    moved: u64,
}

impl Remover<'_> {
    /// Empties a folder; returns whether it contained anything. Recursion is bounded by [`DEPTH`].
    fn empty(&mut self, folder: BorrowedFd<'_>, depth: usize) -> io::Result<bool> {
        let mut found = false;
        loop {
            let names = read_names(folder)?;
            if names.is_empty() {
                return Ok(found);
            }
            found = true;
            for (name, kind) in names {
                self.remove_entry(folder, &name, kind, depth)?;
            }
        }
    }

    fn remove_entry(&mut self, folder: BorrowedFd<'_>, name: &CStr, kind: FileType, depth: usize) -> io::Result<()> {
        if kind != FileType::Directory {
            match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                // The file type is unknown, or has changed meanwhile.
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let inner = open_for_removal(folder, name)?;
        if depth < DEPTH {
            self.empty(inner.as_fd(), depth + 1)?;
            return match rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        self.move_up(folder, name)
    }

    /// Moves a deep folder to the top under a new name, where the next pass removes it.
    fn move_up(&mut self, folder: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        loop {
            let fresh = format!(".removing-{}", self.moved);
            self.moved += 1;
            match rustix::fs::renameat_with(folder, name, self.top, fresh, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                other => return Ok(other?),
            }
        }
    }
}

/// Bytes and inodes of a tree. The tree may be in use: files that are created or removed meanwhile may be missed.
pub(crate) fn usage(path: &Path) -> Usage {
    let mut usage = Usage::default();
    let Ok(stat) = rustix::fs::lstat(path) else { return usage };
    usage.add(&stat);
    if !FileType::from_raw_mode(stat.st_mode).is_dir() {
        return usage;
    }
    let Ok(mut current) = open_folder(CWD, path) else { return usage };
    let mut linked = HashSet::new();
    // The folders from the top to the current one, each with the names still to enter. Only names are kept, so depth
    // costs no descriptor.
    let mut above = vec![Level { identity: identity(&stat), folders: count(current.as_fd(), &mut usage, &mut linked) }];
    while let Some(level) = above.last_mut() {
        if let Some(name) = level.folders.pop() {
            let Ok(inner) = open_folder(current.as_fd(), &name) else { continue };
            let Ok(stat) = rustix::fs::fstat(&inner) else { continue };
            current = inner;
            let folders = count(current.as_fd(), &mut usage, &mut linked);
            above.push(Level { identity: identity(&stat), folders });
            continue;
        }
        above.pop();
        let Some(parent) = above.last() else { break };
        let Ok(up) = open_folder(current.as_fd(), c"..") else { break };
        // Another process moved the current folder: what was counted so far is returned.
        if rustix::fs::fstat(&up).map(|stat| identity(&stat)) != Ok(parent.identity) {
            break;
        }
        current = up;
    }
    usage
}

struct Level {
    identity: (u64, u64),
    folders: Vec<CString>,
}

impl Usage {
    fn add(&mut self, stat: &rustix::fs::Stat) {
        self.bytes += u64::try_from(stat.st_blocks).unwrap_or_default() * 512;
        self.inodes += 1;
    }
}

fn identity(stat: &rustix::fs::Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Counts the direct entries of a folder; returns the folders among them.
fn count(folder: BorrowedFd<'_>, usage: &mut Usage, linked: &mut HashSet<(u64, u64)>) -> Vec<CString> {
    let mut folders = Vec::new();
    let Ok(entries) = Dir::read_from(folder) else { return folders };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let Ok(stat) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let is_folder = FileType::from_raw_mode(stat.st_mode).is_dir();
        if is_folder || stat.st_nlink <= 1 || linked.insert(identity(&stat)) {
            usage.add(&stat);
        }
        if is_folder {
            folders.push(name.to_owned());
        }
    }
    folders
}

/// Opens a folder without following a link.
fn open_folder<P: rustix::path::Arg>(base: impl AsFd, name: P) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(base, name, flags, Mode::empty())
}

/// Opens a folder whose entries are to be removed. If its owner may not list or change it (overlay's own `work/work`,
/// or any folder of an ordinary user), its permissions are changed first.
fn open_for_removal<P: rustix::path::Arg + Copy>(base: impl AsFd, name: P) -> Result<OwnedFd, Errno> {
    let opened = match open_folder(&base, name) {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(&base, name, Mode::RWXU, AtFlags::empty())?;
            open_folder(&base, name)?
        }
        other => other?,
    };
    if rustix::fs::fstat(&opened)?.st_mode & 0o700 != 0o700 {
        rustix::fs::fchmod(&opened, Mode::RWXU)?;
    }
    Ok(opened)
}

/// Up to [`BATCH`] names of a folder, without `.` and `..`.
fn read_names(folder: BorrowedFd<'_>) -> io::Result<Vec<(CString, FileType)>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push((name.to_owned(), entry.file_type()));
            if names.len() == BATCH {
                break;
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// Nests folders so deep that their path is longer than any system call accepts, with a file in the deepest.
    fn nest(top: &Path, levels: usize) {
        let mut current = open_folder(CWD, top).unwrap();
        for _ in 0..levels {
            rustix::fs::mkdirat(&current, "d", Mode::RWXU).unwrap();
            current = open_folder(&current, "d").unwrap();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = rustix::fs::openat(&current, "f", flags, Mode::RUSR).unwrap();
        rustix::io::write(&file, &[1; 5_000]).unwrap();
    }

    #[test]
    fn a_tree_deeper_than_paths_and_stacks_go_is_measured_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).unwrap();
        nest(&tree, 20_000);
        let usage = usage(&tree);
        assert_eq!(usage.inodes, 20_002);
        assert!(usage.bytes >= 5_000, "{usage:?}");
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn links_are_removed_and_never_followed() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("precious"), "").unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir(&tree).unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("link")).unwrap();
        assert_eq!(usage(&tree).inodes, 2);
        remove(&tree).unwrap();
        assert!(outside.join("precious").exists() && !tree.exists());
        std::os::unix::fs::symlink(&outside, &tree).unwrap();
        remove(&tree).unwrap();
        assert!(outside.join("precious").exists() && fs::symlink_metadata(&tree).is_err());
        remove(&folder.path().join("nothing")).unwrap();
    }

    #[test]
    fn closed_folders_and_files_are_removed_too() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().join("tree");
        fs::create_dir_all(tree.join("closed/inner")).unwrap();
        fs::write(tree.join("closed/file"), "").unwrap();
        fs::set_permissions(tree.join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
        remove(&tree).unwrap();
        fs::write(&tree, "").unwrap();
        remove(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn a_file_with_two_names_counts_once() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), vec![1; 100_000]).unwrap();
        fs::hard_link(folder.path().join("a"), folder.path().join("b")).unwrap();
        let usage = usage(folder.path());
        assert_eq!(usage.inodes, 2);
        assert!(usage.bytes < 150_000, "{usage:?}");
    }
}
