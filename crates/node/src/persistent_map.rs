//! A small map from strings to strings in a file. Every change is appended as one line; the file is rewritten when most
//! of its lines are obsolete. Entries need no files of their own, and many changes share one sync to disk.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Number of obsolete lines that never cause a rewrite: the change that triggers a rewrite waits for the disk.
const MIN_HISTORY_LINES: usize = 4096;

/// The map and the file it is stored in.
pub(crate) struct PersistentMap {
    path: PathBuf,
    file: File,
    length: u64,
    lines: usize,
    entries: BTreeMap<String, String>,
}

impl PersistentMap {
    /// Opens the map at `path`, or creates it. `folder` is where earlier versions stored one file per entry; those
    /// entries are migrated.
    pub(crate) fn open(path: PathBuf, folder: &Path) -> io::Result<Self> {
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let lines = text.split_inclusive(|byte| *byte == b'\n').count();
        let is_new = !path.exists();
        let mut map = Self { file: append_to(&path)?, path, length: text.len() as u64, lines, entries: replay(&text) };
        if is_new {
            sync_folder_of(&map.path)?;
        }
        if let Some(earlier) = read_folder(folder)? {
            map.entries.extend(earlier);
            map.rewrite()?;
            fs::remove_dir_all(folder)?;
        } else if text.last().is_some_and(|byte| *byte != b'\n') {
            // The next line must not be appended to an incomplete one.
            map.rewrite()?;
        } else {
            map.compact()?;
        }
        Ok(map)
    }

    pub(crate) fn entries(&self) -> &BTreeMap<String, String> {
        &self.entries
    }

    /// Sets an entry. It is written when this returns, and survives a power loss once
    /// [`sync_handle`](Self::sync_handle) was synced.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> io::Result<()> {
        let fits = |text: &str| !text.contains(['\n', '\t', '\0']);
        if key.is_empty() || !fits(key) || !fits(value) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{key:?} or its value cannot be stored in a line"),
            ));
        }
        self.append(&format!("+{key}\t{value}\n"))?;
        self.entries.insert(key.to_owned(), value.to_owned());
        self.compact()
    }

    pub(crate) fn remove(&mut self, key: &str) -> io::Result<()> {
        if !self.entries.contains_key(key) {
            return Ok(());
        }
        self.append(&format!("-{key}\n"))?;
        self.entries.remove(key);
        self.compact()
    }

    /// A handle to the file, to sync it to disk.
    pub(crate) fn sync_handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            // The next line must not be appended to an incomplete one.
            self.file.set_len(self.length)?;
            return Err(error);
        }
        self.length += line.len() as u64;
        self.lines += 1;
        Ok(())
    }

    fn compact(&mut self) -> io::Result<()> {
        if self.lines > MIN_HISTORY_LINES + 4 * self.entries.len() { self.rewrite() } else { Ok(()) }
    }

    /// Rewrites the file atomically. Both the new content and the new name are on disk when this returns: a sync of the
    /// file alone would leave later entries in a file that has no name after a loss of power.
    fn rewrite(&mut self) -> io::Result<()> {
        let temporary = self.path.with_extension("tmp");
        let text: String = self.entries.iter().map(|(key, value)| format!("+{key}\t{value}\n")).collect();
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        self.file = append_to(&self.path)?;
        sync_folder_of(&self.path)?;
        (self.length, self.lines) = (text.len() as u64, self.entries.len());
        Ok(())
    }
}

/// The map that results from the lines. Incomplete and malformed lines are ignored: their write was interrupted.
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

/// The entries of an earlier version; `None` without its folder. Files whose name begins with a dot are incomplete and
/// ignored.
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

/// Syncs the directory entry of a file to disk.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path) -> PersistentMap {
        PersistentMap::open(folder.join("map"), &folder.join("earlier")).unwrap()
    }

    fn list(map: &PersistentMap) -> Vec<(&str, &str)> {
        map.entries().iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
    }

    #[test]
    fn entries_survive_a_restart_and_removed_ones_do_not_return() {
        let folder = tempfile::tempdir().unwrap();
        let mut map = open(folder.path());
        map.set("a", "1").unwrap();
        map.set("b", "2").unwrap();
        map.set("a", "3").unwrap();
        map.remove("b").unwrap();
        map.remove("never").unwrap();
        assert_eq!(list(&open(folder.path())), [("a", "3")]);
    }

    #[test]
    fn an_incomplete_line_is_ignored_and_does_not_damage_the_next() {
        let folder = tempfile::tempdir().unwrap();
        for torn in ["+b\t2", "-a", "+", "\0\0\0\0", "noise\n", "+without\n"] {
            fs::write(folder.path().join("map"), format!("+a\t1\n{torn}")).unwrap();
            let mut map = open(folder.path());
            assert_eq!(list(&map), [("a", "1")], "{torn:?}");
            map.set("c", "3").unwrap();
            assert_eq!(list(&open(folder.path())), [("a", "1"), ("c", "3")], "{torn:?}");
        }
    }

    #[test]
    fn the_file_does_not_grow_with_history() {
        let folder = tempfile::tempdir().unwrap();
        let mut map = open(folder.path());
        map.set("kept", "v").unwrap();
        for number in 0..20_000 {
            map.set(&format!("k{number}"), "v").unwrap();
            map.remove(&format!("k{number}")).unwrap();
        }
        let longest = "+k19999\tv\n".len();
        assert!(fs::metadata(folder.path().join("map")).unwrap().len() < ((MIN_HISTORY_LINES + 8) * longest) as u64);
        assert_eq!(list(&open(folder.path())), [("kept", "v")]);
    }

    #[test]
    fn keys_and_values_that_do_not_fit_a_line_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut map = open(folder.path());
        for (key, value) in [("", "v"), ("a\tb", "v"), ("a\n-b", "v"), ("a", "v\nw")] {
            assert_eq!(map.set(key, value).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{key:?} {value:?}");
        }
        assert!(list(&open(folder.path())).is_empty());
    }

    #[test]
    fn the_files_of_earlier_versions_are_migrated() {
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
