//! Descriptors inherited from the parent process: listening sockets are taken over, and no command inherits any of
//! them.

#![expect(
    unsafe_code,
    reason = "close_range is a plain system call without a wrapper; only the number of an inherited socket is known"
)]

use std::net::TcpListener;
use std::os::fd::{BorrowedFd, FromRawFd as _};

use rustix::io::{FdFlags, fcntl_setfd};

/// Descriptors below this number are marked one by one if the kernel has no `close_range`.
const FALLBACK_FD_LIMIT: i32 = 1024;

/// The first descriptor after the standard streams, where passed sockets begin (SD_LISTEN_FDS_START).
const LISTEN_FDS_START: i32 = 3;

/// The listening sockets among the first `count` descriptors after the standard streams. Call it once.
pub fn listeners(count: u16) -> Vec<TcpListener> {
    let listening = |fd: &i32| {
        // SAFETY: the borrow ends with the call; the kernel refuses a descriptor that is not open.
        let descriptor = unsafe { BorrowedFd::borrow_raw(*fd) };
        rustix::net::sockopt::socket_acceptconn(descriptor).unwrap_or(false)
    };
    let numbers = (LISTEN_FDS_START..).take(usize::from(count)).filter(listening);
    // SAFETY: these sockets were opened by the parent process; no other value in this process owns or closes them.
    numbers.map(|fd| unsafe { TcpListener::from_raw_fd(fd) }).collect()
}

/// Marks every descriptor above standard error close-on-exec.
pub fn set_cloexec() {
    // SAFETY: marks descriptors, closes none.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, LISTEN_FDS_START, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked == 0 {
        return;
    }
    for fd in LISTEN_FDS_START..FALLBACK_FD_LIMIT {
        // SAFETY: the borrow ends with the call; the kernel refuses a descriptor that is not open.
        let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
        let _ = fcntl_setfd(descriptor, FdFlags::CLOEXEC);
    }
}
