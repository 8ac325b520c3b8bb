//! Progress of a transfer: one line on a terminal, rewritten; nothing elsewhere.

use bytes::Bytes;
use std::{
    io::{IsTerminal, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio_util::task::AbortOnDropHandle;

/// Delay before the line appears. Shorter transfers show nothing.
const INITIAL_DELAY: Duration = Duration::from_millis(500);
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct Progress {
    moved: Arc<AtomicU64>,
    /// Zero while unknown.
    total: Arc<AtomicU64>,
    shown: Option<AbortOnDropHandle<()>>,
}

impl Progress {
    pub(crate) fn start(what: String, total: Option<u64>) -> Self {
        let moved = Arc::new(AtomicU64::new(0));
        let total = Arc::new(AtomicU64::new(total.unwrap_or_default()));
        let shown = std::io::stderr()
            .is_terminal()
            .then(|| AbortOnDropHandle::new(tokio::spawn(show(what, total.clone(), moved.clone()))));
        Self { moved, total, shown }
    }

    /// Counts the bytes that pass.
    pub(crate) fn counter(&self) -> impl FnMut(&Bytes) + Send + Sync + use<> {
        let moved = self.moved.clone();
        move |chunk| {
            moved.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        }
    }

    /// Sets the progress of a transfer that this process does not carry itself.
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.moved.store(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Clears the line.
    pub(crate) fn finish(self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

async fn show(what: String, total: Arc<AtomicU64>, moved: Arc<AtomicU64>) {
    let started = Instant::now();
    tokio::time::sleep(INITIAL_DELAY).await;
    loop {
        let total = Some(total.load(Ordering::Relaxed));
        let line = line(&what, moved.load(Ordering::Relaxed), total, started.elapsed());
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        tokio::time::sleep(REFRESH_INTERVAL).await;
    }
}

fn line(what: &str, moved: u64, total: Option<u64>, elapsed: Duration) -> String {
    const MEBIBYTE: f64 = 1_048_576.0;
    let mebibytes = moved as f64 / MEBIBYTE;
    let rate = mebibytes / elapsed.as_secs_f64().max(0.001);
    match total.filter(|total| *total > 0) {
        Some(total) => {
            format!("{what}: {mebibytes:.1} MiB, {:.0} %, {rate:.1} MiB/s", moved as f64 * 100.0 / total as f64)
        }
        None => format!("{what}: {mebibytes:.1} MiB, {rate:.1} MiB/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_size_gives_a_percentage() {
        let second = Duration::from_secs(1);
        assert_eq!(line("a", 1_048_576, Some(2_097_152), second), "a: 1.0 MiB, 50 %, 1.0 MiB/s");
        assert_eq!(line("a", 1_048_576, None, second), "a: 1.0 MiB, 1.0 MiB/s");
        assert_eq!(line("a", 0, Some(0), second), "a: 0.0 MiB, 0.0 MiB/s");
    }
}
