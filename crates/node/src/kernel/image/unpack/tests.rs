//! Layers built by hand, valid and malicious ones.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use super::*;

const SMALL: LayerBounds = LayerBounds { bytes: 10_000, entries: 50 };

struct Tar(tar::Builder<Vec<u8>>);

impl Tar {
    fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    fn entry(mut self, kind: EntryType, path: &str, link: Option<&str>, data: &[u8]) -> Self {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
        header.set_size(data.len() as u64);
        header.set_uid(rustix::process::geteuid().as_raw().into());
        header.set_gid(rustix::process::getegid().as_raw().into());
        // Written raw: the crate itself refuses to build the names an attacker would use.
        header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
        if let Some(link) = link {
            header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
        }
        header.set_cksum();
        self.0.append(&header, data).unwrap();
        self
    }

    fn file(self, path: &str, data: &[u8]) -> Self {
        self.entry(EntryType::Regular, path, None, data)
    }

    fn symlink(self, path: &str, to: &str) -> Self {
        self.entry(EntryType::Symlink, path, Some(to), b"")
    }

    fn unpack(self) -> (tempfile::TempDir, Result<(), UnpackError>) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("layer");
        fs::create_dir(&root).unwrap();
        let bytes = self.0.into_inner().unwrap();
        let result = unpack(bytes.as_slice(), &root, SMALL, rustix::process::geteuid().is_root());
        (folder, result)
    }
}

#[test]
fn files_folders_and_links_are_unpacked() {
    let (folder, result) = Tar::new()
        .entry(EntryType::Directory, "usr/", None, b"")
        .file("usr/a", b"text")
        .symlink("lib", "usr")
        .file("lib/b", b"through the link")
        .entry(EntryType::Link, "usr/hard", Some("usr/a"), b"")
        .file("usr/a", b"replaced")
        .unpack();
    result.unwrap();
    let root = folder.path().join("layer");
    assert_eq!(fs::read_to_string(root.join("usr/a")).unwrap(), "replaced");
    assert_eq!(fs::read_to_string(root.join("usr/b")).unwrap(), "through the link");
    assert_eq!(fs::read_to_string(root.join("usr/hard")).unwrap(), "text");
}

#[test]
fn whiteouts_become_overlay_marks() {
    let (folder, result) = Tar::new().file("etc/.wh.gone", b"").file("etc/kept", b"x").unpack();
    result.unwrap();
    let mark = fs::symlink_metadata(folder.path().join("layer/etc/gone")).unwrap();
    assert!(mark.file_type().is_char_device() && mark.rdev() == 0);
    assert!(!folder.path().join("layer/etc/.wh.gone").exists());
}

#[test]
fn names_that_lead_out_are_refused() {
    for path in ["../evil", "a/../../evil", "/../evil"] {
        let (folder, result) = Tar::new().file(path, b"x").unpack();
        assert!(matches!(result, Err(UnpackError::Escapes(_))), "{path}");
        assert!(!folder.path().join("evil").exists());
    }
}

#[test]
fn links_never_lead_a_write_out() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().to_str().unwrap();
    let (_folder, result) = Tar::new().symlink("trap", target).file("trap/evil", b"x").unpack();
    // The absolute link is taken beneath the root, where its target does not exist, or is made there.
    assert!(!outside.path().join("evil").exists(), "{result:?}");
    let (folder, _) = Tar::new().symlink("up", "../..").file("up/evil", b"x").unpack();
    assert!(!folder.path().join("evil").exists());
    let secret = outside.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let (folder, _) = Tar::new().entry(EntryType::Link, "copy", Some(secret.to_str().unwrap()), b"").unpack();
    assert!(!folder.path().join("layer/copy").exists(), "a hard link reached outside");
}

#[test]
fn bombs_are_refused() {
    let (_, result) = Tar::new().file("big", &vec![0; 10_001]).unpack();
    assert!(matches!(result, Err(UnpackError::TooLarge(_))));
    let many = (0..51).fold(Tar::new(), |tar, number| tar.file(&format!("f{number}"), b""));
    assert!(matches!(many.unpack().1, Err(UnpackError::TooMany(50))));
}

#[test]
fn devices_are_left_out() {
    let (folder, result) = Tar::new().entry(EntryType::Char, "dev-null", None, b"").unpack();
    result.unwrap();
    assert!(!folder.path().join("layer/dev-null").exists());
}

#[test]
fn garbage_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let result = unpack(&[7u8; 1024][..], folder.path(), SMALL, false);
    assert!(matches!(result, Err(UnpackError::Stream(_))));
}

/// A stream with an extended header of `size` bytes.
fn record_of(kind: EntryType, size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(512 + size as usize, b'x');
    bytes
}

fn unpack_bytes(bytes: &[u8], bounds: LayerBounds) -> (tempfile::TempDir, Result<(), UnpackError>) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("layer");
    fs::create_dir(&root).unwrap();
    let result = unpack(bytes, &root, bounds, false);
    (folder, result)
}

#[test]
fn extended_headers_are_limited_in_size() {
    for kind in [EntryType::XHeader, EntryType::GNULongName, EntryType::GNULongLink, EntryType::XGlobalHeader] {
        let (_folder, result) = unpack_bytes(&record_of(kind, 2 << 20), LayerBounds::DEFAULT);
        assert!(matches!(result, Err(UnpackError::LongRecord(_))), "{kind:?}: {result:?}");
    }
}

#[test]
fn every_entry_counts_against_the_size_limit() {
    let whiteout = Tar::new().entry(EntryType::Regular, "d/.wh.gone", None, &[0; 20_000]);
    let (_folder, result) = whiteout.unpack();
    assert!(matches!(result, Err(UnpackError::TooLarge(_))), "{result:?}");
    let (_folder, result) = unpack_bytes(&record_of(EntryType::XGlobalHeader, 20_000), SMALL);
    assert!(matches!(result, Err(UnpackError::TooLarge(_))), "{result:?}");
}

#[test]
fn long_names_owners_and_links_come_from_extended_headers() {
    let long = format!("{}/file", "a".repeat(200));
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(4);
    header.set_mode(0o644);
    builder.append_data(&mut header, &long, &b"text"[..]).unwrap();
    builder.append_pax_extensions([("path", "by-record".as_bytes()), ("uid", b"70000")]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(4);
    header.set_mode(0o644);
    header.set_cksum();
    builder.append(&header, &b"more"[..]).unwrap();
    let (folder, result) = unpack_bytes(&builder.into_inner().unwrap(), SMALL);
    result.unwrap();
    assert_eq!(fs::read_to_string(folder.path().join("layer").join(&long)).unwrap(), "text");
    assert_eq!(fs::read_to_string(folder.path().join("layer/by-record")).unwrap(), "more");
}

#[test]
fn sizes_in_extended_headers_and_sparse_files_are_rejected() {
    for (key, value) in [("size", "9000000000"), ("GNU.sparse.major", "1")] {
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_pax_extensions([(key, value.as_bytes())]).unwrap();
        let (_folder, result) = unpack_bytes(&builder.into_inner().unwrap(), SMALL);
        assert!(matches!(result, Err(UnpackError::Kind { .. })), "{key}: {result:?}");
    }
}

#[test]
fn names_nested_too_deep_are_refused() {
    let deep = "d/".repeat(3_000) + "f";
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_pax_extensions([("path", deep.as_bytes())]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(0);
    header.set_mode(0o644);
    header.set_cksum();
    builder.append(&header, &b""[..]).unwrap();
    let (_folder, result) = unpack_bytes(&builder.into_inner().unwrap(), LayerBounds::DEFAULT);
    assert!(matches!(result, Err(UnpackError::TooDeep(_))), "{result:?}");
}
