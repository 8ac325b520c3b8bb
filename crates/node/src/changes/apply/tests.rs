//! Applying changes, also those of a hostile sandbox. Upper folders are made by hand: no privilege is needed.

use super::*;
use crate::changes::conflicts;
use crate::changes::layer::{Marks, diff};
use crate::changes::record::{self, Journal, Record};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::AtomicBool;

struct Fixture {
    _folder: tempfile::TempDir,
    top: PathBuf,
    base: Base,
    began: (i64, u32),
}

impl Fixture {
    /// A real folder with the files of a small project, recorded.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().canonicalize().unwrap();
        for name in ["real/src", "real/old/deep", "upper", "outside"] {
            fs::create_dir_all(top.join(name)).unwrap();
        }
        for name in ["real/src/main", "real/old/deep/f", "real/readme", "outside/precious"] {
            fs::write(top.join(name), "original").unwrap();
        }
        let mut fixture = Self { _folder: folder, top, base: Base::new(None, (0, 0)), began: (0, 0) };
        fixture.record();
        fixture
    }

    fn at(&self, name: &str) -> PathBuf {
        self.top.join(name)
    }

    fn tree(&self, name: &str) -> Tree {
        Tree::open(&self.at(name)).unwrap()
    }

    fn record(&mut self) {
        let path = self.at("record");
        let (real, upper) = (self.tree("real"), self.tree("upper"));
        record::take(&real, (&upper, Marks::User), &path, (i64::MAX, 0), &AtomicBool::new(false)).unwrap();
        self.base = Base::new(Record::read(&path).unwrap(), (0, 0));
    }

    /// Forgets the record, as if it was never completed. Returns when changes of the folder get a later time.
    fn begin_without_record(&mut self) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let tick = |fixture: &Self| {
            fs::write(fixture.at("tick"), "").unwrap();
            fixture.tree("").entry(Path::new("tick")).unwrap().unwrap().changed
        };
        let last = tick(self);
        self.began = last;
        while self.began == last {
            assert!(std::time::Instant::now() < deadline, "the clock of the file system stands still");
            self.began = tick(self);
        }
        self.base = Base::new(None, self.began);
    }

    /// What the next command knows, from what this one noted.
    fn next_command(&mut self) {
        let record = self.at("unrecorded");
        self.base = Base::with_notes(None, self.began, Record::read_notes(&record).unwrap());
        self.base.note_in(Journal::continue_notes(&record, self.base.notes()).unwrap());
    }

    /// Writes a file of the upper folder.
    fn inside(&self, name: &str, text: &str) {
        let path = self.at("upper").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn whiteout(&self, name: &str) {
        let path = self.at("upper").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let kind = rustix::fs::FileType::CharacterDevice;
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, Mode::empty(), 0).unwrap();
    }

    fn apply(&mut self, options: ApplyOptions) -> Vec<Applied> {
        let (real, upper) = (self.tree("real"), self.tree("upper"));
        let changes = diff(&real, &upper, Marks::User).unwrap().changes;
        apply(&real, &upper, &mut self.base, &changes.iter().collect::<Vec<_>>(), options)
    }

    fn apply_all(&mut self) {
        for applied in self.apply(ApplyOptions::default()) {
            assert!(applied.outcome.is_ok(), "{applied:?}");
        }
        let (real, upper) = (self.tree("real"), self.tree("upper"));
        let left = diff(&real, &upper, Marks::User).unwrap();
        assert!(left.changes.is_empty(), "nothing is left to apply: {left:?}");
    }

    fn conflicts(&self) -> Vec<(PathBuf, Moved)> {
        let (real, upper) = (self.tree("real"), self.tree("upper"));
        let changes = diff(&real, &upper, Marks::User).unwrap().changes;
        let found = conflicts::find(&real, &self.base, &changes).unwrap();
        found.into_iter().map(|conflict| (conflict.path, conflict.moved)).collect()
    }

    /// The names in the real folder, sorted.
    fn names(&self) -> Vec<OsString> {
        let names = fs::read_dir(self.at("real")).unwrap().map(|name| name.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at("real").join(name)).unwrap()
    }
}

#[test]
fn additions_changes_and_deletions_arrive_and_nothing_else_is_left() {
    let mut fixture = Fixture::new();
    fixture.inside("src/main", "new text");
    fixture.inside("docs/a/b", "added");
    fs::set_permissions(fixture.at("upper/docs/a/b"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::set_permissions(fixture.at("upper/docs"), fs::Permissions::from_mode(0o500)).unwrap();
    symlink("src/main", fixture.at("upper/link")).unwrap();
    fixture.whiteout("old");
    fixture.whiteout("readme");
    assert_eq!(fixture.conflicts(), []);
    fixture.apply_all();
    assert_eq!((fixture.read("src/main").as_str(), fixture.read("docs/a/b").as_str()), ("new text", "added"));
    assert_eq!(fs::metadata(fixture.at("real/docs/a/b")).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::read_link(fixture.at("real/link")).unwrap(), Path::new("src/main"));
    assert_eq!(fixture.names(), ["docs", "link", "src"]);
    // What was applied is the new base: another change of the same file is no conflict.
    fixture.inside("src/main", "newer text");
    assert_eq!(fixture.conflicts(), []);
    fixture.apply_all();
    assert_eq!(fixture.read("src/main"), "newer text");
    fs::set_permissions(fixture.at("real/docs"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(fixture.at("upper/docs"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_file_becomes_a_folder_and_a_folder_a_file() {
    let mut fixture = Fixture::new();
    fixture.inside("readme/inner", "now a folder");
    fixture.inside("old", "now a file");
    fixture.apply_all();
    assert_eq!((fixture.read("readme/inner").as_str(), fixture.read("old").as_str()), ("now a folder", "now a file"));
}

#[test]
fn what_is_replaced_stays_until_its_replacement_is_complete() {
    let mut fixture = Fixture::new();
    fixture.inside("readme/inner", "now a folder");
    fixture.inside("old", "now a file");
    // Nothing can be written beside either: a folder that is not empty has the name.
    for name in ["readme", "old"] {
        let taken = fixture.at("real").join(temporary_name(Path::new(name)));
        fs::create_dir(&taken).unwrap();
        fs::write(taken.join("f"), "").unwrap();
    }
    let applied = fixture.apply(ApplyOptions::default());
    assert_eq!(applied.len(), 5, "each change is reported: {applied:?}");
    assert!(applied.iter().all(|one| one.outcome.is_err()), "{applied:?}");
    assert_eq!((fixture.read("readme").as_str(), fixture.read("old/deep/f").as_str()), ("original", "original"));
    for name in ["readme", "old"] {
        fs::remove_dir_all(fixture.at("real").join(temporary_name(Path::new(name)))).unwrap();
    }
    // A killed command leaves what it completed, or what it replaced.
    fs::create_dir(fixture.at("real").join(temporary_name(Path::new("old")))).unwrap();
    fs::write(fixture.at("real").join(temporary_name(Path::new("readme"))), "half").unwrap();
    fixture.apply_all();
    assert_eq!(fixture.names(), ["old", "readme", "src"]);
}

#[test]
fn a_folder_with_files_of_others_is_not_replaced() {
    let mut fixture = Fixture::new();
    fixture.inside("old", "now a file");
    fs::write(fixture.at("real/old/unseen"), "made outside").unwrap();
    let applied = fixture.apply(ApplyOptions::default());
    let outcome = |name: &str| &applied.iter().find(|one| one.path == Path::new(name)).unwrap().outcome;
    assert!(matches!(outcome("old/unseen"), Err(ApplyError::Moved(Moved::Created))), "{applied:?}");
    assert!(matches!(outcome("old"), Err(ApplyError::NotEmpty)), "{applied:?}");
    assert_eq!(fixture.read("old/unseen"), "made outside");
    assert_eq!(fixture.names(), ["old", "readme", "src"]);
}

/// A file that is written to, without a change of its times, each time its begin is read.
struct Mapped(io::Cursor<Vec<u8>>);

impl Read for Mapped {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(first) = self.0.get_mut().first_mut() {
            *first += 1;
        }
        self.0.read(buffer)
    }
}

impl Seek for Mapped {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

#[test]
fn a_file_that_changes_while_it_is_copied_is_busy_whatever_its_times_say() {
    let content = || io::Cursor::new(b"0123".to_vec());
    let copied = copy_whole(&mut Mapped(content()), &mut io::Cursor::new(Vec::new()));
    assert!(matches!(copied, Err(ApplyError::Busy)), "{copied:?}");
    let mut copy = io::Cursor::new(Vec::new());
    copy_whole(&mut content(), &mut copy).unwrap();
    assert_eq!(copy.into_inner(), b"0123");
}

#[test]
fn what_moved_on_outside_is_named_and_not_written() {
    let mut fixture = Fixture::new();
    for name in ["src/main", "readme", "fresh"] {
        fixture.inside(name, "from the sandbox");
    }
    fixture.whiteout("old");
    // As editors save: a new file under the old name.
    fs::write(fixture.at("real/src/.main.swp"), "edited outside").unwrap();
    fs::rename(fixture.at("real/src/.main.swp"), fixture.at("real/src/main")).unwrap();
    fs::remove_file(fixture.at("real/readme")).unwrap();
    fs::write(fixture.at("real/fresh"), "made outside").unwrap();
    fs::write(fixture.at("real/old/deep/unseen"), "made outside").unwrap();
    let expected = [
        ("fresh", Moved::Created),
        ("old/deep/unseen", Moved::Created),
        ("readme", Moved::Deleted),
        ("src/main", Moved::Changed),
    ];
    assert_eq!(fixture.conflicts(), expected.map(|(name, moved)| (PathBuf::from(name), moved)));
    // `apply` itself checks again, because the folder may move on after the conflicts were listed.
    let failed: Vec<_> =
        fixture.apply(ApplyOptions::default()).into_iter().filter(|one| one.outcome.is_err()).collect();
    let names: Vec<_> = failed.iter().map(|one| one.path.to_str().unwrap()).collect();
    assert_eq!(names, ["old/deep/unseen", "old/deep", "old", "fresh", "readme", "src/main"]);
    assert_eq!((fixture.read("src/main").as_str(), fixture.read("fresh").as_str()), ("edited outside", "made outside"));
    assert!(!fixture.at("real/readme").exists() && fixture.at("real/old/deep/unseen").exists());
    let all = fixture.apply(ApplyOptions { overwrite: true, ..ApplyOptions::default() });
    assert!(all.iter().all(|one| one.outcome.is_ok()), "{all:?}");
    assert_eq!(fixture.read("src/main"), "from the sandbox");
}

#[test]
fn the_same_text_written_later_is_no_conflict_and_touching_is() {
    let mut fixture = Fixture::new();
    fixture.inside("src/main", "same");
    fs::write(fixture.at("real/src/main"), "same").unwrap();
    assert_eq!(fixture.conflicts(), [], "both sides agree");
    fixture.inside("src/main", "other");
    assert_eq!(fixture.conflicts(), [("src/main".into(), Moved::Changed)]);
    // Without a record the time of the last change decides.
    fixture.base = Base::new(None, (0, 0));
    assert_eq!(fixture.conflicts(), [("src/main".into(), Moved::Changed)]);
    fixture.base = Base::new(None, (i64::MAX, 0));
    assert_eq!(fixture.conflicts(), []);
}

#[test]
fn without_a_record_a_file_that_may_have_been_deleted_outside_is_a_conflict() {
    let mut fixture = Fixture::new();
    fixture.begin_without_record();
    fixture.inside("readme", "edited");
    fixture.inside("fresh/file", "new");
    fixture.inside("old/deep/new", "new");
    assert_eq!(fixture.conflicts(), [], "nothing was deleted");
    fs::remove_file(fixture.at("real/readme")).unwrap();
    let perhaps = |name: &str| (PathBuf::from(name), Moved::PerhapsDeleted);
    // Of the folder `old/deep`, the names are those of the begin.
    assert_eq!(fixture.conflicts(), ["fresh", "fresh/file", "readme"].map(perhaps));
    let failed: Vec<_> =
        fixture.apply(ApplyOptions::default()).into_iter().filter(|one| one.outcome.is_err()).collect();
    assert_eq!(failed.len(), 3, "{failed:?}");
    assert!(!fixture.at("real/readme").exists() && fixture.at("real/old/deep/new").exists());
}

#[test]
fn without_a_record_what_was_applied_hides_no_deletion_and_makes_no_conflict() {
    let mut fixture = Fixture::new();
    fixture.begin_without_record();
    fixture.next_command();
    fixture.inside("src/one", "new");
    fixture.inside("fresh/deep/one", "new");
    fixture.whiteout("readme");
    fixture.apply_all();
    for _ in 0..2 {
        fixture.inside("src/one", "newer");
        for name in ["src/two", "fresh/deep/two", "fresh/three", "top"] {
            fixture.inside(name, "new");
        }
        assert_eq!(fixture.conflicts(), [], "only what was applied happened in these folders");
        // The next command reads what this one noted.
        fixture.next_command();
    }
    fixture.apply_all();
    fs::remove_file(fixture.at("real/src/one")).unwrap();
    fixture.inside("src/one", "once more");
    fixture.next_command();
    assert_eq!(fixture.conflicts(), [("src/one".into(), Moved::PerhapsDeleted)]);
}

#[test]
fn what_a_killed_command_applied_is_no_conflict_when_the_sandbox_changes_it_again() {
    let mut fixture = Fixture::new();
    let (record, journal) = (fixture.at("record"), fixture.at("record.applied"));
    let change = |fixture: &Fixture, text: &str| {
        for name in ["fresh", "made/inner", "src/main"] {
            fixture.inside(name, text);
        }
    };
    change(&fixture, "first");
    fixture.whiteout("readme");
    fixture.base.note_in(Journal::begin(&record, fixture.base.record().unwrap()).unwrap());
    fixture.apply_all();
    // The next command reads what the killed one left.
    fixture.base = Base::new(Record::read(&record).unwrap(), (0, 0));
    change(&fixture, "second");
    fs::remove_file(fixture.at("upper/readme")).unwrap();
    fixture.inside("readme", "written again");
    assert_eq!(fixture.conflicts(), []);
    // Killed while it noted the last change: only that one is not known.
    let noted = File::options().write(true).open(&journal).unwrap();
    noted.set_len(noted.metadata().unwrap().len() - 3).unwrap();
    fixture.base = Base::new(Record::read(&record).unwrap(), (0, 0));
    assert_eq!(fixture.conflicts(), [("src/main".into(), Moved::Changed)]);
    // The next command moves it to the record.
    drop(Journal::begin(&record, fixture.base.record().unwrap()).unwrap());
    assert_eq!(fs::metadata(&journal).unwrap().len(), 0);
    fixture.base = Base::new(Record::read(&record).unwrap(), (0, 0));
    assert_eq!(fixture.conflicts(), [("src/main".into(), Moved::Changed)]);
}

#[test]
fn nothing_outside_the_folder_is_written_whatever_the_sandbox_made() {
    let mut fixture = Fixture::new();
    // The sandbox sees a folder; outside it is, or becomes, a link.
    fixture.inside("src/main", "overwritten");
    fixture.inside("src/new", "overwritten");
    fs::remove_dir_all(fixture.at("real/src")).unwrap();
    symlink(fixture.at("outside"), fixture.at("real/src")).unwrap();
    fs::write(fixture.at("outside/main"), "precious").unwrap();
    // A file under the temporary name is a link to a precious file.
    fixture.inside("fresh", "fresh");
    let temporary = temporary_name(Path::new("fresh"));
    symlink(fixture.at("outside/precious"), fixture.at("real").join(&temporary)).unwrap();
    // Links of the sandbox are made as links, and never written through.
    symlink(fixture.at("outside"), fixture.at("upper/out")).unwrap();
    fs::set_permissions(fixture.at("upper/fresh"), fs::Permissions::from_mode(0o6755)).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, fixture.at("upper/pipe"), fifo, Mode::from_raw_mode(0o644), 0).unwrap();
    let applied = fixture.apply(ApplyOptions { overwrite: false, keep_special_bits: false });
    let outcome = |name: &str| &applied.iter().find(|one| one.path == Path::new(name)).unwrap().outcome;
    assert!(outcome("src").is_err() && outcome("src/main").is_err() && outcome("src/new").is_err(), "{applied:?}");
    assert!(matches!(outcome("pipe"), Err(ApplyError::Special(Kind::Fifo))));
    assert!(outcome("fresh").is_ok() && outcome("out").is_ok(), "{applied:?}");
    for (name, text) in [("main", "precious"), ("precious", "original")] {
        assert_eq!(fs::read_to_string(fixture.at("outside").join(name)).unwrap(), text);
    }
    assert!(!fixture.at("outside/new").exists());
    let fresh = fs::symlink_metadata(fixture.at("real/fresh")).unwrap();
    assert!(fresh.is_file() && fresh.mode() & 0o7777 == 0o755, "{fresh:?}");
    assert!(!fixture.at("real").join(&temporary).exists());
}

#[test]
fn names_that_are_not_text_and_user_attributes_arrive() {
    let mut fixture = Fixture::new();
    let name = std::ffi::OsStr::from_bytes(b"\xffname\n");
    fs::write(fixture.at("upper").join(name), "x").unwrap();
    fixture.apply_all();
    assert_eq!(fs::read_to_string(fixture.at("real").join(name)).unwrap(), "x");
}
