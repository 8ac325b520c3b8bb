//! Folders with a size limit. As root, a project quota enforces the limit where the file system supports it; otherwise
//! the folder is a file system of its own in a sparse file. Where neither is possible it is an ordinary folder whose
//! size the kubelet half has to measure. Every result says which mechanism is used.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::kernel::storage::owned_files::FileAccess;
use crate::runtime::StorageMechanism;

pub(crate) mod atomic_file;
pub(crate) mod copies;
pub(crate) mod copy_tree;
pub(crate) mod deferred_unmounts;
mod disk;
pub(crate) mod layers;
mod loop_files;
pub(crate) mod owned_files;
mod quota;
pub(crate) mod sealed;
pub(crate) mod snapshot_count;
pub(crate) mod snapshots;
pub(crate) mod termination_message;
mod trash;
pub(crate) mod tree;

pub(crate) use disk::DiskSpace;
use loop_files::Templates;
use trash::Trash;
use tree::Usage;

/// Smallest limit: below this, a file system's own metadata would take most of the space.
const MIN_LIMIT: u64 = 4 << 20;

/// Creates, finds and removes folders with limits.
pub(crate) struct Storage {
    data_dir: PathBuf,
    /// Whether the data folder's file system enforces project quotas.
    project_quotas: bool,
    /// `None` where file systems cannot be mounted.
    templates: Option<Templates>,
    /// Whether anything may be mounted below the data folder. Most nodes never mount anything there, and the machine's
    /// mount table is long.
    mounts: AtomicBool,
    trash: Trash,
    file_access: FileAccess,
}

impl Storage {
    pub(crate) fn new(data_dir: &Path, privileged: bool, file_access: FileAccess) -> Self {
        let templates = privileged.then(|| Templates::new(&data_dir.join("templates"))).flatten();
        let trash = Trash::open(data_dir.join("trash"), file_access.clone());
        let project_quotas = privileged && quota::enforces_limits(data_dir);
        let mounts = fs::read_to_string("/proc/self/mountinfo");
        let mounts = AtomicBool::new(mounts.map_or(true, |table| !mount_points_below(&table, data_dir).is_empty()));
        Self { data_dir: data_dir.to_owned(), project_quotas, templates, mounts, trash, file_access }
    }

    /// Bytes and inodes used by a tree that sandboxes have written. Inodes that its file system limits are not counted:
    /// they are not taken from others.
    pub(crate) fn usage(&self, folder: &Path) -> Usage {
        let counted = quota::project_of(folder).filter(|_| self.project_quotas);
        let counted = counted.and_then(|project| quota::used_bytes(folder, project).ok());
        if let Some(bytes) = counted {
            return Usage { bytes, inodes: 0 };
        }
        let found = self.file_access.usage(folder);
        let own_inodes = loop_file_of(folder).exists();
        Usage { inodes: if own_inodes { 0 } else { found.inodes }, ..found }
    }

    /// Removes a part of a folder at once, without the trash.
    pub(crate) fn clear(&self, part: &Path) -> io::Result<()> {
        self.file_access.remove(part)
    }

    /// Whether limits can be enforced.
    pub(crate) fn enforces_limits(&self) -> bool {
        self.project_quotas || self.templates.is_some()
    }

    /// Creates a folder, or finds it and mounts it again. An existing folder keeps the mechanism and the size it was
    /// created with.
    pub(crate) fn ensure(&self, folder: &Path, limit: Option<u64>) -> io::Result<StorageMechanism> {
        let image = loop_file_of(folder);
        if !image.exists() {
            let fresh = !folder.exists();
            let limit = limit.filter(|_| fresh).map(|bytes| bytes.max(MIN_LIMIT));
            if self.project_quotas {
                fs::create_dir_all(folder)?;
                match limit.map(|bytes| quota::limit(folder, bytes)) {
                    // An existing folder keeps its mechanism.
                    None if !fresh => return Ok(mechanism_of(folder)),
                    None => return Ok(StorageMechanism::Measured),
                    Some(Ok(())) => return Ok(StorageMechanism::ProjectQuota),
                    Some(Err(error)) => {
                        tracing::warn!(%error, folder = %folder.display(), "A project quota cannot be set");
                    }
                }
            }
            let Some((templates, bytes)) = self.templates.as_ref().zip(limit) else {
                fs::create_dir_all(folder)?;
                return Ok(StorageMechanism::Measured);
            };
            if let Some(parent) = folder.parent() {
                fs::create_dir_all(parent)?;
            }
            if let Err(error) = templates.make(bytes, &image) {
                tracing::warn!(%error, folder = %folder.display(), "A size limit is only measured: its file system cannot be created");
                fs::create_dir_all(folder)?;
                return Ok(StorageMechanism::Measured);
            }
        }
        fs::create_dir_all(folder)?;
        if !is_mounted(folder)? {
            self.mounts.store(true, Ordering::Release);
            loop_files::mount(&image, folder)?;
            // The first mount contains the folder that mkfs creates.
            let _ = fs::remove_dir(folder.join("lost+found"));
        }
        Ok(StorageMechanism::LoopFile)
    }

    /// Mounts an existing folder that is a file system of its own, if it is not mounted: until then, nothing of it can be
    /// read.
    pub(crate) fn make_readable(&self, folder: &Path) -> io::Result<()> {
        match has_file_system(folder) {
            true => self.ensure(folder, None).map(drop),
            false => Ok(()),
        }
    }

    /// Removes a folder and everything in it. The folder is gone when this returns; its disk space is freed a moment
    /// later, or at once when the disk is nearly full.
    pub(crate) fn remove(&self, folder: &Path) -> io::Result<()> {
        if !folder.exists() {
            return Ok(());
        }
        if self.templates.is_some() && self.mounts.load(Ordering::Acquire) {
            unmount_below(folder)?;
        }
        if self.project_quotas {
            release_quotas(folder);
        }
        self.trash.put(folder)?;
        self.trash.put(&loop_file_of(folder))
    }

    /// Removes a folder that usually contains only a few small files. Those are removed at once: if they were written a
    /// moment ago, they never reach the disk. A folder with subfolders, which may be large, is removed like any other.
    pub(crate) fn remove_records(&self, folder: &Path) -> io::Result<()> {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?.collect::<io::Result<Vec<_>>>()?,
        };
        if entries.iter().any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            return self.remove(folder);
        }
        for entry in entries {
            match fs::remove_file(entry.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        match fs::remove_dir(folder) {
            // A cancelled earlier removal may still have been running.
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Frees at once the disk space of removed folders.
    pub(crate) fn empty_trash(&self) {
        self.trash.empty();
    }

    /// Unmounts everything below the data folder; the contents stay in their files.
    pub(crate) fn close(&self) {
        self.trash.empty();
        if self.templates.is_some()
            && let Err(error) = unmount_below(&self.data_dir)
        {
            tracing::warn!(%error, "A volume stays mounted");
        }
    }
}

/// Sets the permissions of a new volume's root: writable by every user of the Pod, and owned by `group` if given.
pub(crate) fn set_volume_permissions(folder: &Path, group: Option<u32>) -> io::Result<()> {
    let mode = if group.is_some() { 0o2777 } else { 0o777 };
    if let Some(group) = group {
        std::os::unix::fs::lchown(folder, None, Some(group))?;
    }
    if fs::metadata(folder)?.permissions().mode() & 0o7777 != mode {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// The file that contains a folder's file system. It is next to the folder: names of folders here never begin with a
/// dot.
fn loop_file_of(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    folder.with_file_name(format!(".{name}.ext4"))
}

/// Whether a folder is a file system of its own, mounted or not.
pub(crate) fn has_file_system(folder: &Path) -> bool {
    loop_file_of(folder).exists()
}

/// The mechanism that limits a folder.
pub(crate) fn mechanism_of(folder: &Path) -> StorageMechanism {
    if has_file_system(folder) {
        StorageMechanism::LoopFile
    } else if quota::project_of(folder).is_some() {
        StorageMechanism::ProjectQuota
    } else {
        StorageMechanism::Measured
    }
}

/// Removes the quotas of a folder and of the folders in it: an owner's folder contains one folder per layer.
fn release_quotas(folder: &Path) {
    let inner = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in inner.chain([folder.to_owned()]).filter(|path| path.is_dir() && !path.is_symlink()) {
        if let Some(Err(error)) = quota::project_of(&path).map(|project| quota::release(&path, project)) {
            tracing::debug!(%error, folder = %path.display(), "The quota of a removed folder could not be released");
        }
    }
}

pub(crate) fn is_mounted(folder: &Path) -> io::Result<bool> {
    let above = folder.parent().unwrap_or(Path::new("/"));
    Ok(fs::metadata(folder)?.dev() != fs::metadata(above)?.dev())
}

/// Unmounts everything at or below a folder, deepest first.
pub(crate) fn unmount_below(folder: &Path) -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mut points = mount_points_below(&mounts, folder);
    points.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    for point in points {
        // Detached, so that sandboxes that still use a mount keep it.
        rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH)?;
    }
    Ok(())
}

/// Mount points of a mount table at or below a folder.
pub(crate) fn mount_points_below(mountinfo: &str, folder: &Path) -> Vec<PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(|point| PathBuf::from(unescape(point))).filter(|point| point.starts_with(folder)).collect()
}

/// mountinfo writes blanks and similar characters as three octal digits.
fn unescape(text: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(text.to_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_below_a_folder_are_found_and_others_left_alone() {
        let text = "1 0 8:1 / / rw - ext4 a rw\n2 1 7:0 / /data/volumes/a rw - ext4 b rw\n3 1 7:1 / /data/my\\040volume rw - ext4 c rw\n4 1 7:2 / /database rw - ext4 d rw\n";
        let found = mount_points_below(text, Path::new("/data"));
        assert_eq!(found, [Path::new("/data/volumes/a"), Path::new("/data/my volume")]);
    }

    #[test]
    fn small_files_are_removed_at_once_and_folders_through_the_trash() {
        let data = tempfile::tempdir().unwrap();
        let storage = Storage::new(data.path(), false, FileAccess::Direct);
        let folder = data.path().join("pod");
        storage.remove_records(&folder).unwrap();
        for with_volume in [false, true] {
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("plan.json"), "{}").unwrap();
            std::os::unix::fs::symlink("/etc", folder.join("link")).unwrap();
            if with_volume {
                fs::create_dir_all(folder.join("volumes/v")).unwrap();
            }
            storage.remove_records(&folder).unwrap();
            assert!(!folder.exists());
            assert_eq!(data.path().join("trash").exists(), with_volume, "moved aside first");
        }
    }

    #[test]
    fn a_folder_with_a_limit_is_a_file_system_of_that_size_and_keeps_its_files() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let data = tempfile::tempdir().unwrap();
        let storage = Storage::new(data.path(), true, FileAccess::Direct);
        if !storage.enforces_limits() {
            eprintln!("skipped: needs mkfs.ext4 and loop devices");
            return;
        }
        let folder = data.path().join("volumes/v");
        assert_eq!(storage.ensure(&folder, Some(8 << 20)).unwrap(), StorageMechanism::LoopFile);
        fs::write(folder.join("kept"), "kept").unwrap();
        let full = fs::write(folder.join("big"), vec![1; 16 << 20]).map_err(|error| error.raw_os_error());
        assert_eq!(full, Err(Some(libc::ENOSPC)));
        let mut files = 0;
        let inodes_end = loop {
            match fs::write(folder.join(format!("f{files}")), "") {
                Ok(()) => files += 1,
                Err(error) => break error.raw_os_error(),
            }
        };
        assert!(inodes_end == Some(libc::ENOSPC) && files < 100_000, "{inodes_end:?} after {files}");
        // A process still has a file open: mounting again must attach the same file system, not a second one.
        let held = fs::File::open(folder.join("kept")).unwrap();
        storage.close();
        assert!(!folder.join("kept").exists(), "nothing is mounted any more");
        storage.ensure(&folder, None).unwrap();
        let same = |file: &fs::File| file.metadata().map(|found| (found.dev(), found.ino())).unwrap();
        assert_eq!(same(&fs::File::open(folder.join("kept")).unwrap()), same(&held));
        storage.close();
        drop(held);
        assert_eq!(storage.ensure(&folder, None).unwrap(), StorageMechanism::LoopFile, "what it was made as stays");
        assert_eq!(fs::read_to_string(folder.join("kept")).unwrap(), "kept");
        storage.remove(&folder).unwrap();
        assert!(!folder.exists() && !loop_file_of(&folder).exists());
        let plain = data.path().join("volumes/plain");
        assert_eq!(storage.ensure(&plain, None).unwrap(), StorageMechanism::Measured);
        storage.close();
    }
}
