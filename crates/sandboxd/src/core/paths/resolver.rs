//! Resolves paths of requests to files. Clients differ: old ones send bare names, newer ones strip the leading slash,
//! listings keep it. In natural mode all of them reach the file that a command would see.

use std::collections::{HashSet, VecDeque};
use std::ffi::CString;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Access, AtFlags, accessat};

use super::RelPath;
use crate::core::files::{FileError, Follow, Located, Root};

/// Directories that images use as another name for the working directory.
const BASE_DIRECTORY_NAMES: [&str; 2] = ["/home/user", "/app"];

/// Maximum number of bare-name uploads that are recorded.
const MAX_BARE_NAMES: usize = 4096;

/// How the runtime dialect understands commands and paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A shell runs commands, and absolute paths are absolute.
    Natural,
    /// As the original runtime: commands are split into words without a shell, and every path is below the base
    /// directory.
    Strict,
}

/// What the path is resolved for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Read,
    List,
    Write,
}

/// The path rules of one sandbox.
#[derive(Debug)]
pub struct PathResolver {
    root: Arc<Root>,
    mode: Mode,
    /// The working directory relative to the root; empty in strict mode, where both are the same.
    base: RelPath,
    /// Every name of the working directory.
    aliases: Vec<RelPath>,
    bare_uploads: Mutex<BareNames>,
}

impl PathResolver {
    /// Natural mode: paths are confined to `sandbox_root`; `base` is the working directory below it.
    pub fn natural(sandbox_root: &Path, base: &Path) -> Result<Self, FileError> {
        let root = Root::open(sandbox_root)?;
        let own_root = RelPath::of_directory(&root.canonical())?;
        let below = |path: &Path| RelPath::of_directory(path).ok().and_then(|path| path.below(&own_root));
        let canonical = std::fs::canonicalize(base)?;
        let base_below = below(&canonical).ok_or(FileError::Escapes)?;
        let mut aliases = vec![base_below.clone()];
        aliases.extend(below(base));
        for name in BASE_DIRECTORY_NAMES {
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

    /// Strict mode: every path is below `base`.
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

    /// Opens the working directory again: it may have been replaced since the last command.
    pub fn open_base(&self) -> Result<std::os::fd::OwnedFd, FileError> {
        self.root.locate(&self.base, Follow::Link)?.open_directory()
    }

    /// Resolves `given`, which is percent-decoded, to a path below [`PathResolver::root`].
    pub fn resolve(&self, given: &[u8], purpose: Purpose) -> Result<RelPath, FileError> {
        let path = RelPath::parse(given)?;
        if self.mode == Mode::Strict {
            return Ok(path);
        }
        if let Some(rest) = self.aliases.iter().find_map(|alias| path.below(alias)).filter(|_| !path.is_root()) {
            let target = self.base.join(&rest);
            return Ok(self.bare_upload_of(&target, purpose).unwrap_or(target));
        }
        if given.starts_with(b"/") {
            return Ok(self.bare_upload_of(&path, purpose).unwrap_or(path));
        }
        let in_base = self.base.join(&path);
        Ok(match purpose {
            Purpose::Read | Purpose::List if !self.exists(&in_base) && self.exists(&path) => path,
            Purpose::Write if self.is_stripped_absolute_path(&path) => path,
            _ => in_base,
        })
    }

    /// The absolute path that a command sees for a path below the root.
    pub fn absolute(&self, path: &RelPath) -> std::path::PathBuf {
        let root = self.root.canonical();
        if path.is_root() { root } else { root.join(path.as_os_string()) }
    }

    /// Records an upload by bare name: the client may have dropped its directory.
    pub fn record_upload(&self, given: &[u8]) {
        if self.mode == Mode::Natural
            && !given.contains(&b'/')
            && let Ok(name) = CString::new(given)
        {
            self.bare_uploads.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
        }
    }

    /// The file in the working directory that an old client uploaded under the bare name of `target`, if `target` is
    /// missing.
    fn bare_upload_of(&self, target: &RelPath, purpose: Purpose) -> Option<RelPath> {
        if purpose != Purpose::Read || self.exists(target) {
            return None;
        }
        let name = target.file_name()?;
        let known = self.bare_uploads.lock().unwrap_or_else(PoisonError::into_inner).names.contains(name);
        known.then(|| self.base.child(name.clone())).filter(|flat| self.exists(flat))
    }

    /// Counts a path out of the root as existing, so that the caller gets the error of that path.
    fn exists(&self, path: &RelPath) -> bool {
        match self.root.locate(path, Follow::Link) {
            Ok(located) => located.exists(),
            Err(error) => !error.is_missing(),
        }
    }

    /// Whether a relative path is an absolute one without its leading slash: some clients send `tmp/x` for `/tmp/x`.
    fn is_stripped_absolute_path(&self, path: &RelPath) -> bool {
        let [first, _, ..] = path.components() else { return false };
        let top = RelPath::default().child(first.clone());
        if self.exists(&self.base.join(&top)) {
            return false;
        }
        self.root.locate(&top, Follow::Link).is_ok_and(|located| located.is_directory())
            && self.is_nearest_ancestor_writable(path)
    }

    /// Whether new entries can be created in the nearest existing ancestor of `path`.
    fn is_nearest_ancestor_writable(&self, path: &RelPath) -> bool {
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
        if self.order.len() > MAX_BARE_NAMES
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
        paths: PathResolver,
    }

    fn sandbox() -> Sandbox {
        let directory = tempfile::tempdir().expect("a directory");
        for folder in ["home/user/sub", "tmp", "etc"] {
            std::fs::create_dir_all(directory.path().join(folder)).expect("a folder");
        }
        std::os::unix::fs::symlink("home/user", directory.path().join("app")).expect("a link");
        let paths = PathResolver::natural(directory.path(), &directory.path().join("app")).expect("a sandbox");
        Sandbox { directory, paths }
    }

    impl Sandbox {
        fn resolve(&self, path: &str, purpose: Purpose) -> String {
            self.paths.resolve(path.as_bytes(), purpose).map_or_else(|_| "denied".into(), |path| path.display())
        }

        fn write(&self, path: &str) {
            std::fs::write(self.directory.path().join(path), "x").expect("a file");
        }
    }

    /// D-046: every name of the working directory leads to the working directory.
    #[test]
    fn all_spellings_of_the_working_directory_agree() {
        let sandbox = sandbox();
        for path in ["/home/user/x", "home/user/x", "/app/x", "app/x", "x", "./x", "/home/user/sub/../x"] {
            for purpose in [Purpose::Read, Purpose::Write] {
                assert_eq!(sandbox.resolve(path, purpose), "/home/user/x", "{path}");
            }
        }
    }

    /// D-040, D-042
    #[test]
    fn an_empty_path_is_the_working_directory_and_a_slash_the_root() {
        let sandbox = sandbox();
        assert_eq!(sandbox.resolve("", Purpose::List), "/home/user");
        assert_eq!(sandbox.resolve(".", Purpose::List), "/home/user");
        assert_eq!(sandbox.resolve("/", Purpose::List), "/");
    }

    /// D-050
    #[test]
    fn a_write_without_the_leading_slash_reaches_the_absolute_path() {
        let sandbox = sandbox();
        assert_eq!(sandbox.resolve("tmp/hello.txt", Purpose::Write), "/tmp/hello.txt");
        assert_eq!(sandbox.resolve("tmp/hello.txt", Purpose::Read), "/home/user/tmp/hello.txt");
        sandbox.write("tmp/hello.txt");
        assert_eq!(sandbox.resolve("tmp/hello.txt", Purpose::Read), "/tmp/hello.txt");
        assert_eq!(sandbox.resolve("new/dir/x", Purpose::Write), "/home/user/new/dir/x");
        assert_eq!(sandbox.resolve("sub/x", Purpose::Write), "/home/user/sub/x");
        assert_eq!(sandbox.resolve("tmp", Purpose::Write), "/home/user/tmp");
    }

    /// D-046 for clients that upload bare names.
    #[test]
    fn a_file_uploaded_by_its_bare_name_is_found_by_its_full_path() {
        let sandbox = sandbox();
        sandbox.write("home/user/data.csv");
        assert_eq!(sandbox.resolve("/srv/data.csv", Purpose::Read), "/srv/data.csv");
        sandbox.paths.record_upload(b"data.csv");
        assert_eq!(sandbox.resolve("/srv/data.csv", Purpose::Read), "/home/user/data.csv");
        assert_eq!(sandbox.resolve("/srv/data.csv", Purpose::List), "/srv/data.csv");
        assert_eq!(sandbox.resolve("/srv/other.csv", Purpose::Read), "/srv/other.csv");
    }

    /// D-035, D-036
    #[test]
    fn paths_above_the_root_are_denied() {
        let sandbox = sandbox();
        for path in ["../x", "../../etc/passwd", "/../etc/passwd", "a/../../x"] {
            assert_eq!(sandbox.resolve(path, Purpose::Read), "denied", "{path}");
        }
    }
}
