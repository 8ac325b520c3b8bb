//! Limits how many starts run at once. A start keeps a processor busy: with more starts than processors all of them
//! take longer, and which one finishes last is random. In the order of their requests, the first finishes early and the
//! last no later.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Longest a start waits for a permit: a start that hangs must not block the others.
const MAX_WAIT: Duration = Duration::from_secs(1);

pub(super) struct StartLimiter {
    permits: Semaphore,
    max_wait: Duration,
}

impl StartLimiter {
    /// One permit more than there are processors, because a start sometimes waits for the disk.
    pub(super) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { permits: Semaphore::new(processors + 1), max_wait: MAX_WAIT }
    }

    /// Waits for a permit, which is returned when dropped. `None` after [`MAX_WAIT`]: the start then runs without one.
    pub(super) async fn acquire(&self) -> Option<SemaphorePermit<'_>> {
        tokio::time::timeout(self.max_wait, self.permits.acquire()).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_start_that_hangs_does_not_block_the_others_for_ever() {
        let limiter = StartLimiter { permits: Semaphore::new(1), max_wait: Duration::from_millis(5) };
        let hangs = limiter.acquire().await;
        assert!(hangs.is_some());
        assert!(limiter.acquire().await.is_none(), "let in without a permit");
        drop(hangs);
        assert!(limiter.acquire().await.is_some());
    }
}
