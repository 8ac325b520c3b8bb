//! Finds changes that cannot be applied because the real folder moved on since the sandbox saw it.

use std::io;
use std::path::{Path, PathBuf};

use super::entry::Entry;
use super::layer::Change;
use super::record::{Journal, Record, Stamp};
use super::tree::Tree;

/// What happened to the real file meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    Changed,
    Created,
    Deleted,
}

impl Moved {
    pub fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Created => "created",
            Self::Deleted => "deleted",
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
    journal: Option<Journal>,
}

impl Base {
    pub fn new(record: Option<Record>, began: (i64, u32)) -> Self {
        Self { record, began, journal: None }
    }

    /// Notes every change in a journal, too, as soon as it is applied.
    pub fn note_in(&mut self, journal: Journal) {
        self.journal = Some(journal);
    }

    /// How the real file at a path moved on, if it did.
    pub fn moved(&self, path: &Path, now: Option<&Entry>) -> Option<Moved> {
        let Some(record) = &self.record else {
            // Nothing was recorded: the time of the last change, which no program can set, decides.
            return now
                .filter(|now| now.kind != super::Kind::Folder && now.changed >= self.began)
                .map(|_| Moved::Changed);
        };
        match (record.get(path), now) {
            (None, None) => None,
            (None, Some(_)) => Some(Moved::Created),
            (Some(_), None) => Some(Moved::Deleted),
            (Some(then), Some(now)) => (*then != Stamp::of(now)).then_some(Moved::Changed),
        }
    }

    /// Notes that a path was brought to the sandbox's version.
    pub(super) fn applied(&mut self, path: &Path, now: Option<&Entry>) -> io::Result<()> {
        if let Some(record) = &mut self.record {
            record.set(path, now);
        }
        self.journal.as_mut().map_or(Ok(()), |journal| journal.add(path, now))
    }

    /// The record, with what was applied since.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }
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
        if let Some(moved) = base.moved(&change.path, now.as_ref()) {
            found.push(Conflict { path: change.path.clone(), moved });
        }
    }
    Ok(found)
}
