//! A small map on disk. Every change is one line at the end of one file, which is written anew once most of it is history: a
//! life costs no file of its own, and many lives share one write to the disk.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Lines that are kept whatever they say: whoever makes the change that has the map written anew waits for the disk.
const HISTORY: usize = 4096;

/// The map and its file.
pub(crate) struct Ledger {
    path: PathBuf,
    file: File,
    length: u64,
    lines: usize,
    entries: BTreeMap<String, String>,
}

impl Ledger {
    /// Reads the map at `path`, or begins one. `folder` is where earlier versions had a file for each entry: what it holds is
    /// taken over.
    pub(crate) fn open(path: PathBuf, folder: &Path) -> io::Result<Self> {
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let lines = text.split_inclusive(|byte| *byte == b'\n').count();
        let mut ledger =
            Self { file: append_to(&path)?, path, length: text.len() as u64, lines, entries: replay(&text) };
        if let Some(earlier) = read_folder(folder)? {
            ledger.entries.extend(earlier);
            ledger.write_anew()?;
            fs::remove_dir_all(folder)?;
        } else if text.last().is_some_and(|byte| *byte != b'\n') {
            // Half a line would spoil the next one.
            ledger.write_anew()?;
        } else {
            ledger.shorten()?;
        }
        Ok(ledger)
    }

    pub(crate) fn entries(&self) -> &BTreeMap<String, String> {
        &self.entries
    }

    /// Sets an entry. Written when this returns; safe from a loss of power once the [`syncer`](Self::syncer) was synced.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> io::Result<()> {
        let fits = |text: &str| !text.contains(['\n', '\t', '\0']);
        if key.is_empty() || !fits(key) || !fits(value) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{key:?} cannot be noted")));
        }
        self.append(&format!("+{key}\t{value}\n"))?;
        self.entries.insert(key.to_owned(), value.to_owned());
        self.shorten()
    }

    pub(crate) fn remove(&mut self, key: &str) -> io::Result<()> {
        if !self.entries.contains_key(key) {
            return Ok(());
        }
        self.append(&format!("-{key}\n"))?;
        self.entries.remove(key);
        self.shorten()
    }

    /// The file, for whoever writes it through to the disk.
    pub(crate) fn syncer(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            // Half a line would spoil the next one.
            self.file.set_len(self.length)?;
            return Err(error);
        }
        self.length += line.len() as u64;
        self.lines += 1;
        Ok(())
    }

    fn shorten(&mut self) -> io::Result<()> {
        if self.lines > HISTORY + 4 * self.entries.len() { self.write_anew() } else { Ok(()) }
    }

    /// Whole or not at all, whatever happens to the machine.
    fn write_anew(&mut self) -> io::Result<()> {
        let temporary = self.path.with_extension("tmp");
        let text: String = self.entries.iter().map(|(key, value)| format!("+{key}\t{value}\n")).collect();
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        self.file = append_to(&self.path)?;
        (self.length, self.lines) = (text.len() as u64, self.entries.len());
        Ok(())
    }
}

/// What the lines add up to. One without its end, or that is none of ours, was never finished.
fn replay(text: &[u8]) -> BTreeMap<String, String> {
    let mut entries = BTreeMap::new();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let Some(line) = line.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok()) else { continue };
        if let Some((key, value)) = line.strip_prefix('+').and_then(|line| line.split_once('\t')) {
            entries.insert(key.to_owned(), value.to_owned());
        } else if let Some(key) = line.strip_prefix('-') {
            entries.remove(key);
        }
    }
    entries
}

/// `None` without such a folder. A half-written file has a name that begins with a dot, and was never used.
fn read_folder(folder: &Path) -> io::Result<Option<BTreeMap<String, String>>> {
    let list = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut entries = BTreeMap::new();
    for entry in list {
        let entry = entry?;
        let Ok(key) = entry.file_name().into_string() else { continue };
        if !key.starts_with('.') {
            entries.insert(key, fs::read_to_string(entry.path())?.trim().replace('\n', " "));
        }
    }
    Ok(Some(entries))
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path) -> Ledger {
        Ledger::open(folder.join("map"), &folder.join("earlier")).unwrap()
    }

    fn list(ledger: &Ledger) -> Vec<(&str, &str)> {
        ledger.entries().iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    #[test]
    fn what_was_set_is_there_after_a_restart_and_what_was_removed_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = open(folder.path());
        ledger.set("a", "1").unwrap();
        ledger.set("b", "2").unwrap();
        ledger.set("a", "3").unwrap();
        ledger.remove("b").unwrap();
        ledger.remove("never").unwrap();
        assert_eq!(list(&open(folder.path())), [("a", "3")]);
    }

    #[test]
    fn a_line_that_was_never_finished_counts_for_nothing_and_spoils_nothing() {
        let folder = tempfile::tempdir().unwrap();
        for torn in ["+b\t2", "-a", "+", "\0\0\0\0", "noise\n", "+without\n"] {
            fs::write(folder.path().join("map"), format!("+a\t1\n{torn}")).unwrap();
            let mut ledger = open(folder.path());
            assert_eq!(list(&ledger), [("a", "1")], "{torn:?}");
            ledger.set("c", "3").unwrap();
            assert_eq!(list(&open(folder.path())), [("a", "1"), ("c", "3")], "{torn:?}");
        }
    }

    #[test]
    fn the_file_does_not_grow_with_history() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = open(folder.path());
        ledger.set("kept", "v").unwrap();
        for number in 0..20_000 {
            ledger.set(&format!("k{number}"), "v").unwrap();
            ledger.remove(&format!("k{number}")).unwrap();
        }
        let longest = "+k19999\tv\n".len();
        assert!(fs::metadata(folder.path().join("map")).unwrap().len() < ((HISTORY + 8) * longest) as u64);
        assert_eq!(list(&open(folder.path())), [("kept", "v")]);
    }

    #[test]
    fn what_cannot_be_a_line_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = open(folder.path());
        for (key, value) in [("", "v"), ("a\tb", "v"), ("a\n-b", "v"), ("a", "v\nw")] {
            assert_eq!(ledger.set(key, value).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{key:?} {value:?}");
        }
        assert!(list(&open(folder.path())).is_empty());
    }

    #[test]
    fn the_files_of_earlier_versions_are_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let earlier = folder.path().join("earlier");
        fs::create_dir(&earlier).unwrap();
        fs::write(earlier.join("a"), "1\n").unwrap();
        fs::write(earlier.join(".half"), "2").unwrap();
        assert_eq!(list(&open(folder.path())), [("a", "1")]);
        assert!(!earlier.exists());
        assert_eq!(list(&open(folder.path())), [("a", "1")]);
    }
}
