//! Reads an audit log: the rotated files from the oldest to the newest, then, when followed, what is appended.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{KEPT, Record};
use crate::rotating_file::rotated;

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read the audit log {path}")]
    Io { path: PathBuf, source: io::Error },
    #[error("line {line} of {path} is not an audit record")]
    Record { path: PathBuf, line: usize, source: serde_json::Error },
}

/// All records, oldest first. A file that does not exist has none.
pub fn read(path: &Path) -> Result<impl Iterator<Item = Result<Record, ReadError>> + use<>, ReadError> {
    let rotated = read_rotated(path)?;
    Ok(rotated.chain(read_files(vec![path.to_owned()])?))
}

/// The records of the rotated files, oldest first.
pub fn read_rotated(path: &Path) -> Result<impl Iterator<Item = Result<Record, ReadError>> + use<>, ReadError> {
    read_files((1..=KEPT).rev().map(|number| rotated(path, number)).collect())
}

fn read_files(paths: Vec<PathBuf>) -> Result<impl Iterator<Item = Result<Record, ReadError>>, ReadError> {
    let mut files = Vec::new();
    for candidate in paths {
        match File::open(&candidate) {
            Ok(file) => files.push((candidate, file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(ReadError::Io { path: candidate, source }),
        }
    }
    Ok(files.into_iter().flat_map(|(path, file)| {
        BufReader::new(file).lines().enumerate().map(move |(index, line)| {
            let line = line.map_err(|source| ReadError::Io { path: path.clone(), source })?;
            let decoded = serde_json::from_str(&line);
            decoded.map_err(|source| ReadError::Record { path: path.clone(), line: index + 1, source })
        })
    }))
}

/// Returns the records of a log's current file and what is appended to it, across rotations.
pub struct Follow {
    path: PathBuf,
    file: Option<File>,
    /// Bytes of a line that is not complete.
    partial: Vec<u8>,
}

impl Follow {
    pub fn begin(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: open_if_present(path)?, partial: Vec::new() })
    }

    /// The complete records that were not returned before. Lines that are no records are skipped.
    pub fn next_records(&mut self) -> io::Result<Vec<Record>> {
        Ok(self.next_lines()?.iter().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The complete lines that were not returned before, also of other logs that are rotated like this one.
    pub fn next_lines(&mut self) -> io::Result<Vec<String>> {
        if let Some(file) = &mut self.file {
            file.read_to_end(&mut self.partial)?;
        }
        if self.is_rotated()? {
            self.file = open_if_present(&self.path)?;
            if let Some(file) = &mut self.file {
                file.read_to_end(&mut self.partial)?;
            }
        }
        let complete = self.partial.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        let lines: Vec<u8> = self.partial.drain(..complete).collect();
        Ok(String::from_utf8_lossy(&lines).lines().map(str::to_owned).collect())
    }

    fn is_rotated(&self) -> io::Result<bool> {
        let current = match std::fs::metadata(&self.path) {
            Ok(metadata) => Some(metadata.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let open = self.file.as_ref().map(File::metadata).transpose()?.map(|metadata| metadata.ino());
        Ok(current.is_some() && current != open)
    }
}

fn open_if_present(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Action, Decision, Record, Source};
    use super::*;

    fn line(name: &str) -> String {
        let mut record = Record::new(Source::Api, Action::Create, Decision::Allow, 201);
        record.name = name.to_owned();
        serde_json::to_string(&record).unwrap() + "\n"
    }

    fn names(records: &[Record]) -> Vec<&str> {
        records.iter().map(|record| record.name.as_str()).collect()
    }

    #[test]
    fn rotated_files_come_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        std::fs::write(&path, line("c")).unwrap();
        std::fs::write(rotated(&path, 1), line("b")).unwrap();
        std::fs::write(rotated(&path, 2), line("a")).unwrap();
        let records: Vec<Record> = read(&path).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(names(&records), ["a", "b", "c"]);
    }

    #[test]
    fn a_damaged_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        std::fs::write(&path, line("a") + "{\n").unwrap();
        let error = read(&path).unwrap().find_map(Result::err).unwrap();
        assert!(error.to_string().starts_with("line 2 of "), "{error}");
    }

    #[test]
    fn following_survives_a_rotation_and_half_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let mut follow = Follow::begin(&path).unwrap();
        assert!(follow.next_records().unwrap().is_empty());
        let text = line("a");
        std::fs::write(&path, &text[..10]).unwrap();
        assert!(follow.next_records().unwrap().is_empty());
        std::fs::write(&path, text).unwrap();
        assert_eq!(names(&follow.next_records().unwrap()), ["a"]);
        std::fs::rename(&path, rotated(&path, 1)).unwrap();
        std::fs::write(&path, line("b")).unwrap();
        assert_eq!(names(&follow.next_records().unwrap()), ["b"]);
    }
}
