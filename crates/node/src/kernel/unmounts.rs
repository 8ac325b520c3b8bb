//! Mounts of ended containers, let go of together. Whoever closes the last way into a mount namespace unmounts it, and the
//! end of a writable layer makes the kernel write out everything the machine has to write to that disk. One at a time that
//! keeps the disk busy for as long as containers end, and everybody who makes or removes a file waits behind it; many at
//! once share one such write.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long mounts wait for others to come. Longer would save some writes, and keep those waiting longer that come behind them.
const LINGER: Duration = Duration::from_millis(30);

/// Most that are let go of in the same moment; each has a thread for as long as the disk takes.
const AT_ONCE: usize = 8;

/// Mounts that wait, by the layer they hold.
pub(crate) struct Unmounts {
    books: Mutex<Books>,
    /// Changes whenever some are gone.
    gone: watch::Sender<()>,
}

#[derive(Default)]
struct Books {
    waiting: Vec<(String, OwnedFd)>,
    /// How many of each layer are being let go of now.
    going: HashMap<String, usize>,
    /// Whether somebody sees to those that wait.
    attended: bool,
}

impl Unmounts {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { books: Mutex::default(), gone: watch::Sender::new(()) })
    }

    /// Takes the last ways into mount namespaces that hold a layer.
    pub(crate) fn take(self: &Arc<Self>, layer: &str, mounts: Vec<OwnedFd>) {
        if mounts.is_empty() {
            return;
        }
        let mut books = self.books.lock();
        books.waiting.extend(mounts.into_iter().map(|mount| (layer.to_owned(), mount)));
        if !std::mem::replace(&mut books.attended, true) {
            tokio::spawn(Arc::clone(self).attend());
        }
    }

    /// Waits until nothing holds a layer any more: two mounts over one writable layer spoil it.
    pub(crate) async fn settle(self: &Arc<Self>, layer: &str) {
        let mut gone = self.gone.subscribe();
        self.let_go(self.begin(usize::MAX, |held| held == layer)).await;
        while self.books.lock().going.contains_key(layer) {
            if gone.changed().await.is_err() {
                return;
            }
        }
    }

    /// Lets go of all that wait, before the process ends.
    pub(crate) fn close(&self) {
        let waiting = std::mem::take(&mut self.books.lock().waiting);
        drop(waiting);
    }

    async fn attend(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LINGER).await;
            loop {
                let batch = self.begin(AT_ONCE, |_| true);
                if batch.is_empty() {
                    break;
                }
                self.let_go(batch).await;
            }
            let mut books = self.books.lock();
            books.attended = !books.waiting.is_empty();
            if !books.attended {
                return;
            }
        }
    }

    /// Moves some from those that wait to those that go.
    fn begin(&self, most: usize, wanted: impl Fn(&str) -> bool) -> Vec<(String, OwnedFd)> {
        let mut books = self.books.lock();
        let batch: Vec<_> = books.waiting.extract_if(.., |(layer, _)| wanted(layer)).take(most).collect();
        for (layer, _) in &batch {
            *books.going.entry(layer.clone()).or_default() += 1;
        }
        batch
    }

    /// All in the same moment, each by a thread of its own: they wait for the same write.
    async fn let_go(&self, batch: Vec<(String, OwnedFd)>) {
        if batch.is_empty() {
            return;
        }
        let layers: Vec<_> = batch.iter().map(|(layer, _)| layer.clone()).collect();
        let mut threads = JoinSet::new();
        for (_, mount) in batch {
            threads.spawn_blocking(move || drop(mount));
        }
        while threads.join_next().await.is_some() {}
        let mut books = self.books.lock();
        for layer in layers {
            if let Some(count) = books.going.get_mut(&layer) {
                *count -= 1;
                if *count == 0 {
                    books.going.remove(&layer);
                }
            }
        }
        drop(books);
        self.gone.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// The reading end sees the end of the pipe once the writing end, which stands for a mount, is let go of.
    fn mount() -> (std::fs::File, OwnedFd) {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        (read.into(), write)
    }

    async fn wait_for_end(mut pipe: std::fs::File) {
        let read = tokio::task::spawn_blocking(move || pipe.read(&mut [0]).unwrap());
        assert_eq!(tokio::time::timeout(Duration::from_secs(30), read).await.unwrap().unwrap(), 0);
    }

    #[tokio::test]
    async fn mounts_are_let_go_of_by_themselves() {
        let unmounts = Unmounts::new();
        let (ends, mounts): (Vec<_>, Vec<_>) = (0..AT_ONCE + 3).map(|_| mount()).unzip();
        unmounts.take("layer", mounts);
        for end in ends {
            wait_for_end(end).await;
        }
        let (end, late) = mount();
        unmounts.take("layer", vec![late]);
        wait_for_end(end).await;
    }

    #[tokio::test]
    async fn a_layer_that_is_wanted_again_is_free_at_once_and_others_wait() {
        let unmounts = Unmounts::new();
        let ((wanted, a), (other, b)) = (mount(), mount());
        unmounts.take("a", vec![a]);
        unmounts.take("b", vec![b]);
        unmounts.settle("a").await;
        wait_for_end(wanted).await;
        assert_eq!(unmounts.books.lock().waiting.len(), 1);
        unmounts.settle("nothing known").await;
        unmounts.close();
        wait_for_end(other).await;
    }
}
