//! Folders whose contents have nothing to do with each other.

use std::path::Path;

use rustix::fs::{IFlags, Mode, OFlags};

/// Tells the file system that what is made in this folder need not lie close together, as it is with people's homes. ext4 makes
/// new files where their folder is, and looks there past every one that was deleted within the last minutes: where Pods come and
/// go by the hundred, that search soon takes longer than all else. Spread out, it does not find any. Others do not mind.
pub(crate) fn unrelated(folder: &Path) {
    let set = || {
        let folder = rustix::fs::open(folder, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let flags = rustix::fs::ioctl_getflags(&folder)?;
        rustix::fs::ioctl_setflags(&folder, flags | IFlags::TOPDIR)
    };
    if let Err(error) = set() {
        tracing::debug!(%error, folder = %folder.display(), "The file system spreads Pods as it likes");
    }
}
