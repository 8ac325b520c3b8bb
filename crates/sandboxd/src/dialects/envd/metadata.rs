//! Metadata of files: headers of an upload, kept as extended attributes.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use http::HeaderMap;
use rustix::fs::{XattrFlags, flistxattr, fremovexattr, fsetxattr, lgetxattr, llistxattr};
use rustix::io::Errno;

use crate::core::files::{FileError, Located};

const HEADER: &str = "x-metadata-";
const ATTRIBUTE: &str = "user.e2b.";

/// Longest key: the kernel allows 255 bytes for the name of an attribute.
const MAX_KEY: usize = 246;
const MAX_TOTAL: usize = 4096;

/// Longest list of attribute names, and longest value, that the kernel hands out.
const MAX_LIST: usize = 64 * 1024;
/// Longer than the list of almost every file.
const SHORT_LIST: usize = 512;

/// The metadata in the headers of an upload.
pub(super) fn of_headers(headers: &HeaderMap) -> Result<BTreeMap<String, String>, String> {
    let mut metadata = BTreeMap::new();
    let mut total = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(HEADER) else { continue };
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(format!("metadata key {key:?} is not between 1 and {MAX_KEY} characters long"));
        }
        let text = value.to_str().ok().filter(|text| text.bytes().all(|byte| (b' '..0x7f).contains(&byte)));
        let text = text.ok_or_else(|| format!("the value of metadata key {key:?} is not printable ASCII"))?;
        total += key.len() + text.len();
        metadata.insert(key.to_owned(), text.to_owned());
    }
    if total > MAX_TOTAL {
        return Err(format!("the metadata has {total} bytes; {MAX_TOTAL} are allowed"));
    }
    Ok(metadata)
}

/// Replaces the metadata of an open file. Without metadata, a file system without attributes is fine.
pub(super) fn replace(file: &OwnedFd, metadata: &BTreeMap<String, String>) -> Result<(), FileError> {
    let mut list = vec![0_u8; MAX_LIST];
    if let Ok(length) = flistxattr(file, &mut list[..]) {
        for name in names(&list[..length]) {
            fremovexattr(file, format!("{ATTRIBUTE}{name}"))?;
        }
    }
    for (key, value) in metadata {
        fsetxattr(file, format!("{ATTRIBUTE}{key}"), value.as_bytes(), XattrFlags::empty())?;
    }
    Ok(())
}

/// The metadata of a file; empty where none can be read.
pub(super) fn read(located: &Located) -> BTreeMap<String, String> {
    let path = match located {
        Located::Directory(directory) => format!("/proc/self/fd/{}/.", directory.as_raw_fd()).into_bytes(),
        Located::Entry { parent, name, .. } => {
            [format!("/proc/self/fd/{}/", parent.as_raw_fd()).as_bytes(), name.to_bytes()].concat()
        }
    };
    let path = std::ffi::OsStr::from_bytes(&path);
    let mut list = vec![0_u8; SHORT_LIST];
    let mut length = llistxattr(path, &mut list[..]);
    if length == Err(Errno::RANGE) {
        list.resize(MAX_LIST, 0);
        length = llistxattr(path, &mut list[..]);
    }
    let Ok(length) = length else { return BTreeMap::new() };
    let value = |name: &str| {
        let mut value = vec![0_u8; MAX_TOTAL];
        let length = lgetxattr(path, format!("{ATTRIBUTE}{name}"), &mut value[..]).ok()?;
        value.truncate(length);
        String::from_utf8(value).ok()
    };
    names(&list[..length]).filter_map(|name| Some((name.to_owned(), value(name)?))).collect()
}

/// Keys in a list of attribute names, each ended by a NUL byte.
fn names(list: &[u8]) -> impl Iterator<Item = &str> {
    let names = list.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    names.filter_map(|name| name.strip_prefix(ATTRIBUTE))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(&str, &[u8])]) -> HeaderMap {
        let pair = |(name, value): &(&str, &[u8])| {
            (name.parse::<HeaderName>().expect("a name"), HeaderValue::from_bytes(value).expect("a value"))
        };
        pairs.iter().map(pair).collect()
    }

    /// E-102
    #[test]
    fn keys_are_lower_case_and_values_printable() {
        let found = of_headers(&headers(&[("X-Metadata-Author", b"me"), ("Content-Type", b"x")])).expect("fine");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [("author".into(), "me".into())]);
        assert!(of_headers(&headers(&[("x-metadata-a", b"\xc3\xa4")])).is_err());
        assert!(of_headers(&headers(&[("x-metadata-a", &[b'x'; 5000])])).is_err());
        assert!(of_headers(&headers(&[(&format!("x-metadata-{}", "k".repeat(247)), b"")])).is_err());
    }
}
