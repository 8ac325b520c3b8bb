//! Root file systems to run in: busybox alone, and Debian. Mounts are made in the daemon's mount namespace and end with
//! it.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Names a Debian root (made by debootstrap, for example) to use instead of this machine's own programs.
const DEBIAN_ROOT: &str = "AGENT_SANDBOX_DEBIAN_ROOT";

/// Prints why a test is skipped; in continuous integration that is a failure.
pub(crate) fn skip(missing: &str) {
    assert!(std::env::var_os("CI").is_none(), "{missing}");
    println!("skipped: {missing}");
}

/// The statically linked daemon, which runs in any root.
fn static_sandboxd() -> Option<PathBuf> {
    match crate::fixture::other_build() {
        Some(chosen) => Some(chosen.into()),
        None => Some(Path::new(env!("CARGO_BIN_EXE_sandboxd")).parent()?.parent()?.join("embed/sandboxd")),
    }
}

fn install_sandboxd(root: &Path) -> Result<(), &'static str> {
    let built = static_sandboxd().filter(|path| path.exists()).ok_or("needs a static sandboxd: run make sandboxd")?;
    std::fs::copy(built, root.join("sandboxd")).map(drop).map_err(|_| "cannot copy sandboxd")
}

/// Busybox, the daemon (`/sandboxd`) and nothing else.
pub(crate) fn lay_out_busybox(root: &Path, applets: &[&str]) -> Result<(), &'static str> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    let busybox = busybox.ok_or("needs busybox (Debian: apt-get install busybox-static)")?;
    install_sandboxd(root)?;
    for folder in ["bin", "dev", "proc", "home/user"] {
        std::fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    std::fs::copy(busybox, root.join("bin/busybox")).expect("a program");
    for applet in applets {
        symlink("busybox", root.join("bin").join(applet)).expect("a link");
    }
    Ok(())
}

/// Debian: the root named by the variable, else this machine's own `/usr` and `/etc`, read-only. Returns the mount
/// commands for the latter.
pub(crate) fn lay_out_debian(root: &Path) -> Result<Vec<String>, &'static str> {
    if let Some(debian) = std::env::var_os(DEBIAN_ROOT) {
        install_sandboxd(Path::new(&debian))?;
        return Ok(vec![format!("mount --rbind {} {}", Path::new(&debian).display(), root.display())]);
    }
    if !Path::new("/etc/debian_version").exists() {
        return Err("needs Debian, or a root of it named by AGENT_SANDBOX_DEBIAN_ROOT");
    }
    install_sandboxd(root)?;
    for folder in ["dev", "proc", "tmp", "home/user"] {
        std::fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    let mut mounts = Vec::new();
    for name in ["usr", "etc", "bin", "sbin", "lib", "lib64"] {
        borrow(name, root, &mut mounts).expect("a link or a folder");
    }
    Ok(mounts)
}

/// Mounts a folder of this machine in another root; a link is copied as a link.
fn borrow(name: &str, root: &Path, mounts: &mut Vec<String>) -> io::Result<()> {
    let (own, borrowed) = (Path::new("/").join(name), root.join(name));
    if let Ok(target) = std::fs::read_link(&own) {
        return symlink(target, borrowed);
    }
    if own.is_dir() {
        std::fs::create_dir(&borrowed)?;
        let borrowed = borrowed.display();
        mounts.push(format!("mount --bind /{name} {borrowed} && mount -o remount,bind,ro {borrowed}"));
    }
    Ok(())
}
