//! A node of the shared control plane and a namespace of its own for each test.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use agent_sandbox_node::NodeOptions;
use agent_sandbox_node::kernel::{HelperProgram, KernelConfig};
use agent_sandbox_node::standalone::{Standalone, StandaloneConfig};
use agent_sandbox_testkit::ControlPlane;
use agent_sandbox_testkit::control_plane::client_from;
use serde_json::json;

/// Longest anything may take on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

pub(crate) struct Bench {
    plane: &'static ControlPlane,
    node_name: String,
    pub(crate) namespace: String,
    node: Standalone,
    authority: String,
    _folder: tempfile::TempDir,
}

/// How a kubectl ended.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A port-forward; ended when dropped.
pub(crate) struct Forward {
    pub(crate) port: u16,
    child: Child,
    /// kubectl goes on to write here, and ends when it cannot.
    _output: BufReader<ChildStdout>,
}

impl Forward {
    pub(crate) fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.end();
    }
}

impl Bench {
    /// `None` where the test cannot run; the reason was printed.
    pub(crate) async fn open(name: &str) -> Option<Self> {
        let _ = tracing_subscriber::fmt().with_env_filter("warn").with_test_writer().try_init();
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let plane = ControlPlane::shared().await?;
        let credentials = plane.node_credentials(name).unwrap();
        let client = client_from(&credentials.kubeconfig).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut kernel = KernelConfig::new(folder.path().join("kernel"));
        kernel.helper = HelperProgram::Path(env!("CARGO_BIN_EXE_agent-sandbox-node-helper").into());
        let test = std::env::current_exe().unwrap();
        let sandboxd = test.parent().and_then(|p| p.parent()).unwrap().join("examples/sandboxd-for-tests");
        let options = NodeOptions {
            node_name: name.to_owned(),
            data_dir: folder.path().to_owned(),
            sandboxd: Some(sandboxd),
            ..NodeOptions::default()
        };
        let config = StandaloneConfig {
            node: options,
            kernel,
            listen: "127.0.0.1:0".parse().unwrap(),
            certificate: Some((credentials.serving_certificate.into(), credentials.serving_key.into())),
            client_authority: Some(credentials.client_authority.clone().into()),
        };
        let node = Standalone::start(client, config).await.unwrap();
        let namespace = format!("{name}-{}", std::process::id());
        let bench = Self {
            plane,
            node_name: name.to_owned(),
            namespace,
            node,
            authority: credentials.client_authority,
            _folder: folder,
        };
        bench.ok(&["create", "namespace", &bench.namespace]).await;
        bench
            .until("the namespace has its account", async || {
                bench.kubectl(&["get", "serviceaccount", "default"], None).await.code == 0
            })
            .await;
        bench.ok(&["wait", "--for=create", &format!("node/{name}"), "--timeout=60s"]).await;
        bench.ok(&["wait", "--for=condition=Ready", &format!("node/{name}"), "--timeout=60s"]).await;
        Some(bench)
    }

    /// Keeps a Pod on this test's node: others run beside it.
    pub(crate) fn pinned(&self) -> String {
        json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": self.node_name}}}).to_string()
    }

    /// The same, without the daemon.
    pub(crate) fn plain(&self) -> String {
        let off = json!({"annotations": {"runtime.agents.x-k8s.io/inject-sandboxd": "false"}});
        json!({"metadata": off, "spec": {"nodeSelector": {"kubernetes.io/hostname": self.node_name}}}).to_string()
    }

    /// Runs kubectl in this test's namespace. Some of its versions throw output away that comes before they have opened the stream for
    /// it, and say so: that run says nothing about us.
    pub(crate) async fn kubectl(&self, arguments: &[&str], input: Option<&str>) -> Ran {
        let mut ran = self.kubectl_once(arguments, input).await;
        for _ in 0..4 {
            if !ran.stderr.contains("Unknown stream id") {
                break;
            }
            ran = self.kubectl_once(arguments, input).await;
        }
        ran
    }

    async fn kubectl_once(&self, arguments: &[&str], input: Option<&str>) -> Ran {
        let mut command = self.plane.kubectl();
        command.args(["-n", &self.namespace]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let input = input.map(str::to_owned);
        let work = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().unwrap();
            let mut stdin = child.stdin.take().unwrap();
            if let Some(input) = input {
                stdin.write_all(input.as_bytes()).unwrap();
            }
            drop(stdin);
            child.wait_with_output().unwrap()
        });
        let output = tokio::time::timeout(LIMIT, work).await.expect("kubectl ends").unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran { code: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// The output of a kubectl that must succeed.
    pub(crate) async fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.kubectl(arguments, None).await;
        if ran.code != 0 {
            let told = self.kubectl(&["get", "pods,events", "-o", "wide"], None).await.stdout;
            let nodes = self.kubectl(&["get", "nodes", "-o", "yaml"], None).await.stdout;
            assert_eq!(ran.code, 0, "kubectl {arguments:?}: {}\n{told}\n{nodes}", ran.stderr);
        }
        ran.stdout
    }

    pub(crate) async fn until(&self, what: &str, wanted: impl AsyncFn() -> bool) {
        let look = async {
            while !wanted().await {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        assert!(tokio::time::timeout(LIMIT, look).await.is_ok(), "not in time: {what}");
    }

    /// A port-forward of kubectl to a free port of ours.
    pub(crate) async fn forward(&self, pod: &str, port: u16) -> Forward {
        let mut command = self.plane.kubectl();
        command.args(["-n", &self.namespace, "port-forward", pod, &format!(":{port}")]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let begin = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().unwrap();
            let mut line = String::new();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            output.read_line(&mut line).unwrap();
            let port = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
            let port = port.unwrap_or_else(|| unreachable!("kubectl said {line:?}"));
            Forward { port, child, _output: output }
        });
        tokio::time::timeout(LIMIT, begin).await.expect("the port is forwarded").unwrap()
    }

    /// Asks the node's own server; gives the status.
    pub(crate) async fn ask(&self, path: &str, token: Option<&str>) -> u16 {
        let asked = crate::door::ask(self.node.address(), &self.authority, path, token);
        tokio::time::timeout(LIMIT, asked).await.expect("an answer in time")
    }

    pub(crate) async fn close(self) {
        self.ok(&["delete", "namespace", &self.namespace, "--wait=false"]).await;
        let Self { node, plane, node_name, .. } = self;
        node.purge().await.unwrap();
        let mut forget = plane.kubectl();
        forget.args(["delete", "node", &node_name, "--wait=false"]).stdout(Stdio::null());
        let _ = tokio::task::spawn_blocking(move || forget.status()).await;
    }
}
