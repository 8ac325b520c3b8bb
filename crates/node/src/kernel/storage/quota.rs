//! Project quotas: the file system counts what is in a folder and refuses to exceed the limit. Nothing has to be
//! mounted, and space is only taken when it is used.

#![expect(unsafe_code, reason = "no dependency wraps quotactl_fd and the attributes of projects")]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

/// Range of our project ids; other tools use lower numbers.
const PROJECT_IDS: std::ops::Range<u32> = 0x4000_0000..0x8000_0000;

/// Attempts to find a free project id; nearly every one is free.
const ATTEMPTS: usize = 64;

/// Bytes per inode, as `mkfs.ext4` counts, and the minimum number of inodes of a folder.
const BYTES_PER_INODE: u64 = 16_384;
const FEWEST_INODES: u64 = 1_024;

/// `struct fsxattr`, as returned by `FS_IOC_FSGETXATTR`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

/// New files in a folder inherit its project (`FS_XFLAG_PROJINHERIT`).
const INHERIT: u32 = 0x200;

const GET_ATTRIBUTES: libc::Ioctl = 0x801c_581f;
const SET_ATTRIBUTES: libc::Ioctl = 0x401c_5820;

const PROJECT_QUOTA: libc::c_int = 2;
const SET_QUOTA: libc::c_int = 0x80_0008;
const GET_QUOTA: libc::c_int = 0x80_0007;
const GET_STATE: libc::c_int = 0x5808;

/// `struct if_dqblk`: limits and usage of a project.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct QuotaRecord {
    /// In units of 1,024 bytes.
    hard_blocks: u64,
    soft_blocks: u64,
    used_bytes: u64,
    hard_inodes: u64,
    soft_inodes: u64,
    used_inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
}

/// The valid fields of a record: its limits (`QIF_BLIMITS | QIF_ILIMITS`).
const LIMITS: u32 = 1 | 4;

/// Whether a folder's file system enforces project quotas.
pub(super) fn enforces_limits(folder: &Path) -> bool {
    const VERSION: u8 = 1;
    const ENFORCED: u16 = 1 << 5;
    // Larger than the kernel's record, which begins with a version, a byte and the flags.
    let mut state = [0u8; 256];
    state[0] = VERSION;
    let Ok(folder) = fs::File::open(folder) else { return false };
    // SAFETY: the kernel writes a record of 160 bytes at most.
    let done = unsafe { control(folder.as_raw_fd(), GET_STATE, 0, state.as_mut_ptr().cast()) };
    done.is_ok() && u16::from_ne_bytes([state[2], state[3]]) & ENFORCED != 0
}

/// Limits an empty folder to `bytes`.
pub(super) fn limit(folder: &Path, bytes: u64) -> io::Result<()> {
    let file = fs::File::open(folder)?;
    let project = free_project(file.as_raw_fd())?;
    let inodes = (bytes / BYTES_PER_INODE).max(FEWEST_INODES);
    let limits = QuotaRecord {
        hard_blocks: bytes.div_ceil(1_024),
        hard_inodes: inodes,
        valid: LIMITS,
        ..QuotaRecord::default()
    };
    set(file.as_raw_fd(), project, limits)?;
    let mut attributes = attributes_of(file.as_raw_fd())?;
    attributes.project = project;
    attributes.flags |= INHERIT;
    // SAFETY: the call reads one record.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), SET_ATTRIBUTES, &raw const attributes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The project of a folder that has one of our quotas.
pub(super) fn project_of(folder: &Path) -> Option<u32> {
    let file = fs::File::open(folder).ok()?;
    let attributes = attributes_of(file.as_raw_fd()).ok()?;
    (PROJECT_IDS.contains(&attributes.project) && attributes.flags & INHERIT != 0).then_some(attributes.project)
}

/// Bytes used by a project, as counted by the file system.
pub(super) fn used_bytes(folder: &Path, project: u32) -> io::Result<u64> {
    Ok(get(fs::File::open(folder)?.as_raw_fd(), project)?.used_bytes)
}

/// Removes a project's limit, so that its id is free once its files are gone.
pub(super) fn release(folder: &Path, project: u32) -> io::Result<()> {
    set(fs::File::open(folder)?.as_raw_fd(), project, QuotaRecord { valid: LIMITS, ..QuotaRecord::default() })
}

/// A project id that is not in use.
fn free_project(fd: RawFd) -> io::Result<u32> {
    for _ in 0..ATTEMPTS {
        let project = PROJECT_IDS.start + rand::random::<u32>() % (PROJECT_IDS.end - PROJECT_IDS.start);
        let found = get(fd, project)?;
        if found.used_inodes == 0 && found.hard_blocks == 0 && found.hard_inodes == 0 {
            return Ok(project);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

fn get(fd: RawFd, project: u32) -> io::Result<QuotaRecord> {
    let mut block = QuotaRecord::default();
    // SAFETY: the kernel writes one record of this shape.
    match unsafe { control(fd, GET_QUOTA, project, (&raw mut block).cast()) } {
        // The project has never been used.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(QuotaRecord::default()),
        done => done.map(|()| block),
    }
}

fn set(fd: RawFd, project: u32, mut block: QuotaRecord) -> io::Result<()> {
    // SAFETY: the kernel reads one record of this shape.
    unsafe { control(fd, SET_QUOTA, project, (&raw mut block).cast()) }
}

fn attributes_of(fd: RawFd) -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the call writes one record.
    let done = unsafe { libc::ioctl(fd, GET_ATTRIBUTES, &raw mut attributes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(attributes) }
}

/// Calls quotactl_fd for project quotas.
///
/// # Safety
/// `record` points to what the command reads or writes.
unsafe fn control(fd: RawFd, command: libc::c_int, project: u32, record: *mut libc::c_void) -> io::Result<()> {
    let command = libc::c_long::from(command << 8 | PROJECT_QUOTA) & 0xffff_ffff;
    // SAFETY: `record` is valid by this function's contract; all other arguments are integers.
    let done = unsafe { libc::syscall(libc::SYS_quotactl_fd, fd, command, project, record) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
