//! `--here` and `--with` of `run` and `create`: which folders a sandbox gets a copy of.

use crate::args::HereArgs;
use agent_sandbox_client::CopiedFolder;
use anyhow::{Context as _, Result, bail};
use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

/// Name of the volume with the current folder.
const HERE: &str = "here";
/// Name of the volume with git's own folder of a work tree.
pub(crate) const GIT: &str = "git";

/// Folders of this machine for a sandbox.
#[derive(Debug, Default)]
pub(crate) struct HereFolders {
    /// Folder to start in.
    pub(crate) working_dir: Option<String>,
    pub(crate) copies: Vec<CopiedFolder>,
    /// The folder itself: source, target, read-only.
    pub(crate) mounts: Vec<(String, String, bool)>,
    /// Variables that make programs find the folders.
    pub(crate) env: Vec<(String, String)>,
}

impl HereFolders {
    /// Reads the flags, and looks at the folders.
    pub(crate) fn find(args: &HereArgs, data: &Path) -> Result<Self> {
        let home = std::env::var_os("HOME").and_then(|home| real_home(home.as_ref()));
        let homes = Homes::find(home.as_deref());
        let mut found = Self::default();
        if args.here {
            let here = std::env::current_dir().context("cannot find the current folder")?;
            let here = checked("--here", &here, &homes, data)?;
            let git = git_folder(Path::new(&here));
            found.working_dir = Some(here.clone());
            let git = git.map(|git| checked("git's own folder", &git, &homes, data)).transpose()?;
            for (name, path) in [(HERE, Some(here)), (GIT, git)] {
                match path {
                    Some(path) if args.write => found.mounts.push((path.clone(), path, false)),
                    Some(path) => found.copies.push(CopiedFolder { name: name.to_owned(), path, private: false }),
                    None => {}
                }
            }
        }
        for (number, path) in args.with.iter().enumerate() {
            let path = checked("--with", path, &homes, data)?;
            if found.copies.iter().any(|copy| copy.path == path) || found.mounts.iter().any(|(from, ..)| *from == path)
            {
                bail!("--with {path}: the sandbox has this folder already");
            }
            if let Some(home) = home.as_ref().filter(|home| Path::new(&path).starts_with(home))
                && let Some(home) = home.to_str().filter(|_| found.env.is_empty())
            {
                // Programs look for their settings below it.
                found.env.push(("HOME".to_owned(), home.to_owned()));
            }
            found.copies.push(CopiedFolder { name: format!("with-{number}"), path, private: true });
        }
        Ok(found)
    }
}

/// The folders that no sandbox gets as a whole: home folders.
struct Homes {
    /// Home folders of the person who runs the command. `HOME` alone does not say: it may be unset, and sudo sets it to
    /// root's.
    own: Vec<PathBuf>,
    /// The content of `/etc/passwd`.
    passwd: Vec<u8>,
}

impl Homes {
    fn find(home: Option<&Path>) -> Self {
        let sudo = ["SUDO_USER", "SUDO_UID"].into_iter().filter_map(std::env::var_os);
        let real = rustix::process::getuid().as_raw().to_string();
        let users: Vec<_> = sudo.chain([real.into()]).collect();
        Self::new(home, &users, fs::read("/etc/passwd").unwrap_or_default())
    }

    /// `users` are names or uids.
    fn new(home: Option<&Path>, users: &[impl AsRef<OsStr>], passwd: Vec<u8>) -> Self {
        let listed = users.iter().flat_map(|user| homes_of(&passwd, user.as_ref().as_bytes()));
        Self { own: home.map(Path::to_owned).into_iter().chain(listed).collect(), passwd }
    }

    /// Fails if a folder, given without links, contains a home folder of the person or of the folder's owner.
    fn check(&self, flag: &str, folder: &Path) -> Result<()> {
        let inside = |home: &&PathBuf| home.starts_with(folder);
        if let Some(home) = self.own.iter().find(inside) {
            bail!(
                "{flag}: {} contains your home folder {}, with your keys and passwords; start it in the folder of a project",
                folder.display(),
                home.display()
            );
        }
        let owner = fs::metadata(folder).with_context(|| format!("{flag}: cannot open {}", folder.display()))?.uid();
        if let Some(home) = homes_of(&self.passwd, owner.to_string().as_bytes()).iter().find(inside) {
            bail!(
                "{flag}: {} contains the home folder {} of its owner, with keys and passwords; start it in the folder of a \
                 project",
                folder.display(),
                home.display()
            );
        }
        Ok(())
    }
}

/// The home folders that lines of `/etc/passwd` give to a user, who is a name or a uid.
fn homes_of(passwd: &[u8], user: &[u8]) -> Vec<PathBuf> {
    let home = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        let [name, _, uid, _, _, home, ..] = fields.as_slice() else { return None };
        (*name == user || *uid == user).then(|| real_home(OsStr::from_bytes(home).as_ref())).flatten()
    };
    passwd.split(|byte| *byte == b'\n').filter_map(home).collect()
}

/// A home folder without links; `None` for one that does not exist, and for `/`, which system users have.
fn real_home(home: &Path) -> Option<PathBuf> {
    home.canonicalize().ok().filter(|home| home.parent().is_some())
}

/// The folder's path without links, unless a copy of it would be of no use or show too much.
fn checked(flag: &str, folder: &Path, homes: &Homes, data: &Path) -> Result<String> {
    let shown = folder.display();
    let path = folder.canonicalize().with_context(|| format!("{flag}: cannot open {shown}"))?;
    if !path.is_dir() {
        bail!("{flag}: {shown} is not a folder; only folders can be copied");
    }
    if path == Path::new("/") {
        bail!("{flag}: the sandbox would see all files of this machine; start it in the folder of a project");
    }
    homes.check(flag, &path)?;
    let data = data.ancestors().find_map(|path| path.canonicalize().ok()).unwrap_or_default();
    if data.starts_with(&path) {
        bail!(
            "{flag}: {} contains the engine's data folder, where the changes are stored; choose another one with --data-dir",
            path.display()
        );
    }
    for own in ["/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64", "/dev", "/proc", "/sys"] {
        let own = Path::new(own);
        let hidden = own == path || ["/dev", "/proc", "/sys"].map(Path::new).contains(&own) && path.starts_with(own);
        if hidden {
            bail!("{flag}: the sandbox has a folder {} of its own", path.display());
        }
    }
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => bail!("{flag}: the path {} is not UTF-8", path.display()),
    }
}

/// Git's own folder of a work tree or submodule, if it is outside: there `.git` is a file that names it. Only a folder
/// that looks like git's is taken: the file may have been written by anyone.
fn git_folder(here: &Path) -> Option<PathBuf> {
    let read = |path: PathBuf| {
        let text = fs::read(path).ok()?;
        Some(PathBuf::from(OsStr::from_bytes(text.trim_ascii_end())))
    };
    let text = read(here.join(".git"))?;
    let own = here.join(OsStr::from_bytes(text.as_os_str().as_bytes().strip_prefix(b"gitdir: ")?));
    let own = own.canonicalize().ok()?;
    let common = read(own.join("commondir")).and_then(|common| own.join(common).canonicalize().ok());
    let folder = common.unwrap_or_else(|| own.clone());
    // The file may name the repository of someone else's work tree: git's folder must name this one.
    let of_work_tree = |back: PathBuf| own.join(back).canonicalize().ok() == here.join(".git").canonicalize().ok();
    let of_submodule = || {
        let config = fs::read_to_string(own.join("config")).ok()?;
        let tree = config.lines().find_map(|line| line.trim().strip_prefix("worktree")?.trim().strip_prefix('='))?;
        Some(own.join(tree.trim()).canonicalize().ok()? == here)
    };
    if !read(own.join("gitdir")).map_or_else(|| of_submodule().unwrap_or(false), of_work_tree) {
        return None;
    }
    let is_git = folder.join("HEAD").is_file() && folder.join("objects").is_dir() && folder.join("refs").is_dir();
    (is_git && !folder.starts_with(here)).then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those of someone without a line in `/etc/passwd`.
    fn only(home: &Path) -> Homes {
        Homes::new(Some(home), &[""; 0], Vec::new())
    }

    fn check(path: &Path, home: &Path, data: &Path) -> String {
        checked("--here", path, &only(home), data).unwrap_err().to_string()
    }

    #[test]
    fn folders_that_show_too_much_are_refused() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path().canonicalize().unwrap();
        let (home, repo, data) = (top.join("home/me"), top.join("home/me/repo"), top.join("home/me/data/engine"));
        fs::create_dir_all(&repo).unwrap();
        fs::create_dir_all(top.join("home/me/data")).unwrap();
        fs::write(repo.join("file"), "").unwrap();
        assert_eq!(checked("--here", &repo, &only(&home), &data).unwrap(), repo.to_str().unwrap());
        assert!(check(Path::new("/"), &home, &data).contains("all files of this machine"));
        assert!(check(&home, &home, &data).contains("your home folder"));
        assert!(check(&top.join("home"), &home, &data).contains("your home folder"));
        assert!(check(&top.join("home/me/data"), &home, &data).contains("data folder"));
        assert!(check(&repo.join("file"), &home, &data).contains("not a folder"));
        assert!(check(Path::new("/usr"), &home, &data).contains("of its own"));
        assert!(check(Path::new("/proc/self"), &home, &data).contains("of its own"));
        std::os::unix::fs::symlink(&home, repo.join("link")).unwrap();
        assert!(check(&repo.join("link"), &home, &data).contains("your home folder"), "links are followed first");
    }

    #[test]
    fn homes_that_only_passwd_names_are_refused_too() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path().canonicalize().unwrap();
        let (home, repo, data) = (top.join("home/me"), top.join("home/me/repo"), top.join("data"));
        fs::create_dir_all(&repo).unwrap();
        fs::create_dir_all(&data).unwrap();
        std::os::unix::fs::symlink(&home, top.join("link")).unwrap();
        let owner = fs::metadata(&home).unwrap().uid();
        let line =
            |uid: u32, home: &Path| format!("broken:x\nme:x:{uid}:9:M:{}:/bin/sh\n", home.display()).into_bytes();
        let refused = |homes: &Homes, path: &Path| checked("--here", path, homes, &data).map_err(|e| e.to_string());
        // Under sudo, `HOME` is root's; the person is known by name or uid. A link to the home is followed.
        let other = owner + 1;
        for user in ["me", &other.to_string()] {
            for listed in [home.clone(), top.join("link")] {
                let homes = Homes::new(Some(Path::new("/root")), &[user], line(other, &listed));
                for path in [&home, &top.join("home")] {
                    let error = refused(&homes, path).unwrap_err();
                    assert!(error.contains(&format!("your home folder {}", home.display())), "{user}: {error}");
                }
                assert_eq!(refused(&homes, &repo).unwrap(), repo.to_str().unwrap());
            }
        }
        let homes = Homes::new(None, &["someone"], line(owner, &home));
        let error = refused(&homes, &home).unwrap_err();
        assert!(error.contains(&format!("the home folder {} of its owner", home.display())), "{error}");
        assert!(refused(&homes, &repo).is_ok());
        for unusable in ["/", "/nonexistent", ""] {
            let homes = Homes::new(None, &["me"], line(owner, Path::new(unusable)));
            assert!(homes.own.is_empty() && refused(&homes, &home).is_ok(), "{unusable:?}");
        }
    }

    #[test]
    fn gits_folder_of_a_work_tree_is_found_and_no_other_is_taken_for_it() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path().canonicalize().unwrap();
        let tree = top.join("tree");
        for name in ["tree", "repo/.git/objects", "repo/.git/refs", "repo/.git/worktrees/tree", "keys"] {
            fs::create_dir_all(top.join(name)).unwrap();
        }
        fs::write(top.join("repo/.git/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(top.join("repo/.git/worktrees/tree/commondir"), "../..\n").unwrap();
        assert_eq!(git_folder(&tree), None);
        fs::write(tree.join(".git"), format!("gitdir: {}/repo/.git/worktrees/tree\n", top.display())).unwrap();
        assert_eq!(git_folder(&tree), None, "the repository does not know this work tree");
        let back = top.join("repo/.git/worktrees/tree/gitdir");
        fs::write(&back, format!("{}/other/.git\n", top.display())).unwrap();
        assert_eq!(git_folder(&tree), None, "the repository has another work tree");
        fs::write(&back, format!("{}/.git\n", tree.display())).unwrap();
        assert_eq!(git_folder(&tree), Some(top.join("repo/.git")));
        fs::write(tree.join(".git"), "gitdir: ../repo/.git\n").unwrap();
        assert_eq!(git_folder(&tree), None, "someone else's repository");
        fs::write(top.join("repo/.git/config"), "[core]\n\tbare = false\n\tworktree = ../../tree\n").unwrap();
        assert_eq!(git_folder(&tree), Some(top.join("repo/.git")), "a submodule");
        fs::write(tree.join(".git"), "gitdir: ../keys\n").unwrap();
        assert_eq!(git_folder(&tree), None, "not a folder of git");
        assert_eq!(git_folder(&top.join("repo")), None, "an ordinary repository");
    }
}
