//! Records that are written through to the disk a moment after they were made, those of many Pods at once. What they say is needed after
//! a loss of power only, and then together with files of the Pods that take longer to get there.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::super::supervisor::records;
use super::KernelRuntime;

/// How long records wait for others. Short lives never cost the disk anything.
const SYNC_AFTER: Duration = Duration::from_millis(500);

/// Up to so many files are written through one by one; with more, everything on their disk is.
const FEW: usize = 3;

/// What is not on the disk for certain.
#[derive(Default)]
pub(super) struct Unsynced {
    marks: Vec<PathBuf>,
    ids: bool,
    /// Somebody sees to it.
    attended: bool,
}

impl KernelRuntime {
    pub(super) fn sync_mark(&self, mark: PathBuf) {
        self.sync_later(|unsynced| unsynced.marks.push(mark));
    }

    pub(super) fn sync_ids(&self) {
        self.sync_later(|unsynced| unsynced.ids = true);
    }

    fn sync_later(&self, note: impl FnOnce(&mut Unsynced)) {
        let Some(this) = self.this.upgrade() else { return };
        let mut unsynced = self.unsynced.lock();
        note(&mut unsynced);
        if std::mem::replace(&mut unsynced.attended, true) {
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
        if unsynced.marks.len() > FEW && self.sync_everything().is_ok() {
            return;
        }
        if unsynced.ids {
            let file = self.ids.lock().syncer();
            if let Err(error) = file.and_then(|file| file.sync_data()) {
                tracing::warn!(%error, "Blocks of user ids may not survive a loss of power");
            }
        }
        for mark in &unsynced.marks {
            // One that is gone belonged to a life that is over.
            if let Err(error) = records::sync(mark)
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
