//! A host folder that a sandbox reads and writes as the folder's owner: an id-mapped mount shows the files of the owner
//! as those of the user that the container runs as, and files that are created inside belong to the owner outside.
//! Files of other users show as nobody's.

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::clone_tree;
use crate::kernel::container::step::{StepExt, StepResult};
use crate::kernel::sys::{self, MountChange};

/// A detached, id-mapped copy of the mount at `found`, which was opened at `path`. `guest` is the container's user and
/// group, as seen by this process. Where the file system cannot map ids, a folder that is only read is shown unmapped,
/// so that what every user may read can be read.
pub(super) fn as_owner(path: &Path, found: BorrowedFd<'_>, guest: (u32, u32), read_only: bool) -> StepResult<OwnedFd> {
    const STEP: &str = "showing a host path as its owner's";
    let owner = rustix::fs::fstat(found).step(STEP)?;
    let mapping = user_namespace((owner.st_uid, guest.0), (owner.st_gid, guest.1), 1).step(STEP)?;
    for recursive in [true, false] {
        // A mount below that cannot be mapped is left out.
        let tree = clone_tree(found, Path::new(""), recursive).step(STEP)?;
        let change = MountChange { idmap: Some(mapping.as_fd()), recursive, ..MountChange::default() };
        match sys::mount_setattr(tree.as_fd(), change) {
            Ok(()) => return Ok(tree),
            // EPERM: it is id-mapped already.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) => {}
            Err(error) => return Err((STEP, error)),
        }
    }
    if read_only {
        return clone_tree(found, Path::new(""), true).step(STEP);
    }
    Err((
        STEP,
        io::Error::other(format!(
            "the file system of {} cannot show files under other user ids, so the sandbox could not write them; show it read-only, or give the sandbox a copy (--here or --with, or agent-sandbox cp)",
            path.display()
        )),
    ))
}

/// A user namespace that maps `count` uids and gids from those given as (on disk, seen) on, for id-mapped mounts. No
/// process is left in it.
pub(super) fn user_namespace(uid: (u32, u32), gid: (u32, u32), count: u32) -> io::Result<OwnedFd> {
    // The child's pid here differs from its pid in `/proc`, which is the host's.
    let child = Cell::new(0);
    let prepare = || {
        let own = fs::read_link("/proc/self")?;
        let own = own.to_str().and_then(|name| name.parse().ok());
        child.set(own.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?);
        Ok(())
    };
    sys::clone_vm::in_namespaces(libc::CLONE_NEWUSER, &prepare, |_| {
        let child: i32 = child.get();
        for (file, (on_disk, seen)) in [("uid_map", uid), ("gid_map", gid)] {
            fs::write(format!("/proc/{child}/{file}"), format!("{on_disk} {seen} {count}"))?;
        }
        sys::open_namespace(child, "user")
    })
}
