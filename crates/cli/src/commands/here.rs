//! `--here` and `--with` of `run` and `create`: which folders a sandbox gets a copy of.

use crate::args::HereArgs;
use agent_sandbox_client::CopiedFolder;
use anyhow::{Context as _, Result, bail};
use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
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
        let home = std::env::var_os("HOME").map(PathBuf::from).and_then(|home| home.canonicalize().ok());
        let mut found = Self::default();
        if args.here {
            let here = std::env::current_dir().context("cannot find the current folder")?;
            let here = checked("--here", &here, home.as_deref(), data)?;
            let git = git_folder(Path::new(&here));
            found.working_dir = Some(here.clone());
            let git = git.map(|git| checked("git's own folder", &git, home.as_deref(), data)).transpose()?;
            for (name, path) in [(HERE, Some(here)), (GIT, git)] {
                match path {
                    Some(path) if args.write => found.mounts.push((path.clone(), path, false)),
                    Some(path) => found.copies.push(CopiedFolder { name: name.to_owned(), path, private: false }),
                    None => {}
                }
            }
        }
        for (number, path) in args.with.iter().enumerate() {
            let path = checked("--with", path, home.as_deref(), data)?;
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

/// The folder's path without links, unless a copy of it would be of no use or show too much.
fn checked(flag: &str, folder: &Path, home: Option<&Path>, data: &Path) -> Result<String> {
    let shown = folder.display();
    let path = folder.canonicalize().with_context(|| format!("{flag}: cannot open {shown}"))?;
    if !path.is_dir() {
        bail!("{flag}: {shown} is not a folder; only folders can be copied");
    }
    if path == Path::new("/") {
        bail!("{flag}: the sandbox would see all files of this machine; start it in the folder of a project");
    }
    if let Some(home) = home.filter(|home| home.starts_with(&path)) {
        bail!(
            "{flag}: {} contains your home folder {}, with your keys and passwords; start it in the folder of a project",
            path.display(),
            home.display()
        );
    }
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

    fn check(path: &Path, home: &Path, data: &Path) -> String {
        checked("--here", path, Some(home), data).unwrap_err().to_string()
    }

    #[test]
    fn folders_that_show_too_much_are_refused() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path().canonicalize().unwrap();
        let (home, repo, data) = (top.join("home/me"), top.join("home/me/repo"), top.join("home/me/data/engine"));
        fs::create_dir_all(&repo).unwrap();
        fs::create_dir_all(top.join("home/me/data")).unwrap();
        fs::write(repo.join("file"), "").unwrap();
        assert_eq!(checked("--here", &repo, Some(&home), &data).unwrap(), repo.to_str().unwrap());
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
