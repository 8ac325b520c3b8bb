//! Finding a `hostPath` beneath a folder that the operator allowed. No link on the way is followed: whoever may write
//! beneath the folder could otherwise point anywhere.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// A path that is really there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Free of links: the folder's own real name, and what follows it.
    pub path: PathBuf,
    pub kind: FileType,
}

/// Finds `path` beneath one of the allowed folders; missing folders are made when asked to. The folders themselves may be
/// named through links, since the operator named them.
pub fn locate(roots: &[PathBuf], path: &Path, create: bool) -> io::Result<Located> {
    let root = roots.iter().find(|root| path.starts_with(root)).ok_or(Errno::ACCESS)?;
    let real = root.canonicalize()?;
    let below = path.strip_prefix(root).unwrap_or(Path::new(""));
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let base = rustix::fs::openat(rustix::fs::CWD, &real, flags | OFlags::NOFOLLOW, Mode::empty())?;
    let mut found = rustix::io::fcntl_dupfd_cloexec(&base, 0)?;
    let mut prefix = PathBuf::new();
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for component in below.components() {
        prefix.push(component);
        let open = || rustix::fs::openat2(&base, &prefix, flags, Mode::empty(), resolve);
        found = match open() {
            Err(Errno::NOENT) if create => {
                rustix::fs::mkdirat(&found, component.as_os_str(), Mode::from_raw_mode(0o755))?;
                open()?
            }
            other => other?,
        };
    }
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    // Joining nothing would leave a slash at the end.
    let path = if below.as_os_str().is_empty() { real } else { real.join(below) };
    Ok(Located { path, kind })
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
        let found = locate(&roots, &at("allowed/inner"), false).unwrap();
        assert_eq!(found, Located { path: at("real/inner"), kind: FileType::Directory });
        assert_eq!(locate(&roots, &at("allowed"), false).unwrap().path, at("real"));
        for trap in ["allowed/trap", "allowed/trap/inner", "allowed/trap/new"] {
            let result = locate(&roots, &at(trap), true).map_err(|error| error.raw_os_error());
            assert_eq!(result, Err(Some(libc::ELOOP)), "{trap}");
        }
        assert!(!at("secret/new").exists());
        assert!(locate(&roots, &at("secret/inner"), false).is_err(), "not beneath an allowed folder");
        assert_eq!(locate(&roots, &at("allowed/new/deep"), true).unwrap().path, at("real/new/deep"));
        assert!(locate(&roots, &at("allowed/missing"), false).is_err());
    }
}
