//! The local engine's data folder: where it is, which files it holds, and which process runs an engine on it.

mod sudo_user;

use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use crate::node_config::KERNEL_FOLDER;

pub use sudo_user::SudoUser;

/// The folder of one local engine. Everything in it is private to the user who runs the engine.
#[derive(Clone, Debug)]
pub struct DataDir(PathBuf);

/// What a running engine tells other commands about itself: the content of its state file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningEngine {
    pub pid: u32,
    /// The process's start time in clock ticks since boot: a pid alone may have been reused by another process.
    pub start_ticks: u64,
    pub version: String,
    pub api: String,
    pub router: String,
}

impl DataDir {
    /// The folder that was named explicitly, else the system's (root) or the user's own.
    pub fn locate(explicit: Option<&Path>) -> io::Result<Self> {
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

    /// Creates the folder, readable by its owner alone. Refuses a folder that holds files of other programs.
    pub fn create(&self) -> io::Result<()> {
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

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn api(&self) -> PathBuf {
        self.0.join("api")
    }

    pub fn node(&self) -> PathBuf {
        self.0.join("node")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    /// Images, shared by the engine and by every `run` of the same user.
    pub fn images(&self) -> PathBuf {
        self.0.join("images")
    }

    /// Copies of folders that `run` made, by run, as long as they have changes.
    pub fn copies(&self) -> PathBuf {
        self.0.join("copies")
    }

    /// The writable layers of the node's sandboxes, by owner, and their copies of folders.
    pub fn layers(&self) -> PathBuf {
        self.node().join(KERNEL_FOLDER).join("layers")
    }

    /// The running engine's control socket.
    pub fn control(&self) -> PathBuf {
        self.0.join("control.sock")
    }

    /// The bearer token of the MCP server.
    pub fn mcp_token(&self) -> PathBuf {
        self.0.join("mcp-token")
    }

    /// The port that the API took because its usual one was in use: a number as text.
    fn api_port_file(&self) -> PathBuf {
        self.0.join("api-port")
    }

    /// The port that an earlier engine's API took because the usual one was in use. Kubeconfigs name it.
    pub fn api_port(&self) -> Option<u16> {
        fs::read_to_string(self.api_port_file()).ok()?.trim().parse().ok().filter(|port| *port != 0)
    }

    /// Remembers the API's port for the next engine.
    pub fn remember_api_port(&self, port: u16) -> io::Result<()> {
        write_private(&self.api_port_file(), format!("{port}\n").as_bytes())
    }

    /// The secret with which scoped tokens for the router are created and checked.
    pub fn router_secret(&self) -> PathBuf {
        self.0.join("router-secret")
    }

    /// Creates the router's secret if there is none.
    pub fn create_router_secret(&self) -> io::Result<PathBuf> {
        let path = self.router_secret();
        if !path.exists() {
            let secret: [u8; 32] = rand::random();
            let text: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
            write_private(&path, text.as_bytes())?;
        }
        Ok(path)
    }

    /// The log of an engine that runs in the background.
    pub fn log(&self) -> PathBuf {
        self.0.join("up.log")
    }

    /// The folder of the audit log and of its rotated files.
    fn audit(&self) -> PathBuf {
        self.0.join("audit")
    }

    /// The current file of the audit log.
    pub fn audit_log(&self) -> PathBuf {
        self.audit().join("audit.jsonl")
    }

    /// Creates the folder of the audit log.
    pub fn create_audit_folder(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(self.audit())
    }

    /// Every path that an engine creates in its folder.
    pub fn contents(&self) -> Vec<PathBuf> {
        let partial = |path: PathBuf| [path.with_extension("partial"), path];
        let files =
            [self.kubeconfig(), self.state(), self.api_port_file(), self.router_secret()].into_iter().flat_map(partial);
        let others = [
            self.api(),
            self.node(),
            self.images(),
            self.copies(),
            self.control(),
            self.log(),
            self.mcp_token(),
            self.audit(),
        ];
        files.chain(others).collect()
    }

    /// The state file: its content is a [`RunningEngine`].
    fn state(&self) -> PathBuf {
        self.0.join("up.json")
    }

    /// Locks the folder against an engine that is started by a command which found none: it waits until this one has
    /// ended. The lock is released when the file is dropped.
    pub fn lock(&self) -> io::Result<fs::File> {
        let folder = fs::File::open(&self.0)?;
        folder.lock()?;
        Ok(folder)
    }

    /// The engine that runs on this folder now, if one does.
    pub fn running(&self) -> Option<RunningEngine> {
        let running: RunningEngine = serde_json::from_slice(&fs::read(self.state()).ok()?).ok()?;
        (start_ticks(running.pid)? == running.start_ticks).then_some(running)
    }

    /// Writes the state file: this process runs the engine. Under sudo, the calling user gets a copy and the
    /// kubeconfig.
    pub fn publish_state(&self, api: String, router: String) -> io::Result<RunningEngine> {
        let pid = std::process::id();
        let running = RunningEngine {
            pid,
            start_ticks: start_ticks(pid).unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            api,
            router,
        };
        let state = serde_json::to_vec_pretty(&running)?;
        if let Some(user) = self.copy_kubeconfig()
            && let Err(error) = user.write("up.json", &state)
        {
            tracing::warn!(folder = %user.folder().display(), %error, "Cannot copy the state for the caller of sudo");
        }
        // Last: `up --detach` waits for this file as the sign that the engine is ready.
        write_private(&self.state(), &state)?;
        Ok(running)
    }

    /// Copies the kubeconfig for the user who called sudo, if there are both; returns the user if it was copied.
    pub(crate) fn copy_kubeconfig(&self) -> Option<SudoUser> {
        // `agent-sandbox node`, which runs for another control plane, has no kubeconfig.
        let (user, text) = (SudoUser::from_environment()?, fs::read(self.kubeconfig()).ok()?);
        match user.write("kubeconfig", &text) {
            Ok(()) => Some(user),
            Err(error) => {
                tracing::warn!(folder = %user.folder().display(), %error, "Cannot copy the kubeconfig for the user who called sudo");
                None
            }
        }
    }

    /// Removes the state file, the control socket and the copies for the user who called sudo: no engine runs here any
    /// more.
    pub fn remove_state(&self) {
        let _ = fs::remove_file(self.state());
        let _ = fs::remove_file(self.control());
        if let Some(user) = SudoUser::from_environment() {
            user.remove("up.json");
            user.remove("kubeconfig");
        }
    }
}

/// Folder in which every `run` of the same user caches the image `host`: the system's (root) or the user's own. Its
/// content can be made again at any time. `None` where the folder cannot be created.
pub fn host_image_cache() -> Option<PathBuf> {
    let base = match rustix::process::geteuid().is_root() {
        true => PathBuf::from("/var/cache"),
        false => {
            let named = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
            named.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))?
        }
    };
    let folder = base.join("agent-sandbox");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).ok()?;
    // A folder of another user is not trusted: it may hold anything.
    let own = fs::metadata(&folder).is_ok_and(|metadata| metadata.uid() == rustix::process::geteuid().as_raw());
    own.then(|| folder.join("images"))
}

/// Writes a file that only its owner can read, atomically (by rename).
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
    io::Write::write_all(&mut file, content)?;
    file.sync_all()?;
    fs::rename(&partial, path)
}

/// Start time of a live process: field 22 of /proc/PID/stat. `None` for a process that is gone or a zombie.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name may hold spaces and brackets, so fields are counted from the last closing bracket.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let zombie = matches!(fields.first(), Some(&("Z" | "X")));
    if zombie { None } else { fields.get(19)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_live_process_counts_as_running() {
        let folder = tempfile::tempdir().unwrap();
        let data = DataDir(folder.path().to_path_buf());
        assert!(data.running().is_none(), "no state file");
        data.publish_state("https://127.0.0.1:1".into(), "http://127.0.0.1:2".into()).unwrap();
        assert_eq!(data.running().unwrap().pid, std::process::id());
        let mut stale = data.running().unwrap();
        stale.start_ticks += 1;
        write_private(&data.state(), &serde_json::to_vec(&stale).unwrap()).unwrap();
        assert!(data.running().is_none(), "another process has the pid now");
        data.remove_state();
        assert!(data.running().is_none());
    }

    #[test]
    fn a_folder_with_files_of_other_programs_is_refused_and_left_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("thesis.txt"), "years").unwrap();
        let before = fs::metadata(folder.path()).unwrap().permissions();
        let error = DataDir(folder.path().to_path_buf()).create().unwrap_err();
        assert!(error.to_string().contains("not the engine's"), "{error}");
        assert_eq!(fs::metadata(folder.path()).unwrap().permissions(), before);
    }

    #[test]
    fn a_zombie_does_not_count_as_running() {
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
