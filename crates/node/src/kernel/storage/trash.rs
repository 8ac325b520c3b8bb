//! Removed folders: moved aside at once, deleted when the node is idle. Deleting a sandbox's files takes longer than
//! creating them, and the next sandbox would wait for it.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::DiskSpace;
use crate::kernel::storage::owned_files::FileAccess;

/// The trash is emptied when nothing was added for this long.
const QUIET_PERIOD: Duration = Duration::from_secs(1);

/// Maximum time that an entry stays in the trash, and maximum number of entries.
const MAX_AGE: Duration = Duration::from_secs(10);
const MAX_ENTRIES: usize = 4_096;

/// The trash folder, and a thread that empties it while there is something in it.
pub(super) struct Trash {
    folder: PathBuf,
    queue: Arc<Queue>,
    file_access: FileAccess,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<PathBuf>,
    oldest: Option<Instant>,
    newest: Option<Instant>,
    /// Whether the thread is running.
    thread_running: bool,
    /// Whether a caller waits for the trash to be empty.
    flush: bool,
}

impl Trash {
    /// Opens the trash, with the entries of an earlier process.
    pub(super) fn open(folder: PathBuf, file_access: FileAccess) -> Self {
        let left = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
        let trash = Self { folder, queue: Arc::default(), file_access };
        if !left.is_empty() {
            trash.add(left);
        }
        trash
    }

    /// Removes a file or folder; it is gone from its place when this returns.
    pub(super) fn put(&self, path: &Path) -> io::Result<()> {
        let aside = self.folder.join(format!("{:016x}", rand::random::<u64>()));
        let mut moved = fs::rename(path, &aside);
        if moved.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) && !self.folder.exists() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
            moved = fs::rename(path, &aside);
        }
        match moved {
            Ok(()) => self.add(vec![aside]),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // Another file system, or a mount point that cannot be moved.
            Err(_) => return self.file_access.remove(path),
        }
        if DiskSpace::of(&self.folder).is_ok_and(|space| space.shortage().is_some()) {
            self.empty();
        }
        Ok(())
    }

    fn add(&self, paths: Vec<PathBuf>) {
        let mut state = self.queue.state.lock();
        let now = Instant::now();
        state.waiting.extend(paths);
        state.oldest.get_or_insert(now);
        state.newest = Some(now);
        if !std::mem::replace(&mut state.thread_running, true) {
            let (queue, file_access) = (Arc::clone(&self.queue), self.file_access.clone());
            let started = std::thread::Builder::new().name("trash".to_owned()).spawn(move || queue.run(&file_access));
            state.thread_running = started.is_ok();
        }
        let full = state.waiting.len() >= MAX_ENTRIES;
        drop(state);
        if full {
            // Otherwise the thread wakes up by itself when the time has come, and sees the new entries then.
            self.queue.changed.notify_all();
        }
    }

    /// Deletes everything, and returns when it is done.
    pub(super) fn empty(&self) {
        let mut state = self.queue.state.lock();
        state.flush = true;
        self.queue.changed.notify_all();
        while state.thread_running {
            self.queue.changed.wait(&mut state);
        }
        // Without a thread the entries are deleted here.
        let left = state.take();
        state.flush = false;
        drop(state);
        delete(left, &self.file_access);
    }
}

impl Drop for Trash {
    fn drop(&mut self) {
        self.empty();
        // Fails when there is something left that could not be deleted.
        let _ = fs::remove_dir(&self.folder);
    }
}

impl Queue {
    fn run(&self, file_access: &FileAccess) {
        let mut state = self.state.lock();
        while !state.waiting.is_empty() {
            if let Some(left) = state.time_left(Instant::now()) {
                self.changed.wait_for(&mut state, left);
                continue;
            }
            let batch = state.take();
            drop(state);
            delete(batch, file_access);
            state = self.state.lock();
        }
        state.thread_running = false;
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    fn take(&mut self) -> Vec<PathBuf> {
        (self.oldest, self.newest) = (None, None);
        std::mem::take(&mut self.waiting)
    }

    /// Time left until the entries are deleted; `None` when it is time.
    fn time_left(&self, now: Instant) -> Option<Duration> {
        if self.flush || self.waiting.len() >= MAX_ENTRIES {
            return None;
        }
        let left = |since: Option<Instant>, limit: Duration| (since? + limit).checked_duration_since(now);
        let left = left(self.oldest, MAX_AGE)?.min(left(self.newest, QUIET_PERIOD)?);
        (!left.is_zero()).then_some(left)
    }
}

fn delete(paths: Vec<PathBuf>, file_access: &FileAccess) {
    for path in paths {
        if let Err(error) = file_access.remove(&path) {
            tracing::warn!(%error, path = %path.display(), "Removed files could not be deleted; the next start of the node tries again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_files_are_gone_at_once_and_deleted_in_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, heap) = (folder.path().join("sandbox"), folder.path().join("trash"));
        fs::create_dir_all(kept.join("inner")).unwrap();
        let trash = Trash::open(heap.clone(), FileAccess::Direct);
        trash.put(&kept).unwrap();
        trash.put(&kept).unwrap();
        assert!(!kept.exists());
        assert_eq!(fs::read_dir(&heap).unwrap().count(), 1);
        fs::write(&kept, "of the same name").unwrap();
        trash.put(&kept).unwrap();
        trash.empty();
        assert_eq!(fs::read_dir(&heap).unwrap().count(), 0);
        drop(trash);
        assert!(!heap.exists());
    }

    #[test]
    fn entries_of_an_earlier_process_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("trash/left/inner")).unwrap();
        drop(Trash::open(folder.path().join("trash"), FileAccess::Direct));
        assert!(!folder.path().join("trash").exists());
    }

    #[test]
    fn deletion_waits_for_a_quiet_period_but_not_for_ever() {
        let now = Instant::now();
        let state = |oldest: Duration, newest: Duration| State {
            waiting: vec![PathBuf::new()],
            oldest: now.checked_sub(oldest),
            newest: now.checked_sub(newest),
            ..State::default()
        };
        assert_eq!(state(Duration::ZERO, Duration::ZERO).time_left(now), Some(QUIET_PERIOD));
        assert_eq!(state(QUIET_PERIOD, QUIET_PERIOD).time_left(now), None);
        assert_eq!(state(MAX_AGE, Duration::ZERO).time_left(now), None);
        let flush = State { flush: true, ..state(Duration::ZERO, Duration::ZERO) };
        assert_eq!(flush.time_left(now), None);
    }
}
