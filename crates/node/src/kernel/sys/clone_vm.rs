//! A short-lived child that shares this process's memory (`CLONE_VM`), for opening new namespaces: a process has to be
//! inside them while its parent opens their files in `/proc`. Copying a supervisor's memory for that, and faulting it
//! in again on both sides, is a tenth of the time to make a Pod.
//!
//! Parent and child take turns: the parent waits for the child's status while the child prepares the namespaces, and
//! the child waits for the parent to close a pipe while the parent opens them. So neither allocates, or writes what the
//! other reads, while the other runs.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::mm::{MapFlags, ProtFlags};

/// Size of the child's stack: more than a hundred times what preparing a network needs. Untouched pages cost nothing.
const STACK_BYTES: usize = 512 * 1024;

/// What the child gets, in the shared memory.
struct ChildTask<'a> {
    prepare: &'a dyn Fn() -> io::Result<()>,
    /// The child's ends of two pipes: it writes its status to one, and waits on the other until the parent is done.
    status_write: RawFd,
    release_read: RawFd,
}

/// Runs `prepare` in a child with the namespaces of `flags`, and then, while the child still exists, `inspect` in this
/// process with the child's pid. Only for single-threaded processes.
pub(crate) fn in_namespaces<T>(
    flags: libc::c_int,
    prepare: &dyn Fn() -> io::Result<()>,
    inspect: impl FnOnce(i32) -> io::Result<T>,
) -> io::Result<T> {
    let (status_read, status_write) = super::pipe()?;
    let (release_read, release_write) = super::pipe()?;
    let task = ChildTask { prepare, status_write: status_write.as_raw_fd(), release_read: release_read.as_raw_fd() };
    let stack = Stack::new()?;
    // SAFETY: the stack and the task live until the child has been waited for below, on every path. The child has
    // copies of this process's descriptors, and runs only while this process waits for it in a system call.
    let pid = unsafe {
        libc::clone(
            child_main,
            stack.top(),
            flags | libc::CLONE_VM | libc::SIGCHLD,
            (&raw const task).cast_mut().cast::<libc::c_void>(),
        )
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // From here on only the child has these ends: if it dies without a status, the read below ends.
    drop((status_write, release_read));
    let inspected = read_status(&status_read).and_then(|()| inspect(pid));
    drop(release_write);
    let waited = super::wait_for(pid);
    inspected.and_then(|value| waited.map(|_| value))
}

/// Reads the child's status: an errno, zero for success.
fn read_status(from: &OwnedFd) -> io::Result<()> {
    let mut status = [0; 4];
    let length = rustix::io::retry_on_intr(|| rustix::io::read(from, &mut status))?;
    match i32::from_ne_bytes(status) {
        0 if length == status.len() => Ok(()),
        _ if length != status.len() => Err(io::Error::from_raw_os_error(libc::EIO)),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

extern "C" fn child_main(task: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the parent keeps the task alive until it has waited for this process.
    let task = unsafe { &*task.cast_const().cast::<ChildTask<'_>>() };
    // Closes the copies of the parent's pipe ends and of all other descriptors: another process may wait for one of
    // them to be closed by every holder.
    let (first, last) = (
        task.status_write.min(task.release_read).unsigned_abs(),
        task.status_write.max(task.release_read).unsigned_abs(),
    );
    for (from, to) in [(3, first.saturating_sub(1)), (first + 1, last.saturating_sub(1)), (last + 1, u32::MAX)] {
        if from <= to {
            // SAFETY: copies in the child's own descriptor table, which no other process uses.
            unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
        }
    }
    let outcome = (task.prepare)();
    let status = outcome.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO)).to_ne_bytes();
    // SAFETY: both descriptors are open, the buffers belong to this function. After the write the parent runs: nothing
    // here may allocate any more.
    unsafe {
        libc::write(task.status_write, status.as_ptr().cast(), status.len());
        let mut nothing = [0u8; 1];
        libc::read(task.release_read, nothing.as_mut_ptr().cast(), nothing.len());
    }
    0
}

/// Memory for the child's stack.
struct Stack {
    memory: *mut libc::c_void,
}

impl Stack {
    fn new() -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::STACK);
        // SAFETY: new memory at an address of the kernel's choice.
        let memory = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), STACK_BYTES, access, flags) }?;
        Ok(Self { memory })
    }

    /// Stacks grow downwards.
    fn top(&self) -> *mut libc::c_void {
        self.memory.wrapping_byte_add(STACK_BYTES)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and the child that ran on it has exited.
        let _ = unsafe { rustix::mm::munmap(self.memory, STACK_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI32, Ordering};

    #[test]
    fn a_childs_work_is_seen_and_its_namespace_outlives_it() {
        let seen = AtomicI32::new(0);
        let own = std::fs::read_link("/proc/self/ns/uts").unwrap();
        let prepare = || {
            seen.store(7, Ordering::SeqCst);
            Ok(())
        };
        let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWUTS;
        let inside = in_namespaces(flags, &prepare, |pid| std::fs::read_link(format!("/proc/{pid}/ns/uts")));
        match inside {
            Ok(inside) => {
                assert_ne!(inside, own);
                assert_eq!(seen.load(Ordering::SeqCst), 7);
            }
            // A host that does not allow user namespaces.
            Err(error) => assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSPC)), "{error}"),
        }
    }

    #[test]
    fn a_childs_failure_is_returned_and_nothing_is_inspected() {
        let prepare = || Err(io::Error::from_raw_os_error(libc::EBUSY));
        let mut inspected = false;
        let outcome = in_namespaces(0, &prepare, |_| {
            inspected = true;
            Ok(())
        });
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EBUSY));
        assert!(!inspected);
    }
}
