//! A private, writable copy of a host folder: an overlay with the folder below, and above it a folder of the sandbox
//! that gets every change. The folder itself is only read, as its owner: an id-mapped mount shows the owner's files as
//! those of the user that the container runs as.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Gid, Mode, OFlags, Uid};

use super::bind::{BindContext, open_without_links};
use super::{clone_tree, host_folder, new_mount};
use crate::kernel::container::step::{StepExt, StepResult};
use crate::kernel::sys::{ATTR_NODEV, ATTR_NOSUID};

/// Where a copy is, and how its overlay is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopiedFolder {
    pub(crate) source: std::path::PathBuf,
    /// The folder with `upper` and `work`.
    pub(crate) layer: std::path::PathBuf,
    pub(crate) user_xattr: bool,
    pub(crate) volatile: bool,
}

/// A detached overlay.
pub(super) fn open(copy: &CopiedFolder, context: &BindContext<'_>) -> StepResult<OwnedFd> {
    const STEP: &str = "opening a folder to copy";
    let found = open_without_links(&copy.source).step(STEP)?;
    let like = rustix::fs::fstat(&found).step(STEP)?;
    let guest = (context.guest)().filter(|_| context.owner.idmap.is_some());
    let lower = match guest {
        Some(guest) => host_folder::as_owner(&copy.source, found.as_fd(), guest, true)?,
        None => clone_tree(&found, Path::new(""), false).step(STEP)?,
    };
    let folder = |name: &str| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, copy.layer.join(name), flags, Mode::empty())
    };
    let (upper, work) = (folder("upper").step(STEP)?, folder("work").step(STEP)?);
    // The top of an overlay is that of the upper folder.
    if let Some((uid, gid)) = guest {
        rustix::fs::fchown(&upper, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))).step(STEP)?;
    }
    rustix::fs::fchmod(&upper, Mode::from_raw_mode(like.st_mode & 0o7777)).step(STEP)?;
    mount(copy, &lower, &upper, &work).map_err(explain(copy)).step("mounting a copy of a folder")
}

/// Layers are named by descriptors: the mount table inside shows no path of the host.
fn mount(copy: &CopiedFolder, lower: &OwnedFd, upper: &OwnedFd, work: &OwnedFd) -> io::Result<OwnedFd> {
    let [lower, upper, work] = [lower, upper, work].map(|folder| format!("/proc/self/fd/{}", folder.as_raw_fd()));
    let mut options =
        vec![("source", "overlay"), ("lowerdir", lower.as_str()), ("upperdir", &upper), ("workdir", &work)];
    // Nothing in the real folder may be taken for a mark of overlayfs.
    options.extend([("redirect_dir", "nofollow"), ("metacopy", "off"), ("index", "off"), ("xino", "off")]);
    if copy.user_xattr {
        options.push(("userxattr", ""));
    }
    if copy.volatile {
        options.push(("volatile", ""));
    }
    new_mount("overlay", &options, ATTR_NOSUID | ATTR_NODEV)
}

fn explain(copy: &CopiedFolder) -> impl FnOnce(io::Error) -> io::Error + '_ {
    move |error| match error.raw_os_error() {
        Some(libc::EINVAL) => io::Error::other(format!(
            "the file system of {}, or that of the engine's data ({}), cannot be part of an overlay; keep the engine's data elsewhere (--data-dir), or mount the folder itself (--write)",
            copy.source.display(),
            copy.layer.display()
        )),
        _ => error,
    }
}
