//! The comparison against a naive one of two whole trees, with real overlays that random operations have changed.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

/// An operation on the merged view.
#[derive(Debug, Clone)]
enum Step {
    Write(usize, usize),
    Folder(usize),
    Link(usize, usize),
    HardLink(usize, usize),
    Pipe(usize),
    Remove(usize),
    Replace(usize),
    Rename(usize, usize),
    Mode(usize, u32),
    Attribute(usize),
}

/// Names that collide often, at several depths; one is not UTF-8.
fn path(number: usize) -> PathBuf {
    const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"\xff\xfe"];
    let name = |index: usize| std::ffi::OsStr::from_bytes(NAMES[index % NAMES.len()]);
    let mut path = PathBuf::from(name(number));
    if number >= 4 {
        path.push(name(number / 4));
    }
    if number >= 16 {
        path.push(name(number / 16));
    }
    path
}

fn step() -> impl Strategy<Value = Step> {
    let any = || 0..64_usize;
    prop_oneof![
        4 => (any(), 0..4_usize).prop_map(|(at, content)| Step::Write(at, content)),
        3 => any().prop_map(Step::Folder),
        1 => (any(), any()).prop_map(|(at, to)| Step::Link(at, to)),
        1 => (any(), any()).prop_map(|(at, to)| Step::HardLink(at, to)),
        1 => any().prop_map(Step::Pipe),
        4 => any().prop_map(Step::Remove),
        2 => any().prop_map(Step::Replace),
        2 => (any(), any()).prop_map(|(at, to)| Step::Rename(at, to)),
        1 => (any(), prop_oneof![Just(0o644), Just(0o600), Just(0o755)]).prop_map(|(at, mode)| Step::Mode(at, mode)),
        1 => any().prop_map(Step::Attribute),
    ]
}

fn remove(path: &Path) {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => drop(fs::remove_dir_all(path)),
        Ok(_) => drop(fs::remove_file(path)),
        Err(_) => {}
    }
}

/// Carries out a step below `top`; steps that are not possible there do nothing.
fn perform(top: &Path, step: &Step) {
    let at = |number: usize| top.join(path(number));
    if let Step::Write(number, _) | Step::Attribute(number) = *step
        && fs::metadata(at(number)).is_ok_and(|found| found.file_type().is_fifo())
    {
        // Opening a pipe without a second end waits forever.
        return;
    }
    match *step {
        Step::Write(number, content) => drop(fs::write(at(number), ["", "one", "two", "three"][content])),
        Step::Folder(number) => drop(fs::create_dir_all(at(number))),
        Step::Link(number, to) => drop(symlink(path(to), at(number))),
        Step::HardLink(number, to) => drop(fs::hard_link(at(to), at(number))),
        Step::Pipe(number) => drop(rustix::fs::mknodat(
            rustix::fs::CWD,
            at(number),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o644),
            0,
        )),
        Step::Remove(number) => remove(&at(number)),
        Step::Replace(number) => {
            remove(&at(number));
            let _ = fs::create_dir(at(number));
        }
        Step::Rename(number, to) => drop(fs::rename(at(number), at(to))),
        Step::Mode(number, mode) => {
            let path = at(number);
            if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_symlink()) {
                let mode = if path.is_dir() { mode | 0o700 } else { mode };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        Step::Attribute(number) => {
            if let Ok(file) = fs::File::open(at(number)) {
                let _ = rustix::fs::fsetxattr(&file, "user.note", b"x", rustix::fs::XattrFlags::empty());
            }
        }
    }
}

/// Everything that a comparison looks at, by path.
type Image = BTreeMap<PathBuf, (Kind, u32, Vec<u8>, Vec<u8>)>;

fn image(top: &Path) -> Image {
    let mut found = Image::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(top.join(&folder)).unwrap() {
            let name = folder.join(entry.unwrap().file_name());
            let full = top.join(&name);
            let data = fs::symlink_metadata(&full).unwrap();
            let kind = data.file_type();
            let (kind, mode, content) = if kind.is_dir() {
                folders.push(name.clone());
                (Kind::Folder, data.mode() & 0o7777, Vec::new())
            } else if kind.is_symlink() {
                (Kind::Link, 0, fs::read_link(&full).unwrap().into_os_string().into_vec())
            } else if kind.is_file() {
                (Kind::File, data.mode() & 0o7777, fs::read(&full).unwrap())
            } else {
                (Kind::Fifo, data.mode() & 0o7777, Vec::new())
            };
            let mut note = vec![0; 8];
            let length = match kind {
                Kind::File | Kind::Folder => rustix::fs::getxattr(&full, "user.note", &mut note).unwrap_or(0),
                _ => 0,
            };
            note.truncate(length);
            found.insert(name, (kind, mode, content, note));
        }
    }
    found
}

fn naive(before: &Image, after: &Image) -> BTreeMap<PathBuf, What> {
    let mut found = BTreeMap::new();
    for (path, entry) in after {
        match before.get(path) {
            None => drop(found.insert(path.clone(), What::Added)),
            Some(old) if old != entry => drop(found.insert(path.clone(), What::Changed)),
            Some(_) => {}
        }
    }
    for path in before.keys().filter(|path| !after.contains_key(*path)) {
        found.insert(path.clone(), What::Deleted);
    }
    found
}

/// Builds a lower tree, changes an overlay over it, and returns both comparisons.
fn compare(lower: &[Step], changes: &[Step], marks: Marks) -> (BTreeMap<PathBuf, What>, Diff) {
    // In the build folder: a temporary file system may not have user attributes.
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let folder = tempfile::tempdir_in(base).unwrap();
    let top = folder.path().canonicalize().unwrap();
    for name in ["lower", "upper", "work", "merged"] {
        fs::create_dir(top.join(name)).unwrap();
    }
    lower.iter().for_each(|step| perform(&top.join("lower"), step));
    let before = image(&top.join("lower"));
    let merged = top.join("merged");
    let extra = if marks == Marks::User { ",userxattr" } else { ",redirect_dir=nofollow,metacopy=off" };
    let [low, up, work] = ["lower", "upper", "work"].map(|name| top.join(name).display().to_string());
    let options =
        std::ffi::CString::new(format!("lowerdir={low},upperdir={up},workdir={work},volatile{extra}")).unwrap();
    rustix::mount::mount("overlay", &merged, "overlay", rustix::mount::MountFlags::empty(), options.as_c_str())
        .unwrap();
    changes.iter().for_each(|step| perform(&merged, step));
    let after = image(&merged);
    rustix::mount::unmount(&merged, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(image(&top.join("lower")), before, "the lower folder is never written");
    let open = |name: &str| Tree::open(&top.join(name)).unwrap();
    (naive(&before, &after), diff(&open("lower"), &open("upper"), marks).unwrap())
}

/// Runs in a thread with a mount namespace of its own. `None` without root.
fn isolated<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root, to mount overlays");
        return None;
    }
    std::thread::scope(|scope| {
        let run = || {
            crate::kernel::unshare_mounts().unwrap();
            work()
        };
        Some(scope.spawn(run).join().unwrap())
    })
}

fn found(diff: &Diff) -> BTreeMap<PathBuf, What> {
    assert!(diff.unreadable.is_empty(), "{:?}", diff.unreadable);
    let found: BTreeMap<_, _> = diff.changes.iter().map(|change| (change.path.clone(), change.what)).collect();
    assert_eq!(found.len(), diff.changes.len(), "each path once: {:?}", diff.changes);
    found
}

#[test]
fn a_layer_compares_like_two_whole_trees() {
    isolated(|| {
        let steps = || proptest::collection::vec(step(), 0..30);
        let config = ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(lower in steps(), changes in steps(), user in any::<bool>())| {
            let marks = if user { Marks::User } else { Marks::Trusted };
            let (expected, diff) = compare(&lower, &changes, marks);
            prop_assert_eq!(found(&diff), expected);
        });
    });
}

#[test]
fn opaque_folders_whiteouts_and_hard_links_are_told_apart() {
    isolated(|| {
        let lower = [Step::Folder(0), Step::Write(4, 1), Step::Write(8, 1), Step::Write(2, 1)];
        // Folder `a` with two files is replaced by an empty one, in which one file is made again.
        let changes = [Step::Replace(0), Step::Write(4, 2), Step::Remove(2), Step::Write(1, 3), Step::HardLink(3, 1)];
        for marks in [Marks::Trusted, Marks::User] {
            let (expected, diff) = compare(&lower, &changes, marks);
            assert_eq!(found(&diff), expected, "{marks:?}");
            let of = |number| diff.changes.iter().find(|change| change.path == path(number)).unwrap();
            assert_eq!((of(4).what, of(8).what, of(2).what), (What::Changed, What::Deleted, What::Deleted));
            assert_eq!(of(3).same_as, Some(path(1)), "{marks:?}");
        }
    });
}

#[test]
fn links_in_either_folder_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().canonicalize().unwrap();
    for name in ["lower", "upper/d", "secret/d"] {
        fs::create_dir_all(top.join(name)).unwrap();
    }
    fs::write(top.join("secret/d/key"), "").unwrap();
    fs::write(top.join("upper/d/new"), "").unwrap();
    symlink(top.join("secret/d"), top.join("lower/d")).unwrap();
    let diff =
        diff(&Tree::open(&top.join("lower")).unwrap(), &Tree::open(&top.join("upper")).unwrap(), Marks::User).unwrap();
    let expected = [("d", What::Changed), ("d/new", What::Added)].map(|(name, what)| (PathBuf::from(name), what));
    assert_eq!(found(&diff), BTreeMap::from(expected));
    symlink(top.join("secret"), top.join("trap")).unwrap();
    assert!(Tree::open(&top.join("trap")).is_err(), "the folder itself");
}
