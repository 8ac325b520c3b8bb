//! The user who called `sudo`: gets a copy of the kubeconfig and of the state file, so that their commands need no
//! `sudo`.
//!
//! Root never writes into a folder that another user controls: a child process with that user's ids writes the files.

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

/// The user who called `sudo`, and the data folder in their home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SudoUser {
    uid: u32,
    gid: u32,
    folder: PathBuf,
}

impl SudoUser {
    /// The user named by `SUDO_UID`, if this process runs as root. Their default data folder is used, where their
    /// commands look first.
    pub fn from_environment() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let variable = |name: &str| std::env::var(name).ok();
        let uid: u32 = variable("SUDO_UID")?.parse().ok()?;
        let home = home_of(&fs::read_to_string("/etc/passwd").ok()?, uid)?;
        let gid = variable("SUDO_GID")?.parse().ok()?;
        (uid != 0).then(|| Self { uid, gid, folder: home.join(".local/share/agent-sandbox") })
    }

    pub fn folder(&self) -> &Path {
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
    fn the_users_home_comes_from_the_passwd_file() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nodd:x:7:7::relative:/bin/sh\n";
        assert_eq!(home_of(passwd, 1000), Some("/home/ann".into()));
        assert_eq!(home_of(passwd, 7), None);
        assert_eq!(home_of(passwd, 5), None);
    }

    #[test]
    fn files_are_written_with_the_users_ids() {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let home = tempfile::tempdir().unwrap();
        let (uid, gid) = (65_534, 65_534);
        std::os::unix::fs::chown(home.path(), Some(uid), Some(gid)).unwrap();
        fs::set_permissions("/tmp", fs::metadata("/tmp").unwrap().permissions()).unwrap();
        let user = SudoUser { uid, gid, folder: home.path().join("data") };
        user.write("kubeconfig", b"secret").unwrap();
        let written = home.path().join("data/kubeconfig");
        let facts = fs::metadata(&written).unwrap();
        assert_eq!((facts.uid(), facts.permissions().mode() & 0o777), (uid, 0o600));
        assert_eq!(fs::read(&written).unwrap(), b"secret");
        user.remove("kubeconfig");
        assert!(!written.exists());
        // A symlink to a folder of root's cannot be written through.
        let root = tempfile::tempdir().unwrap();
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let trap = SudoUser { uid, gid, folder: home.path().join("trap") };
        std::os::unix::fs::symlink(root.path(), home.path().join("trap")).unwrap();
        assert!(trap.write("kubeconfig", b"secret").is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
