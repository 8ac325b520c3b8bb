//! Free space of the data folder's file system: below a reserve no new Pod is started, because running Pods need the
//! rest.

use std::io;
use std::path::Path;

use crate::kubelet::eviction::StoragePolicy;

/// Percentage of the inodes that must stay free.
const RESERVE_INODES: u64 = 5;

/// Total and free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskSpace {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) inodes: u64,
    pub(crate) free_inodes: u64,
}

impl DiskSpace {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Self {
            total: found.f_blocks * found.f_frsize,
            free: found.f_bavail * found.f_frsize,
            inodes: found.f_files,
            free_inodes: found.f_favail,
        })
    }

    /// A message about what is short; `None` when there is enough space.
    pub(crate) fn shortage(self) -> Option<String> {
        // The same threshold as for the Node's `DiskPressure` condition: with two thresholds, Pods would be scheduled
        // here that cannot start.
        let reserve = StoragePolicy::default().reserve(self.total);
        if self.free < reserve {
            let mib = |bytes: u64| bytes >> 20;
            return Some(format!("{} MiB are free, {} MiB must stay free", mib(self.free), mib(reserve)));
        }
        // Some file systems report no inodes.
        let reserve = self.inodes / 100 * RESERVE_INODES;
        (self.free_inodes < reserve).then(|| format!("{} inodes are free, {reserve} must stay free", self.free_inodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_inodes_are_both_looked_at_and_a_disk_without_inodes_is_fine() {
        let roomy = DiskSpace { total: 100 << 30, free: 50 << 30, inodes: 1_000_000, free_inodes: 500_000 };
        assert_eq!(roomy.shortage(), None);
        assert_eq!(DiskSpace { inodes: 0, free_inodes: 0, ..roomy }.shortage(), None);
        assert_eq!(
            DiskSpace { total: 4 << 40, free: 5 << 30, ..roomy }.shortage(),
            None,
            "a share of it would be 200 GiB"
        );
        for short in [
            DiskSpace { free: 3 << 30, ..roomy },
            DiskSpace { total: 10 << 30, free: 1 << 30, ..roomy },
            DiskSpace { free_inodes: 49_000, ..roomy },
        ] {
            assert!(short.shortage().is_some(), "{short:?}");
        }
        assert!(DiskSpace::of(Path::new("/")).unwrap().total > 0);
    }
}
