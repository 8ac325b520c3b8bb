//! Archives: round trips, and entries that try to leave the root.

use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;

fn sandbox() -> (tempfile::TempDir, Root) {
    let outside = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(outside.path().join("root")).expect("a directory");
    std::fs::write(outside.path().join("sentinel"), "secret").expect("a file");
    let root = Root::open(&outside.path().join("root")).expect("a root");
    (outside, root)
}

fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (path, kind, content) in entries {
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        header.set_entry_type(*kind);
        let name = path.as_bytes();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
        if is_link {
            header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
        }
        let data = if is_link { "" } else { content };
        header.set_size(data.len() as u64);
        header.set_cksum();
        builder.append(&header, data.as_bytes()).expect("memory");
    }
    builder.into_inner().expect("memory")
}

#[test]
fn a_tree_survives_the_round_trip() {
    let (outside, root) = sandbox();
    let from = outside.path().join("root/from");
    std::fs::create_dir_all(from.join("sub/empty")).expect("directories");
    std::fs::write(from.join("sub/a.txt"), "hello").expect("a file");
    let long = "n".repeat(180);
    std::fs::write(from.join("sub").join(&long), "long").expect("a file");
    symlink("sub/a.txt", from.join("link")).expect("a link");
    let located = root.locate(&RelPath::parse(b"from").expect("a path"), Follow::Link).expect("there");
    let mut bytes = Vec::new();
    pack(&located.open_directory().expect("a directory"), &mut bytes).expect("packed");
    let to = RelPath::parse(b"to/here").expect("a path");
    let unpacked = unpack(&root, &to, bytes.as_slice()).expect("unpacked");
    assert_eq!(unpacked, Unpacked { files: 5, bytes: 9 });
    let target = outside.path().join("root/to/here");
    assert_eq!(std::fs::read_to_string(target.join("link")).expect("a file"), "hello");
    assert_eq!(std::fs::read_to_string(target.join("sub").join(long)).expect("a file"), "long");
    assert!(target.join("sub/empty").is_dir());
}

#[test]
fn nothing_is_unpacked_outside() {
    let (outside, root) = sandbox();
    symlink(outside.path(), outside.path().join("root/out")).expect("a link");
    symlink("../sentinel", outside.path().join("root/escape")).expect("a link");
    for (path, kind, content) in [
        ("../evil", EntryType::Regular, "x"),
        ("a/../../evil", EntryType::Regular, "x"),
        ("out/evil", EntryType::Regular, "x"),
        ("out", EntryType::Directory, ""),
        ("l", EntryType::Symlink, "/etc/passwd"),
        ("l", EntryType::Symlink, "../../sentinel"),
        ("d/l", EntryType::Symlink, "../../../sentinel"),
        ("h", EntryType::Link, "../sentinel"),
        ("h", EntryType::Link, "out/sentinel"),
        ("h", EntryType::Link, "escape"),
        ("f", EntryType::Fifo, ""),
        ("c", EntryType::Char, ""),
        ("b", EntryType::Block, ""),
    ] {
        let bytes = archive(&[(path, kind, content)]);
        assert!(unpack(&root, &RelPath::default(), bytes.as_slice()).is_err(), "{path} {kind:?}");
    }
    assert_eq!(std::fs::read_dir(outside.path()).expect("a directory").count(), 2);
    assert_eq!(std::fs::read_to_string(outside.path().join("sentinel")).expect("a file"), "secret");
}

#[test]
fn a_file_replaces_a_link_of_its_name_not_its_target() {
    let (outside, root) = sandbox();
    std::fs::write(outside.path().join("root/target"), "old").expect("a file");
    symlink("target", outside.path().join("root/name")).expect("a link");
    let bytes = archive(&[("name", EntryType::Regular, "new")]);
    unpack(&root, &RelPath::default(), bytes.as_slice()).expect("unpacked");
    assert_eq!(std::fs::read_to_string(outside.path().join("root/target")).expect("a file"), "old");
    assert_eq!(std::fs::read_to_string(outside.path().join("root/name")).expect("a file"), "new");
}

#[test]
fn an_endless_name_record_is_refused_early() {
    let (_outside, root) = sandbox();
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(1 << 40);
    header.set_cksum();
    let endless = header.as_bytes().as_slice().chain(io::repeat(b'a'));
    assert!(matches!(unpack(&root, &RelPath::default(), endless), Err(ArchiveError::Broken(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Fuzzing: random bytes and damaged archives end in a result, not a panic, and write nothing outside the root.
    #[test]
    fn damaged_archives_never_panic_or_escape(
        noise in proptest::collection::vec(any::<u8>(), 0..2048),
        flips in proptest::collection::vec((0_usize..4096, any::<u8>()), 0..12),
    ) {
        let (outside, root) = sandbox();
        let _ = unpack(&root, &RelPath::default(), noise.as_slice());
        let mut bytes = archive(&[("a/b", EntryType::Regular, "data"), ("l", EntryType::Symlink, "a/b"), ("d", EntryType::Directory, "")]);
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] ^= value;
        }
        let _ = unpack(&root, &RelPath::default(), bytes.as_slice());
        prop_assert_eq!(std::fs::read_dir(outside.path()).expect("a directory").count(), 2);
    }
}

fn pax(records: &[&str]) -> String {
    let record = |text: &&str| {
        // The length counts its own digits.
        let length = (1..).find(|length: &usize| length.to_string().len() + text.len() + 2 == *length);
        format!("{} {text}\n", length.expect("a length"))
    };
    records.iter().map(record).collect()
}

#[test]
fn names_in_extension_records_may_contain_line_breaks() {
    let (outside, root) = sandbox();
    let name = "a\n9 path=b\nc";
    let records = pax(&["mtime=1.5", &format!("path={name}"), "comment=x"]);
    let bytes = archive(&[("x", EntryType::XHeader, &records), ("short", EntryType::Regular, "content")]);
    unpack(&root, &RelPath::default(), bytes.as_slice()).expect("unpacked");
    assert_eq!(std::fs::read_to_string(outside.path().join("root").join(name)).expect("a file"), "content");
}

#[test]
fn malformed_extension_records_are_refused() {
    let (outside, root) = sandbox();
    for bad in
        ["path=x\n", "99 path=x\n", "9 path=xy\n", "3 path=x\n", "+9 path=x\n", "0 \n", "99999999999999999999 a=b\n"]
    {
        let bytes = archive(&[("x", EntryType::XHeader, bad), ("short", EntryType::Regular, "content")]);
        let refused = unpack(&root, &RelPath::default(), bytes.as_slice());
        assert!(matches!(refused, Err(ArchiveError::Broken(_))), "{bad:?}: {refused:?}");
    }
    assert!(!outside.path().join("root/short").exists());
}
