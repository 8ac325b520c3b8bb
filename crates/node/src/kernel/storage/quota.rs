//! Project quotas: the file system itself counts what lies in a folder and refuses more than its limit. Nothing has to be mounted, and
//! the room of one folder is not taken from the others before it is used.

#![expect(unsafe_code, reason = "no crate of ours wraps quotactl_fd and the attributes of projects")]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

/// Projects that are ours: others number theirs from below.
const OURS: std::ops::Range<u32> = 0x4000_0000..0x8000_0000;

/// Numbers tried before giving up; nearly every one is free.
const ATTEMPTS: usize = 64;

/// Bytes to one inode, as `mkfs.ext4` counts; and the fewest inodes of a folder.
const BYTES_PER_INODE: u64 = 16_384;
const FEWEST_INODES: u64 = 1_024;

/// Attributes of a file as `FS_IOC_FSGETXATTR` tells them.
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

/// What is made in a folder is of its project.
const INHERIT: u32 = 0x200;

const GET_ATTRIBUTES: libc::Ioctl = 0x801c_581f;
const SET_ATTRIBUTES: libc::Ioctl = 0x401c_5820;

const PROJECT_QUOTA: libc::c_int = 2;
const SET_QUOTA: libc::c_int = 0x80_0008;
const GET_QUOTA: libc::c_int = 0x80_0007;
const GET_STATE: libc::c_int = 0x5808;

/// Limits and use of a project.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Block {
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

/// Which parts of a block are meant: its limits.
const LIMITS: u32 = 1 | 4;

/// Whether the file system a folder lies on counts projects and holds their limits.
pub(super) fn holds_limits(folder: &Path) -> bool {
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

/// Makes an empty folder hold at most so many bytes.
pub(super) fn limit(folder: &Path, bytes: u64) -> io::Result<()> {
    let file = fs::File::open(folder)?;
    let project = free_project(file.as_raw_fd())?;
    let inodes = (bytes / BYTES_PER_INODE).max(FEWEST_INODES);
    let limits = Block { hard_blocks: bytes.div_ceil(1_024), hard_inodes: inodes, valid: LIMITS, ..Block::default() };
    set(file.as_raw_fd(), project, limits)?;
    let mut attributes = attributes_of(file.as_raw_fd())?;
    attributes.project = project;
    attributes.flags |= INHERIT;
    // SAFETY: the call reads one record.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), SET_ATTRIBUTES, &raw const attributes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The project of a folder that one of our limits holds.
pub(super) fn project_of(folder: &Path) -> Option<u32> {
    let file = fs::File::open(folder).ok()?;
    let attributes = attributes_of(file.as_raw_fd()).ok()?;
    (OURS.contains(&attributes.project) && attributes.flags & INHERIT != 0).then_some(attributes.project)
}

/// Bytes of a project, as the file system counts them.
pub(super) fn used_bytes(folder: &Path, project: u32) -> io::Result<u64> {
    Ok(get(fs::File::open(folder)?.as_raw_fd(), project)?.used_bytes)
}

/// Takes a project's limit away, so that its number is free once its files are gone.
pub(super) fn release(folder: &Path, project: u32) -> io::Result<()> {
    set(fs::File::open(folder)?.as_raw_fd(), project, Block { valid: LIMITS, ..Block::default() })
}

/// A project that nobody uses.
fn free_project(fd: RawFd) -> io::Result<u32> {
    for _ in 0..ATTEMPTS {
        let project = OURS.start + rand::random::<u32>() % (OURS.end - OURS.start);
        let found = get(fd, project)?;
        if found.used_inodes == 0 && found.hard_blocks == 0 && found.hard_inodes == 0 {
            return Ok(project);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

fn get(fd: RawFd, project: u32) -> io::Result<Block> {
    let mut block = Block::default();
    // SAFETY: the kernel writes one record of this shape.
    match unsafe { control(fd, GET_QUOTA, project, (&raw mut block).cast()) } {
        // Never used.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(Block::default()),
        done => done.map(|()| block),
    }
}

fn set(fd: RawFd, project: u32, mut block: Block) -> io::Result<()> {
    // SAFETY: the kernel reads one record of this shape.
    unsafe { control(fd, SET_QUOTA, project, (&raw mut block).cast()) }
}

fn attributes_of(fd: RawFd) -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the call writes one record.
    let done = unsafe { libc::ioctl(fd, GET_ATTRIBUTES, &raw mut attributes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(attributes) }
}

/// One call about the projects of a file system.
///
/// # Safety
/// `record` points to what the command reads or writes.
unsafe fn control(fd: RawFd, command: libc::c_int, project: u32, record: *mut libc::c_void) -> io::Result<()> {
    let command = libc::c_long::from(command << 8 | PROJECT_QUOTA) & 0xffff_ffff;
    // SAFETY: the caller's promise; all else are numbers.
    let done = unsafe { libc::syscall(libc::SYS_quotactl_fd, fd, command, project, record) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
