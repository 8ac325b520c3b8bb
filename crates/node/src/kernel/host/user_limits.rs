//! What the kernel counts per user. As root every Pod has a user of its own. Without root everything counts for the
//! caller, so each Pod gets a share: one sandbox alone cannot exhaust what the caller's other programs and sandboxes
//! need.

use std::fs;
use std::io;

use crate::kernel::sys;

/// A Pod may use one part in this many of what the caller may use.
const SHARES: u64 = 4;

/// Counters of the kernel with a maximum in every user namespace.
const COUNTERS: [&str; 2] = ["max_inotify_instances", "max_inotify_watches"];

/// Limits of which a new user namespace keeps its creator's soft value as a maximum: timers and queued signals, and
/// bytes of message queues.
const CEILINGS: [libc::__rlimit_resource_t; 2] = [libc::RLIMIT_SIGPENDING, libc::RLIMIT_MSGQUEUE];

/// The caller's counters that could be read, in the order of [`COUNTERS`].
pub(crate) struct CallersLimits([Option<u64>; COUNTERS.len()]);

/// Reads the caller's limits. In a new user namespace they cannot be seen any more.
pub(crate) fn of_caller() -> CallersLimits {
    CallersLimits(COUNTERS.map(|name| fs::read_to_string(file(name)).ok()?.trim().parse().ok()))
}

/// Limits the user namespaces that are created in this one, which the calling process has just created, to their share.
pub(crate) fn give_a_share(limits: &CallersLimits) -> io::Result<()> {
    for (name, limit) in COUNTERS.iter().zip(limits.0) {
        if let Some(limit) = limit {
            fs::write(file(name), share(limit).to_string())?;
        }
    }
    CEILINGS.into_iter().try_for_each(|resource| {
        let (soft, hard) = sys::limit(resource)?;
        sys::set_limit(resource, share(soft), hard)
    })
}

fn share(limit: u64) -> u64 {
    if limit == libc::RLIM_INFINITY { limit } else { (limit / SHARES).max(1) }
}

fn file(name: &str) -> String {
    format!("/proc/sys/user/{name}")
}
