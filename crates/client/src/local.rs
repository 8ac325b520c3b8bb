//! The local engine: finds a running `agent-sandbox up`, and starts one on request.

use crate::ClientError;
use kube::config::Kubeconfig;
use serde::Deserialize;
use std::{
    ffi::OsStr,
    fs::{File, TryLockError},
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

/// Timeout until a started engine is ready.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Time without use after which an engine that is started here ends, unless `AGENT_SANDBOX_IDLE_TIMEOUT` specifies
/// another one.
const IDLE_TIMEOUT: &str = "15m";
/// What is said about an engine that is started here.
const NOTE: &str =
    "note: started the engine on this machine; it ends when it is not used any more, or with `agent-sandbox down`";
/// Interval between attempts to lock the data folder.
const LOCK_INTERVAL: Duration = Duration::from_millis(50);
/// The engine's program, unless `AGENT_SANDBOX_BIN` specifies another one.
const PROGRAM: &str = "agent-sandbox";

/// A running engine, as described by `up.json` in its data folder.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LocalEngine {
    pub pid: u32,
    start_ticks: u64,
    /// Address of its Kubernetes API.
    pub api: String,
    /// Address of its router.
    pub router: String,
    #[serde(skip)]
    pub folder: PathBuf,
}

impl LocalEngine {
    /// The engine that runs on `folder`, or on the user's default data folder.
    pub fn find(folder: Option<&Path>) -> Option<Self> {
        let folder = folder.map(Path::to_path_buf).or_else(default_data_dir)?;
        let mut found: Self = serde_json::from_slice(&std::fs::read(folder.join("up.json")).ok()?).ok()?;
        found.folder = folder;
        // The pid may have been reused by another process, so the start time is compared too.
        (start_ticks(found.pid)? == found.start_ticks).then_some(found)
    }

    /// Whether an engine has run on `folder`, or on the user's default data folder: it may have objects and sandboxes.
    pub fn was_used(folder: Option<&Path>) -> bool {
        let folder = folder.map(Path::to_path_buf).or_else(default_data_dir);
        folder.is_some_and(|folder| folder.join("api").exists())
    }

    /// The engine that runs on `folder`. If there is none, one is started in the background, which ends when it is not
    /// used any more; a note on stderr says so.
    pub async fn find_or_start(folder: Option<&Path>) -> Result<Self, ClientError> {
        let program = std::env::var_os("AGENT_SANDBOX_BIN").unwrap_or_else(|| PROGRAM.into());
        Ok(Self::find_or_start_with(folder, &program).await?.0)
    }

    /// Like [`find_or_start`](Self::find_or_start), with the program to start. Also returns whether one was started.
    pub async fn find_or_start_with(folder: Option<&Path>, program: &OsStr) -> Result<(Self, bool), ClientError> {
        if let Some(found) = Self::find(folder) {
            return Ok((found, false));
        }
        // Held until the engine runs: of several processes that find none, one starts it.
        let _lock = lock(folder).await?;
        if let Some(found) = Self::find(folder) {
            return Ok((found, false));
        }
        let mut command = tokio::process::Command::new(program);
        if let Some(folder) = folder {
            command.arg("--data-dir").arg(folder);
        }
        let idle = std::env::var_os("AGENT_SANDBOX_IDLE_TIMEOUT").unwrap_or_else(|| IDLE_TIMEOUT.into());
        command
            .args(["up", "--detach", "--idle-timeout"])
            .arg(idle)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command.kill_on_drop(true);
        let shown = program.to_string_lossy().into_owned();
        let none = |why: String| ClientError::NoCluster { tried: format!("`{shown} up --detach` failed: {why}") };
        let finished = tokio::time::timeout(START_TIMEOUT, command.output()).await;
        let output = finished
            .map_err(|_| none(format!("not ready after {} s", START_TIMEOUT.as_secs())))?
            .map_err(|error| none(format!("{error}; put the program on PATH or name it with AGENT_SANDBOX_BIN")))?;
        if !output.status.success() {
            return Err(none(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let started = Self::find(folder).ok_or_else(|| none("it exited immediately".to_owned()))?;
        // A program without stderr gets its engine all the same.
        let _ = writeln!(std::io::stderr(), "{NOTE}");
        Ok((started, true))
    }

    /// Path of the kubeconfig for its API.
    pub fn kubeconfig(&self) -> PathBuf {
        kubeconfig_in(&self.folder)
    }

    /// Whether merged kubeconfig files name the engine of `folder`, or of the user's default data folder, whether it
    /// runs or not: the only file is the engine's own, which need not exist yet, or the cluster of the context (`None`:
    /// the current one) has the engine's certificate authority.
    pub fn is_named_by(folder: Option<&Path>, files: &[PathBuf], context: Option<&str>) -> bool {
        let Some(folder) = folder.map(Path::to_path_buf).or_else(default_data_dir) else { return false };
        let own = kubeconfig_in(&folder);
        if let ([file], None) = (files, context)
            && resolved(file) == resolved(&own)
        {
            return true;
        }
        let Ok(own) = Kubeconfig::read_from(own) else { return false };
        let mut merged = Kubeconfig::default();
        for file in files {
            match Kubeconfig::read_from(file).and_then(|next| merged.merge(next)) {
                Ok(more) => merged = more,
                Err(_) => return false,
            }
        }
        authority(&own, None).is_some_and(|own| authority(&merged, context) == Some(own))
    }
}

/// The engine's kubeconfig in its data folder.
fn kubeconfig_in(folder: &Path) -> PathBuf {
    folder.join("kubeconfig")
}

/// The path without links, or as it is where there is no such file.
fn resolved(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

/// The certificate authority of the cluster of a context, or of the current one.
fn authority<'a>(file: &'a Kubeconfig, context: Option<&str>) -> Option<&'a str> {
    let name = context.or(file.current_context.as_deref())?;
    let context = file.contexts.iter().find(|entry| entry.name == name)?.context.as_ref()?;
    let cluster = file.clusters.iter().find(|entry| entry.name == context.cluster)?.cluster.as_ref()?;
    cluster.certificate_authority_data.as_deref()
}

/// Locks the data folder against other processes that start an engine on it, and waits for one that is ending.
async fn lock(folder: Option<&Path>) -> Result<Option<File>, ClientError> {
    let Some(folder) = folder.map(Path::to_path_buf).or_else(default_data_dir) else { return Ok(None) };
    let failed = |error: std::io::Error| ClientError::NoCluster {
        tried: format!("cannot lock the data folder {}: {error}", folder.display()),
    };
    let mut builder = std::fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o700);
    builder.create(&folder).map_err(failed)?;
    let file = File::open(&folder).map_err(failed)?;
    let deadline = tokio::time::Instant::now() + START_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(LOCK_INTERVAL).await;
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// The default data folder of an engine. `AGENT_SANDBOX_DATA_DIR` overrides it.
fn default_data_dir() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(named) = variable("AGENT_SANDBOX_DATA_DIR") {
        return Some(named);
    }
    if is_root() {
        return Some(PathBuf::from("/var/lib/agent-sandbox"));
    }
    let base = variable("XDG_DATA_HOME").filter(|path| path.is_absolute());
    base.or_else(|| variable("HOME").map(|home| home.join(".local/share"))).map(|base| base.join("agent-sandbox"))
}

/// The owner of /proc/self is the effective user of this process.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|meta| std::os::unix::fs::MetadataExt::uid(&meta) == 0)
}

/// Start time of a live process in clock ticks: field 22 of /proc/PID/stat.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program name may contain spaces and parentheses, so fields are counted after the last closing one.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    if matches!(fields.first(), Some(&("Z" | "X"))) { None } else { fields.get(19)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announce(folder: &Path, ticks: u64) {
        let state = serde_json::json!({
            "pid": std::process::id(), "startTicks": ticks, "version": "1", "api": "https://a", "router": "http://r",
        });
        std::fs::write(folder.join("up.json"), state.to_string()).unwrap();
    }

    #[test]
    fn only_a_live_engine_is_found() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(LocalEngine::find(Some(folder.path())), None);
        let ticks = start_ticks(std::process::id()).unwrap();
        announce(folder.path(), ticks);
        let found = LocalEngine::find(Some(folder.path())).unwrap();
        assert_eq!(found.kubeconfig(), folder.path().join("kubeconfig"));
        announce(folder.path(), ticks + 1);
        assert_eq!(LocalEngine::find(Some(folder.path())), None, "the pid was reused by another process");
    }

    /// A kubeconfig with one context for each name, whose cluster has a certificate authority.
    fn kubeconfig_of(current: &str, clusters: &[(&str, &str)]) -> String {
        let entries = |kind: &str, body: &dyn Fn(&str, &str) -> String| {
            let lines = clusters.iter().map(|(name, ca)| format!("- name: {name}\n  {kind}: {}\n", body(name, ca)));
            format!("{kind}s:\n{}", lines.collect::<String>())
        };
        let cluster =
            entries("cluster", &|_, ca| format!("{{server: \"https://a\", certificate-authority-data: {ca}}}"));
        let context = entries("context", &|name, _| format!("{{cluster: {name}, user: u}}"));
        format!("apiVersion: v1\nkind: Config\ncurrent-context: {current}\n{cluster}{context}users: []\n")
    }

    #[test]
    fn a_kubeconfig_of_the_engine_is_known_although_the_engine_does_not_run() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let own = folder.path().join("kubeconfig");
        let named = |file: &Path, context| LocalEngine::is_named_by(Some(folder.path()), &[file.to_owned()], context);
        assert!(named(&own, None), "no engine has written it yet");
        let write = |name: &str, text: String| {
            let path = elsewhere.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let foreign = write("foreign", kubeconfig_of("prod", &[("prod", "AAAA")]));
        assert!(!named(&foreign, None));
        std::fs::write(&own, kubeconfig_of("agent-sandbox", &[("agent-sandbox", "BBBB")])).unwrap();
        std::os::unix::fs::symlink(&own, elsewhere.path().join("link")).unwrap();
        assert!(named(&own, None) && named(&elsewhere.path().join("link"), None));
        assert!(!named(&foreign, None));
        let both = [("prod", "AAAA"), ("agent-sandbox", "BBBB")];
        let (ours, theirs) =
            (write("ours", kubeconfig_of("agent-sandbox", &both)), write("theirs", kubeconfig_of("prod", &both)));
        assert!(named(&ours, None) && !named(&ours, Some("prod")));
        assert!(!named(&theirs, None) && named(&theirs, Some("agent-sandbox")));
        assert!(!named(&write("other", kubeconfig_of("agent-sandbox", &[("agent-sandbox", "CCCC")])), None));
        assert!(LocalEngine::is_named_by(Some(folder.path()), &[own.clone(), foreign.clone()], None));
        assert!(!LocalEngine::is_named_by(Some(folder.path()), &[foreign, own], None), "the first file decides");
    }
}
