//! Finds changes that cannot be applied because the real folder moved on since the sandbox saw it.

use std::io;
use std::path::{Path, PathBuf};

use super::entry::{Entry, Kind};
use super::layer::Change;
use super::record::{Journal, Record, Stamp};
use super::tree::Tree;

/// What happened to the real file meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    Changed,
    Created,
    Deleted,
    /// It is not there, and nothing shows that it was not there when the sandbox began.
    PerhapsDeleted,
}

impl Moved {
    pub fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Created => "created",
            Self::Deleted => "deleted",
            Self::PerhapsDeleted => "perhaps deleted",
        }
    }
}

/// A path that was changed on both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub path: PathBuf,
    pub moved: Moved,
}

/// What is known about the real folder when the sandbox first saw it.
#[derive(Debug)]
pub struct Base {
    record: Option<Record>,
    began: (i64, u32),
    /// What was applied without a record: the paths, and the folders in which only that happened since the sandbox began.
    notes: Record,
    journal: Option<Journal>,
}

impl Base {
    pub fn new(record: Option<Record>, began: (i64, u32)) -> Self {
        Self::with_notes(record, began, Record::default())
    }

    /// `notes` are those of earlier commands, when there was no record.
    pub fn with_notes(record: Option<Record>, began: (i64, u32), notes: Record) -> Self {
        Self { record, began, notes, journal: None }
    }

    /// Notes every change in a journal, too, as soon as it is applied.
    pub fn note_in(&mut self, journal: Journal) {
        self.journal = Some(journal);
    }

    /// How the real file at a path moved on, if it did.
    pub fn moved(&self, source: &Tree, path: &Path, now: Option<&Entry>) -> Option<Moved> {
        let Some(record) = &self.record else {
            // Nothing was recorded: the times of the last changes, which no program can set, decide.
            return match now {
                Some(now) if now.kind == Kind::Folder || now.changed < self.began => None,
                Some(now) => (self.notes.get(path) != Some(&Stamp::of(now))).then_some(Moved::Changed),
                None => (!self.knows_names(source, above(path))).then_some(Moved::PerhapsDeleted),
            };
        };
        match (record.get(path), now) {
            (None, None) => None,
            (None, Some(_)) => Some(Moved::Created),
            (Some(_), None) => Some(Moved::Deleted),
            (Some(then), Some(now)) => (*then != Stamp::of(now)).then_some(Moved::Changed),
        }
    }

    /// Whether there is no record, but the names in the folder at a path are those of the sandbox's begin, or were
    /// applied. Of a folder that does not exist, the nearest one above it decides.
    pub(super) fn knows_names(&self, source: &Tree, path: &Path) -> bool {
        if self.record.is_some() {
            return false;
        }
        let Ok((path, folder)) = source.nearest_folder(path) else { return false };
        folder.changed < self.began || self.notes.get(&path) == Some(&Stamp::of_names(&folder))
    }

    /// Notes that only what was applied happened in the folder at a path, or in the nearest one above it.
    pub(super) fn note_names(&mut self, source: &Tree, path: &Path) -> io::Result<()> {
        let (path, folder) = source.nearest_folder(path)?;
        self.note(&path, Some(Stamp::of_names(&folder)))
    }

    /// Notes that a path was brought to the sandbox's version.
    pub(super) fn applied(&mut self, path: &Path, now: Option<&Entry>) -> io::Result<()> {
        self.note(path, now.map(Stamp::of))
    }

    fn note(&mut self, path: &Path, stamp: Option<Stamp>) -> io::Result<()> {
        self.record.as_mut().unwrap_or(&mut self.notes).set(path, stamp);
        self.journal.as_mut().map_or(Ok(()), |journal| journal.add(path, stamp.as_ref()))
    }

    /// What was applied without a record.
    pub fn notes(&self) -> &Record {
        &self.notes
    }

    /// The record, with what was applied since.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }
}

/// The folder that contains a path.
pub(super) fn above(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// The conflicts among changes, in their order.
pub fn find<'a>(
    source: &Tree,
    base: &Base,
    changes: impl IntoIterator<Item = &'a Change>,
) -> io::Result<Vec<Conflict>> {
    let mut found = Vec::new();
    for change in changes {
        let now = source.entry(&change.path)?;
        if let Some(moved) = base.moved(source, &change.path, now.as_ref()) {
            found.push(Conflict { path: change.path.clone(), moved });
        }
    }
    Ok(found)
}
