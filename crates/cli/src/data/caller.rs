//! The user behind `sudo`: a copy of the kubeconfig and of the engine's whereabouts, so that their commands need no `sudo`.
//!
//! Root never writes into a folder that somebody else controls: the files are written by a process with that user's rights alone.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Writes standard input to a private file, by rename.
const WRITE: &str = r#"umask 077 && mkdir -p -- "$1" && cat > "$1/$2.partial" && mv -f -- "$1/$2.partial" "$1/$2""#;
const REMOVE: &str = r#"rm -f -- "$1/$2""#;

/// Who called `sudo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    uid: u32,
    gid: u32,
    folder: PathBuf,
}

impl Caller {
    /// The caller's own data folder is used, where their commands look first.
    pub(crate) fn of_sudo() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let variable = |name: &str| std::env::var(name).ok();
        let uid: u32 = variable("SUDO_UID")?.parse().ok()?;
        let home = home_of(&fs::read_to_string("/etc/passwd").ok()?, uid)?;
        let gid = variable("SUDO_GID")?.parse().ok()?;
        (uid != 0).then(|| Self { uid, gid, folder: home.join(".local/share/agent-sandbox") })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut child = self.shell(WRITE, name).stdin(Stdio::piped()).spawn()?;
        let sent = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(content));
        let status = child.wait()?;
        sent?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("writing {name} ended with {status}"))) }
    }

    pub(crate) fn remove(&self, name: &str) {
        let _ = self.shell(REMOVE, name).stdin(Stdio::null()).status();
    }

    fn shell(&self, script: &str, name: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script, "sh"]).arg(&self.folder).arg(name);
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir("/");
        command.uid(self.uid).gid(self.gid).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

fn home_of(passwd: &str, uid: u32) -> Option<PathBuf> {
    let line = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = line.into_iter().find(|fields| fields.get(2).and_then(|id| id.parse().ok()) == Some(uid))?;
    found.get(5).filter(|home| home.starts_with('/')).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_callers_home_comes_from_the_list_of_users() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nodd:x:7:7::relative:/bin/sh\n";
        assert_eq!(home_of(passwd, 1000), Some("/home/ann".into()));
        assert_eq!(home_of(passwd, 7), None);
        assert_eq!(home_of(passwd, 5), None);
    }

    #[test]
    fn files_are_written_with_the_callers_rights() {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let home = tempfile::tempdir().unwrap();
        let (uid, gid) = (65_534, 65_534);
        std::os::unix::fs::chown(home.path(), Some(uid), Some(gid)).unwrap();
        fs::set_permissions("/tmp", fs::metadata("/tmp").unwrap().permissions()).unwrap();
        let caller = Caller { uid, gid, folder: home.path().join("data") };
        caller.write("kubeconfig", b"secret").unwrap();
        let written = home.path().join("data/kubeconfig");
        let facts = fs::metadata(&written).unwrap();
        assert_eq!((facts.uid(), facts.permissions().mode() & 0o777), (uid, 0o600));
        assert_eq!(fs::read(&written).unwrap(), b"secret");
        caller.remove("kubeconfig");
        assert!(!written.exists());
        // A link that leads to root's files leads nowhere.
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let trap = Caller { uid, gid, folder: home.path().join("trap") };
        std::os::unix::fs::symlink(root.path(), home.path().join("trap")).unwrap();
        assert!(trap.write("kubeconfig", b"secret").is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
