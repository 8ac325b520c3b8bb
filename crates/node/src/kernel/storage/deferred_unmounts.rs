//! Unmounts the file systems of ended containers in batches. Closing the last descriptor of a mount namespace unmounts
//! it, and unmounting a writable layer makes the kernel write out everything that is dirty on that disk. One at a time,
//! that keeps the disk busy for as long as containers end, and every process that creates or removes a file waits
//! behind it; a batch shares one such write.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long mounts are collected before they are unmounted. A longer delay would save some writes, and keep file
/// operations behind them waiting longer.
const BATCH_DELAY: Duration = Duration::from_millis(30);

/// Maximum number of mounts in one batch; each needs a thread for as long as the disk takes.
const BATCH_SIZE: usize = 8;

/// Mount namespaces waiting to be closed, by the writable layer they hold.
pub(crate) struct DeferredUnmounts {
    state: Mutex<State>,
    /// Changes whenever a batch is done.
    done: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    waiting: Vec<(String, OwnedFd)>,
    /// Number of mounts of each layer that are being unmounted now.
    in_progress: HashMap<String, usize>,
    /// Whether a task is running that unmounts those that wait.
    task_running: bool,
}

impl DeferredUnmounts {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), done: watch::Sender::new(()) })
    }

    /// Takes the last descriptors of mount namespaces that hold a layer.
    pub(crate) fn add(self: &Arc<Self>, layer: &str, mounts: Vec<OwnedFd>) {
        if mounts.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.waiting.extend(mounts.into_iter().map(|mount| (layer.to_owned(), mount)));
        if !std::mem::replace(&mut state.task_running, true) {
            tokio::spawn(Arc::clone(self).run());
        }
    }

    /// Unmounts a layer at once and waits until no mount holds it: two mounts over one writable layer would corrupt it.
    pub(crate) async fn release_layer(self: &Arc<Self>, layer: &str) {
        let mut done = self.done.subscribe();
        self.unmount(self.next_batch(usize::MAX, |held| held == layer)).await;
        while self.state.lock().in_progress.contains_key(layer) {
            if done.changed().await.is_err() {
                return;
            }
        }
    }

    /// Unmounts everything that waits, before the process ends.
    pub(crate) fn close(&self) {
        let waiting = std::mem::take(&mut self.state.lock().waiting);
        drop(waiting);
    }

    async fn run(self: Arc<Self>) {
        loop {
            tokio::time::sleep(BATCH_DELAY).await;
            loop {
                let batch = self.next_batch(BATCH_SIZE, |_| true);
                if batch.is_empty() {
                    break;
                }
                self.unmount(batch).await;
            }
            let mut state = self.state.lock();
            state.task_running = !state.waiting.is_empty();
            if !state.task_running {
                return;
            }
        }
    }

    /// Moves up to `limit` waiting mounts of the wanted layers to those in progress.
    fn next_batch(&self, limit: usize, wanted: impl Fn(&str) -> bool) -> Vec<(String, OwnedFd)> {
        let mut state = self.state.lock();
        let batch: Vec<_> = state.waiting.extract_if(.., |(layer, _)| wanted(layer)).take(limit).collect();
        for (layer, _) in &batch {
            *state.in_progress.entry(layer.clone()).or_default() += 1;
        }
        batch
    }

    /// Closes all descriptors at the same time, each in a thread of its own, so that they wait for the same write.
    async fn unmount(&self, batch: Vec<(String, OwnedFd)>) {
        if batch.is_empty() {
            return;
        }
        let layers: Vec<_> = batch.iter().map(|(layer, _)| layer.clone()).collect();
        let mut threads = JoinSet::new();
        for (_, mount) in batch {
            threads.spawn_blocking(move || drop(mount));
        }
        while threads.join_next().await.is_some() {}
        let mut state = self.state.lock();
        for layer in layers {
            if let Some(count) = state.in_progress.get_mut(&layer) {
                *count -= 1;
                if *count == 0 {
                    state.in_progress.remove(&layer);
                }
            }
        }
        drop(state);
        self.done.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// A pipe whose writing end stands for a mount: the reading end sees the end of file once the mount is closed.
    fn mount() -> (std::fs::File, OwnedFd) {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        (read.into(), write)
    }

    async fn wait_for_end(mut pipe: std::fs::File) {
        let read = tokio::task::spawn_blocking(move || pipe.read(&mut [0]).unwrap());
        assert_eq!(tokio::time::timeout(Duration::from_secs(30), read).await.unwrap().unwrap(), 0);
    }

    #[tokio::test]
    async fn mounts_are_unmounted_by_the_background_task() {
        let unmounts = DeferredUnmounts::new();
        let (ends, mounts): (Vec<_>, Vec<_>) = (0..BATCH_SIZE + 3).map(|_| mount()).unzip();
        unmounts.add("layer", mounts);
        for end in ends {
            wait_for_end(end).await;
        }
        let (end, late) = mount();
        unmounts.add("layer", vec![late]);
        wait_for_end(end).await;
    }

    #[tokio::test]
    async fn a_layer_that_is_wanted_again_is_released_at_once_and_others_wait() {
        let unmounts = DeferredUnmounts::new();
        let ((wanted, a), (other, b)) = (mount(), mount());
        unmounts.add("a", vec![a]);
        unmounts.add("b", vec![b]);
        unmounts.release_layer("a").await;
        wait_for_end(wanted).await;
        assert_eq!(unmounts.state.lock().waiting.len(), 1);
        unmounts.release_layer("unknown").await;
        unmounts.close();
        wait_for_end(other).await;
    }
}
