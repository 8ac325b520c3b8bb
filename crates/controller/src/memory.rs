//! Keeping the process small: few allocator arenas, and free memory given back after bursts.
//!
//! Every watch event is decoded, looked at and mostly dropped; without this the holes it leaves stay with the process.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::store::Store;

/// How long after the first news of a burst memory is given back.
const QUIET: Duration = Duration::from_secs(5);

/// Call before threads are busy: each may get an arena of its own.
pub(crate) fn use_few_arenas() {
    allocator::use_few_arenas();
}

/// Gives free memory back a while after news came; sleeps as long as there are none.
pub(crate) async fn give_back(store: Arc<Store>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = store.news() => {}
            () = stop.cancelled() => return,
        }
        tokio::select! {
            () = tokio::time::sleep(QUIET) => allocator::trim(),
            () = stop.cancelled() => return,
        }
    }
}

#[cfg(target_env = "gnu")]
mod allocator {
    #![expect(unsafe_code, reason = "glibc's allocator is tuned through libc")]

    /// Two workers decode events side by side; more arenas are more holes.
    const ARENAS: i32 = 2;

    pub(super) fn use_few_arenas() {
        // SAFETY: only changes a number of the allocator.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS) };
    }

    pub(super) fn trim() {
        // SAFETY: releases free pages only.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(not(target_env = "gnu"))]
mod allocator {
    pub(super) fn use_few_arenas() {}

    pub(super) fn trim() {}
}
