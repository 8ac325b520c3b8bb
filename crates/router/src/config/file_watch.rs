//! Reports when files are replaced, also by rename and by the symlink swap of Kubernetes' projected volumes.

#![expect(unsafe_code, reason = "tokio wants a promise that a registered descriptor stays open")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use tokio::io::unix::AsyncFd;

/// Writers replace several files in a row: a change is reported after this time without another one.
const DEBOUNCE: Duration = Duration::from_millis(250);

/// Watches the directories of a set of files.
pub(crate) struct FileWatch {
    inotify: AsyncFd<OwnedFd>,
    names: BTreeSet<Vec<u8>>,
}

impl FileWatch {
    /// Starts watching; fails if a directory cannot be watched.
    pub(crate) fn new(files: &[PathBuf]) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let directories: BTreeSet<&Path> = files
            .iter()
            .filter_map(|file| file.parent())
            .map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
            .collect();
        for directory in directories {
            let what = WatchFlags::CLOSE_WRITE
                | WatchFlags::CREATE
                | WatchFlags::DELETE
                | WatchFlags::MOVED_TO
                | WatchFlags::MOVED_FROM;
            inotify::add_watch(&inotify, directory, what)?;
        }
        let names = files.iter().filter_map(|file| file.file_name()).map(|name| name.as_bytes().to_vec()).collect();
        // SAFETY: the descriptor is open and owned by the `AsyncFd` alone until that is dropped.
        let inotify = unsafe { AsyncFd::register(inotify) }?;
        Ok(Self { inotify, names })
    }

    /// Completes after one of the files may have changed and no further event arrived for the debounce time.
    pub(crate) async fn changed(&mut self) -> io::Result<()> {
        while !self.next_batch().await? {}
        while let Ok(batch) = tokio::time::timeout(DEBOUNCE, self.next_batch()).await {
            batch?;
        }
        Ok(())
    }

    /// Reads pending events; `true` if one of them may concern the files.
    async fn next_batch(&mut self) -> io::Result<bool> {
        let mut ready = self.inotify.readable().await?;
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(self.inotify.get_ref(), &mut buffer);
        let mut relevant = false;
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map_or(&[][..], std::ffi::CStr::to_bytes);
                    // Projected volumes swap the link `..data`, which is not one of the watched names.
                    relevant |= self.names.contains(name) || OsStr::from_bytes(name).as_bytes().starts_with(b"..");
                }
                Err(error) if error == rustix::io::Errno::WOULDBLOCK => {
                    ready.clear_ready();
                    return Ok(relevant);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn replacements_are_noticed_and_neighbours_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tls.crt");
        std::fs::write(&file, "1").unwrap();
        let mut watch = FileWatch::new(std::slice::from_ref(&file)).unwrap();
        std::fs::write(dir.path().join("neighbour"), "x").unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(600), watch.changed()).await.is_err());
        std::fs::write(dir.path().join("new"), "2").unwrap();
        std::fs::rename(dir.path().join("new"), &file).unwrap();
        tokio::time::timeout(TIMEOUT, watch.changed()).await.expect("a rename is noticed").unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("..data_tmp")).unwrap();
        std::fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
        tokio::time::timeout(TIMEOUT, watch.changed()).await.expect("a volume swap is noticed").unwrap();
    }
}
