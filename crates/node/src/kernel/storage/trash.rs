//! Folders on their way out: moved aside at once, deleted when the machine has nothing better to do. Deleting a sandbox's
//! files takes longer than making them, and whoever makes the next sandbox would wait behind it.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::DiskSpace;
use crate::kernel::hands::Hands;

/// Nobody has thrown anything away for this long: the rush is over.
const QUIET: Duration = Duration::from_secs(1);

/// Longest anything lies here, and most things that do.
const LONGEST: Duration = Duration::from_secs(10);
const MOST: usize = 4_096;

/// A folder beside the others, and a thread that empties it while there is something in it.
pub(super) struct Trash {
    folder: PathBuf,
    heap: Arc<Heap>,
    hands: Hands,
}

#[derive(Default)]
struct Heap {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<PathBuf>,
    oldest: Option<Instant>,
    newest: Option<Instant>,
    /// A thread sees to it.
    attended: bool,
    /// Somebody waits for it to be empty.
    hurry: bool,
}

impl Trash {
    /// Takes over what an earlier process left here.
    pub(super) fn open(folder: PathBuf, hands: Hands) -> Self {
        let left = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
        let trash = Self { folder, heap: Arc::default(), hands };
        if !left.is_empty() {
            trash.add(left);
        }
        trash
    }

    /// Throws a file or folder away; it is gone from its place when this returns.
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
            // Another disk, or a mount that cannot be moved.
            Err(_) => return self.hands.remove(path),
        }
        if DiskSpace::of(&self.folder).is_ok_and(|space| space.shortage().is_some()) {
            self.empty();
        }
        Ok(())
    }

    fn add(&self, paths: Vec<PathBuf>) {
        let mut state = self.heap.state.lock();
        let now = Instant::now();
        state.waiting.extend(paths);
        state.oldest.get_or_insert(now);
        state.newest = Some(now);
        if !std::mem::replace(&mut state.attended, true) {
            let (heap, hands) = (Arc::clone(&self.heap), self.hands.clone());
            let started = std::thread::Builder::new().name("trash".to_owned()).spawn(move || heap.attend(&hands));
            state.attended = started.is_ok();
        }
        let full = state.waiting.len() >= MOST;
        drop(state);
        if full {
            // Otherwise whoever sees to it looks when the time comes, and finds that there is more.
            self.heap.changed.notify_all();
        }
    }

    /// Deletes everything, and returns when it is gone.
    pub(super) fn empty(&self) {
        let mut state = self.heap.state.lock();
        state.hurry = true;
        self.heap.changed.notify_all();
        while state.attended {
            self.heap.changed.wait(&mut state);
        }
        // Without a thread it is up to us.
        let left = state.take();
        state.hurry = false;
        drop(state);
        delete(left, &self.hands);
    }
}

impl Drop for Trash {
    fn drop(&mut self) {
        self.empty();
        // There may be something in it that could not be deleted.
        let _ = fs::remove_dir(&self.folder);
    }
}

impl Heap {
    fn attend(&self, hands: &Hands) {
        let mut state = self.state.lock();
        while !state.waiting.is_empty() {
            if let Some(left) = state.time_left(Instant::now()) {
                self.changed.wait_for(&mut state, left);
                continue;
            }
            let batch = state.take();
            drop(state);
            delete(batch, hands);
            state = self.state.lock();
        }
        state.attended = false;
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    fn take(&mut self) -> Vec<PathBuf> {
        (self.oldest, self.newest) = (None, None);
        std::mem::take(&mut self.waiting)
    }

    /// How long it may still lie; `None` when it is time.
    fn time_left(&self, now: Instant) -> Option<Duration> {
        if self.hurry || self.waiting.len() >= MOST {
            return None;
        }
        let left = |since: Option<Instant>, limit: Duration| (since? + limit).checked_duration_since(now);
        let left = left(self.oldest, LONGEST)?.min(left(self.newest, QUIET)?);
        (!left.is_zero()).then_some(left)
    }
}

fn delete(paths: Vec<PathBuf>, hands: &Hands) {
    for path in paths {
        if let Err(error) = hands.remove(&path) {
            tracing::warn!(%error, path = %path.display(), "What was thrown away stays until the node starts again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_thrown_away_is_gone_at_once_and_deleted_in_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, heap) = (folder.path().join("sandbox"), folder.path().join("trash"));
        fs::create_dir_all(kept.join("inner")).unwrap();
        let trash = Trash::open(heap.clone(), Hands::Own);
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
    fn what_an_earlier_process_left_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("trash/left/inner")).unwrap();
        drop(Trash::open(folder.path().join("trash"), Hands::Own));
        assert!(!folder.path().join("trash").exists());
    }

    #[test]
    fn a_rush_is_waited_for_but_not_for_ever() {
        let now = Instant::now();
        let state = |oldest: Duration, newest: Duration| State {
            waiting: vec![PathBuf::new()],
            oldest: now.checked_sub(oldest),
            newest: now.checked_sub(newest),
            ..State::default()
        };
        assert_eq!(state(Duration::ZERO, Duration::ZERO).time_left(now), Some(QUIET));
        assert_eq!(state(QUIET, QUIET).time_left(now), None);
        assert_eq!(state(LONGEST, Duration::ZERO).time_left(now), None);
        let hurry = State { hurry: true, ..state(Duration::ZERO, Duration::ZERO) };
        assert_eq!(hurry.time_left(now), None);
    }
}
