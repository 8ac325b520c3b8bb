//! Settings of the memory allocator (mimalloc) that keep long-running processes small.

#![expect(unsafe_code, reason = "the allocator is asked through C")]

use agent_sandbox_controller::release_code_pages;
use libmimalloc_sys::{mi_collect, mi_option_get, mi_option_set, mi_option_t};

/// mimalloc's option `purge_delay`: milliseconds that freed memory is kept for its next use. The binding has no name
/// for it.
const PURGE_DELAY: mi_option_t = 15;

/// From [`StartupMemory::begin`] until [`StartupMemory::release`], freed memory goes back to the system at once: a
/// start frees far more than it keeps.
pub(crate) struct StartupMemory {
    usual_delay: std::ffi::c_long,
}

impl StartupMemory {
    pub(crate) fn begin() -> Self {
        // SAFETY: options are plain numbers that may be read and written at any time.
        let usual_delay = unsafe { mi_option_get(PURGE_DELAY) };
        // SAFETY: as above.
        unsafe { mi_option_set(PURGE_DELAY, 0) };
        Self { usual_delay }
    }

    /// Call when the start is over: restores the usual delay, and returns freed memory and the pages of code that only
    /// the start ran.
    pub(crate) fn release(self) {
        // SAFETY: options may be written and free memory collected at any time.
        unsafe {
            mi_option_set(PURGE_DELAY, self.usual_delay);
            mi_collect(true);
        }
        release_code_pages();
    }
}

/// Returns freed memory to the system at once, from now on: for a process that keeps little and whose bursts are far
/// apart. A delay that the user set in the environment stays.
pub(crate) fn disable_purge_delay() {
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
        // SAFETY: options are plain numbers that may be written at any time.
        unsafe { mi_option_set(PURGE_DELAY, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_released_its_startup_memory_keeps_running() {
        let startup = StartupMemory::begin();
        let kept = vec![7_u8; 1 << 20];
        startup.release();
        assert!(kept.iter().all(|byte| *byte == 7));
        let shown = format!("{:?}", std::time::Duration::from_millis(kept.len() as u64));
        assert_eq!(shown, "1048.576s");
    }
}
