//! Compares an overlay's upper folder with its lower one. The upper folder has every changed file in full; a character
//! device 0:0 (a whiteout) stands for a deleted one, and an attribute marks a folder that replaces the lower one
//! (opaque). Only what the upper folder has is read: the cost does not depend on the size of the lower folder.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::entry::{Entry, Kind};
use super::tree::{self, Tree};

/// The namespace of the attributes that overlayfs writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Marks {
    /// `trusted.overlay.*`: mounted by root. `user.overlay.*` is data of the sandbox then.
    Trusted,
    /// `user.overlay.*`: mounted in a user namespace (`userxattr`).
    User,
}

impl Marks {
    fn opaque(self) -> &'static str {
        match self {
            Self::Trusted => "trusted.overlay.opaque",
            Self::User => "user.overlay.opaque",
        }
    }
}

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    Added,
    Changed,
    Deleted,
}

/// One changed path. A deleted folder is followed by everything that was in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Relative to the folder; any bytes.
    pub path: PathBuf,
    pub what: What,
    /// The entry of the lower folder.
    pub before: Option<Entry>,
    /// The entry of the upper folder.
    pub after: Option<Entry>,
    /// Another path of this comparison that is the same file (a hard link).
    pub same_as: Option<PathBuf>,
}

/// The result of a comparison, sorted by path.
#[derive(Debug, Default)]
pub struct Diff {
    pub changes: Vec<Change>,
    /// Folders that could not be read, and what is in them is therefore not known.
    pub unreadable: Vec<(PathBuf, io::Error)>,
}

/// A folder that is still to be compared.
struct Pending {
    path: PathBuf,
    /// The lower folder has a folder of this name.
    has_lower: bool,
    /// The folder above is opaque: nothing of the lower folder shows through.
    opaque: bool,
}

/// Compares the upper folder with the lower one.
pub fn diff(lower: &Tree, upper: &Tree, marks: Marks) -> io::Result<Diff> {
    let mut comparison = Comparison { lower, upper, marks, diff: Diff::default(), pending: Vec::new() };
    comparison.pending.push(Pending { path: PathBuf::new(), has_lower: true, opaque: false });
    while let Some(next) = comparison.pending.pop() {
        let path = next.path.clone();
        if let Err(error) = comparison.folder(next) {
            if path.as_os_str().is_empty() {
                return Err(error);
            }
            comparison.diff.unreadable.push((path, error));
        }
    }
    let mut diff = comparison.diff;
    diff.changes.sort_by(|one, other| one.path.cmp(&other.path));
    diff.unreadable.sort_by(|one, other| one.0.cmp(&other.0));
    name_hard_links(&mut diff.changes);
    Ok(diff)
}

struct Comparison<'a> {
    lower: &'a Tree,
    upper: &'a Tree,
    marks: Marks,
    diff: Diff,
    pending: Vec<Pending>,
}

impl Comparison<'_> {
    fn folder(&mut self, Pending { path, has_lower, opaque }: Pending) -> io::Result<()> {
        let upper = self.upper.folder(&path)?;
        let opaque = opaque || is_opaque(upper.as_fd(), self.marks)?;
        let lower = if has_lower { Some(self.lower.folder(&path)?) } else { None };
        let names = tree::names(upper.as_fd())?;
        for name in &names {
            let Some(after) = tree::stat(upper.as_fd(), name)? else { continue };
            let before = match &lower {
                Some(lower) => tree::stat(lower.as_fd(), name)?,
                None => None,
            };
            self.entry(path.join(name), before, after, opaque);
        }
        if let Some(lower) = lower.filter(|_| opaque) {
            let kept: BTreeSet<OsString> = names.into_iter().collect();
            for name in tree::names(lower.as_fd())? {
                if !kept.contains(&name)
                    && let Some(before) = tree::stat(lower.as_fd(), &name)?
                {
                    self.deleted(path.join(name), before);
                }
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: PathBuf, before: Option<Entry>, after: Entry, opaque: bool) {
        if after.is_whiteout() {
            if let Some(before) = before {
                self.deleted(path, before);
            }
            return;
        }
        let below = |path: &Path, has_lower| Pending { path: path.to_owned(), has_lower, opaque };
        match (before, after.kind) {
            (None, kind) => {
                if kind == Kind::Folder {
                    self.pending.push(below(&path, false));
                }
                self.push(path, What::Added, None, Some(after));
            }
            (Some(before), Kind::Folder) if before.kind == Kind::Folder => {
                self.pending.push(below(&path, true));
                if before.mode != after.mode || !self.same_attributes(&path) {
                    self.push(path, What::Changed, Some(before), Some(after));
                }
            }
            (Some(before), kind) => {
                if before.kind == Kind::Folder {
                    self.deleted_below(path.clone());
                }
                if kind == Kind::Folder {
                    self.pending.push(below(&path, false));
                }
                if before.kind != kind || self.differs(&path, &before, &after) {
                    self.push(path, What::Changed, Some(before), Some(after));
                }
            }
        }
    }

    fn push(&mut self, path: PathBuf, what: What, before: Option<Entry>, after: Option<Entry>) {
        self.diff.changes.push(Change { path, what, before, after, same_as: None });
    }

    /// Adds a deleted entry and, for a folder, everything in it.
    fn deleted(&mut self, path: PathBuf, before: Entry) {
        if before.kind == Kind::Folder {
            self.deleted_below(path.clone());
        }
        self.push(path, What::Deleted, Some(before), None);
    }

    fn deleted_below(&mut self, top: PathBuf) {
        let mut folders = vec![top];
        while let Some(folder) = folders.pop() {
            if let Err(error) = self.deleted_in(&folder, &mut folders) {
                self.diff.unreadable.push((folder, error));
            }
        }
    }

    fn deleted_in(&mut self, path: &Path, folders: &mut Vec<PathBuf>) -> io::Result<()> {
        let folder = self.lower.folder(path)?;
        for name in tree::names(folder.as_fd())? {
            let Some(before) = tree::stat(folder.as_fd(), &name)? else { continue };
            let path = path.join(name);
            if before.kind == Kind::Folder {
                folders.push(path.clone());
            }
            self.push(path, What::Deleted, Some(before), None);
        }
        Ok(())
    }

    /// Whether two entries of the same kind differ. A file that cannot be read counts as changed.
    fn differs(&self, path: &Path, before: &Entry, after: &Entry) -> bool {
        if before.kind != Kind::Link && before.mode != after.mode {
            return true;
        }
        let same = match after.kind {
            Kind::File => before.size == after.size && self.same_files(path).unwrap_or(false),
            Kind::Link => {
                matches!((self.lower.link(path), self.upper.link(path)), (Ok(one), Ok(other)) if one == other)
            }
            _ => before.device == after.device,
        };
        !same
    }

    fn same_files(&self, path: &Path) -> io::Result<bool> {
        let (mut lower, mut upper) = (self.lower.file(path)?, self.upper.file(path)?);
        let same = tree::attributes(lower.as_fd())? == tree::attributes(upper.as_fd())?;
        Ok(same && tree::same_content(&mut lower, &mut upper)?)
    }

    fn same_attributes(&self, path: &Path) -> bool {
        let read = |tree: &Tree| tree.folder(path).and_then(|folder| tree::attributes(folder.as_fd()));
        matches!((read(self.lower), read(self.upper)), (Ok(one), Ok(other)) if one == other)
    }
}

/// Whether an upper folder replaces the lower one.
pub(super) fn is_opaque(folder: BorrowedFd<'_>, marks: Marks) -> io::Result<bool> {
    let mut value = [0; 8];
    match rustix::fs::fgetxattr(folder, marks.opaque(), &mut value) {
        Ok(length) => Ok(value.get(..length) == Some(b"y")),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::NOTSUP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Names the first path of each file that several changed paths share.
fn name_hard_links(changes: &mut [Change]) {
    let mut first: HashMap<u64, PathBuf> = HashMap::new();
    for change in changes {
        let Some(after) = change.after.filter(|after| after.kind == Kind::File && after.links > 1) else { continue };
        match first.get(&after.inode) {
            Some(path) => change.same_as = Some(path.clone()),
            None => {
                first.insert(after.inode, change.path.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
