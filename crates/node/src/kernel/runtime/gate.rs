//! How many starts are under way at once. A start keeps a processor busy: with more of them than processors, all take longer, and which
//! one is the last is left to chance. One after the other, in the order they came, the first is done early and the last no later.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Longest anybody waits: a start that hangs must not keep the others from theirs.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Gate {
    turns: Semaphore,
    patience: Duration,
}

impl Gate {
    /// One more than there are processors: a start waits for the disk now and then.
    pub(super) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { turns: Semaphore::new(processors + 1), patience: PATIENCE }
    }

    /// Waits for a turn, for so long as that makes sense. It ends when what is returned is dropped.
    pub(super) async fn enter(&self) -> Option<SemaphorePermit<'_>> {
        tokio::time::timeout(self.patience, self.turns.acquire()).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_hangs_keeps_nobody_out_for_ever() {
        let gate = Gate { turns: Semaphore::new(1), patience: Duration::from_millis(5) };
        let hangs = gate.enter().await;
        assert!(hangs.is_some());
        assert!(gate.enter().await.is_none(), "let in without a turn");
        drop(hangs);
        assert!(gate.enter().await.is_some());
    }
}
