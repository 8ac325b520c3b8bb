//! Syncs records to disk a moment after they were written, those of many Pods together. They are needed only after a
//! loss of power, and then together with files of the Pods that reach the disk later anyway.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::KernelRuntime;
use crate::kernel::storage::atomic_file;

/// How long records are collected. Records of short-lived Pods never reach the disk.
const SYNC_AFTER: Duration = Duration::from_millis(500);

/// Maximum number of files that are synced one by one; with more, the whole file system is synced.
const MAX_SINGLE_SYNCS: usize = 3;

/// What may not be on disk yet.
#[derive(Default)]
pub(super) struct Unsynced {
    marks: Vec<PathBuf>,
    ids: bool,
    /// Whether a task is scheduled that syncs it.
    task_scheduled: bool,
}

impl KernelRuntime {
    pub(super) fn sync_mark(&self, mark: PathBuf) {
        self.sync_later(|unsynced| unsynced.marks.push(mark));
    }

    pub(super) fn sync_ids(&self) {
        self.sync_later(|unsynced| unsynced.ids = true);
    }

    fn sync_later(&self, add: impl FnOnce(&mut Unsynced)) {
        let Some(this) = self.this.upgrade() else { return };
        let mut unsynced = self.unsynced.lock();
        add(&mut unsynced);
        if std::mem::replace(&mut unsynced.task_scheduled, true) {
            return;
        }
        drop(unsynced);
        tokio::spawn(async move {
            tokio::time::sleep(SYNC_AFTER).await;
            let unsynced = std::mem::take(&mut *this.unsynced.lock());
            drop(tokio::task::spawn_blocking(move || this.sync_now(&unsynced)).await);
        });
    }

    fn sync_now(&self, unsynced: &Unsynced) {
        if unsynced.marks.len() > MAX_SINGLE_SYNCS && self.sync_everything().is_ok() {
            return;
        }
        if unsynced.ids {
            let file = self.ids.lock().syncer();
            if let Err(error) = file.and_then(|file| file.sync_data()) {
                tracing::warn!(%error, "Blocks of user ids may not survive a loss of power");
            }
        }
        for mark in &unsynced.marks {
            // A file that is gone belonged to a Pod that is gone.
            if let Err(error) = atomic_file::sync(mark)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, file = %mark.display(), "A record may not survive a loss of power");
            }
        }
    }

    fn sync_everything(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&self.config.data_dir, flags, Mode::empty())?;
        Ok(rustix::fs::syncfs(folder)?)
    }
}
