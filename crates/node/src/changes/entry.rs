//! One file, folder or link, as comparisons see it.

use rustix::fs::{FileType, Stat};

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    File,
    Folder,
    Link,
    Fifo,
    Socket,
    Device,
}

impl Kind {
    /// A word for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Folder => "folder",
            Self::Link => "link",
            Self::Fifo => "named pipe",
            Self::Socket => "socket",
            Self::Device => "device",
        }
    }
}

/// Metadata of a file; a link's are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    /// Permissions, with the setuid, setgid and sticky bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub inode: u64,
    pub links: u64,
    /// Device number of a device.
    pub device: u64,
    /// Last change of the content, in seconds and nanoseconds.
    pub modified: (i64, u32),
    /// Last change of content or metadata. No program can set it.
    pub changed: (i64, u32),
}

impl Entry {
    pub(super) fn new(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Folder,
            FileType::Symlink => Kind::Link,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            _ => Kind::Device,
        };
        let nanos = |value: u64| u32::try_from(value).unwrap_or_default();
        Self {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            inode: stat.st_ino,
            links: stat.st_nlink,
            device: stat.st_rdev,
            modified: (stat.st_mtime, nanos(stat.st_mtime_nsec)),
            changed: (stat.st_ctime, nanos(stat.st_ctime_nsec)),
        }
    }

    /// Whether this entry of an upper folder marks a deleted one of the lower: a character device 0:0.
    pub(super) fn is_whiteout(&self) -> bool {
        self.kind == Kind::Device && self.device == 0
    }
}
