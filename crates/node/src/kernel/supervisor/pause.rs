//! The first process of a process namespace that all containers of a Pod share. It does nothing but be there: orphans that
//! become its children vanish by themselves, and whatever runs in the namespace ends with it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};

use super::super::launch::PodNamespaces;
use super::super::plan::{IdMode, NOBODY, PodPlan};
use super::super::rootfs::new_mount;
use super::super::sys::{self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY, Fork};
use super::super::walls::{self, Identity, Named, Step};

/// Starts it; gives its namespace and its pid.
pub(super) fn start(plan: &PodPlan, namespaces: &PodNamespaces) -> Step<(OwnedFd, i32)> {
    let (ready, made) = sys::pipe().step("making a pipe")?;
    let pid = match sys::fork_with(libc::CLONE_NEWPID | libc::CLONE_NEWNS).step("forking")? {
        Fork::Child => {
            drop(ready);
            let code = match hide(plan, namespaces) {
                Ok(()) => 0,
                Err((_, error)) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            let _ = rustix::io::write(&made, &[code.clamp(0, 255) as u8]);
            if code != 0 {
                sys::exit_now(1);
            }
            sys::wait_for_ever(3)
        }
        Fork::Parent(pid) => pid,
    };
    drop(made);
    let mut answer = [libc::EIO as u8];
    let _ = rustix::io::read(&ready, &mut answer);
    if answer[0] != 0 {
        let _ = sys::kill(pid, libc::SIGKILL);
        let _ = sys::wait_for(pid);
        return Err(("making the shared process namespace", std::io::Error::from_raw_os_error(i32::from(answer[0]))));
    }
    let namespace = sys::open_namespace(pid, "pid").step("opening the shared process namespace")?;
    Ok((namespace, pid))
}

/// Leaves everything behind: an empty root, the Pod's user namespace, no capability, the same filter as everybody.
fn hide(plan: &PodPlan, namespaces: &PodNamespaces) -> Step<()> {
    sys::reset_signals();
    sys::ignore_children();
    sys::set_dumpable(false).step("closing the process to tracing")?;
    rustix::process::setsid().step("making a session")?;
    sys::setns(namespaces.ipc.as_fd(), libc::CLONE_NEWIPC).step("joining the ipc namespace")?;
    sys::setns(namespaces.uts.as_fd(), libc::CLONE_NEWUTS).step("joining the uts namespace")?;
    sys::setns(namespaces.net.as_fd(), libc::CLONE_NEWNET).step("joining the network namespace")?;
    sys::make_private_recursive(c"/").step("making mounts private")?;
    let attributes = ATTR_NOSUID | ATTR_NODEV | ATTR_NOEXEC | ATTR_RDONLY;
    let empty = new_mount("tmpfs", &[("mode", "0555"), ("size", "4k")], attributes).step("making an empty root")?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&empty, "", rustix::fs::CWD, &plan.stage, flags).step("attaching an empty root")?;
    rustix::process::chdir(&plan.stage).step("entering the empty root")?;
    rustix::process::pivot_root(".", ".").step("changing the root")?;
    unmount(".", UnmountFlags::DETACH).step("leaving the old root")?;
    let _ = sys::set_process_name(c"pause");
    let single = matches!(plan.ids, IdMode::Single { .. });
    if let Some(user) = &namespaces.user {
        sys::setns(user.as_fd(), libc::CLONE_NEWUSER).step("joining the user namespace")?;
    }
    // The containers' users may look at it and no more.
    let id = if single { 0 } else { NOBODY };
    let identity = Identity { uid: id, gid: id, groups: (!single).then(Vec::new) };
    let filter = super::super::seccomp::program();
    walls::close_in(&identity, &[], plan.walls, &filter)?;
    // Changing the user cleared it.
    sys::set_parent_death_signal(libc::SIGKILL).step("tying the process to its supervisor")
}
