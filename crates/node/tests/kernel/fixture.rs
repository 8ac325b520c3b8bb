//! A node of its own for each test, and Pods that read as sentences.

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

/// Longest anything in these tests may take on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Whether the test can run here; prints why not.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

pub struct Node {
    pub runtime: Arc<KernelRuntime>,
    folder: tempfile::TempDir,
}

impl Node {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut KernelConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = KernelRuntime::open(config(folder.path(), change)).await.unwrap();
        Self { runtime, folder }
    }

    pub fn data(&self) -> &Path {
        self.folder.path()
    }

    /// A second node process over the same data, as after a crash of the first.
    pub async fn restart(self) -> Self {
        let Self { runtime, folder } = self;
        drop(runtime);
        let runtime = KernelRuntime::open(config(folder.path(), |_| {})).await.unwrap();
        Self { runtime, folder }
    }

    pub fn log_path(&self, pod: &str, container: &str) -> PathBuf {
        self.data().join("logs").join(pod).join(format!("{container}.log"))
    }

    pub async fn container(&self, pod: &str, name: &str, command: &[&str]) -> ContainerSpec {
        let image = self.runtime.ensure("host", PullPolicy::IfNotPresent, &[], None).await.unwrap();
        ContainerSpec {
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
            stdin: false,
            stdin_once: false,
            tty: false,
            limits: Limits::default(),
            oom_score_adj: 500,
            log: LogTarget { path: self.log_path(pod, name), max_bytes: 10 << 20, max_files: 3 },
        }
    }

    /// Starts a container and waits for its end.
    pub async fn run(&self, pod: &str, spec: ContainerSpec) -> Exit {
        let mut events = self.runtime.events();
        let (name, attempt) = (spec.name.clone(), spec.attempt);
        self.runtime.start_container(pod, spec).await.unwrap();
        self.exit_of(&mut events, pod, &name, attempt).await
    }

    pub async fn exit_of(
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
        tokio::time::timeout(DEADLINE, wait).await.expect("the container ends")
    }

    /// The container's output so far, without time stamps.
    pub fn output(&self, pod: &str, container: &str) -> String {
        let text = std::fs::read_to_string(self.log_path(pod, container)).unwrap_or_default();
        text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default()).collect::<Vec<_>>().join("\n")
    }

    /// Runs a command in a container; gives its exit code, stdout and stderr.
    pub async fn exec(&self, pod: &str, container: &str, command: &[&str]) -> (i32, String, String) {
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
        let code = tokio::time::timeout(DEADLINE, read).await.expect("the command ends");
        (code, out, err)
    }

    pub async fn state(&self, pod: &str, container: &str) -> ContainerState {
        let state = self.runtime.state(pod).await.unwrap().expect("the Pod is known");
        state.containers.into_iter().find(|state| state.name == container).expect("the container is known")
    }
}

fn config(folder: &Path, change: impl FnOnce(&mut KernelConfig)) -> KernelConfig {
    let mut config = KernelConfig::new(folder);
    config.helper = HelperProgram::Path(env!("CARGO_BIN_EXE_agent-sandbox-node-helper").into());
    change(&mut config);
    config
}

pub fn pod(uid: &str) -> PodSandboxSpec {
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
    }
}
