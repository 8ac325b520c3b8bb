//! Sources of bind mounts: opened without following a sandbox's links, restricted, and shown under the Pod's ids.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Gid, Mode, OFlags, ResolveFlags, Uid};

use super::plan::{BindSource, FileKind};
use super::{Owner, attach_at_path, clone_tree, copied_folder, host_folder, kind_of, view};
use crate::kernel::container::step::{StepExt, StepResult};
use crate::kernel::sys::{self, ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY, MountChange};

/// What is known about the container that gets a mount.
#[derive(Clone, Copy)]
pub(crate) struct BindContext<'a> {
    pub(crate) owner: Owner<'a>,
    /// The staging file system, where there is one.
    pub(crate) stage: Option<BorrowedFd<'a>>,
    /// The ids that the container runs as, as seen by the set-up process; `None` if they are not known.
    pub(crate) guest: &'a dyn Fn() -> Option<(u32, u32)>,
}

/// Mounts a bind's source at a path of the node, restricted as it will be inside.
pub(crate) fn expose(source: &BindSource, read_only: bool, context: &BindContext<'_>, at: &Path) -> StepResult<()> {
    let (tree, kind) = open(source, read_only, context)?;
    match kind {
        FileKind::Folder => std::fs::create_dir(at),
        FileKind::File => std::fs::File::create(at).map(drop),
    }
    .step("making a mount target")?;
    attach_at_path(&tree, at).step("attaching a mount")
}

/// A detached copy of a bind's source, with restricted mount attributes.
pub(super) fn open(source: &BindSource, read_only: bool, context: &BindContext<'_>) -> StepResult<(OwnedFd, FileKind)> {
    let owner = context.owner;
    let (tree, shifted) = match source {
        BindSource::Ours(path) => (clone_tree(CWD, path, true).step("opening a mount's source")?, false),
        BindSource::View(path) => (view::open(path, context)?, false),
        BindSource::Copy(copy) => (copied_folder::open(copy, context)?, false),
        BindSource::Named(path) => {
            let found = open_without_links(path).step("opening a host path without following links")?;
            let tree = match (context.guest)().filter(|_| owner.idmap.is_some()) {
                Some(guest) => host_folder::as_owner(path, found.as_fd(), guest, read_only)?,
                None => clone_tree(&found, Path::new(""), true).step("opening a host path")?,
            };
            (tree, false)
        }
        BindSource::Volume { path, sub_path: None, shifted } => {
            (clone_tree(CWD, path, false).step("opening a volume")?, *shifted)
        }
        BindSource::Volume { path, sub_path: Some(sub_path), shifted } => {
            let inner = open_sub_path(path, sub_path).step("opening a mount's subPath")?;
            (clone_tree(&inner, Path::new(""), false).step("opening a mount's subPath")?, *shifted)
        }
    };
    let change = MountChange {
        set: ATTR_NOSUID | ATTR_NODEV | if read_only { ATTR_RDONLY } else { 0 },
        propagation: libc::MS_PRIVATE,
        idmap: owner.idmap.filter(|_| shifted),
        recursive: !matches!(source, BindSource::Volume { .. }),
        ..MountChange::default()
    };
    sys::mount_setattr(tree.as_fd(), change).step("restricting a mount")?;
    let kind = kind_of(tree.as_fd()).step("looking at a mount's source")?;
    Ok((tree, kind))
}

/// Opens a path of the host that contains no symbolic link.
pub(super) fn open_without_links(path: &Path) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// Opens `sub_path` inside a volume without leaving it; missing folders get the owner and mode of the volume's root.
fn open_sub_path(volume: &Path, sub_path: &str) -> io::Result<OwnedFd> {
    let base = rustix::fs::openat(CWD, volume, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let model = rustix::fs::fstat(&base)?;
    let mut prefix = PathBuf::new();
    let mut current = rustix::io::fcntl_dupfd_cloexec(&base, 0)?;
    for component in Path::new(sub_path).components() {
        let std::path::Component::Normal(name) = component else { continue };
        prefix.push(name);
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let open = || rustix::fs::openat2(&base, &prefix, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
        current = match open() {
            Ok(found) => found,
            Err(rustix::io::Errno::NOENT) => {
                rustix::fs::mkdirat(&current, name, Mode::from_raw_mode(0o700))?;
                // By descriptor: another process that writes to the volume may have replaced the folder by a link
                // meanwhile.
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = rustix::fs::openat(&current, name, flags, Mode::empty())?;
                rustix::fs::fchown(&made, Some(Uid::from_raw(model.st_uid)), Some(Gid::from_raw(model.st_gid)))?;
                rustix::fs::fchmod(&made, Mode::from_raw_mode(model.st_mode & 0o7777))?;
                open()?
            }
            Err(error) => return Err(error.into()),
        };
    }
    Ok(current)
}
