//! Container logs in the CRI line format, `time stream tag text`, rotated by size.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::runtime::LogTarget;

/// Maximum length of one line's text; longer lines are marked partial (`P`) and continue in the next entry.
const MAX_TEXT: usize = 16 * 1024;

/// The stream that output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// The log of one attempt. Its file is created with the first line: many containers never write anything.
pub(super) struct Log {
    target: LogTarget,
    file: Option<File>,
    written: u64,
}

impl Log {
    pub(super) fn new(target: &LogTarget) -> Self {
        Self { target: target.clone(), file: None, written: 0 }
    }

    /// Writes complete entries.
    fn write(&mut self, entries: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            if let Some(folder) = self.target.path.parent() {
                fs::create_dir_all(folder)?;
            }
            let file = self.open()?;
            self.written = file.metadata()?.len();
            self.file = Some(file);
        }
        if self.written > 0 && self.written + entries.len() as u64 > self.target.max_bytes {
            self.rotate()?;
        }
        if let Some(file) = &mut self.file {
            file.write_all(entries)?;
            self.written += entries.len() as u64;
        }
        Ok(())
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().create(true).append(true).open(&self.target.path)
    }

    fn rotate(&mut self) -> io::Result<()> {
        let numbered = |number: u32| numbered(&self.target.path, number);
        for number in (1..self.target.max_files).rev() {
            match fs::rename(numbered(number), numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.target.max_files == 0 {
            fs::remove_file(&self.target.path)?;
        } else {
            fs::rename(&self.target.path, numbered(1))?;
        }
        self.file = Some(self.open()?);
        self.written = 0;
        Ok(())
    }
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

/// Splits a stream of bytes into log entries.
pub(super) struct Lines {
    stream: Stream,
    /// The beginning of an incomplete line.
    pending: Vec<u8>,
}

impl Lines {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, pending: Vec::new() }
    }

    /// Adds output and writes every complete line.
    pub(super) fn push(&mut self, mut bytes: &[u8], now: Timestamp, log: &mut Log) -> io::Result<()> {
        let mut entries = Vec::with_capacity(bytes.len() + 64);
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = bytes.split_at(end);
            self.pending.extend_from_slice(line);
            self.cut_long(now, &mut entries);
            entry(&mut entries, now, self.stream, b'F', &self.pending);
            self.pending.clear();
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.pending.extend_from_slice(bytes);
        self.cut_long(now, &mut entries);
        if entries.is_empty() { Ok(()) } else { log.write(&entries) }
    }

    /// Writes the incomplete last line when the stream ends.
    pub(super) fn finish(&mut self, now: Timestamp, log: &mut Log) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut entries = Vec::new();
        entry(&mut entries, now, self.stream, b'P', &std::mem::take(&mut self.pending));
        log.write(&entries)
    }

    fn cut_long(&mut self, now: Timestamp, entries: &mut Vec<u8>) {
        while self.pending.len() > MAX_TEXT {
            let rest = self.pending.split_off(MAX_TEXT);
            entry(entries, now, self.stream, b'P', &self.pending);
            self.pending = rest;
        }
    }
}

fn entry(entries: &mut Vec<u8>, now: Timestamp, stream: Stream, tag: u8, text: &[u8]) {
    // Writing into a vector cannot fail.
    let _ = write!(entries, "{now:.9} {} {} ", stream.name(), char::from(tag));
    entries.extend_from_slice(text);
    entries.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(max_bytes: u64, max_files: u32) -> (tempfile::TempDir, Log) {
        let folder = tempfile::tempdir().unwrap();
        let target = LogTarget { path: folder.path().join("c/0.log"), max_bytes, max_files };
        (folder, Log::new(&target))
    }

    fn now() -> Timestamp {
        "2026-01-02T03:04:05.5Z".parse().unwrap()
    }

    #[test]
    fn lines_are_stamped_and_an_unfinished_one_is_partial() {
        let (_folder, mut log) = log(1 << 20, 1);
        let mut lines = Lines::new(Stream::Stderr);
        lines.push(b"one\ntw", now(), &mut log).unwrap();
        lines.push(b"o\nrest", now(), &mut log).unwrap();
        lines.finish(now(), &mut log).unwrap();
        let text = fs::read_to_string(&log.target.path).unwrap();
        let stamp = "2026-01-02T03:04:05.500000000Z stderr";
        assert_eq!(text, format!("{stamp} F one\n{stamp} F two\n{stamp} P rest\n"));
    }

    #[test]
    fn a_container_without_output_has_no_file() {
        let (folder, mut log) = log(1 << 20, 1);
        let mut lines = Lines::new(Stream::Stdout);
        lines.push(b"not a line yet", now(), &mut log).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        lines.finish(now(), &mut log).unwrap();
        assert!(log.target.path.exists());
    }

    #[test]
    fn long_lines_are_cut() {
        let (_folder, mut log) = log(1 << 20, 1);
        let mut lines = Lines::new(Stream::Stdout);
        lines.push(&vec![b'x'; MAX_TEXT * 2 + 5], now(), &mut log).unwrap();
        lines.push(b"\n", now(), &mut log).unwrap();
        let text = fs::read_to_string(&log.target.path).unwrap();
        let tags: Vec<_> = text.lines().map(|line| line.split(' ').nth(2).unwrap()).collect();
        assert_eq!(tags, ["P", "P", "F"]);
        assert!(text.lines().all(|line| line.len() < MAX_TEXT + 64));
    }

    #[test]
    fn rotation_keeps_the_asked_number_of_files() {
        let (folder, mut log) = log(100, 2);
        let mut lines = Lines::new(Stream::Stdout);
        for number in 0..10 {
            lines.push(format!("line number {number}\n").as_bytes(), now(), &mut log).unwrap();
        }
        let mut names: Vec<_> = fs::read_dir(folder.path().join("c"))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["0.log", "0.log.1", "0.log.2"]);
        assert!(fs::read_to_string(folder.path().join("c/0.log")).unwrap().contains("number 9"));
        assert!(fs::read_to_string(folder.path().join("c/0.log.1")).unwrap().contains("number 8"));
    }
}
