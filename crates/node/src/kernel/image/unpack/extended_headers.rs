//! Extended headers of a tar stream (PAX and GNU): long names and owners of the entry that follows. Untrusted, so their
//! size is limited.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tar::{Entry, EntryType, Header};

use super::UnpackError;

/// Maximum size of one extended header. Real ones hold a path and a few attributes.
const MAX_RECORD: u64 = 1 << 20;

/// Values of the extended headers for the entry that follows.
#[derive(Debug, Default)]
pub(super) struct ExtendedHeaders {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    uid: Option<u64>,
    gid: Option<u64>,
}

impl ExtendedHeaders {
    /// Reads an entry if it is an extended header; returns whether it was one.
    pub(super) fn take_record<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<bool, UnpackError> {
        match entry.header().entry_type() {
            EntryType::GNULongName => self.path = Some(without_end(record(entry)?)),
            EntryType::GNULongLink => self.link = Some(without_end(record(entry)?)),
            EntryType::XHeader => self.take_extension(&record(entry)?)?,
            // A global header applies to all entries after it, and contains nothing that a layer needs.
            EntryType::XGlobalHeader => drop(record(entry)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Parses `length key=value` lines. A value may contain line ends, so the length decides where a line ends.
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

    /// Owner of the entry; an empty field means root.
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
    fn pairs_are_read_by_their_length_and_invalid_ones_end_the_list() {
        let mut headers = ExtendedHeaders::default();
        headers.take_extension(b"13 path=a\nbc\n20 linkpath=target1\n13 uid=70000\n8 gid=x\n").unwrap();
        assert_eq!(headers.path.as_deref(), Some(&b"a\nbc"[..]));
        assert_eq!(headers.link.as_deref(), Some(&b"target1"[..]));
        assert_eq!((headers.uid, headers.gid), (Some(70_000), None));
        for nonsense in [&b"999 path=x\n"[..], b"0 path=x\n", b"3 path=x\n", b"path=x\n", b" =\n", b"10 path=abcd"] {
            let mut headers = ExtendedHeaders::default();
            headers.take_extension(nonsense).unwrap();
            assert_eq!(headers.path, None, "{nonsense:?}");
        }
    }
}
