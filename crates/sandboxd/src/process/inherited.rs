//! Descriptors the daemon was born with are its own: no command inherits them.

#![expect(unsafe_code, reason = "close_range is a plain system call without a wrapper")]

use std::os::fd::BorrowedFd;

use rustix::io::{FdFlags, fcntl_setfd};

/// Descriptors looked at one by one where `close_range` is missing.
const USUAL_LIMIT: i32 = 1024;

/// Marks everything above standard error close-on-exec.
pub fn keep_from_commands() {
    // SAFETY: marks descriptors, closes none.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked == 0 {
        return;
    }
    for number in 3..USUAL_LIMIT {
        // SAFETY: the borrow ends with the call; a number that is not open is refused by the kernel.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = fcntl_setfd(descriptor, FdFlags::CLOEXEC);
    }
}
