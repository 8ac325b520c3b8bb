//! A child that shares our memory: for the moment in which somebody must be inside new namespaces so that we can open them.
//! Copying a supervisor's memory for that, and faulting it in again on both sides, is a tenth of making a Pod.
//!
//! The two take turns. While the child prepares its namespaces we wait for its word; while we look at them it waits for us
//! to close a pipe. So neither allocates, or writes what the other reads, while the other runs.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::mm::{MapFlags, ProtFlags};

/// More than a hundred times what preparing a network takes; pages nobody touches cost nothing.
const STACK_BYTES: usize = 512 * 1024;

/// What the child is told, in memory that both see.
struct Orders<'a> {
    prepare: &'a dyn Fn() -> io::Result<()>,
    /// The child's ends of two pipes.
    says: RawFd,
    waits: RawFd,
}

/// Has `prepare` run by a child in the namespaces of `flags`, and then, while the child is still there, `look` by us with its pid.
/// Only for single-threaded processes.
pub(crate) fn in_namespaces<T>(
    flags: libc::c_int,
    prepare: &dyn Fn() -> io::Result<()>,
    look: impl FnOnce(i32) -> io::Result<T>,
) -> io::Result<T> {
    let (hears, says) = super::pipe()?;
    let (waits, holds) = super::pipe()?;
    let orders = Orders { prepare, says: says.as_raw_fd(), waits: waits.as_raw_fd() };
    let stack = Stack::new()?;
    // SAFETY: the stack and the orders live until the child has been waited for below, on every path. The child has copies of
    // our descriptors, and runs only while we wait for it in a system call.
    let pid = unsafe {
        libc::clone(
            child,
            stack.top(),
            flags | libc::CLONE_VM | libc::SIGCHLD,
            (&raw const orders).cast_mut().cast::<libc::c_void>(),
        )
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    // It alone has them from here on: when it dies without a word, we hear that.
    drop((says, waits));
    let looked = hear(&hears).and_then(|()| look(pid));
    drop(holds);
    let waited = super::wait_for(pid);
    looked.and_then(|seen| waited.map(|_| seen))
}

/// The child's word: an errno, zero when all went well.
fn hear(from: &OwnedFd) -> io::Result<()> {
    let mut word = [0; 4];
    let length = rustix::io::retry_on_intr(|| rustix::io::read(from, &mut word))?;
    match i32::from_ne_bytes(word) {
        0 if length == word.len() => Ok(()),
        _ if length != word.len() => Err(io::Error::from_raw_os_error(libc::EIO)),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

extern "C" fn child(orders: *mut libc::c_void) -> libc::c_int {
    // SAFETY: whoever made this process keeps the orders until it has waited for us.
    let orders = unsafe { &*orders.cast_const().cast::<Orders<'_>>() };
    // Our ends above all, and whatever else it has copies of: somebody may wait for one of them to be closed by all who have it.
    let (first, last) = (orders.says.min(orders.waits).unsigned_abs(), orders.says.max(orders.waits).unsigned_abs());
    for (from, to) in [(3, first.saturating_sub(1)), (first + 1, last.saturating_sub(1)), (last + 1, u32::MAX)] {
        if from <= to {
            // SAFETY: copies in a table of the child's own, which nobody else uses.
            unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) };
        }
    }
    let outcome = (orders.prepare)();
    let word = outcome.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO)).to_ne_bytes();
    // SAFETY: both descriptors are open, the buffers are our own. From the word on the other side runs: nothing here may
    // allocate any more.
    unsafe {
        libc::write(orders.says, word.as_ptr().cast(), word.len());
        let mut nothing = [0u8; 1];
        libc::read(orders.waits, nothing.as_mut_ptr().cast(), nothing.len());
    }
    0
}

/// Memory for the child to run on.
struct Stack {
    memory: *mut libc::c_void,
}

impl Stack {
    fn new() -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::STACK);
        // SAFETY: new memory, wherever there is room.
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
        // SAFETY: ours, and whoever ran on it has ended.
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
            // A host that lets nobody make user namespaces.
            Err(error) => assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSPC)), "{error}"),
        }
    }

    #[test]
    fn a_child_that_fails_is_heard_and_nothing_is_looked_at() {
        let prepare = || Err(io::Error::from_raw_os_error(libc::EBUSY));
        let mut looked = false;
        let outcome = in_namespaces(0, &prepare, |_| {
            looked = true;
            Ok(())
        });
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EBUSY));
        assert!(!looked);
    }
}
