//! The local engine's data folder: where it is, what lies where, and who holds it now.

mod caller;

use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

pub(crate) use caller::Caller;

/// The folder of one local engine. Everything in it is private to the user who runs the engine.
#[derive(Clone, Debug)]
pub(crate) struct DataDir(PathBuf);

/// What a running `up` tells other commands about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Running {
    pub(crate) pid: u32,
    /// The process's start time in clock ticks since boot: a pid alone may belong to somebody else by now.
    pub(crate) start_ticks: u64,
    pub(crate) version: String,
    pub(crate) api: String,
    pub(crate) router: String,
}

impl DataDir {
    /// The folder named by the flag or the environment, else the system's (root) or the user's own.
    pub(crate) fn locate(explicit: Option<&Path>) -> io::Result<Self> {
        if let Some(path) = explicit {
            return Ok(Self(std::path::absolute(path)?));
        }
        if rustix::process::geteuid().is_root() {
            return Ok(Self(PathBuf::from("/var/lib/agent-sandbox")));
        }
        let base = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let base = base.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/share")));
        match base {
            Some(base) => Ok(Self(base.join("agent-sandbox"))),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "HOME is not set: name the folder for the engine's data with --data-dir",
            )),
        }
    }

    /// Makes the folder, readable by its owner alone.
    pub(crate) fn create(&self) -> io::Result<()> {
        if let Ok(mut entries) = fs::read_dir(&self.0) {
            let foreign = entries.any(|entry| entry.is_ok_and(|entry| !self.contents().contains(&entry.path())));
            if foreign {
                let text = "it holds files that are not the engine's; choose an empty folder with --data-dir";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        fs::set_permissions(&self.0, std::os::unix::fs::PermissionsExt::from_mode(0o700))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn api(&self) -> PathBuf {
        self.0.join("api")
    }

    pub(crate) fn node(&self) -> PathBuf {
        self.0.join("node")
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    /// Images, shared by the engine and by every `run` of the same user.
    pub(crate) fn images(&self) -> PathBuf {
        self.0.join("images")
    }

    /// Where a running engine answers other commands.
    pub(crate) fn control(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    /// The bearer token of the MCP server.
    pub(crate) fn mcp_token(&self) -> PathBuf {
        self.0.join("mcp-token")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.0.join("up.log")
    }

    /// Everything that an engine makes in its folder.
    pub(crate) fn contents(&self) -> Vec<PathBuf> {
        let partial = |path: PathBuf| [path.with_extension("partial"), path];
        let files = [self.kubeconfig(), self.state()].into_iter().flat_map(partial);
        files.chain([self.api(), self.node(), self.images(), self.control(), self.log(), self.mcp_token()]).collect()
    }

    fn state(&self) -> PathBuf {
        self.0.join("up.json")
    }

    /// The `up` that runs on this folder now, if one does.
    pub(crate) fn running(&self) -> Option<Running> {
        let running: Running = serde_json::from_slice(&fs::read(self.state()).ok()?).ok()?;
        (start_ticks(running.pid)? == running.start_ticks).then_some(running)
    }

    /// Says that this process runs the engine.
    pub(crate) fn announce(&self, api: String, router: String) -> io::Result<Running> {
        let pid = std::process::id();
        let running = Running {
            pid,
            start_ticks: start_ticks(pid).unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            api,
            router,
        };
        let state = serde_json::to_vec_pretty(&running)?;
        // A node of another control plane has no kubeconfig to give away.
        if let (Some(caller), Ok(text)) = (Caller::of_sudo(), fs::read(self.kubeconfig())) {
            let copied = caller.write("kubeconfig", &text).and_then(|()| caller.write("up.json", &state));
            if let Err(error) = copied {
                tracing::warn!(folder = %caller.folder().display(), %error, "The user behind sudo gets no copy of the kubeconfig");
            }
        }
        // Last: whoever waits for the engine waits for this file.
        write_private(&self.state(), &state)?;
        Ok(running)
    }

    /// Says that no engine runs here any more.
    pub(crate) fn retract(&self) {
        let _ = fs::remove_file(self.state());
        let _ = fs::remove_file(self.control());
        if let Some(caller) = Caller::of_sudo() {
            caller.remove("up.json");
            caller.remove("kubeconfig");
        }
    }
}

/// A folder for images that can be made again at any time, the system's (root) or the user's own; none where it cannot be made.
pub(crate) fn cache() -> Option<PathBuf> {
    let base = match rustix::process::geteuid().is_root() {
        true => PathBuf::from("/var/cache"),
        false => {
            let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
            named.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))?
        }
    };
    let folder = base.join("agent-sandbox");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).ok()?;
    // Somebody else's folder may hold anything.
    let own = fs::metadata(&folder).is_ok_and(|metadata| metadata.uid() == rustix::process::geteuid().as_raw());
    own.then(|| folder.join("images"))
}

/// Writes a file that only its owner can read, whole or not at all.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    io::Write::write_all(&mut file, content)?;
    file.sync_all()?;
    fs::rename(&partial, path)
}

/// When a live process was started: field 22 of /proc/PID/stat. One that is dead and merely not yet buried has none.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name may hold spaces and brackets, so counting starts behind the last closing one.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let buried_soon = matches!(fields.first(), Some(&("Z" | "X")));
    if buried_soon { None } else { fields.get(19)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_live_process_counts_as_running() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir(folder.path().to_path_buf());
        assert!(data.running().is_none(), "no state file");
        data.announce("https://127.0.0.1:1".into(), "http://127.0.0.1:2".into()).unwrap();
        assert_eq!(data.running().unwrap().pid, std::process::id());
        let mut stale = data.running().unwrap();
        stale.start_ticks += 1;
        write_private(&data.state(), &serde_json::to_vec(&stale).unwrap()).unwrap();
        assert!(data.running().is_none(), "another process has the pid now");
        data.retract();
        assert!(data.running().is_none());
    }

    #[test]
    fn a_folder_with_other_peoples_files_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("thesis.txt"), "years").unwrap();
        let before = fs::metadata(folder.path()).unwrap().permissions();
        let error = DataDir(folder.path().to_path_buf()).create().unwrap_err();
        assert!(error.to_string().contains("not the engine's"), "{error}");
        assert_eq!(fs::metadata(folder.path()).unwrap().permissions(), before);
    }

    #[test]
    fn a_dead_process_that_nobody_waited_for_does_not_run() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while start_ticks(child.id()).is_some() {
            assert!(std::time::Instant::now() < deadline, "`true` ends");
            std::thread::yield_now();
        }
        assert!(std::path::Path::new(&format!("/proc/{}", child.id())).exists(), "it is still a zombie");
        child.wait().unwrap();
    }

    #[test]
    fn the_folder_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let parent = tempfile::tempdir().unwrap();
        let data = DataDir(parent.path().join("a/b"));
        data.create().unwrap();
        assert_eq!(fs::metadata(data.path()).unwrap().permissions().mode() & 0o777, 0o700);
        write_private(&data.kubeconfig(), b"x").unwrap();
        assert_eq!(fs::metadata(data.kubeconfig()).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
