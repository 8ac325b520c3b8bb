//! The image `host`: an allow list of the host's own programs, never the host's `/`.
//!
//! `/usr` (and folders the operator adds) is shown as it is, read-only and with the host's own user ids, so that only
//! world-readable files can be read. Each sandbox sees it through overlays of its own, not through the host's inodes. Everything else is a small skeleton written by the node, plus copies of the few
//! files in `/etc` that programs need.

mod packages;

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::kernel::storage::mount_points_below;
use crate::kubelet::container::sandboxd::PATH as SANDBOXD_PATH;
use crate::runtime::{ImageConfig, ImageContent, ResolvedImage};

/// The image reference that Pods use.
pub(crate) const NAME: &str = "host";

/// The user that programs run as, and its home, which is the working folder.
const USER: u32 = 1000;
const HOME: &str = "/home/user";

/// Folder of sandboxd's history, which programs of the sandbox own like everything else that they may write.
const STATE: &str = "var/lib/agent-sandbox";

/// Files and folders of `/etc` that are copied if they are world-readable. Nothing else of `/etc` is visible.
const FROM_ETC: &[&str] = &[
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "ssl/certs",
    "ssl/openssl.cnf",
    "ca-certificates",
    "ca-certificates.conf",
    "pki/tls/certs",
    "localtime",
    "timezone",
    "mime.types",
    "services",
    "protocols",
];
/// Prefixes of further folders of `/etc` that are copied.
const FROM_ETC_PREFIX: &[&str] = &["python3"];

/// Files of `/etc` written by the node. `hosts`, `hostname` and `resolv.conf` are mounted over for each Pod.
const WRITTEN: &[(&str, &str)] = &[
    (
        "passwd",
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    ),
    ("group", "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"),
    ("hosts", ""),
    ("hostname", ""),
    ("resolv.conf", ""),
    ("shells", "/bin/sh\n/bin/bash\n"),
];

/// Empty folders and their modes.
const FOLDERS: &[(&str, u32)] = &[
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
    ("run/lock", 0o1777),
];

/// Writes the skeleton (once per content: the folder's name is a digest) and describes the image.
///
/// `can_chown` tells whether files can be given to other users; otherwise everything belongs to the caller.
pub(crate) fn prepare(images_dir: &Path, extra: &[PathBuf], can_chown: bool) -> io::Result<ResolvedImage> {
    let shown = shown_paths(extra);
    let base = images_dir.join("host");
    fs::create_dir_all(&base)?;
    let skeleton = base.join(&fingerprint(&shown, can_chown)[..16]);
    if !skeleton.exists() {
        let staging = base.join(format!("staging-{}-{:08x}", std::process::id(), rand::random::<u32>()));
        write_skeleton(&staging, Path::new("/"), &shown, can_chown)?;
        if let Err(error) = fs::rename(&staging, &skeleton) {
            crate::kernel::storage::tree::remove(&staging)?;
            // Another node that shares the folder may have written the same skeleton meanwhile.
            if !skeleton.exists() {
                return Err(error);
            }
        }
    }
    Ok(ResolvedImage {
        reference: NAME.to_owned(),
        // Constant, whatever is shown: a sandbox that was suspended before the host was upgraded, or before the
        // operator added a folder, keeps its writable layer.
        digest: format!("sha256:{}", hex(Sha256::new_with_prefix(NAME))),
        content: ImageContent::Host { skeleton, shown },
        config: ImageConfig {
            env: packages::variables(),
            working_dir: Some(HOME.to_owned()),
            user: Some(USER.to_string()),
            inject_sandboxd: true,
            ..ImageConfig::default()
        },
        alias_of: None,
    })
}

/// `/usr`, the top-level folders that are not links into it, and what the operator adds; folders inside others are left
/// out.
fn shown_paths(extra: &[PathBuf]) -> Vec<PathBuf> {
    let mut shown = vec![PathBuf::from("/usr")];
    for name in top_folders() {
        let path = Path::new("/").join(name);
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_dir()) {
            shown.push(path);
        }
    }
    for path in extra {
        if path.is_absolute() && path.exists() && !shown.iter().any(|known| path.starts_with(known)) {
            shown.push(path.clone());
        }
    }
    // Each path is shown through an overlay, in which mounts below it are empty folders.
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut below: Vec<_> = shown.iter().flat_map(|path| mount_points_below(&table, path)).collect();
    below.retain(|point| point.is_dir() && !shown.contains(point));
    below.sort_by_key(|point| point.components().count());
    below.dedup();
    shown.extend(below);
    shown
}

fn top_folders() -> Vec<&'static str> {
    vec!["bin", "sbin", "lib", "lib32", "lib64", "libx32"]
}

fn write_skeleton(root: &Path, host: &Path, shown: &[PathBuf], can_chown: bool) -> io::Result<()> {
    make_folder(root, 0o755)?;
    for (path, mode) in FOLDERS {
        make_folder(&root.join(path), open_mode(*mode, can_chown))?;
    }
    for name in top_folders() {
        let path = host.join(name);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_symlink() => symlink(fs::read_link(&path)?, root.join(name))?,
            _ => {}
        }
    }
    for path in shown {
        let relative = path.strip_prefix("/").unwrap_or(path);
        if path.is_dir() {
            fs::create_dir_all(root.join(relative))?;
        } else {
            if let Some(parent) = root.join(relative).parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(root.join(relative), "")?;
        }
    }
    let home = root.join("home/user");
    make_folder(&home, open_mode(0o755, can_chown))?;
    symlink("home/user", root.join("app"))?;
    packages::write(&home, host)?;
    let state = root.join(STATE);
    make_folder(&state, open_mode(0o700, can_chown))?;
    if can_chown {
        lchown(&state, Some(USER), Some(USER))?;
    }
    give_to_user(&home, can_chown)?;
    // Mount point of sandboxd: created in the writable layer, it would cost every sandbox two more files.
    let daemon = root.join(SANDBOXD_PATH.trim_start_matches('/'));
    if let Some(folder) = daemon.parent() {
        make_folder(folder, 0o755)?;
    }
    fs::write(daemon, "")?;
    symlink("/proc/self/mounts", root.join("etc/mtab"))?;
    for (name, text) in WRITTEN {
        let path = root.join("etc").join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(open_mode(0o644, can_chown)))?;
    }
    copy_from_etc(&host.join("etc"), &root.join("etc"))
}

/// Gives a file, or a folder with its contents, to the user that programs run as.
fn give_to_user(path: &Path, can_chown: bool) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_symlink() {
        // Whatever this process's umask left of them.
        let runs = metadata.is_dir() || metadata.permissions().mode() & 0o100 != 0;
        let mode = open_mode(if runs { 0o755 } else { 0o644 }, can_chown);
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            give_to_user(&entry?.path(), can_chown)?;
        }
    }
    if can_chown { lchown(path, Some(USER), Some(USER)) } else { Ok(()) }
}

fn copy_from_etc(from: &Path, to: &Path) -> io::Result<()> {
    for path in etc_paths(from) {
        let target = to.join(path.strip_prefix(from).unwrap_or(&path));
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        copy_readable(&path, &target)?;
    }
    Ok(())
}

/// Whether an entry of `alternatives` belongs to a manual page: there are hundreds, and programs do not need them.
fn is_manual(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().ends_with(b".gz")
}

/// The paths to copy from a folder like `/etc`.
fn etc_paths(etc: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = FROM_ETC.iter().map(|name| etc.join(name)).collect();
    let mut more: Vec<_> = fs::read_dir(etc)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| FROM_ETC_PREFIX.iter().any(|prefix| entry.file_name().to_string_lossy().starts_with(prefix)))
        .map(|entry| entry.path())
        .collect();
    more.sort_unstable();
    paths.append(&mut more);
    paths
}

/// Without `chown`, all files belong to a user that a sandbox with ids of its own does not map: all users then get the
/// owner's permissions.
fn open_mode(mode: u32, can_chown: bool) -> u32 {
    if can_chown { mode } else { mode | (mode >> 6 & 0o007) }
}

fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Copies what is world-readable: files, links as links, folders with their contents. Everything else is left out.
fn copy_readable(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(from) else { return Ok(()) };
    let mode = metadata.permissions().mode();
    if metadata.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
    } else if metadata.is_dir() && mode & 0o005 == 0o005 {
        make_folder(to, 0o755)?;
        for entry in fs::read_dir(from)?.flatten().filter(|entry| !is_manual(&entry.file_name())) {
            let target = to.join(entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                symlink(fs::read_link(entry.path())?, target)?;
            } else {
                copy_readable(&entry.path(), &target)?;
            }
        }
    } else if metadata.is_file() && mode & 0o004 != 0 {
        fs::copy(from, to)?;
        fs::set_permissions(to, fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A digest over everything the skeleton is made from: our own text, the shown folders, the name, size and time of
/// every file that would be copied, and the time of every folder, which changes whenever a link in it is created,
/// removed or replaced. Computing it is much faster than copying, so an unchanged host costs nothing at the next start.
fn fingerprint(shown: &[PathBuf], can_chown: bool) -> String {
    let mut hash = Sha256::new();
    hash.update([u8::from(can_chown)]);
    hash.update(open_mode(0o755, can_chown).to_be_bytes());
    hash.update(SANDBOXD_PATH);
    hash.update(STATE);
    hash.update(packages::fingerprint(Path::new("/")));
    for (name, text) in WRITTEN {
        hash.update(name);
        hash.update(text);
    }
    for path in shown {
        hash.update(path.to_string_lossy().as_bytes());
        hash.update([0]);
    }
    for name in top_folders() {
        fingerprint_path(&Path::new("/").join(name), false, &mut hash);
    }
    for path in etc_paths(Path::new("/etc")) {
        fingerprint_path(&path, true, &mut hash);
    }
    hex(hash)
}

fn fingerprint_path(path: &Path, deep: bool, hash: &mut Sha256) {
    use std::os::unix::fs::MetadataExt;
    let Ok(metadata) = fs::symlink_metadata(path) else { return };
    hash.update(path.to_string_lossy().as_bytes());
    hash.update([0]);
    if metadata.is_symlink() {
        hash.update(fs::read_link(path).unwrap_or_default().to_string_lossy().as_bytes());
        return;
    }
    hash.update(metadata.permissions().mode().to_be_bytes());
    if metadata.is_file() {
        hash.update(metadata.size().to_be_bytes());
        hash.update(metadata.mtime().to_be_bytes());
        hash.update(metadata.mtime_nsec().to_be_bytes());
    } else if metadata.is_dir() && deep {
        hash.update(metadata.mtime().to_be_bytes());
        hash.update(metadata.mtime_nsec().to_be_bytes());
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let solid = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()));
        let mut names: Vec<_> =
            solid.filter(|entry| !is_manual(&entry.file_name())).map(|entry| entry.path()).collect();
        names.sort_unstable();
        names.iter().for_each(|path| fingerprint_path(path, true, hash));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(extra: &[PathBuf]) -> (tempfile::TempDir, ResolvedImage) {
        let folder = tempfile::tempdir().unwrap();
        let image = prepare(folder.path(), extra, false).unwrap();
        (folder, image)
    }

    #[test]
    fn the_same_host_gives_the_same_digest_and_folder() {
        let (folder, first) = image(&[]);
        let second = prepare(folder.path(), &[], false).unwrap();
        assert_eq!(first, second);
    }

    #[test]
    fn showing_more_changes_the_content_and_keeps_the_identity() {
        let (folder, first) = image(&[]);
        let with_more = prepare(folder.path(), &[folder.path().to_owned()], false).unwrap();
        assert_ne!(first.content, with_more.content);
        assert_eq!(first.digest, with_more.digest, "suspended layers are kept under it");
    }

    #[test]
    fn nothing_private_of_etc_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("ssl/certs")).unwrap();
        fs::create_dir_all(from.join("ssl/private")).unwrap();
        fs::create_dir_all(from.join("python3.11")).unwrap();
        for name in
            ["ssl/certs/readable.pem", "ssl/certs/secret.pem", "ssl/private/key.pem", "shadow", "python3.11/site.py"]
        {
            fs::write(from.join(name), name).unwrap();
        }
        fs::set_permissions(from.join("ssl/certs/secret.pem"), fs::Permissions::from_mode(0o600)).unwrap();
        copy_from_etc(&from, &to).unwrap();
        assert!(to.join("ssl/certs/readable.pem").exists() && to.join("python3.11/site.py").exists());
        for hidden in ["ssl/certs/secret.pem", "ssl/private", "shadow"] {
            assert!(!to.join(hidden).exists(), "{hidden} was copied");
        }
    }

    #[test]
    fn the_skeleton_has_a_home_and_no_host_accounts() {
        let (_folder, image) = image(&[]);
        let ImageContent::Host { skeleton, shown } = &image.content else { panic!("not a host image") };
        assert!(shown.contains(&PathBuf::from("/usr")) && !shown.contains(&PathBuf::from("/")));
        assert_eq!(fs::read_link(skeleton.join("app")).unwrap(), Path::new("home/user"));
        let passwd = fs::read_to_string(skeleton.join("etc/passwd")).unwrap();
        assert_eq!(passwd.lines().count(), 3);
        assert!(!skeleton.join("etc/shadow").exists());
    }
}
