//! Which file a path of the runtime dialect means. Clients disagree: old ones send bare names, newer ones strip the
//! leading slash, listings keep it. In natural mode all of them reach the file a command would see.

use std::collections::{HashSet, VecDeque};
use std::ffi::CString;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Access, AtFlags, accessat};

use super::Mode;
use crate::files::{FileError, Follow, Located, Root};
use crate::paths::RelPath;

/// Directories that images use as another name of the working directory.
const USUAL_NAMES: [&str; 2] = ["/home/user", "/app"];

/// How many bare-name uploads are remembered.
const REMEMBERED_NAMES: usize = 4096;

/// What the file is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Read,
    List,
    Write,
}

/// The rules for one sandbox.
#[derive(Debug)]
pub struct Meaning {
    root: Arc<Root>,
    mode: Mode,
    /// The working directory below the root; empty in strict mode, where it is the root.
    base: RelPath,
    /// Every spelling of the working directory.
    aliases: Vec<RelPath>,
    bare_uploads: Mutex<BareNames>,
}

impl Meaning {
    /// Natural rules: `sandbox_root` confines, `base` is the working directory below it.
    pub fn natural(sandbox_root: &Path, base: &Path) -> Result<Self, FileError> {
        let root = Root::open(sandbox_root)?;
        let own_root = RelPath::of_directory(&root.canonical())?;
        let below = |path: &Path| RelPath::of_directory(path).ok().and_then(|path| path.below(&own_root));
        let canonical = std::fs::canonicalize(base)?;
        let base_below = below(&canonical).ok_or(FileError::Escapes)?;
        let mut aliases = vec![base_below.clone()];
        aliases.extend(below(base));
        for name in USUAL_NAMES {
            if std::fs::canonicalize(name).is_ok_and(|path| path == canonical) {
                aliases.extend(below(Path::new(name)));
            }
        }
        Ok(Self {
            root: Arc::new(root),
            mode: Mode::Natural,
            base: base_below,
            aliases,
            bare_uploads: Mutex::default(),
        })
    }

    /// Strict rules: everything lies below `base`.
    pub fn strict(base: &Path) -> Result<Self, FileError> {
        Ok(Self {
            root: Arc::new(Root::open(base)?),
            mode: Mode::Strict,
            base: RelPath::default(),
            aliases: Vec::new(),
            bare_uploads: Mutex::default(),
        })
    }

    pub fn root(&self) -> &Arc<Root> {
        &self.root
    }

    /// The working directory, opened anew: it may have been replaced since the last command.
    pub fn open_base(&self) -> Result<std::os::fd::OwnedFd, FileError> {
        self.root.locate(&self.base, Follow::Link)?.open_directory()
    }

    /// The path below [`Meaning::root`] that `given` (decoded once) means.
    pub fn resolve(&self, given: &[u8], purpose: Purpose) -> Result<RelPath, FileError> {
        let path = RelPath::parse(given)?;
        if self.mode == Mode::Strict {
            return Ok(path);
        }
        if let Some(rest) = self.aliases.iter().find_map(|alias| path.below(alias)).filter(|_| !path.is_root()) {
            let target = self.base.join(&rest);
            return Ok(self.flattened(&target, purpose).unwrap_or(target));
        }
        if given.starts_with(b"/") {
            return Ok(self.flattened(&path, purpose).unwrap_or(path));
        }
        let in_base = self.base.join(&path);
        Ok(match purpose {
            Purpose::Read | Purpose::List if !self.exists(&in_base) && self.exists(&path) => path,
            Purpose::Write if self.belongs_outside_base(&path) => path,
            _ => in_base,
        })
    }

    /// A path below the root as a command sees it.
    pub fn shown(&self, path: &RelPath) -> std::path::PathBuf {
        let root = self.root.canonical();
        if path.is_root() { root } else { root.join(path.as_os_string()) }
    }

    /// Remembers an upload that carried a bare name, because its directory may have been dropped by the client.
    pub fn note_upload(&self, given: &[u8]) {
        if self.mode == Mode::Natural
            && !given.contains(&b'/')
            && let Ok(name) = CString::new(given)
        {
            self.bare_uploads.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
        }
    }

    /// A missing file that an old client wrote under its bare name only.
    fn flattened(&self, target: &RelPath, purpose: Purpose) -> Option<RelPath> {
        if purpose != Purpose::Read || self.exists(target) {
            return None;
        }
        let name = target.file_name()?;
        let known = self.bare_uploads.lock().unwrap_or_else(PoisonError::into_inner).names.contains(name);
        known.then(|| self.base.child(name.clone())).filter(|flat| self.exists(flat))
    }

    /// A path that leads out counts as existing: its own error is the right answer then.
    fn exists(&self, path: &RelPath) -> bool {
        match self.root.locate(path, Follow::Link) {
            Ok(located) => located.exists(),
            Err(error) => !error.is_missing(),
        }
    }

    /// Clients that strip the leading slash write `tmp/x` for `/tmp/x`.
    fn belongs_outside_base(&self, path: &RelPath) -> bool {
        let [first, _, ..] = path.components() else { return false };
        let top = RelPath::default().child(first.clone());
        if self.exists(&self.base.join(&top)) {
            return false;
        }
        self.root.locate(&top, Follow::Link).is_ok_and(|located| located.is_directory()) && self.may_write_below(path)
    }

    /// Whether the nearest directory that exists on the way to `path` takes new entries.
    fn may_write_below(&self, path: &RelPath) -> bool {
        let components = path.components();
        (1..components.len()).rev().find_map(|depth| {
            let ancestor = components[..depth].iter().fold(RelPath::default(), |at, part| at.child(part.clone()));
            match self.root.locate(&ancestor, Follow::Link) {
                Ok(Located::Entry { stat: None, .. }) => None,
                Ok(located) => Some(located.open_directory().is_ok_and(|directory| {
                    accessat(directory.as_fd(), c".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
                })),
                Err(error) if error.is_missing() => None,
                Err(_) => Some(false),
            }
        }) == Some(true)
    }
}

#[derive(Debug, Default)]
struct BareNames {
    names: HashSet<CString>,
    order: VecDeque<CString>,
}

impl BareNames {
    fn insert(&mut self, name: CString) {
        if !self.names.insert(name.clone()) {
            return;
        }
        self.order.push_back(name);
        if self.order.len() > REMEMBERED_NAMES
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sandbox {
        directory: tempfile::TempDir,
        meaning: Meaning,
    }

    fn sandbox() -> Sandbox {
        let directory = tempfile::tempdir().expect("a directory");
        for folder in ["home/user/sub", "tmp", "etc"] {
            std::fs::create_dir_all(directory.path().join(folder)).expect("a folder");
        }
        std::os::unix::fs::symlink("home/user", directory.path().join("app")).expect("a link");
        let meaning = Meaning::natural(directory.path(), &directory.path().join("app")).expect("a sandbox");
        Sandbox { directory, meaning }
    }

    impl Sandbox {
        fn means(&self, path: &str, purpose: Purpose) -> String {
            self.meaning.resolve(path.as_bytes(), purpose).map_or_else(|_| "denied".into(), |path| path.display())
        }

        fn write(&self, path: &str) {
            std::fs::write(self.directory.path().join(path), "x").expect("a file");
        }
    }

    /// D-046: every spelling of the working directory is the working directory.
    #[test]
    fn all_spellings_of_the_working_directory_agree() {
        let sandbox = sandbox();
        for path in ["/home/user/x", "home/user/x", "/app/x", "app/x", "x", "./x", "/home/user/sub/../x"] {
            for purpose in [Purpose::Read, Purpose::Write] {
                assert_eq!(sandbox.means(path, purpose), "/home/user/x", "{path}");
            }
        }
    }

    /// D-040, D-042
    #[test]
    fn nothing_means_the_working_directory_and_a_slash_the_root() {
        let sandbox = sandbox();
        assert_eq!(sandbox.means("", Purpose::List), "/home/user");
        assert_eq!(sandbox.means(".", Purpose::List), "/home/user");
        assert_eq!(sandbox.means("/", Purpose::List), "/");
    }

    /// D-050
    #[test]
    fn stripped_absolute_writes_go_where_they_were_meant() {
        let sandbox = sandbox();
        assert_eq!(sandbox.means("tmp/hello.txt", Purpose::Write), "/tmp/hello.txt");
        assert_eq!(sandbox.means("tmp/hello.txt", Purpose::Read), "/home/user/tmp/hello.txt");
        sandbox.write("tmp/hello.txt");
        assert_eq!(sandbox.means("tmp/hello.txt", Purpose::Read), "/tmp/hello.txt");
        assert_eq!(sandbox.means("new/dir/x", Purpose::Write), "/home/user/new/dir/x");
        assert_eq!(sandbox.means("sub/x", Purpose::Write), "/home/user/sub/x");
        assert_eq!(sandbox.means("tmp", Purpose::Write), "/home/user/tmp");
    }

    /// D-046 for clients that upload bare names.
    #[test]
    fn a_bare_upload_answers_for_its_lost_directory() {
        let sandbox = sandbox();
        sandbox.write("home/user/data.csv");
        assert_eq!(sandbox.means("/srv/data.csv", Purpose::Read), "/srv/data.csv");
        sandbox.meaning.note_upload(b"data.csv");
        assert_eq!(sandbox.means("/srv/data.csv", Purpose::Read), "/home/user/data.csv");
        assert_eq!(sandbox.means("/srv/data.csv", Purpose::List), "/srv/data.csv");
        assert_eq!(sandbox.means("/srv/other.csv", Purpose::Read), "/srv/other.csv");
    }

    /// D-035, D-036
    #[test]
    fn what_climbs_is_denied() {
        let sandbox = sandbox();
        for path in ["../x", "../../etc/passwd", "/../etc/passwd", "a/../../x"] {
            assert_eq!(sandbox.means(path, Purpose::Read), "denied", "{path}");
        }
    }
}
