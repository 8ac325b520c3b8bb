use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;

/// A tree with every kind of entry that a sandbox can make.
fn fill(top: &Path) {
    fs::create_dir_all(top.join("a/b")).unwrap();
    fs::write(top.join("a/b/file"), "old").unwrap();
    fs::write(top.join("a/one"), "linked").unwrap();
    fs::hard_link(top.join("a/one"), top.join("a/other")).unwrap();
    symlink("../outside", top.join("a/link")).unwrap();
    fs::write(top.join("program"), "").unwrap();
    fs::set_permissions(top.join("program"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::write(top.join(std::ffi::OsStr::from_bytes(b"\xff\xfe not text")), "").unwrap();
    rustix::fs::mknodat(CWD, top.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    rustix::fs::mknodat(CWD, top.join("deleted"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    rustix::fs::setxattr(top.join("a"), "user.note", b"kept", XattrFlags::empty()).unwrap();
    let sparse = File::create(top.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", 64 << 20).unwrap();
}

/// Everything that a copy must have in common with its original.
fn listing(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![top.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                waiting.push(path.clone());
            }
            let content = match meta.file_type() {
                kind if kind.is_file() && meta.len() < 1 << 20 => String::from_utf8(fs::read(&path).unwrap()).unwrap(),
                kind if kind.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
                _ => String::new(),
            };
            let name = path.strip_prefix(top).unwrap().to_owned();
            let size = if meta.is_dir() { 0 } else { meta.len() };
            found.push(format!(
                "{name:?} {:o} {}:{} {} {} {:?} {content}",
                meta.mode(),
                meta.uid(),
                meta.gid(),
                size,
                meta.rdev(),
                meta.modified().unwrap(),
            ));
        }
    }
    found.sort();
    found
}

fn trees() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fill(&from);
    (folder, from, to)
}

#[test]
fn a_copy_has_every_kind_of_entry() {
    let (_folder, from, to) = trees();
    TreeCopy::take(&from, &to, Marks::Trusted).unwrap();
    assert_eq!(listing(&from), listing(&to));
    let inode = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
    assert_eq!(inode("a/one"), inode("a/other"), "a hard link");
    assert!(fs::metadata(to.join("sparse")).unwrap().blocks() < 1_000, "a hole takes no space");
    let mut note = [0; 8];
    let length = rustix::fs::getxattr(to.join("a"), "user.note", &mut note).unwrap();
    assert_eq!(note.get(..length), Some(&b"kept"[..]));
}

#[test]
fn the_second_pass_brings_a_copy_up_to_date() {
    let (_folder, from, to) = trees();
    let mut copy = TreeCopy::take(&from, &to, Marks::Trusted).unwrap();
    // Same size, and a time of modification in the past.
    fs::write(from.join("a/b/file"), "new").unwrap();
    let past = std::time::SystemTime::UNIX_EPOCH;
    File::options().write(true).open(from.join("a/b/file")).unwrap().set_modified(past).unwrap();
    fs::remove_file(from.join("a/other")).unwrap();
    fs::remove_file(from.join("pipe")).unwrap();
    fs::create_dir(from.join("pipe")).unwrap();
    fs::write(from.join("pipe/inside"), "").unwrap();
    fs::write(from.join("added"), "").unwrap();
    rustix::fs::removexattr(from.join("a"), "user.note").unwrap();
    copy.update().unwrap();
    assert_eq!(listing(&from), listing(&to));
    assert!(rustix::fs::getxattr(to.join("a"), "user.note", &mut [0_u8; 8]).is_err());
}

#[test]
fn folders_that_changed_places_between_the_passes_keep_their_old_files() {
    let (_folder, from, to) = trees();
    for name in ["x", "y"] {
        fs::create_dir_all(from.join(name).join("deep")).unwrap();
        fs::write(from.join(name).join("deep/file"), name).unwrap();
    }
    let mut copy = TreeCopy::take(&from, &to, Marks::Trusted).unwrap();
    fs::rename(from.join("x"), from.join("z")).unwrap();
    fs::rename(from.join("y"), from.join("x")).unwrap();
    fs::rename(from.join("z"), from.join("y")).unwrap();
    copy.update().unwrap();
    assert_eq!(listing(&from), listing(&to));
    assert_eq!(fs::read_to_string(to.join("x/deep/file")).unwrap(), "y");
}

#[test]
fn marks_that_a_sandbox_made_itself_are_not_copied() {
    for (marks, kept) in [(Marks::Trusted, false), (Marks::User, true)] {
        let (_folder, from, to) = trees();
        for name in ["a", "a/b/file"] {
            rustix::fs::setxattr(from.join(name), "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        }
        let mut copy = TreeCopy::take(&from, &to, marks).unwrap();
        copy.update().unwrap();
        let has = |name: &str, attribute: &str| rustix::fs::getxattr(to.join(name), attribute, &mut [0; 8]).is_ok();
        for name in ["a", "a/b/file"] {
            assert_eq!(has(name, "user.overlay.opaque"), kept, "{name}, {marks:?}");
        }
        assert!(has("a", "user.note"), "other attributes are copied");
    }
}

#[test]
fn a_tree_that_is_too_deep_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from");
    fs::create_dir(&from).unwrap();
    let mut inner = open_folder(CWD, &from).unwrap();
    for _ in 0..=MAX_DEPTH + 1 {
        rustix::fs::mkdirat(&inner, "d", Mode::from_raw_mode(0o700)).unwrap();
        inner = open_folder(&inner, "d").unwrap();
    }
    let error = TreeCopy::take(&from, &folder.path().join("to"), Marks::Trusted).err().unwrap().to_string();
    assert!(error.contains("nested more than"), "{error}");
    tree::remove(&from).unwrap();
}
