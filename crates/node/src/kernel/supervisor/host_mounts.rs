//! Mounts of the host in a supervisor that has a mount namespace of its own. The node mounts folders with a size limit
//! (loop files) in the host's mount namespace, mostly after the supervisor has left that.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};

use crate::kernel::storage::{is_mounted, mechanism_of};
use crate::kernel::supervisor::plan::ContainerPlan;
use crate::kernel::sys::{self, Fork};
use crate::runtime::{MountSource, StorageMechanism};

/// Attaches the loop files that a container needs, where the supervisor does not see them yet. `host` is the host's
/// mount namespace.
pub(super) fn attach(host: &OwnedFd, plan: &ContainerPlan) -> io::Result<()> {
    let volumes = plan.spec.mounts.iter().filter_map(|mount| match &mount.source {
        MountSource::Data { path, .. } => Some(path.as_path()),
        _ => None,
    });
    for folder in volumes.chain(plan.copies.values().map(PathBuf::as_path)).chain([plan.layer.as_path()]) {
        if mechanism_of(folder) == StorageMechanism::LoopFile && !is_mounted(folder)? {
            attach_one(host, folder)?;
        }
    }
    Ok(())
}

/// A child enters the host's mount namespace, takes a copy of the mount, and attaches it in the supervisor's: entering a
/// mount namespace changes the working folder, which the supervisor should keep.
fn attach_one(host: &OwnedFd, folder: &Path) -> io::Result<()> {
    match sys::fork_with(0)? {
        Fork::Child => {
            let work = || -> io::Result<()> {
                let own = fs::File::open("/proc/self/ns/mnt")?;
                sys::setns(host.as_fd(), libc::CLONE_NEWNS)?;
                let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
                let mount = open_tree(CWD, folder, flags)?;
                sys::setns(own.as_fd(), libc::CLONE_NEWNS)?;
                Ok(move_mount(&mount, "", CWD, folder, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
            };
            sys::exit_now(work().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO)))
        }
        Fork::Parent(pid) => match libc::WEXITSTATUS(sys::wait_for(pid)?) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        },
    }
}
