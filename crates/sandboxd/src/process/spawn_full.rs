//! Launching with everything `posix_spawn` cannot do: another user, resource limits, a controlling terminal. A plain
//! fork and exec; the work between the two only makes system calls.

#![expect(unsafe_code, reason = "code between fork and exec may only use async-signal-safe calls")]

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::Winsize;

use super::launch::{ChildEnds, Prepared};

/// A terminal pair: the controlling side and the side the command gets.
pub(super) fn open_terminal(size: Winsize) -> Result<(OwnedFd, OwnedFd), Errno> {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&controller)?;
    unlockpt(&controller)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = match ioctl_tiocgptpeer(&controller, flags) {
        Ok(terminal) => terminal,
        // Older kernels and some sandboxes: open it by name.
        Err(_) => {
            let name = rustix::pty::ptsname(&controller, Vec::new())?;
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?
        }
    };
    if size.ws_col > 0 && size.ws_row > 0 {
        rustix::termios::tcsetwinsize(&controller, size)?;
    }
    Ok((controller, terminal))
}

/// Launches in a new session; with `on_terminal` its standard input becomes the session's terminal.
pub(super) fn spawn(prepared: &Prepared<'_>, ends: &ChildEnds, on_terminal: bool) -> Result<i32, Errno> {
    let launch = prepared.launch;
    let mut command = Command::new(OsStr::from_bytes(prepared.program.to_bytes()));
    command.env_clear().envs(launch.env.iter());
    if let Some(name) = launch.argv.first() {
        command.arg0(name).args(&launch.argv[1..]);
    }
    let end = |fd: &OwnedFd| -> Result<Stdio, Errno> { Ok(Stdio::from(rustix::io::fcntl_dupfd_cloexec(fd, 3)?)) };
    command.stdin(end(&ends.stdin)?).stdout(end(&ends.stdout)?).stderr(end(&ends.stderr)?);
    let limits = launch.limits.clone();
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
        // Reaped by the reaper, not through this handle, whose drop does nothing.
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
