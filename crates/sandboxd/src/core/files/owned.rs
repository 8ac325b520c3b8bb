//! Files and directories that belong to another user than the daemon: created, or written in place, and then given to
//! their owner.

use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, chownat, fchown, ftruncate, mkdirat, openat};
use rustix::io::Errno;

use super::checks::{is_kernel_file_system, kind, require_regular, require_single_name};
use super::{FileError, Follow, Located, Root};
use crate::core::paths::RelPath;

/// The user and group that new files belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    fn ids(self) -> (Option<Uid>, Option<Gid>) {
        (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)))
    }
}

/// Creates a directory and its missing parents with permissions 0755; returns whether the directory is new.
pub fn make_directories(root: &Root, path: &RelPath, owner: Owner) -> Result<bool, FileError> {
    let mut at = RelPath::default();
    let mut created = false;
    for component in path.components() {
        at = at.child(component.clone());
        created = make_directory(root, &at, owner)?;
    }
    Ok(created)
}

fn make_directory(root: &Root, path: &RelPath, owner: Owner) -> Result<bool, FileError> {
    let located = root.locate(path, Follow::Link)?;
    match &located {
        Located::Entry { parent, name, stat: None } => {
            if is_kernel_file_system(parent)? {
                return Err(FileError::Refused("a directory of a kernel file system"));
            }
            match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
                Ok(()) => {}
                // Created by another process since it was looked up.
                Err(Errno::EXIST) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
            let (uid, gid) = owner.ids();
            // Only a privileged daemon can change the owner; another one works as the only user that there is.
            let _ = chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW);
            Ok(true)
        }
        located if located.is_directory() => Ok(false),
        _ => Err(FileError::Os(Errno::NOTDIR)),
    }
}

/// Opens a file for writing from its beginning: a new one with permissions 0666 less the umask, an existing one
/// truncated, so that links to it and watches on it stay. Creates missing parent directories.
pub fn open_for_writing(root: &Root, path: &RelPath, owner: Owner) -> Result<OwnedFd, FileError> {
    let Some((name, parents)) = path.components().split_last() else { return Err(FileError::Os(Errno::ISDIR)) };
    let directory = parents.iter().fold(RelPath::default(), |at, part| at.child(part.clone()));
    make_directories(root, &directory, owner)?;
    let Located::Entry { parent, name, stat } = root.locate(&directory.child(name.clone()), Follow::Link)? else {
        return Err(FileError::Os(Errno::ISDIR));
    };
    if is_kernel_file_system(&parent)? {
        return Err(FileError::Refused("a directory of a kernel file system"));
    }
    let mut flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match stat.as_ref().map(|stat| kind(stat)) {
        None => flags |= OFlags::CREATE,
        Some(FileType::RegularFile) => {}
        Some(FileType::Directory) => return Err(FileError::Os(Errno::ISDIR)),
        Some(_) => return Err(FileError::Refused("not a regular file")),
    }
    let file = openat(&parent, &name, flags, Mode::from_raw_mode(0o666))?;
    require_regular(&file)?;
    if !root.is_file_system_root() {
        require_single_name(&file)?;
    }
    ftruncate(&file, 0)?;
    let (uid, gid) = owner.ids();
    // As above: without the right to change owners, the file belongs to the daemon's user.
    let _ = fchown(&file, uid, gid);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn own() -> Owner {
        Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).expect("a path")
    }

    /// E-092
    #[test]
    fn directories_are_made_with_their_parents_and_only_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = Root::open(directory.path()).expect("a root");
        assert!(make_directories(&root, &path("a/b/c"), own()).expect("made"));
        assert!(!make_directories(&root, &path("a/b/c"), own()).expect("there already"));
        std::fs::write(directory.path().join("file"), "").expect("a file");
        let refused = make_directories(&root, &path("file/x"), own()).expect_err("a file is in the way");
        assert_eq!(refused.errno(), Some(Errno::NOTDIR));
    }

    /// E-101: the file keeps its identity, so that other names of it and watches on it see the new content.
    #[test]
    fn an_existing_file_is_truncated_in_place() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = Root::open(directory.path()).expect("a root");
        let file = directory.path().join("a/old");
        let opened = open_for_writing(&root, &path("a/old"), own()).expect("a new file");
        rustix::io::write(&opened, b"long content").expect("written");
        let before = std::fs::metadata(&file).expect("there").ino();
        let opened = open_for_writing(&root, &path("a/old"), own()).expect("the same file");
        rustix::io::write(&opened, b"new").expect("written");
        assert_eq!(std::fs::read(&file).expect("read"), b"new");
        assert_eq!(std::fs::metadata(&file).expect("there").ino(), before);
        std::fs::hard_link(&file, directory.path().join("other")).expect("a link");
        assert!(open_for_writing(&root, &path("a/old"), own()).is_err(), "another name may be outside the root");
        assert!(open_for_writing(&root, &path("a"), own()).is_err());
    }
}
