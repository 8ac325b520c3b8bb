//! An image folder shared by several processes: a lock for its users, and one for the writer of its lists.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::kernel::storage::atomic_file;

/// Shared lock held by every process whose sandboxes may use layers of the folder.
const USERS: &str = "users.lock";
/// Exclusive lock held while a list is read, changed and written.
const WRITER: &str = "writer.lock";
/// Timeout for a lock. Writing a list takes far less.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// This process's use of the folder, for as long as the value exists.
pub(super) struct SharedDir {
    dir: PathBuf,
    users: File,
}

impl SharedDir {
    /// Registers this process as a user of the folder. The second value tells whether it is the only one.
    pub(super) fn open(dir: &Path) -> io::Result<(Self, bool)> {
        fs::create_dir_all(dir)?;
        let users = open_lock(&dir.join(USERS))?;
        let alone = flock(&users, FlockOperation::NonBlockingLockExclusive).is_ok();
        // Converting the lock to a shared one also waits for a running removal to finish.
        lock_within_timeout(&users, FlockOperation::NonBlockingLockShared)?;
        Ok((Self { dir: dir.to_owned(), users }, alone))
    }

    /// Runs `work` while no other process uses the folder, such as removing layers; `None` when there are other users.
    pub(super) fn exclusively<T>(&self, work: impl FnOnce() -> T) -> io::Result<Option<T>> {
        if flock(&self.users, FlockOperation::NonBlockingLockExclusive).is_err() {
            // A failed conversion may have dropped the shared lock.
            lock_within_timeout(&self.users, FlockOperation::NonBlockingLockShared)?;
            return Ok(None);
        }
        let done = work();
        lock_within_timeout(&self.users, FlockOperation::NonBlockingLockShared)?;
        Ok(Some(done))
    }

    /// Changes the list in a file under the writer's lock, and returns the new list.
    pub(super) fn update<T>(
        &self,
        name: &str,
        otherwise: impl FnOnce() -> T,
        with: impl FnOnce(&mut T),
    ) -> io::Result<T>
    where
        T: Serialize + DeserializeOwned,
    {
        let writer = open_lock(&self.dir.join(WRITER))?;
        lock_within_timeout(&writer, FlockOperation::NonBlockingLockExclusive)?;
        let path = self.dir.join(name);
        let mut list = read(&path)?.unwrap_or_else(otherwise);
        with(&mut list);
        atomic_file::replace_durably(&path, &list)?;
        Ok(list)
    }
}

/// A list cached from disk, read again when the file was replaced.
pub(super) struct CachedList<T> {
    path: PathBuf,
    stamp: Option<Stamp>,
    list: Option<T>,
}

/// Lists are replaced by rename, so a changed list is another file.
type Stamp = (u64, i64, i64, u64);

impl<T: DeserializeOwned> CachedList<T> {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, stamp: None, list: None }
    }

    /// Returns the list, or `None` when there is no file.
    pub(super) fn get(&mut self) -> io::Result<Option<&T>> {
        let stamp = stamp(&self.path)?;
        if stamp != self.stamp {
            self.list = read(&self.path)?;
            self.stamp = stamp;
        }
        Ok(self.list.as_ref())
    }
}

fn stamp(path: &Path) -> io::Result<Option<Stamp>> {
    use std::os::unix::fs::MetadataExt;
    match fs::metadata(path) {
        Ok(data) => Ok(Some((data.ino(), data.mtime(), data.mtime_nsec(), data.len()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map(Some).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// flock has no timeout, so the lock is tried repeatedly.
fn lock_within_timeout(file: &File, operation: FlockOperation) -> io::Result<()> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    type List = BTreeMap<String, u32>;

    #[test]
    fn nothing_is_removed_while_another_process_uses_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (first, alone) = SharedDir::open(folder.path()).unwrap();
        assert!(alone);
        assert_eq!(first.exclusively(|| 1).unwrap(), Some(1));
        let (second, alone) = SharedDir::open(folder.path()).unwrap();
        assert!(!alone);
        assert_eq!(first.exclusively(|| 1).unwrap(), None);
        assert_eq!(second.exclusively(|| 1).unwrap(), None);
        drop(first);
        assert_eq!(second.exclusively(|| 1).unwrap(), Some(1));
    }

    #[test]
    fn concurrent_changes_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let folder = folder.path();
                scope.spawn(move || {
                    let (shared, _) = SharedDir::open(folder).unwrap();
                    for number in 0..5 {
                        let add = |list: &mut List| {
                            list.insert(format!("{writer}-{number}"), number);
                        };
                        shared.update("list.json", List::new, add).unwrap();
                    }
                });
            }
        });
        let mut cached = CachedList::<List>::new(folder.path().join("list.json"));
        assert_eq!(cached.get().unwrap().unwrap().len(), 20);
    }

    #[test]
    fn a_replaced_list_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut cached = CachedList::<List>::new(folder.path().join("list.json"));
        assert!(cached.get().unwrap().is_none());
        let (shared, _) = SharedDir::open(folder.path()).unwrap();
        let add = |list: &mut List| {
            list.insert("a".into(), 1);
        };
        shared.update("list.json", List::new, add).unwrap();
        assert_eq!(cached.get().unwrap().unwrap().len(), 1);
        shared.update("list.json", List::new, List::clear).unwrap();
        assert!(cached.get().unwrap().unwrap().is_empty());
    }
}
