//! A child that has our memory on loan until it executes a program, while we stand still. Copying a supervisor's memory for a process that
//! is about to throw it away, and faulting it in again on both sides, is a thirtieth of starting a sandbox.
//!
//! We run again when the child has executed its program or ended: never both at once. What the child allocates and still holds when it
//! executes stays allocated here, so this is for what happens once in a process's life. A child that is killed half-way may leave our memory
//! half-written: see [`Lent::is_whole`].

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Set by the child, seen by us.
static EXECUTING: AtomicBool = AtomicBool::new(false);
static ENDED: AtomicBool = AtomicBool::new(false);

/// A child that has executed its program, or has ended.
pub(crate) struct Lent {
    pub(crate) pid: i32,
    /// Whether it gave our memory back in its own time. If not, whatever it was changing may be half changed: nothing may be done with
    /// this process any more but to end it.
    pub(crate) is_whole: bool,
}

struct Orders<'a> {
    child: &'a dyn Fn(),
    limit: Duration,
}

/// Runs `child` in a process with the namespaces of `flags`, born in a group of the unified tree if one is given. It is to end in
/// [`super::exec`] or [`end`]. What takes longer than `limit` until [`prepared`] is ended. Only for single-threaded processes.
///
/// # Errors
/// The kernel's; `ENOSYS` on machines whose instructions we do not know, where nothing has happened yet.
pub(crate) fn lend(
    flags: libc::c_int,
    group: Option<BorrowedFd<'_>>,
    limit: Duration,
    child: &dyn Fn(),
) -> io::Result<Lent> {
    let orders = Orders { child, limit };
    // SAFETY: all zeroes is a valid value: no flag, no pointer.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = (flags | libc::CLONE_VM | libc::CLONE_VFORK) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(group) = group {
        arguments.flags |= super::INTO_CGROUP;
        arguments.cgroup = group.as_raw_fd() as u64;
    }
    EXECUTING.store(false, Ordering::SeqCst);
    ENDED.store(false, Ordering::SeqCst);
    // SAFETY: `orders` and all it refers to outlive the call, during which this thread stands still.
    let answer = unsafe { clone_and_stand_still(&arguments, &raw const orders) };
    if answer < 0 {
        return Err(io::Error::from_raw_os_error(-answer as i32));
    }
    let is_whole = EXECUTING.load(Ordering::SeqCst) || ENDED.load(Ordering::SeqCst);
    Ok(Lent { pid: answer as i32, is_whole })
}

/// The child's word that nothing is left that could take long.
pub(crate) fn prepared() {
    // SAFETY: a timer of this process alone; without one this does nothing.
    unsafe { libc::alarm(0) };
}

/// The child's word that it executes a program now.
pub(super) fn executing(now: bool) {
    EXECUTING.store(now, Ordering::SeqCst);
}

/// Ends a child, with our memory in order.
pub(crate) fn end(code: i32) -> ! {
    ENDED.store(true, Ordering::SeqCst);
    super::exit_now(code)
}

extern "C" fn too_late(_signal: libc::c_int) {
    super::exit_now(126)
}

extern "C" fn child(orders: *const Orders<'_>) -> ! {
    // SAFETY: whoever made this process keeps the orders while we run.
    let orders = unsafe { &*orders };
    let handler: extern "C" fn(libc::c_int) = too_late;
    // SAFETY: the handler only ends this process; signal actions and timers are this process's own. By default the first process of a
    // process namespace would not hear the timer.
    unsafe {
        libc::signal(libc::SIGALRM, handler as libc::sighandler_t);
        libc::alarm(u32::try_from(orders.limit.as_secs()).unwrap_or(u32::MAX));
    }
    (orders.child)();
    end(127)
}

/// The kernel's answer: the child's pid, or the negative errno.
///
/// The child runs on our stack, below what we use of it. All that happens between the system call and its first function is here: nothing
/// the compiler keeps on the stack can be written by the one and read by the other.
///
/// # Safety
/// The arguments share memory and make the caller stand still (`CLONE_VM`, `CLONE_VFORK`), and have no stack.
#[cfg(target_arch = "x86_64")]
unsafe fn clone_and_stand_still(arguments: &libc::clone_args, orders: *const Orders<'_>) -> isize {
    let answer: isize;
    // SAFETY: as above; the child never comes back from its function. The stack is aligned for a call, and nothing is below it.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "mov rdi, {orders}",
            "call {child}",
            "ud2",
            "2:",
            orders = in(reg) orders,
            child = in(reg) child as extern "C" fn(*const Orders<'_>) -> !,
            inlateout("rax") libc::SYS_clone3 as isize => answer,
            in("rdi") std::ptr::from_ref(arguments),
            in("rsi") size_of::<libc::clone_args>(),
            out("rcx") _,
            out("r11") _,
        );
    }
    answer
}

#[cfg(target_arch = "aarch64")]
unsafe fn clone_and_stand_still(arguments: &libc::clone_args, orders: *const Orders<'_>) -> isize {
    let answer: isize;
    // SAFETY: as on the other machine.
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x0, {orders}",
            "blr {child}",
            "brk #1",
            "2:",
            orders = in(reg) orders,
            child = in(reg) child as extern "C" fn(*const Orders<'_>) -> !,
            in("x8") libc::SYS_clone3,
            inlateout("x0") std::ptr::from_ref(arguments) => answer,
            in("x1") size_of::<libc::clone_args>(),
        );
    }
    answer
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn clone_and_stand_still(_arguments: &libc::clone_args, _orders: *const Orders<'_>) -> isize {
    -(libc::ENOSYS as isize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};
    use std::ffi::CString;
    use std::os::fd::{AsFd, OwnedFd};

    /// Our own group of the unified tree, where there is one: into it we may always be born.
    fn own_group() -> Option<OwnedFd> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/');
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(std::path::Path::new);
        let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists())?;
        rustix::fs::open(root.join(group), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Tests have threads, and a child that shares memory with them may allocate as little as one after fork: a process of one thread runs
    /// each of these.
    fn alone(body: impl FnOnce() -> bool) {
        match super::super::fork_with(0).unwrap() {
            super::super::Fork::Child => super::super::exit_now(i32::from(!body())),
            super::super::Fork::Parent(pid) => assert_eq!(super::super::wait_for(pid).unwrap(), 0),
        }
    }

    fn lent(limit: Duration, child: &dyn Fn()) -> Lent {
        lend(0, own_group().as_ref().map(AsFd::as_fd), limit, child).unwrap()
    }

    #[test]
    fn a_child_executes_in_our_memory_while_we_stand_still() {
        let (program, argument) = (CString::new("/bin/sh").unwrap(), CString::new("exit 7").unwrap());
        let arguments = [program.clone(), CString::new("-c").unwrap(), argument];
        alone(|| {
            let seen = std::cell::Cell::new(0);
            let lent = lent(Duration::from_secs(30), &|| {
                seen.set(5);
                prepared();
                let _ = super::super::exec(c"/nowhere", &arguments, &[]);
                let _ = super::super::exec(&program, &arguments, &[]);
                end(1)
            });
            let status = super::super::wait_for(lent.pid).unwrap();
            lent.is_whole && seen.get() == 5 && libc::WEXITSTATUS(status) == 7
        });
    }

    #[test]
    fn a_child_that_ends_by_itself_leaves_our_memory_whole() {
        alone(|| {
            let lent = lent(Duration::from_secs(30), &|| end(3));
            lent.is_whole && libc::WEXITSTATUS(super::super::wait_for(lent.pid).unwrap()) == 3
        });
    }

    #[test]
    fn a_child_that_hangs_or_is_killed_is_told_apart() {
        alone(|| {
            let hung = lent(Duration::from_secs(1), &|| loop {
                std::thread::sleep(Duration::from_secs(60));
            });
            let status = super::super::wait_for(hung.pid).unwrap();
            let killed = lent(Duration::from_secs(30), &|| {
                let _ = super::super::kill(std::process::id() as i32, libc::SIGKILL);
                end(0)
            });
            !hung.is_whole && libc::WEXITSTATUS(status) == 126 && !killed.is_whole
        });
    }
}
