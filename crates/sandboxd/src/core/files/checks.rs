//! Checks on opened descriptors. Kernel file systems, and everything that is neither a regular file nor a directory,
//! are never served.

use std::os::fd::AsFd;

use rustix::fs::{FileType, Stat, fstat, fstatfs};

use super::FileError;

/// Magic numbers of file systems whose files are interfaces to the kernel: reading or writing one is never a file
/// transfer.
const KERNEL_FILE_SYSTEMS: [u64; 11] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6367_7270, // cgroup2
    0x27_e0eb,   // cgroup
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x6e73_6673, // nsfs
    0x6265_6570, // configfs
    0xde5e_81e4, // efivarfs
];

pub(crate) fn is_kernel_file_system(descriptor: impl AsFd) -> Result<bool, FileError> {
    let magic = fstatfs(descriptor)?.f_type as u64;
    Ok(KERNEL_FILE_SYSTEMS.contains(&magic))
}

pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Accepts only a regular file of an ordinary file system.
pub(crate) fn require_regular(descriptor: impl AsFd) -> Result<Stat, FileError> {
    let stat = fstat(&descriptor)?;
    match kind(&stat) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(FileError::Os(rustix::io::Errno::ISDIR)),
        _ => return Err(FileError::Refused("not a regular file")),
    }
    if is_kernel_file_system(descriptor)? {
        return Err(FileError::Refused("a file of a kernel file system"));
    }
    Ok(stat)
}

/// Refuses a file with more than one hard link before it is changed in place: another of its names may be outside a
/// confined root.
pub(crate) fn require_single_name(descriptor: impl AsFd) -> Result<(), FileError> {
    if fstat(descriptor)?.st_nlink > 1 { Err(FileError::Refused("a file with several hard links")) } else { Ok(()) }
}

/// Accepts only a directory of an ordinary file system.
pub(crate) fn require_directory(descriptor: impl AsFd) -> Result<Stat, FileError> {
    let stat = fstat(&descriptor)?;
    if kind(&stat) != FileType::Directory {
        return Err(FileError::Os(rustix::io::Errno::NOTDIR));
    }
    if is_kernel_file_system(descriptor)? {
        return Err(FileError::Refused("a directory of a kernel file system"));
    }
    Ok(stat)
}
