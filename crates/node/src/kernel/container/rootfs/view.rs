//! Host folders and programs that many sandboxes share, each shown through an overlay of its own. In a bind mount the
//! inodes would be the host's: a sandbox could watch what the host runs (inotify), and two sandboxes without a network
//! could talk through locks (flock). An overlay has inodes of its own, and shares only the pages of the files.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

use super::bind::BindContext;
use super::plan::FileKind;
use super::{EMPTY, attach, clone_tree, kind_of, mount_tmpfs, new_mount, openat};
use crate::kernel::container::step::{StepExt, StepResult};
use crate::kernel::sys::{ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY};

/// Folder of the staging file system at which an overlay is attached for a moment, to open a file in it.
pub(super) const FOLDER: &str = "view";

/// A detached, read-only view of a folder or file of the host.
pub(super) fn open(path: &Path, context: &BindContext<'_>) -> StepResult<OwnedFd> {
    const STEP: &str = "opening a host path";
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = rustix::fs::openat(CWD, path, flags, Mode::empty()).step(STEP)?;
    let seen = match (kind_of(found.as_fd()).step(STEP)?, context.stage) {
        (FileKind::Folder, _) => overlay(found.as_fd(), context),
        (FileKind::File, Some(stage)) => file(path, stage, context),
        // OCI runtimes are given paths of the host, without a stage.
        (FileKind::File, None) => return clone_tree(&found, Path::new(""), false).step(STEP),
    };
    match seen {
        // The host's own folder is an overlay over an overlay, or on a file system that cannot be below one.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => clone_tree(&found, Path::new(""), true).step(STEP),
        seen => seen.step("mounting a view of a host path"),
    }
}

/// Layers are named by descriptors: the mount table inside shows no path of the host.
fn overlay(folder: BorrowedFd<'_>, context: &BindContext<'_>) -> io::Result<OwnedFd> {
    let empty = match context.stage {
        Some(stage) => openat(stage, EMPTY, OFlags::PATH | OFlags::DIRECTORY)?,
        None => mount_tmpfs(&[("mode", "0555"), ("size", "4k")], ATTR_NOSUID | ATTR_NODEV)?,
    };
    // A single layer without an upper one is refused, so an empty one lies over it.
    let layers = format!("/proc/self/fd/{}:/proc/self/fd/{}", empty.as_raw_fd(), folder.as_raw_fd());
    let mut options = vec![("source", "overlay"), ("lowerdir", layers.as_str())];
    if context.owner.idmap.is_none() {
        options.push(("userxattr", ""));
    }
    new_mount("overlay", &options, ATTR_NOSUID | ATTR_NODEV | ATTR_RDONLY)
}

/// A file in an overlay over its folder.
fn file(path: &Path, stage: BorrowedFd<'_>, context: &BindContext<'_>) -> io::Result<OwnedFd> {
    let path = path.canonicalize()?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(CWD, folder, flags, Mode::empty())?;
    let overlay = overlay(folder.as_fd(), context)?;
    // Before Linux 6.15 only a mount that is attached can be copied.
    attach(&overlay, openat(stage, FOLDER, OFlags::PATH | OFlags::DIRECTORY)?.as_fd())?;
    let copy = clone_tree(openat(stage, FOLDER, OFlags::PATH | OFlags::DIRECTORY)?, Path::new(name), false)?;
    rustix::mount::unmount(
        format!("/proc/self/fd/{}/{FOLDER}", stage.as_raw_fd()),
        rustix::mount::UnmountFlags::DETACH,
    )?;
    Ok(copy)
}
