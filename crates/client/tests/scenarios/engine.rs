//! Starts an `agent-sandbox up` for a test in a temporary folder, or uses a running engine selected by KUBECONFIG.

use agent_sandbox_client::{Cluster, ClusterOptions, Connection, SandboxClient};
use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

pub(crate) enum Engine {
    Own {
        folder: tempfile::TempDir,
        process: Child,
    },
    /// A running engine, started by `tests/python/second_engine.py`.
    Running(Connection),
}

/// Environment variable with the connection type for a running engine.
const CONNECTION_VARIABLE: &str = "AGENT_SANDBOX_TEST_CONNECTION";

/// The project's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn program() -> PathBuf {
    std::env::var_os("AGENT_SANDBOX_BIN").map_or_else(|| root().join("target/debug/agent-sandbox"), PathBuf::from)
}

/// Returns `None` and prints a message if no engine was built; in CI that is a failure.
pub(crate) async fn start() -> Option<Engine> {
    if let Ok(connection) = std::env::var(CONNECTION_VARIABLE) {
        assert_eq!(connection, "pod", "{CONNECTION_VARIABLE} is not a connection type that this test supports");
        return Some(Engine::Running(Connection::PodTunnel));
    }
    let program = program();
    if !program.exists() {
        let message = format!("{} is not there: cargo build -p agent-sandbox", program.display());
        assert!(std::env::var_os("CI").is_none(), "{message}");
        eprintln!("SKIPPED: {message}");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let process = Command::new(program)
        .arg("--data-dir")
        .arg(folder.path())
        .args(["up", "--api-listen", "127.0.0.1:0", "--router-listen", "127.0.0.1:0", "--router-auth", "none"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("an engine");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !folder.path().join("up.json").exists() {
        assert!(Instant::now() < deadline, "`agent-sandbox up` becomes ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Some(Engine::Own { folder, process })
}

impl Engine {
    pub(crate) async fn client(&self) -> SandboxClient {
        let (data_dir, connection) = match self {
            Self::Own { folder, .. } => (Some(folder.path().to_path_buf()), Connection::default()),
            Self::Running(connection) => (None, connection.clone()),
        };
        let options = ClusterOptions { data_dir, ..ClusterOptions::default() };
        SandboxClient::new(Cluster::find(&options).await.expect("a cluster"), connection)
    }

    /// Stops the engine and purges its data.
    pub(crate) async fn stop(self) {
        let Self::Own { folder, mut process } = self else { return };
        let pid = process.id().expect("it runs").to_string();
        let signalled = Command::new("kill").args(["-INT", &pid]).status().await.expect("kill");
        assert!(signalled.success());
        process.wait().await.expect("its end");
        let mut purge = Command::new(program());
        purge.arg("--data-dir").arg(folder.path()).args(["down", "--purge", "--yes"]).stdout(Stdio::null());
        assert!(purge.status().await.expect("down").success());
    }
}
