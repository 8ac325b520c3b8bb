//! One folder of images for several processes: who uses it, and one writer of its lists at a time.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::kernel::supervisor::records;

/// Held by everybody whose sandboxes may lie over the layers here.
const USERS: &str = "users.lock";
/// Held while a list is read, changed and written.
const WRITER: &str = "writer.lock";
/// A list is small; whoever writes one is done long before this.
const WAIT: Duration = Duration::from_secs(10);

/// This process's use of the folder, for as long as it lives.
pub(super) struct Use {
    dir: PathBuf,
    users: File,
}

impl Use {
    /// Says that this process uses the folder. The second value tells whether it is the only one.
    pub(super) fn begin(dir: &Path) -> io::Result<(Self, bool)> {
        fs::create_dir_all(dir)?;
        let users = open(&dir.join(USERS))?;
        let alone = flock(&users, FlockOperation::NonBlockingLockExclusive).is_ok();
        // Turning the lock into a shared one also waits for a remover to finish.
        wait_for(&users, FlockOperation::NonBlockingLockShared)?;
        Ok((Self { dir: dir.to_owned(), users }, alone))
    }

    /// Does work that would pull the floor from under other processes; `None` when there are any.
    pub(super) fn alone<T>(&self, work: impl FnOnce() -> T) -> io::Result<Option<T>> {
        if flock(&self.users, FlockOperation::NonBlockingLockExclusive).is_err() {
            // A failed change may have dropped the shared lock.
            wait_for(&self.users, FlockOperation::NonBlockingLockShared)?;
            return Ok(None);
        }
        let done = work();
        wait_for(&self.users, FlockOperation::NonBlockingLockShared)?;
        Ok(Some(done))
    }

    /// Changes the list in a file, whoever else may be changing it, and gives the new one.
    pub(super) fn change<T>(
        &self,
        name: &str,
        otherwise: impl FnOnce() -> T,
        with: impl FnOnce(&mut T),
    ) -> io::Result<T>
    where
        T: Serialize + DeserializeOwned,
    {
        let writer = open(&self.dir.join(WRITER))?;
        wait_for(&writer, FlockOperation::NonBlockingLockExclusive)?;
        let path = self.dir.join(name);
        let mut list = read(&path)?.unwrap_or_else(otherwise);
        with(&mut list);
        records::replace_durably(&path, &list)?;
        Ok(list)
    }
}

/// A list as it is on disk, read again when somebody has replaced it.
pub(super) struct Cached<T> {
    path: PathBuf,
    stamp: Option<Stamp>,
    list: Option<T>,
}

/// Lists are replaced by rename, so another file is another list.
type Stamp = (u64, i64, i64, u64);

impl<T: DeserializeOwned> Cached<T> {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, stamp: None, list: None }
    }

    /// The list, or `None` when there is no file.
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

fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// The kernel has no deadline for these locks, so they are asked for again and again.
fn wait_for(file: &File, operation: FlockOperation) -> io::Result<()> {
    let deadline = Instant::now() + WAIT;
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
    fn nothing_is_removed_while_another_uses_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (first, alone) = Use::begin(folder.path()).unwrap();
        assert!(alone);
        assert_eq!(first.alone(|| 1).unwrap(), Some(1));
        let (second, alone) = Use::begin(folder.path()).unwrap();
        assert!(!alone);
        assert_eq!(first.alone(|| 1).unwrap(), None);
        assert_eq!(second.alone(|| 1).unwrap(), None);
        drop(first);
        assert_eq!(second.alone(|| 1).unwrap(), Some(1));
    }

    #[test]
    fn changes_by_several_writers_all_stay() {
        let folder = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let folder = folder.path();
                scope.spawn(move || {
                    let (used, _) = Use::begin(folder).unwrap();
                    for number in 0..5 {
                        let add = |list: &mut List| {
                            list.insert(format!("{writer}-{number}"), number);
                        };
                        used.change("list.json", List::new, add).unwrap();
                    }
                });
            }
        });
        let mut cached = Cached::<List>::new(folder.path().join("list.json"));
        assert_eq!(cached.get().unwrap().unwrap().len(), 20);
    }

    #[test]
    fn a_list_that_somebody_replaced_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut cached = Cached::<List>::new(folder.path().join("list.json"));
        assert!(cached.get().unwrap().is_none());
        let (used, _) = Use::begin(folder.path()).unwrap();
        let add = |list: &mut List| {
            list.insert("a".into(), 1);
        };
        used.change("list.json", List::new, add).unwrap();
        assert_eq!(cached.get().unwrap().unwrap().len(), 1);
        used.change("list.json", List::new, List::clear).unwrap();
        assert!(cached.get().unwrap().unwrap().is_empty());
    }
}
