//! Room on the disk that everything of a node lies on: below a reserve nothing new is begun, because what already runs needs
//! the rest.

use std::io;
use std::path::Path;

use crate::evict::StoragePolicy;

/// Share of the inodes, in hundredths, that stays free.
const RESERVE_INODES: u64 = 5;

/// How full a file system is.
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

    /// What is short, for people; `None` when there is room.
    pub(crate) fn shortage(self) -> Option<String> {
        // The bound below which the Node says `DiskPressure`: with two of them Pods would come that cannot start.
        let reserve = StoragePolicy::default().reserve(self.total);
        if self.free < reserve {
            let mib = |bytes: u64| bytes >> 20;
            return Some(format!("{} MiB are free, {} MiB must stay so", mib(self.free), mib(reserve)));
        }
        // Some file systems count no inodes.
        let reserve = self.inodes / 100 * RESERVE_INODES;
        (self.free_inodes < reserve).then(|| format!("{} inodes are free, {reserve} must stay so", self.free_inodes))
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
