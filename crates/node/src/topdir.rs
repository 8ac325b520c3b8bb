//! The TOPDIR attribute of folders with unrelated contents.

use std::path::Path;

use rustix::fs::{IFlags, Mode, OFlags};

/// Sets the TOPDIR attribute, which tells ext4 to spread the folder's subdirectories over the disk, as for home
/// directories. Without it ext4 allocates inodes in the block group of the parent directory and skips every inode there
/// that was freed within the last minutes: with hundreds of Pods created and removed, that search takes longer than
/// everything else. Other file systems ignore the attribute or do not support it, which is harmless.
pub(crate) fn set_topdir_flag(folder: &Path) {
    let set = || {
        let folder = rustix::fs::open(folder, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let flags = rustix::fs::ioctl_getflags(&folder)?;
        rustix::fs::ioctl_setflags(&folder, flags | IFlags::TOPDIR)
    };
    if let Err(error) = set() {
        tracing::debug!(%error, folder = %folder.display(), "Could not set the TOPDIR attribute");
    }
}
