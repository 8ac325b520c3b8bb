//! The description of a file or directory.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{FileType, Stat, readlinkat};
use serde::Serialize;

use super::metadata;
use crate::core::Sandbox;
use crate::core::files::{FileError, Follow, Located};
use crate::core::paths::RelPath;
use crate::core::processes::users::Names;

/// An entry of the file system.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) path: String,
    /// A number of 64 bits, which JSON carries as text.
    size: String,
    mode: u32,
    permissions: String,
    owner: String,
    group: String,
    modified_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    is_symlink: bool,
}

/// Describes what is at `path`; for a link, the link itself and the type of its target. `None` if nothing is there.
pub(super) fn describe(sandbox: &Sandbox, path: &RelPath, names: &Names) -> Result<Option<Entry>, FileError> {
    let root = sandbox.paths.root();
    let located = root.locate(path, Follow::Never)?;
    let Some(stat) = located.stat()? else { return Ok(None) };
    let absolute = sandbox.paths.absolute(path);
    let is_symlink = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
    let (kind, target) = if is_symlink {
        let behind = root.locate(path, Follow::Link).and_then(|target| target.stat());
        let target = link_target(&located, &absolute, root.is_file_system_root());
        (behind.ok().flatten().map_or("FILE_TYPE_UNSPECIFIED", |target| kind_of(&target)), target)
    } else {
        (kind_of(&stat), None)
    };
    Ok(Some(Entry {
        name: absolute.file_name().map_or_else(|| "/".into(), |name| name.to_string_lossy().into_owned()),
        kind,
        path: absolute.display().to_string(),
        size: stat.st_size.to_string(),
        mode: stat.st_mode & 0o777,
        permissions: permissions(stat.st_mode),
        owner: names.user(stat.st_uid),
        group: names.group(stat.st_gid),
        modified_time: modified(&stat),
        symlink_target: target,
        metadata: if is_symlink { BTreeMap::new() } else { metadata::read(&located) },
        is_symlink,
    }))
}

/// Where a link leads: the file behind all links, or the text of the link if there is none or it is confined.
fn link_target(located: &Located, absolute: &std::path::Path, unconfined: bool) -> Option<String> {
    if unconfined && let Ok(target) = std::fs::canonicalize(absolute) {
        return Some(target.display().to_string());
    }
    let Located::Entry { parent, name, .. } = located else { return None };
    let text = readlinkat(parent, name, Vec::new()).ok()?;
    Some(OsStr::from_bytes(text.to_bytes()).to_string_lossy().into_owned())
}

fn kind_of(stat: &Stat) -> &'static str {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => "FILE_TYPE_DIRECTORY",
        FileType::RegularFile => "FILE_TYPE_FILE",
        FileType::Symlink => "FILE_TYPE_SYMLINK",
        _ => "FILE_TYPE_UNSPECIFIED",
    }
}

fn modified(stat: &Stat) -> String {
    let nanoseconds = i32::try_from(stat.st_mtime_nsec).unwrap_or_default();
    jiff::Timestamp::new(stat.st_mtime, nanoseconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

/// Type and permissions as letters, such as `-rw-r--r--`.
fn permissions(mode: u32) -> String {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::Directory => 'd',
        FileType::Symlink => 'L',
        FileType::Fifo => 'p',
        FileType::Socket => 'S',
        FileType::BlockDevice | FileType::CharacterDevice => 'D',
        _ => '-',
    };
    let letters = "rwxrwxrwx".chars().enumerate();
    std::iter::once(kind)
        .chain(letters.map(|(index, letter)| if mode & (0o400 >> index) == 0 { '-' } else { letter }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E-091
    #[test]
    fn permissions_are_letters() {
        assert_eq!(permissions(0o100_644), "-rw-r--r--");
        assert_eq!(permissions(0o040_755), "drwxr-xr-x");
        assert_eq!(permissions(0o120_777), "Lrwxrwxrwx");
    }
}
