//! A separate node for each test, and helpers to describe Pods and containers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_node::kernel::{HelperProgram, KernelConfig, KernelRuntime};
use agent_sandbox_node::runtime::{
    ContainerSpec, ContainerState, ExecRequest, Exit, ImageService, Limits, LogTarget, NetworkMode, PodRuntime,
    PodSandboxSpec, PullPolicy, RuntimeEvent, RuntimeHandler, User,
};
use tokio::io::AsyncReadExt;

/// Timeout for every wait in these tests, on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Whether the test can run here; otherwise prints why not.
pub(crate) fn is_root() -> bool {
    let root = runs_as_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

/// Without root, the same Pods run under the caller's own id.
pub(crate) fn runs_as_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) struct Node {
    pub(crate) runtime: Arc<KernelRuntime>,
    folder: Arc<tempfile::TempDir>,
}

impl Node {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut KernelConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = KernelRuntime::open(config(folder.path(), change)).await.unwrap();
        Self { runtime, folder: Arc::new(folder) }
    }

    /// A node over a data folder that another process has used before.
    pub(crate) async fn over(folder: Arc<tempfile::TempDir>) -> Self {
        let runtime = KernelRuntime::open(config(folder.path(), |config| config.ready_pods = 0)).await.unwrap();
        Self { runtime, folder }
    }

    pub(crate) fn data(&self) -> &Path {
        self.folder.path()
    }

    /// A second node over the same data, as after a crash of the first.
    pub(crate) async fn restart(self) -> Self {
        // Forgotten, not dropped: in a crash no destructor runs.
        let folder = Arc::clone(&self.folder);
        std::mem::forget(self);
        let runtime = KernelRuntime::open(config(folder.path(), |_| {})).await.unwrap();
        Self { runtime, folder }
    }

    pub(crate) fn log_path(&self, pod: &str, container: &str) -> PathBuf {
        log_path(self.data(), pod, container)
    }

    pub(crate) async fn container(&self, pod: &str, name: &str, command: &[&str]) -> ContainerSpec {
        container_of(&self.runtime, self.data(), pod, name, command).await
    }

    /// Starts a container and waits for its exit.
    pub(crate) async fn run(&self, pod: &str, spec: ContainerSpec) -> Exit {
        let mut events = self.runtime.events();
        let (name, attempt) = (spec.name.clone(), spec.attempt);
        self.runtime.start_container(pod, spec).await.unwrap();
        self.exit_of(&mut events, pod, &name, attempt).await
    }

    pub(crate) async fn exit_of(
        &self,
        events: &mut tokio::sync::broadcast::Receiver<RuntimeEvent>,
        pod: &str,
        container: &str,
        attempt: u32,
    ) -> Exit {
        let wait = async {
            loop {
                match events.recv().await.unwrap() {
                    RuntimeEvent::ContainerExited { pod: p, container: c, attempt: a, exit }
                        if p == pod && c == container && a == attempt =>
                    {
                        return exit;
                    }
                    _ => {}
                }
            }
        };
        tokio::time::timeout(DEADLINE, wait).await.expect("the container exits")
    }

    /// The container's output so far, without timestamps.
    pub(crate) fn output(&self, pod: &str, container: &str) -> String {
        let text = std::fs::read_to_string(self.log_path(pod, container)).unwrap_or_default();
        text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default()).collect::<Vec<_>>().join("\n")
    }

    /// Runs a command in a container; returns its exit code, stdout and stderr.
    pub(crate) async fn exec(&self, pod: &str, container: &str, command: &[&str]) -> (i32, String, String) {
        let request = ExecRequest {
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            stdout: true,
            stderr: true,
            ..ExecRequest::default()
        };
        let mut session = self.runtime.exec(pod, container, request).await.unwrap();
        let (mut out, mut err) = (String::new(), String::new());
        let read = async {
            session.stdout.as_mut().unwrap().read_to_string(&mut out).await.unwrap();
            session.stderr.as_mut().unwrap().read_to_string(&mut err).await.unwrap();
            session.exit.await.unwrap().code
        };
        let code = tokio::time::timeout(DEADLINE, read).await.expect("the command exits");
        (code, out, err)
    }

    pub(crate) async fn state(&self, pod: &str, container: &str) -> ContainerState {
        let state = self.runtime.state(pod).await.unwrap().expect("the Pod is known");
        state.containers.into_iter().find(|state| state.name == container).expect("the container is known")
    }
}

impl Drop for Node {
    /// Kills the Pods that a failed test has left, and removes everything else of the node.
    fn drop(&mut self) {
        let Ok(pods) = std::fs::read_dir(self.folder.path().join("pods")) else { return };
        for pod in pods.flatten() {
            let record = std::fs::read(pod.path().join("supervisor.json")).unwrap_or_default();
            let pid =
                serde_json::from_slice::<serde_json::Value>(&record).ok().and_then(|record| record["pid"].as_i64());
            if let Some(pid) = pid.and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        self.runtime.discard();
    }
}

pub(crate) fn config(folder: &Path, change: impl FnOnce(&mut KernelConfig)) -> KernelConfig {
    let mut config = KernelConfig::new(folder);
    let helper = std::env::var_os("NODE_HELPER").map(PathBuf::from);
    config.helper =
        HelperProgram::Path(helper.unwrap_or_else(|| env!("CARGO_BIN_EXE_agent-sandbox-node-helper").into()));
    // Enough to test both ways of creating a Pod; tests run many nodes at once.
    config.ready_pods = 2;
    change(&mut config);
    config
}

/// A container of the image `host` that runs a command.
pub(crate) async fn container_of(
    runtime: &KernelRuntime,
    data: &Path,
    pod: &str,
    name: &str,
    command: &[&str],
) -> ContainerSpec {
    let image = runtime.ensure("host", PullPolicy::IfNotPresent, &[], None).await.unwrap();
    ContainerSpec {
        open_port: None,
        name: name.into(),
        attempt: 0,
        env: image.config.env.clone(),
        working_dir: image.config.working_dir.clone().unwrap_or_else(|| "/".into()),
        user: User { user: image.config.user.clone().unwrap_or_default(), ..User::default() },
        image,
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        capabilities: Vec::new(),
        read_only_root: false,
        mounts: Vec::new(),
        termination_message_path: None,
        stdin: false,
        stdin_once: false,
        tty: false,
        limits: Limits::default(),
        oom_score_adj: 500,
        log: LogTarget { path: log_path(data, pod, name), max_bytes: 10 << 20, max_files: 3 },
    }
}

fn log_path(data: &Path, pod: &str, container: &str) -> PathBuf {
    data.join("logs").join(pod).join(format!("{container}.log"))
}

pub(crate) fn pod(uid: &str) -> PodSandboxSpec {
    PodSandboxSpec {
        uid: uid.into(),
        namespace: "default".into(),
        name: uid.into(),
        owner: format!("owner-of-{uid}"),
        hostname: "sandbox".into(),
        network: NetworkMode::LoopbackOnly,
        hosts: "127.0.0.1 localhost\n{pod_ip} sandbox\n".into(),
        resolv_conf: String::new(),
        limits: Limits::default(),
        handler: RuntimeHandler::BuiltIn,
        share_processes: false,
        memory_volumes: BTreeMap::new(),
        sysctls: BTreeMap::new(),
        writes_host_paths: false,
        snapshot: None,
    }
}
