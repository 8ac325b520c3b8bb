//! Launches with fork and exec, for what `posix_spawn` cannot do: another user, resource limits, a controlling
//! terminal. The code between fork and exec makes system calls only.

#![expect(unsafe_code, reason = "code between fork and exec may only use async-signal-safe calls")]

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::io::Errno;

use super::launch::{ChildStdio, Prepared};

/// Launches in a new session; with `on_terminal` its standard input becomes the controlling terminal.
pub(super) fn spawn(prepared: &Prepared<'_>, stdio: &ChildStdio, on_terminal: bool) -> Result<i32, Errno> {
    let launch = prepared.launch;
    let mut command = Command::new(OsStr::from_bytes(prepared.program.to_bytes()));
    command.env_clear().envs(launch.env.iter());
    if let Some(name) = launch.argv.first() {
        command.arg0(name).args(&launch.argv[1..]);
    }
    let end = |fd: &OwnedFd| -> Result<Stdio, Errno> { Ok(Stdio::from(rustix::io::fcntl_dupfd_cloexec(fd, 3)?)) };
    command.stdin(end(&stdio.stdin)?).stdout(end(&stdio.stdout)?).stderr(end(&stdio.stderr)?);
    let limits = launch.rlimits.clone();
    let identity = launch.identity.clone();
    let directory = launch.cwd.as_raw_fd();
    let prepare = move || {
        rustix::process::setsid()?;
        if on_terminal {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin().as_fd())?;
        }
        for (resource, limit) in &limits {
            let limit = rustix::process::Rlimit { current: Some(*limit), maximum: Some(*limit) };
            rustix::process::setrlimit(*resource, limit)?;
        }
        // SAFETY: the descriptor is open in the parent for the whole call and inherited by the fork; plain system calls.
        unsafe {
            if libc::fchdir(directory) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            if let Some(identity) = &identity {
                become_user(identity)?;
            }
            clear_signals()?;
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };
    match command.spawn() {
        // The reaper waits for the child. Dropping this handle does nothing.
        Ok(child) => Ok(child.id().cast_signed()),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// # Safety
/// Only between fork and exec: the raw calls change this thread alone, which is all there is.
unsafe fn become_user(identity: &super::launch::Identity) -> std::io::Result<()> {
    // SAFETY: the group list outlives the call; raw system calls without shared state.
    let results = unsafe {
        [
            libc::syscall(libc::SYS_setgroups, identity.groups.len(), identity.groups.as_ptr()),
            libc::syscall(libc::SYS_setresgid, identity.gid, identity.gid, identity.gid),
            libc::syscall(libc::SYS_setresuid, identity.uid, identity.uid, identity.uid),
        ]
    };
    if results.iter().any(|result| *result != 0) { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// # Safety
/// Only between fork and exec.
unsafe fn clear_signals() -> std::io::Result<()> {
    // SAFETY: the set is initialised by sigemptyset before it is used.
    let result = unsafe {
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
