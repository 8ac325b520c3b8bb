//! The fixture of the Pod tests: an API, a node and a kernel runtime per test, removed at its end.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_apiserver::{ApiServer, Config};
use agent_sandbox_node::kernel::{HelperProgram, KernelConfig, KernelRuntime};
use agent_sandbox_node::kubelet::eviction::StoragePolicy;
use agent_sandbox_node::kubelet::logs::LogOptions;
use agent_sandbox_node::runtime::ExecRequest;
use agent_sandbox_node::{Node, NodeHandle, NodeOptions, PodKey};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

/// Timeout for every wait, generous because the machine may be busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Whether the test runs as root; prints that it is skipped if not.
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

pub(crate) struct Fixture {
    pub(crate) client: kube::Client,
    pub(crate) node: NodeHandle,
    pub(crate) runtime: Arc<KernelRuntime>,
    folder: tempfile::TempDir,
    tuning: Tuning,
    _api: ApiServer,
}

/// What differs from a node's defaults.
#[derive(Clone, Default)]
pub(crate) struct Tuning {
    /// Resolvers of names outside the cluster.
    pub(crate) resolvers: Option<Vec<SocketAddr>>,
    pub(crate) storage: StoragePolicy,
}

/// The output and exit code of a command.
#[derive(Debug, PartialEq)]
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Fixture {
    pub(crate) async fn open() -> Self {
        Self::open_with(|_| {}).await
    }

    pub(crate) async fn open_with(change: impl FnOnce(&mut KernelConfig)) -> Self {
        Self::open_tuned(Tuning::default(), change).await
    }

    pub(crate) async fn open_tuned(tuning: Tuning, change: impl FnOnce(&mut KernelConfig)) -> Self {
        let _ = tracing_subscriber::fmt().with_env_filter("warn").with_test_writer().try_init();
        let api = ApiServer::open(Config::default()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let client = api.client();
        let (node, runtime) = start(&client, folder.path().to_owned(), tuning.clone(), change).await;
        Self { client, node, runtime, folder, tuning, _api: api }
    }

    /// Stops the node, leaving its Pods running, and starts another with the same data folder.
    pub(crate) async fn restart(self) -> Self {
        self.restart_after(async |_| {}).await
    }

    /// Like [`restart`](Self::restart); `change` runs while there is no node.
    pub(crate) async fn restart_after(self, change: impl AsyncFnOnce(&kube::Client)) -> Self {
        let Self { client, node, runtime, folder, tuning, _api } = self;
        node.shutdown().await;
        drop(node);
        // A real node process would end here. Tasks that still hold this runtime must not release resources that the
        // next runtime has already taken over.
        runtime.close();
        drop(runtime);
        change(&client).await;
        let (node, runtime) = start(&client, folder.path().to_owned(), tuning.clone(), |_| {}).await;
        Self { client, node, runtime, folder, tuning, _api }
    }

    /// Removes everything. A test that fails earlier leaves this to the supervisors' own clean-up.
    pub(crate) async fn close(self) {
        self.node.purge().await.unwrap();
    }

    /// The node's data folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) async fn create(&self, name: &str, metadata: Value, spec: Value) -> Pod {
        let mut metadata = metadata;
        metadata["name"] = name.into();
        let pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        self.pods().create(&PostParams::default(), &pod).await.unwrap()
    }

    /// Waits until a Pod satisfies a predicate; panics with its status and all events when it does not.
    pub(crate) async fn until(&self, name: &str, what: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
        let seen = await_condition(self.pods(), name, |pod: Option<&Pod>| pod.is_some_and(&wanted));
        match tokio::time::timeout(LIMIT, seen).await {
            Ok(pod) => pod.unwrap().unwrap(),
            Err(_) => {
                let pod = self.pods().get_opt(name).await.unwrap();
                let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(self.client.clone(), "default");
                let list = events.list(&Default::default()).await.unwrap();
                let recorded: Vec<_> = list.items.iter().map(|e| (e.reason.clone(), e.message.clone())).collect();
                panic!("{name} is not {what}: {:#?}\n{recorded:#?}", pod.map(|p| p.status));
            }
        }
    }

    pub(crate) async fn until_ready(&self, name: &str) -> Pod {
        self.until(name, "ready", |pod| {
            let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
            conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
        })
        .await
    }

    pub(crate) async fn until_phase(&self, name: &str, phase: &str) -> Pod {
        self.until(name, phase, |p| p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(phase)).await
    }

    /// Waits for an event with this reason; returns its message.
    pub(crate) async fn until_event(&self, reason: &str) -> String {
        let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(self.client.clone(), "default");
        let look = async {
            loop {
                let list = events.list(&Default::default()).await.unwrap();
                if let Some(event) = list.items.into_iter().find(|e| e.reason.as_deref() == Some(reason)) {
                    return event.message.unwrap_or_default();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LIMIT, look).await.unwrap_or_else(|_| panic!("no event {reason}"))
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.pods().delete(name, &DeleteParams::default()).await.unwrap();
        let gone = await_condition(self.pods(), name, |pod: Option<&Pod>| pod.is_none());
        tokio::time::timeout(LIMIT, gone).await.expect("the Pod is deleted").unwrap();
    }

    pub(crate) async fn exec(&self, name: &str, container: &str, command: &[&str]) -> CommandOutput {
        let request = ExecRequest {
            command: command.iter().map(|w| (*w).to_owned()).collect(),
            stdout: true,
            stderr: true,
            ..ExecRequest::default()
        };
        let run = async {
            let mut session = self.node.exec(&key(name), container, request).await.unwrap();
            let (mut out, mut err) = (session.stdout.take().unwrap(), session.stderr.take().unwrap());
            let (mut stdout, mut stderr) = (String::new(), String::new());
            let (exit, a, b) =
                tokio::join!(session.exit, out.read_to_string(&mut stdout), err.read_to_string(&mut stderr));
            a.unwrap();
            b.unwrap();
            CommandOutput { code: exit.unwrap().code, stdout, stderr }
        };
        tokio::time::timeout(LIMIT, run).await.expect("the command ends")
    }

    /// The standard output of a command that must succeed.
    pub(crate) async fn output(&self, name: &str, container: &str, command: &[&str]) -> String {
        let ran = self.exec(name, container, command).await;
        assert_eq!(ran.code, 0, "{command:?}: {ran:?}");
        ran.stdout
    }

    pub(crate) async fn logs(&self, name: &str, container: &str, previous: bool, options: LogOptions) -> String {
        let read = async {
            let mut chunks = self.node.logs(&key(name), container, previous, options).await.unwrap();
            let mut text = String::new();
            while let Some(chunk) = chunks.next().await {
                text.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
            }
            text
        };
        tokio::time::timeout(LIMIT, read).await.expect("the log ends")
    }
}

pub(crate) fn key(name: &str) -> PodKey {
    PodKey { namespace: "default".into(), name: name.into(), uid: None }
}

pub(crate) fn terminated(pod: &Pod) -> k8s_openapi::api::core::v1::ContainerStateTerminated {
    pod.status.clone().unwrap().container_statuses.unwrap()[0].state.clone().unwrap().terminated.expect("terminated")
}

/// A container of the image `host` that runs a shell script.
pub(crate) fn shell(script: &str) -> Value {
    json!({"name": "main", "image": "host", "command": ["sh", "-c", script]})
}

/// Metadata that disables the injection of sandboxd.
pub(crate) fn plain() -> Value {
    json!({"annotations": {"runtime.agents.x-k8s.io/inject-sandboxd": "false"}})
}

async fn start(
    client: &kube::Client,
    data_dir: PathBuf,
    tuning: Tuning,
    change: impl FnOnce(&mut KernelConfig),
) -> (NodeHandle, Arc<KernelRuntime>) {
    let mut config = KernelConfig::new(&data_dir);
    let helper = std::env::var_os("NODE_HELPER").map(PathBuf::from);
    config.helper =
        HelperProgram::Path(helper.unwrap_or_else(|| env!("CARGO_BIN_EXE_agent-sandbox-node-helper").into()));
    change(&mut config);
    let runtime = KernelRuntime::open(config).await.unwrap();
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(|p| p.parent()).unwrap().join("examples/sandboxd-for-tests");
    let sandboxd = std::env::var_os("NODE_SANDBOXD").map_or(built, PathBuf::from);
    assert!(sandboxd.exists(), "build the examples first: {}", sandboxd.display());
    let Tuning { resolvers, storage } = tuning;
    let options = NodeOptions { data_dir, sandboxd: Some(sandboxd), resolvers, storage, ..NodeOptions::default() };
    let node = Node::start(client.clone(), runtime.clone(), runtime.clone(), options).await.unwrap();
    (node, runtime)
}
