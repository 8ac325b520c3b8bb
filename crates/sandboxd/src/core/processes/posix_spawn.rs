//! Launches with `posix_spawn`: like vfork, the child shares the daemon's memory until it executes, so that the cost of
//! a launch does not depend on the daemon's size. Measured at about half of fork and exec.

#![expect(unsafe_code, reason = "posix_spawn is a C interface")]

use std::ffi::{CString, c_char, c_int, c_short};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;

use rustix::io::Errno;

use super::launch::{ChildStdio, Prepared};

/// Launches in a new session with the given standard descriptors; all others are close-on-exec.
pub(super) fn spawn(prepared: &Prepared<'_>, stdio: &ChildStdio) -> Result<i32, Errno> {
    let mut actions = Actions::new()?;
    actions.dup2(stdio.stdin.as_raw_fd(), 0)?;
    actions.dup2(stdio.stdout.as_raw_fd(), 1)?;
    actions.dup2(stdio.stderr.as_raw_fd(), 2)?;
    actions.change_directory(prepared.launch.cwd.as_raw_fd())?;
    let attributes = Attributes::new()?;
    let argv = pointers(&prepared.argv);
    let env = pointers(&prepared.env);
    let mut pid: libc::pid_t = 0;
    // SAFETY: every pointer is to a live, initialised value; argv and env are NULL-terminated arrays of C strings that
    // outlive the call, which returns only after the child has executed or failed.
    let result = unsafe {
        libc::posix_spawn(
            &mut pid,
            prepared.program.as_ptr(),
            &actions.0,
            &attributes.0,
            argv.as_ptr().cast(),
            env.as_ptr().cast(),
        )
    };
    check(result)?;
    Ok(pid)
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

fn check(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(result)) }
}

struct Actions(libc::posix_spawn_file_actions_t);

impl Actions {
    fn new() -> Result<Self, Errno> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: the call initialises the value or fails.
        check(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        // SAFETY: initialised just above.
        Ok(Self(unsafe { actions.assume_init() }))
    }

    fn dup2(&mut self, from: RawFd, to: RawFd) -> Result<(), Errno> {
        // SAFETY: an initialised value; only the child uses the descriptor.
        check(unsafe { libc::posix_spawn_file_actions_adddup2(&mut self.0, from, to) })
    }

    fn change_directory(&mut self, directory: RawFd) -> Result<(), Errno> {
        // SAFETY: as above.
        check(unsafe { libc::posix_spawn_file_actions_addfchdir_np(&mut self.0, directory) })
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, destroyed once.
        unsafe { libc::posix_spawn_file_actions_destroy(&mut self.0) };
    }
}

struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    /// A new session, no blocked signals, default dispositions: the child inherits nothing of the daemon's signal
    /// setup.
    fn new() -> Result<Self, Errno> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the call initialises the value or fails.
        check(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: initialised just above.
        let mut attributes = Self(unsafe { attributes.assume_init() });
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both calls initialise the whole set they are given.
        let (none, all) = unsafe {
            libc::sigemptyset(none.as_mut_ptr());
            libc::sigfillset(all.as_mut_ptr());
            (none.assume_init(), all.assume_init())
        };
        let flags = libc::POSIX_SPAWN_SETSIGMASK | libc::POSIX_SPAWN_SETSIGDEF | c_int::from(libc::POSIX_SPAWN_SETSID);
        // SAFETY: initialised attributes and sets.
        unsafe {
            check(libc::posix_spawnattr_setsigmask(&mut attributes.0, &none))?;
            check(libc::posix_spawnattr_setsigdefault(&mut attributes.0, &all))?;
            check(libc::posix_spawnattr_setflags(&mut attributes.0, flags as c_short))?;
        }
        Ok(attributes)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, destroyed once.
        unsafe { libc::posix_spawnattr_destroy(&mut self.0) };
    }
}
