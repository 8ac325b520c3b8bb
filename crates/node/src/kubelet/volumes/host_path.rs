//! Resolves a `hostPath` below a folder that the operator allowed. No symbolic link below the folder is followed: a
//! user who can write there could otherwise make it point anywhere.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// A path that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedPath {
    /// The path without symbolic links: the canonical path of the allowed folder and the rest.
    pub path: PathBuf,
    pub kind: FileType,
}

/// Resolves `path` below one of the allowed folders; with `create` missing folders are created. The allowed folders
/// themselves may be symbolic links, since the operator chose them.
pub fn resolve(roots: &[PathBuf], path: &Path, create: bool) -> io::Result<ResolvedPath> {
    let root = roots.iter().find(|root| path.starts_with(root)).ok_or(Errno::ACCESS)?;
    let real = root.canonicalize()?;
    let below = path.strip_prefix(root).unwrap_or(Path::new(""));
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let base = rustix::fs::openat(rustix::fs::CWD, &real, flags | OFlags::NOFOLLOW, Mode::empty())?;
    let mut found = rustix::io::fcntl_dupfd_cloexec(&base, 0)?;
    let mut prefix = PathBuf::new();
    let flags_beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for component in below.components() {
        prefix.push(component);
        let open = || rustix::fs::openat2(&base, &prefix, flags, Mode::empty(), flags_beneath);
        found = match open() {
            Err(Errno::NOENT) if create => {
                rustix::fs::mkdirat(&found, component.as_os_str(), Mode::from_raw_mode(0o755))?;
                open()?
            }
            other => other?,
        };
    }
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    // Joining an empty path would add a trailing slash.
    let path = if below.as_os_str().is_empty() { real } else { real.join(below) };
    Ok(ResolvedPath { path, kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_beneath_an_allowed_folder_are_not_followed_and_the_folders_own_are() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        fs::create_dir_all(at("real/inner")).unwrap();
        fs::create_dir_all(at("secret/inner")).unwrap();
        symlink(at("real"), at("allowed")).unwrap();
        symlink(at("secret"), at("real/trap")).unwrap();
        let roots = [at("allowed")];
        let found = resolve(&roots, &at("allowed/inner"), false).unwrap();
        assert_eq!(found, ResolvedPath { path: at("real/inner"), kind: FileType::Directory });
        assert_eq!(resolve(&roots, &at("allowed"), false).unwrap().path, at("real"));
        for trap in ["allowed/trap", "allowed/trap/inner", "allowed/trap/new"] {
            let result = resolve(&roots, &at(trap), true).map_err(|error| error.raw_os_error());
            assert_eq!(result, Err(Some(libc::ELOOP)), "{trap}");
        }
        assert!(!at("secret/new").exists());
        assert!(resolve(&roots, &at("secret/inner"), false).is_err(), "not beneath an allowed folder");
        assert_eq!(resolve(&roots, &at("allowed/new/deep"), true).unwrap().path, at("real/new/deep"));
        assert!(resolve(&roots, &at("allowed/missing"), false).is_err());
    }
}
