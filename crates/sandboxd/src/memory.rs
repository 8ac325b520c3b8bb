//! Giving memory back: a sandbox that did much once should not hold it forever.

#![expect(unsafe_code, reason = "the allocator's own knobs are C functions")]

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

/// Between the last activity seen and returning what is free; also the shortest time between two returns.
const QUIET: Duration = Duration::from_secs(5);

/// Few arenas: memory freed by one thread is then used by the others instead of being kept beside it.
const ARENAS: i32 = 2;

/// Buffers of transfers are smaller than this: they are used again instead of being mapped, zeroed and unmapped each time …
const MAPPED_FROM: i32 = 4 << 20;
/// … and stay with us while a transfer lasts. What is free is given back afterwards, below.
const KEPT: i32 = 16 << 20;

/// Call it before the first thread starts.
pub(crate) fn set_up_allocator() {
    // SAFETY: only changes numbers of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}

/// Returns free memory to the kernel a while after each burst of activity; sleeps as long as there is none.
pub(crate) async fn give_back(activity: Arc<Notify>) {
    loop {
        activity.notified().await;
        tokio::time::sleep(QUIET).await;
        // SAFETY: releases free pages only.
        unsafe { libc::malloc_trim(0) };
    }
}
