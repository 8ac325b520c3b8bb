//! Package managers in the image `host`: a Python environment in the home folder, and folders there for what npm, uv and
//! cargo install. The environment is in the image, which sandboxes share read-only; what a sandbox installs, and the
//! package managers' caches, go into its own writable layer.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::HOME;
use crate::kernel::container::launch::DEFAULT_PATH;

/// The Python environment, below the home folder.
const ENVIRONMENT: &str = ".venv";

/// Where Python may be, in the order of PATH.
const INTERPRETERS: [&str; 2] = ["usr/local/bin/python3", "usr/bin/python3"];

/// Starts pip of the environment, which is the host's: packages go into the environment.
const PIP: &str = "#!/bin/sh\nexec /home/user/.venv/bin/python3 -m pip \"$@\"\n";

/// Environment variables of the image.
pub(super) fn variables() -> Vec<(String, String)> {
    let path = format!("{HOME}/{ENVIRONMENT}/bin:{HOME}/.local/bin:{HOME}/.cargo/bin:{DEFAULT_PATH}");
    // npm installs programs below its prefix, which by default is the read-only `/usr`.
    let npm = format!("{HOME}/.local");
    let environment = format!("{HOME}/{ENVIRONMENT}");
    [("PATH", path), ("HOME", HOME.to_owned()), ("VIRTUAL_ENV", environment), ("NPM_CONFIG_PREFIX", npm)]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}

/// Python as the host has it: its path and its version, such as `3.11`. `None` if it is not below `/usr`, which is all
/// that a sandbox sees.
pub(super) fn python(host: &Path) -> Option<(PathBuf, String)> {
    INTERPRETERS.iter().find_map(|name| {
        let real = fs::canonicalize(host.join(name)).ok()?;
        let real = real.strip_prefix(fs::canonicalize(host).ok()?).ok()?;
        let version = real.file_name()?.to_str()?.strip_prefix("python")?.to_owned();
        let known = real.starts_with("usr") && version.starts_with("3.");
        known.then(|| (Path::new("/").join(name), version))
    })
}

/// Writes the environment: as `python3 -m venv --system-site-packages` does, without running a program. Python knows
/// that it is in an environment of its own, so that pip does not refuse to install (PEP 668).
pub(super) fn write(home: &Path, host: &Path) -> io::Result<()> {
    let Some((interpreter, version)) = python(host) else { return Ok(()) };
    let root = home.join(ENVIRONMENT);
    let bin = root.join("bin");
    fs::create_dir_all(root.join(format!("lib/python{version}/site-packages")))?;
    fs::create_dir_all(&bin)?;
    let folder = interpreter.parent().unwrap_or(Path::new("/usr/bin")).display().to_string();
    let settings = format!("home = {folder}\ninclude-system-site-packages = true\nversion = {version}\n");
    fs::write(root.join("pyvenv.cfg"), settings)?;
    symlink(&interpreter, bin.join("python3"))?;
    symlink("python3", bin.join("python"))?;
    symlink("python3", bin.join(format!("python{version}")))?;
    symlink("lib", root.join("lib64"))?;
    if has_pip(host, &version) {
        for name in ["pip", "pip3"] {
            fs::write(bin.join(name), PIP)?;
            fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

/// Everything that [`write`] depends on.
pub(super) fn fingerprint(host: &Path) -> String {
    let python =
        python(host).map(|(path, version)| format!("{} {version} {}", path.display(), has_pip(host, &version)));
    format!("{ENVIRONMENT} {} {PIP}", python.unwrap_or_default())
}

/// Whether the host's Python has pip, in one of the folders in which distributions put modules.
fn has_pip(host: &Path, version: &str) -> bool {
    let folders = [
        "usr/lib/python3/dist-packages".to_owned(),
        format!("usr/lib/python{version}/site-packages"),
        format!("usr/local/lib/python{version}/dist-packages"),
        format!("usr/local/lib/python{version}/site-packages"),
    ];
    folders.iter().any(|folder| host.join(folder).join("pip").is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_that_of_the_hosts_python() {
        let (host, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(home.path(), host.path()).unwrap();
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "a host without Python has no environment");
        fs::create_dir_all(host.path().join("usr/bin")).unwrap();
        fs::write(host.path().join("usr/bin/python3.12"), "").unwrap();
        symlink("python3.12", host.path().join("usr/bin/python3")).unwrap();
        fs::create_dir_all(host.path().join("usr/lib/python3/dist-packages/pip")).unwrap();
        write(home.path(), host.path()).unwrap();
        let root = home.path().join(ENVIRONMENT);
        assert!(root.join("lib/python3.12/site-packages").is_dir() && root.join("bin/pip").is_file());
        assert_eq!(fs::read_link(root.join("bin/python3")).unwrap(), Path::new("/usr/bin/python3"));
        assert!(fs::read_to_string(root.join("pyvenv.cfg")).unwrap().contains("home = /usr/bin\n"));
    }

    #[test]
    fn a_python_outside_of_usr_is_not_used() {
        let host = tempfile::tempdir().unwrap();
        fs::create_dir_all(host.path().join("usr/bin")).unwrap();
        fs::create_dir_all(host.path().join("opt")).unwrap();
        fs::write(host.path().join("opt/python3.12"), "").unwrap();
        symlink("../../opt/python3.12", host.path().join("usr/bin/python3")).unwrap();
        assert_eq!(python(host.path()), None);
    }
}
