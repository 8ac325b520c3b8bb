//! A vfork-like start (`CLONE_VM | CLONE_VFORK`): the child shares the supervisor's memory until it calls execve, and
//! the supervisor is blocked meanwhile. Copying a supervisor's memory for a process that is about to discard it, and
//! faulting it in again on both sides, is a thirtieth of the time to start a sandbox.
//!
//! The parent continues when the child has called execve or has exited, so the two never run at the same time. What the
//! child has allocated and not freed at execve stays allocated in the parent, so this is only for something that
//! happens once in a process's life. A child that is killed half-way may leave the parent's memory half-written: see
//! [`VforkChild::memory_intact`].

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Written by the child and read by the parent, which share memory.
static EXECUTING: AtomicBool = AtomicBool::new(false);
static EXITED: AtomicBool = AtomicBool::new(false);

/// A child that has called execve or has exited.
pub(crate) struct VforkChild {
    pub(crate) pid: i32,
    /// Whether the child reached execve or exited by itself. If not, it may have been interrupted in the middle of a
    /// change to the shared memory, and this process must exit without doing anything else.
    pub(crate) memory_intact: bool,
}

/// What the child gets, by pointer.
struct ChildTask<'a> {
    run: &'a dyn Fn(),
    timeout: Duration,
}

/// Runs `run` in a child with the namespaces of `flags`, created in a cgroup of the unified hierarchy if one is given.
/// The child must end in [`super::exec`] or [`exit_child`]. It is terminated if it has not called [`disarm_timeout`]
/// within `timeout`. Only for single-threaded processes.
///
/// # Errors
/// The kernel's; `ENOSYS` on architectures without an implementation below, where nothing has happened yet.
pub(crate) fn spawn(
    flags: libc::c_int,
    cgroup: Option<BorrowedFd<'_>>,
    timeout: Duration,
    run: &dyn Fn(),
) -> io::Result<VforkChild> {
    let task = ChildTask { run, timeout };
    // SAFETY: all zeroes is a valid value: no flag, no pointer.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = (flags | libc::CLONE_VM | libc::CLONE_VFORK) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        arguments.flags |= super::CLONE_INTO_CGROUP;
        arguments.cgroup = cgroup.as_raw_fd() as u64;
    }
    EXECUTING.store(false, Ordering::SeqCst);
    EXITED.store(false, Ordering::SeqCst);
    // SAFETY: `task` and all it refers to outlive the call, during which this thread is blocked.
    let result = unsafe { clone3_vfork(&arguments, &raw const task) };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result as i32));
    }
    let memory_intact = EXECUTING.load(Ordering::SeqCst) || EXITED.load(Ordering::SeqCst);
    Ok(VforkChild { pid: result as i32, memory_intact })
}

/// Called by the child when only short steps are left before execve: cancels the timeout.
pub(crate) fn disarm_timeout() {
    // SAFETY: a timer of this process alone; without one this does nothing.
    unsafe { libc::alarm(0) };
}

/// Called around execve, so that the parent can tell an exec from a child that was killed.
pub(super) fn set_executing(executing: bool) {
    EXECUTING.store(executing, Ordering::SeqCst);
}

/// Exits a child and marks the shared memory as intact.
pub(crate) fn exit_child(code: i32) -> ! {
    EXITED.store(true, Ordering::SeqCst);
    super::exit_now(code)
}

extern "C" fn on_timeout(_signal: libc::c_int) {
    super::exit_now(126)
}

extern "C" fn child_main(task: *const ChildTask<'_>) -> ! {
    // SAFETY: the parent keeps the task alive while the child runs.
    let task = unsafe { &*task };
    let handler: extern "C" fn(libc::c_int) = on_timeout;
    // SAFETY: the handler only exits this process; signal actions and timers belong to this process alone. The handler
    // is needed because the kernel drops signals with the default action for the first process of a pid namespace.
    unsafe {
        libc::signal(libc::SIGALRM, handler as libc::sighandler_t);
        libc::alarm(u32::try_from(task.timeout.as_secs()).unwrap_or(u32::MAX));
    }
    (task.run)();
    exit_child(127)
}

/// Calls clone3 and returns the kernel's result: the child's pid, or the negative errno.
///
/// The child runs on the parent's stack, below the part that is in use. Everything between the system call and the
/// child's first function is in the assembly below, so nothing that the compiler keeps on the stack is written by one
/// and read by the other.
///
/// # Safety
/// The arguments must contain `CLONE_VM` and `CLONE_VFORK` and no stack.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3_vfork(arguments: &libc::clone_args, task: *const ChildTask<'_>) -> isize {
    let result: isize;
    // SAFETY: as above; the child never returns from its function. The stack is aligned for a call, and nothing is
    // below it.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, {task}",
            "call {child_main}",
            "ud2",
            "2:",
            task = in(reg) task,
            child_main = in(reg) child_main as extern "C" fn(*const ChildTask<'_>) -> !,
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") std::ptr::from_ref(arguments),
            in("rsi") size_of::<libc::clone_args>(),
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn clone3_vfork(arguments: &libc::clone_args, task: *const ChildTask<'_>) -> isize {
    let result: isize;
    // SAFETY: as on x86_64.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x0, {task}",
            "blr {child_main}",
            "brk #1",
            "2:",
            task = in(reg) task,
            child_main = in(reg) child_main as extern "C" fn(*const ChildTask<'_>) -> !,
            in("x8") libc::SYS_clone3,
            inlateout("x0") std::ptr::from_ref(arguments) => result,
            in("x1") size_of::<libc::clone_args>(),
        );
    }
    result
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn clone3_vfork(_arguments: &libc::clone_args, _task: *const ChildTask<'_>) -> isize {
    -(libc::ENOSYS as isize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::sys;
    use rustix::fs::{Mode, OFlags};
    use std::ffi::CString;
    use std::os::fd::{AsFd, OwnedFd};

    /// This process's own cgroup of the unified hierarchy, if there is one: a child may always be created in it.
    fn own_cgroup() -> Option<OwnedFd> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/');
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(std::path::Path::new);
        let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists())?;
        rustix::fs::open(root.join(group), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Runs a test body in a forked, single-threaded process: the test harness has threads, and a child that shares
    /// memory with them may allocate as little as one after fork.
    fn in_single_threaded_process(body: impl FnOnce() -> bool) {
        match sys::fork_with(0).unwrap() {
            sys::Fork::Child => sys::exit_now(i32::from(!body())),
            sys::Fork::Parent(pid) => assert_eq!(sys::wait_for(pid).unwrap(), 0),
        }
    }

    fn spawn_child(timeout: Duration, run: &dyn Fn()) -> VforkChild {
        spawn(0, own_cgroup().as_ref().map(AsFd::as_fd), timeout, run).unwrap()
    }

    #[test]
    fn a_child_executes_from_shared_memory_while_the_parent_is_blocked() {
        let (program, argument) = (CString::new("/bin/sh").unwrap(), CString::new("exit 7").unwrap());
        let arguments = [program.clone(), CString::new("-c").unwrap(), argument];
        in_single_threaded_process(|| {
            let seen = std::cell::Cell::new(0);
            let child = spawn_child(Duration::from_secs(30), &|| {
                seen.set(5);
                disarm_timeout();
                let _ = sys::exec(c"/nowhere", &arguments, &[]);
                let _ = sys::exec(&program, &arguments, &[]);
                exit_child(1)
            });
            let status = sys::wait_for(child.pid).unwrap();
            child.memory_intact && seen.get() == 5 && libc::WEXITSTATUS(status) == 7
        });
    }

    #[test]
    fn a_child_that_exits_by_itself_leaves_the_memory_intact() {
        in_single_threaded_process(|| {
            let child = spawn_child(Duration::from_secs(30), &|| exit_child(3));
            child.memory_intact && libc::WEXITSTATUS(sys::wait_for(child.pid).unwrap()) == 3
        });
    }

    #[test]
    fn a_child_that_hangs_or_is_killed_is_reported_as_not_intact() {
        in_single_threaded_process(|| {
            let hung = spawn_child(Duration::from_secs(1), &|| loop {
                std::thread::sleep(Duration::from_secs(60));
            });
            let status = sys::wait_for(hung.pid).unwrap();
            let killed = spawn_child(Duration::from_secs(30), &|| {
                let _ = sys::kill(std::process::id() as i32, libc::SIGKILL);
                exit_child(0)
            });
            !hung.memory_intact && libc::WEXITSTATUS(status) == 126 && !killed.memory_intact
        });
    }
}
