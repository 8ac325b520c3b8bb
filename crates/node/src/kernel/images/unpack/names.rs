//! Records of a tar stream that belong to the entry after them: long names, owners. Other people's bytes, so bounded.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tar::{Entry, EntryType, Header};

use super::UnpackError;

/// Longest record read. Honest ones hold a path and a few extended attributes.
const MAX_RECORD: u64 = 1 << 20;

/// What records said about the entry that follows them.
#[derive(Debug, Default)]
pub(super) struct Names {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    uid: Option<u64>,
    gid: Option<u64>,
}

impl Names {
    /// Reads an entry that is such a record; tells whether it was one.
    pub(super) fn take_record<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<bool, UnpackError> {
        match entry.header().entry_type() {
            EntryType::GNULongName => self.path = Some(without_end(record(entry)?)),
            EntryType::GNULongLink => self.link = Some(without_end(record(entry)?)),
            EntryType::XHeader => self.take_extension(&record(entry)?)?,
            // Says something about every entry after it; nothing that matters to a layer.
            EntryType::XGlobalHeader => drop(record(entry)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// `length key=value` lines. A value may hold line ends, so the length decides where a line stops.
    fn take_extension(&mut self, mut bytes: &[u8]) -> Result<(), UnpackError> {
        while let Some((pair, rest)) = next_pair(bytes) {
            bytes = rest;
            let Some(equals) = pair.iter().position(|byte| *byte == b'=') else { continue };
            let (key, value) = (&pair[..equals], &pair[equals + 1..]);
            let number = || std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"uid" => self.uid = number(),
                b"gid" => self.gid = number(),
                b"size" => return Err(self.unsupported("file of more than eight gigabytes")),
                key if key.starts_with(b"GNU.sparse.") => return Err(self.unsupported("sparse file")),
                _ => {}
            }
        }
        Ok(())
    }

    fn unsupported(&self, kind: &'static str) -> UnpackError {
        UnpackError::Kind { path: to_path(self.path.as_deref().unwrap_or_default()), kind }
    }

    pub(super) fn path_of<R: Read>(&self, entry: &Entry<'_, R>) -> PathBuf {
        self.path.as_deref().map_or_else(|| to_path(&entry.path_bytes()), to_path)
    }

    pub(super) fn link_of<R: Read>(&self, entry: &Entry<'_, R>) -> PathBuf {
        match &self.link {
            Some(link) => to_path(link),
            None => to_path(&entry.link_name_bytes().unwrap_or_default()),
        }
    }

    /// An empty field is root's.
    pub(super) fn owner_of(&self, header: &Header) -> (u64, u64) {
        (self.uid.unwrap_or_else(|| header.uid().unwrap_or(0)), self.gid.unwrap_or_else(|| header.gid().unwrap_or(0)))
    }
}

fn next_pair(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    let line = bytes.get(space + 1..length)?;
    Some((line.strip_suffix(b"\n")?, &bytes[length..]))
}

fn record(entry: &mut impl Read) -> Result<Vec<u8>, UnpackError> {
    let mut bytes = Vec::new();
    entry.take(MAX_RECORD + 1).read_to_end(&mut bytes).map_err(UnpackError::Stream)?;
    if bytes.len() as u64 > MAX_RECORD {
        return Err(UnpackError::LongRecord(MAX_RECORD));
    }
    Ok(bytes)
}

fn without_end(mut bytes: Vec<u8>) -> Vec<u8> {
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}

fn to_path(bytes: &[u8]) -> PathBuf {
    Path::new(OsStr::from_bytes(bytes)).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_by_their_length_and_nonsense_ends_them() {
        let mut names = Names::default();
        names.take_extension(b"13 path=a\nbc\n20 linkpath=target1\n13 uid=70000\n8 gid=x\n").unwrap();
        assert_eq!(names.path.as_deref(), Some(&b"a\nbc"[..]));
        assert_eq!(names.link.as_deref(), Some(&b"target1"[..]));
        assert_eq!((names.uid, names.gid), (Some(70_000), None));
        for nonsense in [&b"999 path=x\n"[..], b"0 path=x\n", b"3 path=x\n", b"path=x\n", b" =\n", b"10 path=abcd"] {
            let mut names = Names::default();
            names.take_extension(nonsense).unwrap();
            assert_eq!(names.path, None, "{nonsense:?}");
        }
    }
}
