//! Folders that hold at most so many bytes. As root a project quota holds such a folder where its file system has them; else it is a
//! file system of its own in a sparse file; where neither can be had it is an ordinary folder, which somebody else has to measure.
//! Every answer says which it is.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::hands::Hands;
use crate::runtime::StorageMechanism;

mod disk;
mod loops;
mod quota;
mod trash;

pub(crate) use disk::DiskSpace;
use loops::Templates;
use trash::Trash;

/// Smallest file system worth making: below this the file system's own records are most of it.
const SMALLEST: u64 = 4 << 20;

/// Makes and finds folders with limits.
pub(crate) struct Storage {
    data_dir: PathBuf,
    /// Whether the file system of our folder holds limits of projects.
    projects: bool,
    /// Absent where file systems cannot be mounted.
    templates: Option<Templates>,
    /// Whether anything may be mounted below our folder. Most nodes never mount anything there, and the table of all mounts of
    /// the machine is long.
    mounts: AtomicBool,
    trash: Trash,
    hands: Hands,
}

impl Storage {
    pub(crate) fn new(data_dir: &Path, privileged: bool, hands: Hands) -> Self {
        let templates = privileged.then(|| Templates::new(&data_dir.join("templates"))).flatten();
        let trash = Trash::open(data_dir.join("trash"), hands.clone());
        let projects = privileged && quota::holds_limits(data_dir);
        let mounts = fs::read_to_string("/proc/self/mountinfo");
        let mounts = AtomicBool::new(mounts.map_or(true, |table| !mount_points_below(&table, data_dir).is_empty()));
        Self { data_dir: data_dir.to_owned(), projects, templates, mounts, trash, hands }
    }

    /// What a tree that sandboxes have written takes up.
    pub(crate) fn usage(&self, folder: &Path) -> u64 {
        let counted = quota::project_of(folder).filter(|_| self.projects);
        let counted = counted.and_then(|project| quota::used_bytes(folder, project).ok());
        counted.unwrap_or_else(|| self.hands.usage(folder).bytes)
    }

    /// Removes a part of a folder at once.
    pub(crate) fn clear(&self, part: &Path) -> io::Result<()> {
        self.hands.remove(part)
    }

    /// Whether limits can be held.
    pub(crate) fn holds_limits(&self) -> bool {
        self.projects || self.templates.is_some()
    }

    /// Makes (or finds, and mounts again) a folder. One that exists keeps the mechanism and the size it was made with.
    pub(crate) fn ensure(&self, folder: &Path, limit: Option<u64>) -> io::Result<StorageMechanism> {
        let image = image_of(folder);
        if !image.exists() {
            let fresh = !folder.exists();
            let limit = limit.filter(|_| fresh).map(|bytes| bytes.max(SMALLEST));
            if self.projects {
                fs::create_dir_all(folder)?;
                match limit.map(|bytes| quota::limit(folder, bytes)) {
                    // What was made before keeps what it has.
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
                tracing::warn!(%error, folder = %folder.display(), "A size limit is measured only: its file system cannot be made");
                fs::create_dir_all(folder)?;
                return Ok(StorageMechanism::Measured);
            }
        }
        fs::create_dir_all(folder)?;
        if !is_mounted(folder)? {
            self.mounts.store(true, Ordering::Release);
            loops::mount(&image, folder)?;
            // The first mount finds what mkfs made.
            let _ = fs::remove_dir(folder.join("lost+found"));
        }
        Ok(StorageMechanism::LoopFile)
    }

    /// Removes a folder and everything in it. It is gone when this returns; what it took of the disk comes back a moment later, or
    /// at once when the disk is short.
    pub(crate) fn remove(&self, folder: &Path) -> io::Result<()> {
        if !folder.exists() {
            return Ok(());
        }
        if self.templates.is_some() && self.mounts.load(Ordering::Acquire) {
            unmount_below(folder)?;
        }
        if self.projects {
            release_projects(folder);
        }
        self.trash.put(folder)?;
        self.trash.put(&image_of(folder))
    }

    /// Removes a folder that mostly holds a few small files. Those go at once: written a moment ago, they need never reach the disk.
    /// With folders in it, which may be anything, it goes like any other.
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
            // A removal that was given up half-way may still have been at it.
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Gives back at once what removed folders still take of the disk.
    pub(crate) fn empty_trash(&self) {
        self.trash.empty();
    }

    /// Takes every mount below our folder away; what is in them stays.
    pub(crate) fn close(&self) {
        self.trash.empty();
        if self.templates.is_some()
            && let Err(error) = unmount_below(&self.data_dir)
        {
            tracing::warn!(%error, "A volume stays mounted");
        }
    }
}

/// Gives a new volume's root to everybody in the Pod, or to a group of it.
pub(crate) fn open_to_all(folder: &Path, group: Option<u32>) -> io::Result<()> {
    let mode = if group.is_some() { 0o2777 } else { 0o777 };
    if let Some(group) = group {
        std::os::unix::fs::lchown(folder, None, Some(group))?;
    }
    if fs::metadata(folder)?.permissions().mode() & 0o7777 != mode {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// The file a folder's file system is in, beside the folder: names of folders here never begin with a dot.
fn image_of(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    folder.with_file_name(format!(".{name}.ext4"))
}

/// Which mechanism holds a folder.
pub(crate) fn mechanism_of(folder: &Path) -> StorageMechanism {
    if image_of(folder).exists() {
        StorageMechanism::LoopFile
    } else if quota::project_of(folder).is_some() {
        StorageMechanism::ProjectQuota
    } else {
        StorageMechanism::Measured
    }
}

/// Takes away the limits of a folder and of those in it: an owner's folder holds those of its layers.
fn release_projects(folder: &Path) {
    let inner = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in inner.chain([folder.to_owned()]).filter(|path| path.is_dir() && !path.is_symlink()) {
        if let Some(Err(error)) = quota::project_of(&path).map(|project| quota::release(&path, project)) {
            tracing::debug!(%error, folder = %path.display(), "A limit of nothing stays behind");
        }
    }
}

fn is_mounted(folder: &Path) -> io::Result<bool> {
    let above = folder.parent().unwrap_or(Path::new("/"));
    Ok(fs::metadata(folder)?.dev() != fs::metadata(above)?.dev())
}

/// Unmounts whatever is mounted at a folder of ours or below it, deepest first.
pub(crate) fn unmount_below(folder: &Path) -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mut points = mount_points_below(&mounts, folder);
    points.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    for point in points {
        // Sandboxes that are still there keep what they have open.
        rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH)?;
    }
    Ok(())
}

fn mount_points_below(mountinfo: &str, folder: &Path) -> Vec<PathBuf> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    points.map(|point| PathBuf::from(unescape(point))).filter(|point| point.starts_with(folder)).collect()
}

/// Blanks and the like are written as three octal digits.
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
    fn records_are_gone_at_once_and_whatever_else_lies_with_them_too() {
        let data = tempfile::tempdir().unwrap();
        let storage = Storage::new(data.path(), false, Hands::Own);
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
        let storage = Storage::new(data.path(), true, Hands::Own);
        if !storage.holds_limits() {
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
        // Somebody inside still has it open: what is mounted again is the same file system, not a second one.
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
        assert!(!folder.exists() && !image_of(&folder).exists());
        let plain = data.path().join("volumes/plain");
        assert_eq!(storage.ensure(&plain, None).unwrap(), StorageMechanism::Measured);
        storage.close();
    }
}
