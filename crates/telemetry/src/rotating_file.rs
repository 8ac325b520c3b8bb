//! A log's file: private to its owner, renamed when it is full, with a bounded number of old files.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Appends whole lines to a file and rotates it by size.
pub struct RotatingFile {
    path: PathBuf,
    file: File,
    size: u64,
    max_bytes: u64,
    kept: u32,
}

impl RotatingFile {
    /// Opens a file that is rotated when it has this size; `kept` rotated files stay, of which `<path>.1` is the newest.
    pub fn open(path: &Path, max_bytes: u64, kept: u32) -> io::Result<Self> {
        let file = append(path)?;
        let size = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, size, max_bytes, kept })
    }

    fn rotate(&mut self) -> io::Result<()> {
        for number in (1..self.kept).rev() {
            rename_if_present(&rotated(&self.path, number), &rotated(&self.path, number + 1))?;
        }
        rename_if_present(&self.path, &rotated(&self.path, 1))?;
        self.file = append(&self.path)?;
        self.size = 0;
        Ok(())
    }
}

/// Opens a file for appending, for its owner only. A symbolic link is refused.
fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)
}

fn rename_if_present(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The path of a rotated file.
pub fn rotated(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

impl Write for RotatingFile {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        if self.size > 0 && self.size + lines.len() as u64 > self.max_bytes {
            self.rotate()?;
        }
        let written = self.file.write(lines)?;
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_rotated_by_size_and_old_ones_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let mut file = RotatingFile::open(&path, 8, 7).unwrap();
        for number in 0..12 {
            file.write_all(format!("line{number}\n").as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "line11\n");
        assert_eq!(std::fs::read_to_string(rotated(&path, 1)).unwrap(), "line10\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count() as u32, 8);
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &path).unwrap();
        assert!(RotatingFile::open(&path, 8, 7).is_err());
    }
}
