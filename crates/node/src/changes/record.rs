//! A record of a folder when a sandbox first saw it: overlayfs does not show reliably what changes in its lower folder
//! later, so conflicts are found by comparing the folder with this record.
//!
//! The record is taken in the background while the sandbox runs already. Until it is complete, a file counts as moved
//! on if it changed after the moment at which the sandbox began.
//!
//! What is applied to the folder is noted in a [`Journal`] beside the record, change by change: a command that is killed
//! leaves what it did so far. Without a record, the journal is kept as the [`notes`](Record::read_notes) of all commands.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::entry::{Entry, Kind};
use super::layer::{self, Marks};
use super::tree::{self, Tree};

/// First bytes of the file: its format.
const MAGIC: &[u8; 8] = b"asbrec1\n";

/// Ending of the journal's file.
const JOURNAL: &str = "applied";

/// Ending of the file with the notes.
const NOTES: &str = "noted";

/// Takes the place of a file's kind in the journal when the file was deleted.
const GONE: u8 = u8::MAX;

/// Maximum number of recorded paths. A larger folder has no record, and is judged by times alone.
const MAX_ENTRIES: usize = 4_000_000;

/// What identifies a version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub kind: Kind,
    inode: u64,
    size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
}

impl Stamp {
    pub fn of(entry: &Entry) -> Self {
        match entry.kind {
            // A folder's size and times change with its names, which have stamps of their own.
            Kind::Folder => Self { kind: entry.kind, inode: 0, size: 0, modified: (0, 0), changed: (0, 0) },
            kind => {
                Self { kind, inode: entry.inode, size: entry.size, modified: entry.modified, changed: entry.changed }
            }
        }
    }

    /// The stamp of a folder, which is another one as soon as a name in it is another one.
    pub(super) fn of_names(folder: &Entry) -> Self {
        let Entry { kind, inode, modified, changed, .. } = *folder;
        Self { kind, inode, size: 0, modified, changed }
    }
}

/// Stamps by path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Record(HashMap<PathBuf, Stamp>);

impl Record {
    /// The record in a file; `None` if there is none, because it was never completed.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the record of the folder is damaged");
        let mut magic = [0; 8];
        reader.read_exact(&mut magic)?;
        if &magic != MAGIC {
            return Err(invalid());
        }
        let mut entries = HashMap::new();
        loop {
            let mut length = [0; 4];
            match reader.read_exact(&mut length) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                other => other?,
            }
            let (path, fixed) = read_entry(&mut reader, length)?;
            let stamp = decode(&fixed).ok_or_else(invalid)?;
            entries.insert(path, stamp);
        }
        let mut record = Self(entries);
        // What a command noted that was killed before it wrote the record.
        record.add_journal(&path.with_extension(JOURNAL))?;
        Ok(Some(record))
    }

    /// What was applied while the record in a file was never completed.
    pub fn read_notes(path: &Path) -> io::Result<Self> {
        let mut notes = Self::default();
        notes.add_journal(&path.with_extension(NOTES))?;
        Ok(notes)
    }

    /// Adds what is noted in a journal. Its last entry may be incomplete.
    fn add_journal(&mut self, journal: &Path) -> io::Result<()> {
        let file = match File::open(journal) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let mut reader = BufReader::with_capacity(1 << 16, file);
        loop {
            let mut length = [0; 4];
            let entry = reader.read_exact(&mut length).and_then(|()| read_entry(&mut reader, length));
            let (path, fixed) = match entry {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                other => other?,
            };
            match decode(&fixed) {
                Some(stamp) => self.0.insert(path, stamp),
                None => self.0.remove(&path),
            };
        }
    }

    /// Removes the file of a record, its journal and the notes.
    pub fn remove(path: &Path) -> io::Result<()> {
        remove_if_there(path)?;
        remove_if_there(&path.with_extension(JOURNAL))?;
        remove_if_there(&path.with_extension(NOTES))
    }

    pub fn get(&self, path: &Path) -> Option<&Stamp> {
        self.0.get(path)
    }

    /// Notes the present version of a path, or that it is gone.
    pub fn set(&mut self, path: &Path, stamp: Option<Stamp>) {
        match stamp {
            Some(stamp) => self.0.insert(path.to_owned(), stamp),
            None => self.0.remove(path),
        };
    }

    /// Replaces the file atomically.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut writer = RecordWriter::create(path)?;
        for (name, stamp) in &self.0 {
            writer.add(name, stamp)?;
        }
        writer.finish()
    }
}

/// What was applied since the file of a record was written or, without one, what was ever applied.
#[derive(Debug)]
pub struct Journal(File);

impl Journal {
    /// Begins an empty journal beside the file of a record. What a killed command noted there, and `record` has
    /// therefore, is moved to that file first.
    pub fn begin(path: &Path, record: &Record) -> io::Result<Self> {
        let journal = path.with_extension(JOURNAL);
        if journal.exists() {
            record.write(path)?;
        }
        Ok(Self(File::create(journal)?))
    }

    /// Continues the notes beside the file of a record that was never completed; `notes` is what they have.
    pub fn continue_notes(path: &Path, notes: &Record) -> io::Result<Self> {
        let (path, temporary) = (path.with_extension(NOTES), path.with_extension("noted.tmp"));
        let mut journal = Self(File::create(&temporary)?);
        for (name, stamp) in &notes.0 {
            journal.add(name, Some(stamp))?;
        }
        std::fs::rename(temporary, path)?;
        Ok(journal)
    }

    /// Notes the present version of a path, or that it is gone.
    pub(super) fn add(&mut self, path: &Path, stamp: Option<&Stamp>) -> io::Result<()> {
        let fixed = stamp.map_or_else(|| vec![GONE; FIXED], encode);
        let name = path.as_os_str().as_bytes();
        let length = u32::try_from(name.len()).unwrap_or(u32::MAX).to_le_bytes();
        // In one call, so that nothing is left in a buffer.
        self.0.write_all(&[&length, name, &fixed].concat())
    }
}

/// Reads what follows the length of a path.
fn read_entry(reader: &mut impl Read, length: [u8; 4]) -> io::Result<(PathBuf, [u8; FIXED])> {
    let mut path = vec![0; usize::try_from(u32::from_le_bytes(length)).unwrap_or_default().min(1 << 16)];
    reader.read_exact(&mut path)?;
    let mut fixed = [0; FIXED];
    reader.read_exact(&mut fixed)?;
    Ok((PathBuf::from(OsString::from_vec(path)), fixed))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Size of what follows a path in the file.
const FIXED: usize = 1 + 8 + 8 + 8 + 4 + 8 + 4;

fn encode(stamp: &Stamp) -> Vec<u8> {
    let kind = match stamp.kind {
        Kind::File => 0u8,
        Kind::Folder => 1,
        Kind::Link => 2,
        Kind::Fifo => 3,
        Kind::Socket => 4,
        Kind::Device => 5,
    };
    let mut bytes = vec![kind];
    bytes.extend(stamp.inode.to_le_bytes());
    bytes.extend(stamp.size.to_le_bytes());
    for (seconds, nanos) in [stamp.modified, stamp.changed] {
        bytes.extend(seconds.to_le_bytes());
        bytes.extend(nanos.to_le_bytes());
    }
    bytes
}

fn decode(bytes: &[u8; FIXED]) -> Option<Stamp> {
    let kind = match bytes.first()? {
        0 => Kind::File,
        1 => Kind::Folder,
        2 => Kind::Link,
        3 => Kind::Fifo,
        4 => Kind::Socket,
        5 => Kind::Device,
        _ => return None,
    };
    let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let short = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let time = |at: usize| Some((long(at)?.cast_signed(), short(at + 8)?));
    Some(Stamp { kind, inode: long(1)?, size: long(9)?, modified: time(17)?, changed: time(29)? })
}

/// Writes a record's file, which appears when it is complete.
struct RecordWriter {
    file: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
}

impl RecordWriter {
    fn create(path: &Path) -> io::Result<Self> {
        let temporary = path.with_extension("tmp");
        let mut file = BufWriter::with_capacity(1 << 16, File::create(&temporary)?);
        file.write_all(MAGIC)?;
        Ok(Self { file, temporary, path: path.to_owned() })
    }

    fn add(&mut self, path: &Path, stamp: &Stamp) -> io::Result<()> {
        let name = path.as_os_str().as_bytes();
        self.file.write_all(&u32::try_from(name.len()).unwrap_or(u32::MAX).to_le_bytes())?;
        self.file.write_all(name)?;
        self.file.write_all(&encode(stamp))
    }

    fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        std::fs::rename(&self.temporary, &self.path)?;
        // The record has what the journal and the notes say.
        remove_if_there(&self.path.with_extension(JOURNAL))?;
        remove_if_there(&self.path.with_extension(NOTES))
    }
}

/// Whether the sandbox has changed what is at a path or below it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touched {
    No,
    /// The upper folder has a folder here: look at its names.
    Inside,
    /// Replaced or deleted.
    All,
}

/// Records `folder` in the file `path`, unless `cancelled` is set meanwhile. Of an older record, what the sandbox has
/// changed since is kept: it changed that version. Files that changed after `began` are recorded as never seen.
pub fn take(
    folder: &Tree,
    (upper, marks): (&Tree, Marks),
    path: &Path,
    began: (i64, u32),
    cancelled: &AtomicBool,
) -> io::Result<()> {
    let old = Record::read(path)?;
    let mut writer = RecordWriter::create(path)?;
    let mut pending = vec![(PathBuf::new(), if old.is_some() { Touched::Inside } else { Touched::No })];
    let mut count = 0;
    while let Some((at, touched)) = pending.pop() {
        if cancelled.load(Ordering::Relaxed) || count > MAX_ENTRIES {
            return std::fs::remove_file(&writer.temporary);
        }
        // What cannot be read here, the sandbox cannot have read either.
        let Ok(opened) = folder.folder(&at) else { continue };
        for name in tree::names(opened.as_fd())? {
            let Some(entry) = tree::stat(opened.as_fd(), &name)? else { continue };
            let name = at.join(&name);
            let below = match touched {
                Touched::Inside => touched_at(upper, marks, &name),
                other => other,
            };
            if entry.kind == Kind::Folder {
                pending.push((name.clone(), below));
            }
            count += 1;
            match old.as_ref().filter(|_| below == Touched::All) {
                Some(old) => {
                    if let Some(stamp) = old.get(&name) {
                        writer.add(&name, stamp)?;
                    }
                }
                None if entry.kind != Kind::Folder && entry.changed >= began => {
                    // A version that no file has: it was changed between the start and now, so that the sandbox may
                    // have seen either version.
                    let unknown = Stamp { inode: 0, modified: (0, 0), changed: (0, 0), ..Stamp::of(&entry) };
                    writer.add(&name, &unknown)?;
                }
                None => writer.add(&name, &Stamp::of(&entry))?,
            }
        }
    }
    // Deleted from the folder since, but changed by the sandbox: still known.
    for (name, stamp) in old.iter().flat_map(|old| &old.0) {
        if folder.entry(name)?.is_none() && upper.entry(name)?.is_some() {
            writer.add(name, stamp)?;
        }
    }
    writer.finish()
}

fn touched_at(upper: &Tree, marks: Marks, path: &Path) -> Touched {
    match upper.entry(path) {
        Ok(None) => Touched::No,
        Ok(Some(entry)) if entry.kind == Kind::Folder => {
            let opaque = upper.folder(path).and_then(|folder| layer::is_opaque(folder.as_fd(), marks));
            if opaque.unwrap_or(true) { Touched::All } else { Touched::Inside }
        }
        _ => Touched::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Before every file of the tests.
    const LONG_AGO: (i64, u32) = (0, 0);
    /// After every file of the tests.
    const LATER: (i64, u32) = (i64::MAX, 0);

    fn setup() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        for name in ["real/a", "upper"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let top = folder.path().canonicalize().unwrap();
        fs::write(top.join("real/a/f"), "one").unwrap();
        fs::write(top.join("real/g"), "one").unwrap();
        std::os::unix::fs::symlink("a/f", top.join("real/l")).unwrap();
        (folder, top)
    }

    fn record(top: &Path, began: (i64, u32), cancelled: bool) -> Option<Record> {
        let (real, upper) = (Tree::open(&top.join("real")).unwrap(), Tree::open(&top.join("upper")).unwrap());
        take(&real, (&upper, Marks::User), &top.join("record"), began, &AtomicBool::new(cancelled)).unwrap();
        assert!(!top.join("record.tmp").exists());
        Record::read(&top.join("record")).unwrap()
    }

    #[test]
    fn every_path_is_recorded_and_read_back() {
        let (_folder, top) = setup();
        let real = Tree::open(&top.join("real")).unwrap();
        assert_eq!(record(&top, LATER, true), None, "cancelled");
        let taken = record(&top, LATER, false).unwrap();
        for name in ["a", "a/f", "g", "l"] {
            let now = real.entry(Path::new(name)).unwrap().unwrap();
            assert_eq!(taken.get(Path::new(name)), Some(&Stamp::of(&now)), "{name}");
        }
        taken.write(&top.join("other")).unwrap();
        assert_eq!(Record::read(&top.join("other")).unwrap(), Some(taken));
        fs::write(top.join("other"), "damaged!").unwrap();
        assert!(Record::read(&top.join("other")).is_err());
    }

    #[test]
    fn a_file_that_changed_while_it_was_recorded_matches_no_version() {
        let (_folder, top) = setup();
        let real = Tree::open(&top.join("real")).unwrap();
        let now = real.entry(Path::new("g")).unwrap().unwrap();
        assert_ne!(record(&top, LONG_AGO, false).unwrap().get(Path::new("g")), Some(&Stamp::of(&now)));
    }

    #[test]
    fn a_second_record_keeps_the_versions_that_the_sandbox_changed() {
        let (_folder, top) = setup();
        let first = record(&top, LATER, false).unwrap();
        fs::write(top.join("upper/g"), "inside").unwrap();
        for name in ["real/g", "real/a/f"] {
            fs::write(top.join(name), "outside, longer").unwrap();
        }
        let second = record(&top, LATER, false).unwrap();
        assert_eq!(second.get(Path::new("g")), first.get(Path::new("g")), "changed inside");
        assert_ne!(second.get(Path::new("a/f")), first.get(Path::new("a/f")), "seen anew");
        fs::remove_file(top.join("real/g")).unwrap();
        let third = record(&top, LATER, false).unwrap();
        assert_eq!(third.get(Path::new("g")), first.get(Path::new("g")), "deleted outside, still known");
    }
}
