//! The first process (pid 1) of a pid namespace that all containers of a Pod share. It only exists: orphans that become
//! its children are reaped automatically, and all processes of the namespace are killed with it.

use std::os::fd::{AsFd, OwnedFd};

use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};

use crate::kernel::container::isolation::{self, Identity};
use crate::kernel::container::launch::PodNamespaces;
use crate::kernel::container::rootfs::new_mount;
use crate::kernel::container::seccomp::{self, FileModes};
use crate::kernel::container::step::{StepExt, StepResult};
use crate::kernel::supervisor::plan::{IdMode, NOBODY, PodPlan};
use crate::kernel::sys::{self, ATTR_NODEV, ATTR_NOEXEC, ATTR_NOSUID, ATTR_RDONLY, Fork};

/// Starts the process; returns its pid namespace and its pid.
pub(super) fn start(plan: &PodPlan, namespaces: &PodNamespaces) -> StepResult<(OwnedFd, i32)> {
    let (ready, made) = sys::pipe().step("making a pipe")?;
    let pid = match sys::fork_with(libc::CLONE_NEWPID | libc::CLONE_NEWNS).step("forking")? {
        Fork::Child => {
            drop(ready);
            let code = match isolate_pause_process(plan, namespaces) {
                Ok(()) => 0,
                Err((_, error)) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            let _ = rustix::io::write(&made, &[code.clamp(0, 255) as u8]);
            if code != 0 {
                sys::exit_now(1);
            }
            sys::pause_forever(3)
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

/// Isolates the process: an empty root, the Pod's user namespace, no capabilities, and the containers' seccomp filter.
fn isolate_pause_process(plan: &PodPlan, namespaces: &PodNamespaces) -> StepResult<()> {
    sys::reset_signals();
    sys::ignore_sigchld();
    sys::set_dumpable(false).step("making the process non-dumpable")?;
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
    // The containers' users may see the process, but not signal or trace it.
    let id = if single { 0 } else { NOBODY };
    let identity = Identity { uid: id, gid: id, groups: (!single).then(Vec::new) };
    let filter = seccomp::program(FileModes::Any);
    isolation::restrict_process(&identity, &[], plan.isolation, &filter)?;
    // The change of user has cleared it.
    sys::set_parent_death_signal(libc::SIGKILL).step("tying the process to its supervisor")
}
