//! Simulates a power loss. In a process that has `POWER_TEST_SHADOW` set, every `fsync` and `fdatasync` also copies
//! what it makes durable into that folder, strictly by the specification: the contents of a file are durable once the
//! file was synced, its name once its folder was synced. When the process is killed, the shadow folder holds what would
//! remain after a power loss.
//!
//! This program overrides the two functions of the C library, so SQLite and the standard library use them without
//! change.

#![expect(unsafe_code, reason = "replaces two functions of the C library")]

use std::{
    collections::HashMap,
    fs,
    os::{fd::RawFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock},
};

use rand::RngExt as _;

/// The observed folder and its shadow.
struct Shadow {
    folder: PathBuf,
    shadow: PathBuf,
    /// Held while files are copied: one copy at a time.
    copying: Mutex<()>,
}

fn shadow() -> Option<&'static Shadow> {
    static SHADOW: OnceLock<Option<Shadow>> = OnceLock::new();
    let made = || {
        let folder = std::env::var_os("CRASH_TEST_FOLDER")?.into();
        let shadow = std::env::var_os("POWER_TEST_SHADOW")?.into();
        Some(Shadow { folder, shadow, copying: Mutex::default() })
    };
    SHADOW.get_or_init(made).as_ref()
}

impl Shadow {
    fn synced(&self, fd: RawFd) {
        let Ok(path) = fs::read_link(format!("/proc/self/fd/{fd}")) else { return };
        let _copying = self.copying.lock().unwrap();
        if path == self.folder {
            save_names(&self.folder, &self.shadow);
        } else if path.parent() == Some(&self.folder) {
            // Read through the descriptor: the file may have been renamed in between.
            save_contents(Path::new(&format!("/proc/self/fd/{fd}")), &self.shadow);
        }
    }
}

fn save_names(folder: &Path, shadow: &Path) {
    let mut names = String::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap).filter(|e| e.file_type().unwrap().is_file()) {
        names.push_str(&format!("{} {}\n", entry.metadata().unwrap().ino(), entry.file_name().to_str().unwrap()));
    }
    replace(&shadow.join("names"), names.as_bytes());
}

fn save_contents(file: &Path, shadow: &Path) {
    let inode = fs::metadata(file).unwrap().ino();
    replace(&shadow.join(inode.to_string()), &fs::read(file).unwrap());
}

/// Replaces a file atomically, because the process may be killed at any time.
fn replace(path: &Path, contents: &[u8]) {
    let unfinished = path.with_extension("unfinished");
    fs::write(&unfinished, contents).unwrap();
    fs::rename(unfinished, path).unwrap();
}

fn sync(fd: libc::c_int, call: libc::c_long) -> libc::c_int {
    // SAFETY: the system call takes a descriptor and accesses no memory of this process.
    let result = unsafe { libc::syscall(call, fd) } as libc::c_int;
    if result == 0
        && let Some(shadow) = shadow()
    {
        shadow.synced(fd);
    }
    result
}

// SAFETY: same name, arguments and result as the function of the C library that it overrides.
#[unsafe(no_mangle)]
extern "C" fn fsync(fd: libc::c_int) -> libc::c_int {
    sync(fd, libc::SYS_fsync)
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: libc::c_int) -> libc::c_int {
    sync(fd, libc::SYS_fdatasync)
}

/// Starts a round: copies everything in `folder` to the shadow as durable.
pub(crate) fn begin(folder: &Path, shadow: &Path) {
    fs::create_dir_all(shadow).unwrap();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap).filter(|e| e.file_type().unwrap().is_file()) {
        save_contents(&entry.path(), shadow);
    }
    save_names(folder, shadow);
}

/// Writes the disk's state after the power loss to `after`. Each block that was written but not synced may have reached
/// the disk; `survives` decides.
pub(crate) fn cut(folder: &Path, shadow: &Path, after: &Path, mut survives: impl FnMut() -> bool) {
    const BLOCK: usize = 4096;
    let written: HashMap<u64, PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(Result::unwrap)
        .map(|entry| (entry.metadata().unwrap().ino(), entry.path()))
        .collect();
    fs::create_dir_all(after).unwrap();
    for line in fs::read_to_string(shadow.join("names")).unwrap().lines() {
        let (inode, name) = line.split_once(' ').unwrap();
        let mut durable = fs::read(shadow.join(inode)).unwrap_or_default();
        let newest = written.get(&inode.parse().unwrap()).map_or_else(Vec::new, |path| fs::read(path).unwrap());
        for (at, block) in newest.chunks(BLOCK).enumerate().map(|(i, block)| (i * BLOCK, block)) {
            let known = durable.get(at..).map_or(&[][..], |rest| &rest[..rest.len().min(block.len())]);
            if known != block && survives() {
                if durable.len() < at + block.len() {
                    durable.resize(at + block.len(), 0);
                }
                durable[at..at + block.len()].copy_from_slice(block);
            }
        }
        fs::write(after.join(name), durable).unwrap();
    }
}

/// In a third of the rounds no unsynced block survives, in a third all, in a third a random selection.
pub(crate) fn some_survive(round: u64) -> impl FnMut() -> bool {
    let mut random = rand::rng();
    move || match round % 3 {
        0 => false,
        1 => random.random_bool(0.5),
        _ => true,
    }
}
