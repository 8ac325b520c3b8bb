//! Descriptors the daemon was born with are its own: no command inherits them.

#![expect(
    unsafe_code,
    reason = "close_range is a plain system call without a wrapper; a number is all that is known of a socket handed over"
)]

use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd as _};

use rustix::io::{FdFlags, fcntl_setfd};

/// Descriptors looked at one by one where `close_range` is missing.
const USUAL_LIMIT: i32 = 1024;

/// The first descriptor after the standard streams: where sockets that are handed over begin.
const FIRST: i32 = 3;

/// The listening sockets among the first `count` descriptors after the standard streams. Call it once.
pub fn listeners(count: u16) -> Vec<TcpListener> {
    let listening = |number: &i32| {
        // SAFETY: the borrow ends with the call; a number that is not open is refused by the kernel.
        let descriptor = unsafe { BorrowedFd::borrow_raw(*number) };
        rustix::net::sockopt::socket_acceptconn(descriptor).unwrap_or(false)
    };
    let numbers = (FIRST..).take(usize::from(count)).filter(listening);
    // SAFETY: open sockets that nobody here has opened, so that nobody else closes them.
    numbers.map(|number| unsafe { TcpListener::from_raw_fd(number) }).collect()
}

/// Marks everything above standard error close-on-exec.
pub fn keep_from_commands() {
    // SAFETY: marks descriptors, closes none.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, FIRST, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked == 0 {
        return;
    }
    for number in FIRST..USUAL_LIMIT {
        // SAFETY: the borrow ends with the call; a number that is not open is refused by the kernel.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let _ = fcntl_setfd(descriptor, FdFlags::CLOEXEC);
    }
}
