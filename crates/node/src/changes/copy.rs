//! A sandbox's copy of a folder, as stored by the node: the overlay's `upper` and `work` folders, a description, the
//! record of the real folder, and a lock that the sandbox's supervisor holds while the copy is mounted.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::conflicts::Base;
use super::layer::{self, Diff, Marks};
use super::record::{Journal, Record};
use super::tree::Tree;

/// Name of the file that describes a copy. It is written last: a copy without it is not complete.
pub const DESCRIPTION: &str = "copy.json";
/// Name of the file that supervisors lock (shared) while the copy is mounted.
pub const LOCK: &str = "lock";
/// Name of the record's file.
pub const RECORD: &str = "record";
/// First character of the folder of a copy, which is beside the writable layers of containers: no container's name
/// begins with it.
const PREFIX: char = '@';

/// The description of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CopyInfo {
    /// The real folder.
    pub source: PathBuf,
    pub namespace: String,
    /// Name of the Pod, which is also the Sandbox's.
    pub pod: String,
    pub volume: String,
    /// Changes are never shown or applied.
    pub private: bool,
    pub marks: Marks,
    /// Start of the first sandbox, in seconds and nanoseconds.
    pub began: (i64, u32),
}

/// A stored copy.
#[derive(Debug, Clone)]
pub struct Copy {
    pub folder: PathBuf,
    pub info: CopyInfo,
}

/// Name of the folder of a container's copy.
pub(crate) fn folder_name(container: &str, volume: &str) -> String {
    format!("{PREFIX}{container}.{volume}")
}

impl Copy {
    /// The copy in a folder; `None` if there is none, or an incomplete one.
    pub fn open(folder: &Path) -> io::Result<Option<Self>> {
        match fs::read(folder.join(DESCRIPTION)) {
            Ok(text) => Ok(Some(Self { folder: folder.to_owned(), info: serde_json::from_slice(&text)? })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The copies in the folders of a folder: one level of owners, below each its copies.
    pub fn find(base: &Path) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for owner in folders(base)? {
            for folder in folders(&owner)? {
                let is_copy = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
                if let Some(copy) = is_copy.then(|| Self::open(&folder)).transpose()?.flatten() {
                    found.push(copy);
                }
            }
        }
        found.sort_by(|one, other| one.folder.cmp(&other.folder));
        Ok(found)
    }

    pub fn upper(&self) -> PathBuf {
        self.folder.join("upper")
    }

    fn record_path(&self) -> PathBuf {
        self.folder.join(RECORD)
    }

    /// Compares the copy with the real folder.
    pub fn diff(&self) -> io::Result<Diff> {
        layer::diff(&self.source()?, &self.upper_tree()?, self.info.marks)
    }

    /// The real folder.
    pub fn source(&self) -> io::Result<Tree> {
        Tree::open(&self.info.source).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot open {}: {error}", self.info.source.display()))
        })
    }

    /// The folder with the changes.
    pub fn upper_tree(&self) -> io::Result<Tree> {
        Tree::open(&self.upper().canonicalize()?)
    }

    /// The record of the real folder, if it was completed.
    pub fn record(&self) -> io::Result<Option<Record>> {
        Record::read(&self.record_path())
    }

    /// Stores a record that was brought up to date.
    pub fn write_record(&self, record: &Record) -> io::Result<()> {
        record.write(&self.record_path())
    }

    /// What is known about the real folder when the sandbox began.
    pub fn base(&self) -> io::Result<Base> {
        let notes = Record::read_notes(&self.record_path())?;
        Ok(Base::with_notes(self.record()?, self.info.began, notes))
    }

    /// Begins to note what is applied; `base` is what [`Self::base`] has read.
    pub fn begin_journal(&self, base: &Base) -> io::Result<Journal> {
        match base.record() {
            Some(record) => Journal::begin(&self.record_path(), record),
            None => Journal::continue_notes(&self.record_path(), base.notes()),
        }
    }

    /// Keeps other commands from applying or discarding the same changes meanwhile; `None` if one does.
    pub fn lock_description(&self) -> io::Result<Option<File>> {
        try_lock(&self.folder.join(DESCRIPTION))
    }

    /// Keeps sandboxes from mounting the copy; `None` if one has it mounted.
    pub fn lock_unused(&self) -> io::Result<Option<File>> {
        try_lock(&self.folder.join(LOCK))
    }

    /// Removes the changes and the record, so that the next sandbox sees the real folder. Nothing may have it mounted.
    pub fn clear(&self) -> io::Result<()> {
        for name in ["upper", "work"] {
            let folder = self.folder.join(name);
            let like = fs::metadata(&folder)?;
            crate::kernel::remove_data(&folder)?;
            fs::create_dir(&folder)?;
            fs::set_permissions(&folder, like.permissions())?;
            use std::os::unix::fs::MetadataExt as _;
            std::os::unix::fs::lchown(&folder, Some(like.uid()), Some(like.gid()))?;
        }
        Record::remove(&self.record_path())
    }
}

fn try_lock(path: &Path) -> io::Result<Option<File>> {
    let file = File::options().read(true).write(true).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn folders(base: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(base) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}
