//! Freezing: the processes of a cgroup get no processor time until they are thawed, and notice nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{CgroupPlan, write_control};

/// Timeout for the last process to stop. A process in an uninterruptible system call stops when that call ends.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(5);

/// A frozen cgroup; dropping it thaws it.
#[derive(Debug)]
pub(crate) struct FrozenGroup {
    folder: PathBuf,
    thawed: bool,
}

impl FrozenGroup {
    /// Freezes a cgroup and waits until every process in it has stopped.
    pub(crate) fn freeze(group: &CgroupPlan) -> io::Result<Self> {
        let folder = group.unified.clone().ok_or_else(|| {
            io::Error::new(io::ErrorKind::Unsupported, "this host has no cgroup that this node may freeze")
        })?;
        let frozen = Self { folder, thawed: false };
        write_control(&frozen.folder.join("cgroup.freeze"), "1")?;
        let deadline = Instant::now() + FREEZE_TIMEOUT;
        while !is_frozen(&frozen.folder)? {
            if Instant::now() > deadline {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "a process did not stop in time"));
            }
            // The kernel's notification costs more to set up than the usual third of a millisecond.
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(frozen)
    }

    pub(crate) fn thaw(mut self) -> io::Result<()> {
        self.thawed = true;
        thaw(&self.folder)
    }
}

impl Drop for FrozenGroup {
    fn drop(&mut self) {
        if !self.thawed
            && let Err(error) = thaw(&self.folder)
        {
            tracing::error!(%error, group = %self.folder.display(), "A sandbox stays frozen");
        }
    }
}

/// Thaws a cgroup that a node froze before it died. A cgroup that is not frozen, or does not exist, is left alone.
pub(crate) fn thaw_leftover(group: &CgroupPlan) -> io::Result<()> {
    match &group.unified {
        Some(folder) if folder.join("cgroup.freeze").exists() => thaw(folder),
        _ => Ok(()),
    }
}

fn thaw(folder: &Path) -> io::Result<()> {
    write_control(&folder.join("cgroup.freeze"), "0")
}

fn is_frozen(folder: &Path) -> io::Result<bool> {
    Ok(fs::read_to_string(folder.join("cgroup.events"))?.lines().any(|line| line == "frozen 1"))
}
