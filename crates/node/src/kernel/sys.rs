//! System calls that no dependency wraps, each wrapped safely here so that the rest of the kernel half needs no
//! `unsafe`.

#![expect(unsafe_code, reason = "raw system calls: namespaces, mounts, capabilities, seccomp")]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

pub(crate) mod clone_vm;
mod privileges;
pub(crate) mod vfork;

pub(crate) use privileges::*;

/// Turns a negative result into this thread's `errno`.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The side of a fork.
pub(crate) enum Fork {
    Child,
    Parent(i32),
}

/// Forks with namespace flags (`CLONE_NEWPID`, …), the child running on a copy of this stack.
///
/// # Errors
/// The kernel's. The caller must be single-threaded: the child continues with ordinary Rust code, including allocation.
pub(crate) fn fork_with(flags: libc::c_int) -> io::Result<Fork> {
    // SAFETY: without CLONE_VM this is fork(2): the child has its own copy of memory. Helpers are single-threaded, so
    // no lock can be held by a thread that does not exist in the child.
    let pid = check(unsafe {
        libc::syscall(libc::SYS_clone, libc::c_long::from(flags | libc::SIGCHLD), 0_usize, 0_usize, 0_usize, 0_usize)
    })?;
    Ok(if pid == 0 { Fork::Child } else { Fork::Parent(pid as i32) })
}

/// Flag of clone3: the child is created in the cgroup whose descriptor is given.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// As [`fork_with`], with the child created in a cgroup of the unified hierarchy. Moving it there later would wait for
/// every processor of the machine.
pub(crate) fn fork_into(flags: libc::c_int, group: BorrowedFd<'_>) -> io::Result<Fork> {
    // SAFETY: all zeroes is a valid value: no flag, no pointer.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = flags as u64 | CLONE_INTO_CGROUP;
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.cgroup = group.as_raw_fd() as u64;
    // SAFETY: as for `fork_with`; no stack is given, so the child runs on a copy of this one.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) })?;
    Ok(if pid == 0 { Fork::Child } else { Fork::Parent(pid as i32) })
}

pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// Exits a forked child without running the parent's exit handlers.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit never returns and touches nothing.
    unsafe { libc::_exit(code) }
}

pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: plain integer argument; helpers are single-threaded.
    check(libc::c_long::from(unsafe { libc::unshare(flags) })).map(drop)
}

pub(crate) fn setns(namespace: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed for the whole call.
    check(libc::c_long::from(unsafe { libc::setns(namespace.as_raw_fd(), kind) })).map(drop)
}

/// The changes for [`mount_setattr`].
#[derive(Clone, Copy, Default)]
pub(crate) struct MountChange<'a> {
    pub(crate) set: u64,
    pub(crate) clear: u64,
    pub(crate) propagation: u64,
    pub(crate) idmap: Option<BorrowedFd<'a>>,
    pub(crate) recursive: bool,
}

pub(crate) const ATTR_RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub(crate) const ATTR_NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub(crate) const ATTR_NODEV: u64 = libc::MOUNT_ATTR_NODEV;
pub(crate) const ATTR_NOEXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

/// Changes a mount's attributes: read-only, nosuid, propagation, id mapping.
pub(crate) fn mount_setattr(mount: BorrowedFd<'_>, change: MountChange<'_>) -> io::Result<()> {
    let mut flags = libc::AT_EMPTY_PATH;
    if change.recursive {
        flags |= libc::AT_RECURSIVE;
    }
    let mut set = change.set;
    if change.idmap.is_some() {
        set |= libc::MOUNT_ATTR_IDMAP;
    }
    let attributes = libc::mount_attr {
        attr_set: set,
        attr_clr: change.clear,
        propagation: change.propagation,
        userns_fd: change.idmap.map_or(0, |fd| fd.as_raw_fd() as u64),
    };
    // SAFETY: `attributes` lives through the call and its size is given; the empty path is a static C string.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    })
    .map(drop)
}

/// Makes `path` and everything below it private, so that mounts made here are not visible outside.
pub(crate) fn make_private_recursive(path: &CStr) -> io::Result<()> {
    // SAFETY: null source, type and data are documented for a propagation change.
    check(libc::c_long::from(unsafe {
        libc::mount(
            std::ptr::null(),
            path.as_ptr(),
            std::ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        )
    }))
    .map(drop)
}

fn prctl(option: libc::c_int, second: libc::c_ulong, third: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: every caller in this module and its children passes plain integers, or the address of an integer that the
    // option fills.
    let result = unsafe { libc::prctl(option, second, third, 0 as libc::c_ulong, 0 as libc::c_ulong) };
    check(libc::c_long::from(result)).map(|value| value as libc::c_int)
}

/// Whether other processes of the same user may access this one (`/proc/<pid>`, ptrace).
pub(crate) fn set_dumpable(dumpable: bool) -> io::Result<()> {
    prctl(libc::PR_SET_DUMPABLE, libc::c_ulong::from(dumpable), 0).map(drop)
}

/// Sets the signal that this process gets when its parent dies.
pub(crate) fn set_parent_death_signal(signal: libc::c_int) -> io::Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong, 0).map(drop)
}

pub(crate) fn set_child_subreaper() -> io::Result<()> {
    prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0).map(drop)
}

/// Sets the name shown by `ps`, at most 15 bytes.
pub(crate) fn set_process_name(name: &CStr) -> io::Result<()> {
    // SAFETY: a valid C string that outlives the call.
    let result = unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
    check(libc::c_long::from(result)).map(drop)
}

/// Marks every descriptor from `first` on close-on-exec.
pub(crate) fn close_from_on_exec(first: u32) -> io::Result<()> {
    // SAFETY: integers only; nothing is closed before exec.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) }).map(drop)
}

/// Closes every descriptor from 3 up, except `kept`, which exec closes, and `passed`, which becomes descriptor 3 of the
/// program. Owners of the others must never use or drop them again: only for a process that is about to exec.
pub(crate) fn close_all_but(kept: &OwnedFd, passed: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    const FIRST: RawFd = 3;
    let only = if passed.is_some() { FIRST + 1 } else { FIRST };
    // Moved to higher numbers first: either may be at the number that the other should get.
    let kept = rustix::io::fcntl_dupfd_cloexec(kept, only + 1)?;
    if let Some(passed) = passed {
        let passed = rustix::io::fcntl_dupfd_cloexec(passed, only + 1)?;
        // SAFETY: this process does not use the previous descriptor of this number again.
        check(libc::c_long::from(unsafe { libc::dup2(passed.as_raw_fd(), FIRST) }))?;
    }
    // SAFETY: as above.
    check(libc::c_long::from(unsafe { libc::dup3(kept.as_raw_fd(), only, libc::O_CLOEXEC) }))?;
    std::mem::forget(kept);
    // SAFETY: integers only; the caller's promise covers what is closed.
    check(unsafe { libc::syscall(libc::SYS_close_range, only + 1, u32::MAX, 0) })?;
    // SAFETY: the descriptor is open and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(only) })
}

/// Makes `target` a copy of `source` that survives exec.
pub(crate) fn dup_onto(source: BorrowedFd<'_>, target: RawFd) -> io::Result<()> {
    if source.as_raw_fd() == target {
        // dup2 onto itself would keep close-on-exec.
        // SAFETY: a borrowed descriptor and integer flags.
        return check(libc::c_long::from(unsafe { libc::fcntl(target, libc::F_SETFD, 0) })).map(drop);
    }
    // SAFETY: helpers own descriptors 0 to 2, the only targets used.
    check(libc::c_long::from(unsafe { libc::dup2(source.as_raw_fd(), target) })).map(drop)
}

/// Executes a program. Returns only on failure.
pub(crate) fn exec(program: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (argv, envp) = (pointers(arguments), pointers(environment));
    vfork::set_executing(true);
    // SAFETY: both arrays are null-terminated and point to strings that live until exec.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    let error = io::Error::last_os_error();
    vfork::set_executing(false);
    error
}

/// Makes the terminal `fd` the controlling terminal of this (new) session.
pub(crate) fn set_controlling_terminal(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes an integer.
    check(libc::c_long::from(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSCTTY, 0) })).map(drop)
}

/// Restores the default action of all signals and an empty mask, as a new program expects.
pub(crate) fn reset_signals() {
    default_signals(&std::array::from_fn::<_, 64, _>(|index| index as libc::c_int + 1));
}

/// Restores the default action of these signals, and blocks none.
pub(crate) fn default_signals(signals: &[libc::c_int]) {
    for signal in signals {
        // SAFETY: SIG_DFL is always a valid action; numbers the kernel refuses (KILL, STOP, libc's own) are ignored.
        unsafe { libc::signal(*signal, libc::SIG_DFL) };
    }
    let mut empty = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set before sigprocmask reads it.
    unsafe {
        libc::sigemptyset(empty.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, empty.as_ptr(), std::ptr::null_mut());
    }
}

/// Blocks these signals and returns a descriptor on which they are read instead.
pub(crate) fn signal_descriptor(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised by sigemptyset before any other use; signalfd returns a new descriptor we own.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        let fd = check(libc::c_long::from(libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)))?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Ignores SIGPIPE: a write into a closed pipe returns an error instead.
pub(crate) fn ignore_sigpipe() {
    // SAFETY: SIG_IGN is a valid action.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Takes ownership of a descriptor that this process was started with.
///
/// Returns `None` when no such descriptor is open.
pub(crate) fn take_inherited_fd(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: F_GETFD changes nothing.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
    // SAFETY: the descriptor is open, and by the start convention of helpers it has no other owner in this process.
    (flags >= 0).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Returns freed memory to the kernel: a supervisor lives for months after a short set-up.
pub(crate) fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Reaps one exited child, if any: pid and wait status.
pub(crate) fn reap_any() -> io::Result<Option<(i32, libc::c_int)>> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    match check(libc::c_long::from(unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) })) {
        Ok(0) => Ok(None),
        Ok(pid) => Ok(Some((pid as i32, status))),
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits for one child to exit.
pub(crate) fn wait_for(pid: i32) -> io::Result<libc::c_int> {
    let mut status = 0;
    loop {
        // SAFETY: `status` outlives the call.
        match check(libc::c_long::from(unsafe { libc::waitpid(pid, &raw mut status, 0) })) {
            Ok(_) => return Ok(status),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

pub(crate) fn kill(pid: i32, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: integers only.
    check(libc::c_long::from(unsafe { libc::kill(pid, signal) })).map(drop)
}

/// The soft and hard value of a resource limit.
pub(crate) fn limit(resource: libc::__rlimit_resource_t) -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives through the call.
    check(libc::c_long::from(unsafe { libc::getrlimit(resource, &raw mut limit) }))?;
    Ok((limit.rlim_cur, limit.rlim_max))
}

/// Sets both values of a resource limit.
pub(crate) fn set_limit(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the structure lives through the call.
    check(libc::c_long::from(unsafe { libc::setrlimit(resource, &raw const limit) })).map(drop)
}

/// A detached read-only mount of one file: no process can write through it, whatever its privileges. The file's pages
/// are shared with all other processes that run it; a copy would cost its size in memory, and time.
pub(crate) fn read_only_mount(source: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    use rustix::mount::OpenTreeFlags;
    use std::os::fd::AsFd as _;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let view = rustix::mount::open_tree(source, c"", flags)?;
    mount_setattr(view.as_fd(), MountChange { set: ATTR_RDONLY, ..MountChange::default() })?;
    Ok(view)
}

/// A sealed, executable copy of `source` that cannot be changed any more: helpers that enter a sandbox run from it.
pub(crate) fn sealed_copy(source: &mut std::fs::File, name: &CStr) -> io::Result<OwnedFd> {
    const MFD_EXEC: libc::c_uint = 0x10;
    // SAFETY: a valid C string and flags; older kernels return EINVAL for MFD_EXEC.
    let mut result =
        unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | MFD_EXEC) };
    if result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        // SAFETY: as above.
        result = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    }
    let fd = check(libc::c_long::from(result))? as RawFd;
    // SAFETY: a new descriptor that nothing else owns.
    let mut copy = unsafe { std::fs::File::from_raw_fd(fd) };
    io::copy(source, &mut copy)?;
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    // SAFETY: integers only.
    check(libc::c_long::from(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) }))?;
    Ok(copy.into())
}

/// Creates a device node.
pub(crate) fn make_device(folder: BorrowedFd<'_>, name: &CStr, major: u32, minor: u32, mode: u32) -> io::Result<()> {
    // SAFETY: a borrowed folder descriptor and a valid C string.
    check(libc::c_long::from(unsafe {
        libc::mknodat(folder.as_raw_fd(), name.as_ptr(), libc::S_IFCHR | mode, libc::makedev(major, minor))
    }))?;
    // SAFETY: as above; the umask may have narrowed the mode.
    check(libc::c_long::from(unsafe { libc::fchmodat(folder.as_raw_fd(), name.as_ptr(), mode, 0) })).map(drop)
}

/// Opens a namespace of a process (`net`, `user`, …) so that it outlives the process.
pub(crate) fn open_namespace(pid: i32, kind: &str) -> io::Result<OwnedFd> {
    let file = std::fs::File::open(format!("/proc/{pid}/ns/{kind}"))?;
    Ok(file.into())
}

/// Ignores SIGCHLD, so that exited children are reaped automatically.
pub(crate) fn ignore_sigchld() {
    // SAFETY: SIG_IGN is a valid action.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Closes every descriptor from `first` on and waits until a signal ends the process.
pub(crate) fn pause_forever(first: u32) -> ! {
    // SAFETY: closes descriptors of a process that uses none of them any more; pause has no arguments.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    loop {
        // SAFETY: no arguments, no memory.
        unsafe { libc::pause() };
    }
}

/// Registers a descriptor with tokio.
pub(crate) fn register(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open, and stays the same file, for as long as it lives; the registration owns it.
    Ok(unsafe { tokio::io::unix::AsyncFd::register(fd) }?)
}

/// A descriptor that becomes readable when a process has exited.
pub(crate) fn watch_process(pid: u32) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    register(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
}

/// The number of an unused loop device.
pub(crate) fn free_loop_device(control: BorrowedFd<'_>) -> io::Result<i32> {
    const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
    // SAFETY: takes no argument.
    check(libc::c_long::from(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) }))
        .map(|number| number as i32)
}

/// Attaches a file to a loop device that is freed with its last user.
pub(crate) fn configure_loop_device(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
    const AUTOCLEAR: u32 = 4;
    /// `struct loop_config`, with `struct loop_info64` in it spelled out.
    #[repr(C)]
    struct Config {
        file: u32,
        block_size: u32,
        before_flags: [u64; 5],
        numbers: [u32; 3],
        flags: u32,
        names: [u8; 64 + 64 + 32],
        init: [u64; 2],
        reserved: [u64; 8],
    }
    let config = Config {
        file: file.as_raw_fd() as u32,
        block_size: 0,
        before_flags: [0; 5],
        numbers: [0; 3],
        flags: AUTOCLEAR,
        names: [0; 64 + 64 + 32],
        init: [0; 2],
        reserved: [0; 8],
    };
    // SAFETY: the kernel reads a `loop_config`, which this is, during the call.
    check(libc::c_long::from(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) })).map(drop)
}
