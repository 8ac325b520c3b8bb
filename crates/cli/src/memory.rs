//! Keeping a process that runs for long small: what only its start needed goes back to the system.

#![expect(unsafe_code, reason = "the allocator is asked through C")]

use agent_sandbox_controller::forget_code;
use libmimalloc_sys::{mi_collect, mi_option_get, mi_option_set, mi_option_t};

/// Milliseconds that freed memory is kept for its next use. The binding has no name for it.
const PURGE_DELAY: mi_option_t = 15;

/// From now until [`Start::settled`], memory is given back as soon as it is free: a start frees far more than it keeps.
pub(crate) struct Start {
    usual_delay: std::ffi::c_long,
}

impl Start {
    pub(crate) fn begin() -> Self {
        // SAFETY: options are plain numbers that may be read and written at any time.
        let usual_delay = unsafe { mi_option_get(PURGE_DELAY) };
        // SAFETY: as above.
        unsafe { mi_option_set(PURGE_DELAY, 0) };
        Self { usual_delay }
    }

    /// The start is over: its memory and the code that only it ran are let go of.
    pub(crate) fn settled(self) {
        // SAFETY: options may be written and free memory collected at any time.
        unsafe {
            mi_option_set(PURGE_DELAY, self.usual_delay);
            mi_collect(true);
        }
        forget_code();
    }
}

/// Memory is given back as soon as it is free, for good: for a process that keeps little and whose bursts are far apart. A delay that the
/// user set in the environment stays.
pub(crate) fn be_thrifty() {
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
        // SAFETY: options are plain numbers that may be written at any time.
        unsafe { mi_option_set(PURGE_DELAY, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_let_go_of_its_code_goes_on() {
        let start = Start::begin();
        let kept = vec![7_u8; 1 << 20];
        start.settled();
        assert!(kept.iter().all(|byte| *byte == 7));
        let shown = format!("{:?}", std::time::Duration::from_millis(kept.len() as u64));
        assert_eq!(shown, "1048.576s");
    }
}
