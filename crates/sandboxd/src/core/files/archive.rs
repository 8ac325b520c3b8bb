//! Packs a directory into a tar stream and unpacks one. Every entry is unpacked through the confined root, so that no
//! entry of an archive can reach outside the directory it is unpacked into.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, linkat, symlinkat, unlinkat};
use rustix::io::Errno;
use tar::{Archive, Builder, EntryType, Header};

use super::root::{Follow, Located};
use super::tree::{Visit, make_directories, visit};
use super::write::{Permissions, Replacement};
use super::{FileError, Root};
use crate::core::paths::RelPath;

/// Maximum size of a long-name or extension record. Archives are untrusted input.
const MAX_RECORD: u64 = 64 * 1024;

/// Why an archive could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("{path:?}: {source}")]
    Entry { path: String, source: FileError },
    #[error("not a readable tar archive: {0}")]
    Broken(String),
    #[error("{0:?}: entries of this type are not unpacked")]
    Type(String),
}

/// Counts of what was unpacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpacked {
    pub files: u64,
    pub bytes: u64,
}

/// Writes everything below an open directory as tar. Devices and sockets are skipped.
pub fn pack(directory: &std::os::fd::OwnedFd, out: impl Write) -> Result<(), FileError> {
    let mut builder = Builder::new(out);
    builder.sparse(false);
    visit(directory, |found| {
        append(&mut builder, found)?;
        Ok(ControlFlow::Continue(()))
    })?;
    builder.into_inner()?.flush()?;
    Ok(())
}

fn append<W: Write>(builder: &mut Builder<W>, found: &Visit<'_>) -> Result<(), FileError> {
    let path = found.path.as_os_string();
    let mut header = Header::new_gnu();
    header.set_mode(found.stat.st_mode & 0o7777);
    header.set_uid(found.stat.st_uid.into());
    header.set_gid(found.stat.st_gid.into());
    header.set_mtime(u64::try_from(found.stat.st_mtime).unwrap_or_default());
    match found.kind() {
        FileType::Directory => {
            header.set_entry_type(EntryType::Directory);
            header.set_size(0);
            builder.append_data(&mut header, Path::new(&path), io::empty())?;
        }
        FileType::RegularFile => {
            // The file was removed or replaced by something else since it was listed: skip it.
            let Ok(file) = found.open_file() else { return Ok(()) };
            let size = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or_default();
            header.set_entry_type(EntryType::Regular);
            header.set_size(size);
            builder.append_data(&mut header, Path::new(&path), ExactLength::new(std::fs::File::from(file), size))?;
        }
        FileType::Symlink => {
            header.set_entry_type(EntryType::Symlink);
            header.set_size(0);
            let target = found.link_target()?;
            builder.append_link(&mut header, Path::new(&path), std::ffi::OsStr::from_bytes(target.to_bytes()))?;
        }
        _ => {}
    }
    Ok(())
}

/// Reads exactly `left` bytes: pads a file that has shrunk with zeros and cuts one that has grown, so that the archive
/// stays valid.
struct ExactLength<R> {
    inner: R,
    left: u64,
}

impl<R> ExactLength<R> {
    fn new(inner: R, left: u64) -> Self {
        Self { inner, left }
    }
}

impl<R: Read> Read for ExactLength<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let mut read = self.inner.read(&mut buffer[..most])?;
        if read == 0 {
            buffer[..most].fill(0);
            read = most;
        }
        self.left -= read as u64;
        Ok(read)
    }
}

/// Names from long-name and extension records, which apply to the entry that follows.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

/// Unpacks a tar stream into `directory` below `root`. Stops at the first entry that is refused.
pub fn unpack(root: &Root, directory: &RelPath, input: impl Read) -> Result<Unpacked, ArchiveError> {
    let broken = |error: io::Error| ArchiveError::Broken(error.to_string());
    let mut archive = Archive::new(input);
    let mut unpacked = Unpacked::default();
    let mut extended = Extended::default();
    // Raw entries, because this function reads the name records itself, up to a size limit.
    for entry in archive.entries().map_err(broken)?.raw(true) {
        let mut entry = entry.map_err(broken)?;
        let kind = entry.header().entry_type();
        match kind {
            EntryType::GNULongName => extended.path = Some(long_name(&mut entry)?),
            EntryType::GNULongLink => extended.link = Some(long_name(&mut entry)?),
            EntryType::XHeader => pax_header(&mut entry, &mut extended)?,
            EntryType::XGlobalHeader => {
                read_record(&mut entry)?;
            }
            _ => {
                let names = std::mem::take(&mut extended);
                let path = names.path.unwrap_or_else(|| entry.path_bytes().into_owned());
                let link = names.link.or_else(|| entry.link_name_bytes().map(|name| name.into_owned()));
                let shown = String::from_utf8_lossy(&path).into_owned();
                let destination = Destination { root, directory, path: &path, link: link.as_deref() };
                let bytes = destination.write_entry(&mut entry, kind).map_err(|error| match error {
                    WriteError::File(source) => ArchiveError::Entry { path: shown.clone(), source },
                    WriteError::Type => ArchiveError::Type(shown.clone()),
                })?;
                unpacked.files += 1;
                unpacked.bytes += bytes;
            }
        }
    }
    Ok(unpacked)
}

fn read_record(entry: &mut impl Read) -> Result<Vec<u8>, ArchiveError> {
    let mut bytes = Vec::new();
    let read = entry.take(MAX_RECORD + 1).read_to_end(&mut bytes);
    match read {
        Ok(size) if size as u64 > MAX_RECORD => Err(ArchiveError::Broken("a name record is too long".into())),
        Ok(_) => Ok(bytes),
        Err(error) => Err(ArchiveError::Broken(error.to_string())),
    }
}

fn long_name(entry: &mut impl Read) -> Result<Vec<u8>, ArchiveError> {
    let mut bytes = read_record(entry)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

/// The text of the first record, and what follows it. The record's own length says where it ends: a name may contain
/// line breaks.
fn pax_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let digits = std::str::from_utf8(&bytes[..space]).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    let (record, rest) = bytes.split_at_checked(digits.parse().ok()?)?;
    Some((record.get(space + 1..)?.strip_suffix(b"\n")?, rest))
}

/// Parses the `length key=value` records of a pax header; only names are used.
fn pax_header(entry: &mut impl Read, extended: &mut Extended) -> Result<(), ArchiveError> {
    let bytes = read_record(entry)?;
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let (text, after) =
            pax_record(rest).ok_or_else(|| ArchiveError::Broken("an extension record is malformed".into()))?;
        rest = after;
        if let Some(path) = text.strip_prefix(b"path=") {
            extended.path = Some(path.to_vec());
        } else if let Some(link) = text.strip_prefix(b"linkpath=") {
            extended.link = Some(link.to_vec());
        } else if text.starts_with(b"size=") {
            return Err(ArchiveError::Broken("sizes in extension records are not supported".into()));
        }
    }
    Ok(())
}

enum WriteError {
    File(FileError),
    Type,
}

impl<E: Into<FileError>> From<E> for WriteError {
    fn from(error: E) -> Self {
        Self::File(error.into())
    }
}

/// Where one entry is unpacked to.
struct Destination<'a> {
    root: &'a Root,
    directory: &'a RelPath,
    path: &'a [u8],
    link: Option<&'a [u8]>,
}

impl Destination<'_> {
    fn write_entry<R: Read>(&self, entry: &mut tar::Entry<'_, R>, kind: EntryType) -> Result<u64, WriteError> {
        let below = RelPath::parse(self.path).map_err(FileError::from)?;
        let target = self.directory.join(&below);
        let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
        match kind {
            EntryType::Directory => {
                make_directories(self.root, &target, mode | 0o700)?;
                Ok(0)
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse if kind != EntryType::GNUSparse => {
                self.write_file(entry, &target, mode)
            }
            EntryType::Symlink => {
                self.write_symlink(&below, &target)?;
                Ok(0)
            }
            EntryType::Link => {
                self.write_hard_link(&target)?;
                Ok(0)
            }
            _ => Err(WriteError::Type),
        }
    }

    fn write_file(&self, entry: &mut impl Read, target: &RelPath, mode: u32) -> Result<u64, WriteError> {
        let mut located = self.root.locate_creating_parents(target)?;
        if let Located::Entry { stat: Some(_), .. } = &located {
            // As tar does, replace the name itself, not the target of a link that has this name.
            located = self.root.locate(target, Follow::Never)?;
            self.unlink_existing(&located)?;
            located = self.root.locate(target, Follow::Never)?;
        }
        let replacement = Replacement::begin(&located, Permissions::Exactly(mode))?;
        let mut file = std::fs::File::from(replacement.descriptor().try_clone()?);
        let bytes = io::copy(entry, &mut file)?;
        replacement.commit(false)?;
        Ok(bytes)
    }

    /// Removes an existing file or link; fails for a directory.
    fn unlink_existing(&self, located: &Located) -> Result<(), FileError> {
        match located {
            Located::Entry { stat: Some(_), .. } if located.is_directory() => Err(FileError::Os(Errno::ISDIR)),
            Located::Entry { parent, name, stat: Some(_) } => Ok(unlinkat(parent, name, AtFlags::empty())?),
            Located::Entry { .. } => Ok(()),
            Located::Directory(_) => Err(FileError::Os(Errno::ISDIR)),
        }
    }

    /// Creates a symbolic link, but only if its text stays inside the root of the unpacked directory.
    fn write_symlink(&self, below: &RelPath, target: &RelPath) -> Result<(), FileError> {
        let text = self.link.ok_or(FileError::Os(Errno::INVAL))?;
        if !self.root.is_file_system_root() {
            let depth = self.directory.components().len() + below.components().len().saturating_sub(1);
            if text.starts_with(b"/") || leaves_root(text, depth) {
                return Err(FileError::Escapes);
            }
        }
        let (parent, name) = self.claim_name(target)?;
        let text = CString::new(text).map_err(|_| FileError::Escapes)?;
        Ok(symlinkat(&text, &parent, &name)?)
    }

    fn write_hard_link(&self, target: &RelPath) -> Result<(), FileError> {
        let text = self.link.ok_or(FileError::Os(Errno::INVAL))?;
        let source = self.directory.join(&RelPath::parse(text)?);
        let Located::Entry { parent: from, name: old, stat: Some(stat) } = self.root.locate(&source, Follow::Never)?
        else {
            return Err(FileError::Os(Errno::NOENT));
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(FileError::Refused("not a regular file"));
        }
        let (parent, name) = self.claim_name(target)?;
        Ok(linkat(&from, &old, &parent, &name, AtFlags::empty())?)
    }

    fn claim_name(&self, target: &RelPath) -> Result<(std::sync::Arc<std::os::fd::OwnedFd>, CString), FileError> {
        if let Some(name) = target.file_name() {
            let components = target.components();
            let parent =
                components[..components.len() - 1].iter().fold(RelPath::default(), |at, part| at.child(part.clone()));
            make_directories(self.root, &parent, 0o755)?;
            let located = self.root.locate(&parent.child(name.clone()), Follow::Never)?;
            self.unlink_existing(&located)?;
            if let Located::Entry { parent, name, .. } = located {
                return Ok((parent, name));
            }
        }
        Err(FileError::Os(Errno::ISDIR))
    }
}

/// Whether a relative link text goes up by more than `depth` directories at any point.
fn leaves_root(text: &[u8], depth: usize) -> bool {
    let mut depth = i64::try_from(depth).unwrap_or(i64::MAX);
    text.split(|byte| *byte == b'/').any(|part| {
        depth += match part {
            b"" | b"." => 0,
            b".." => -1,
            _ => 1,
        };
        depth < 0
    })
}

#[cfg(test)]
mod tests;
