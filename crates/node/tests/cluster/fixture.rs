//! The fixture of the cluster tests: a node of the shared control plane and a namespace per test.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use agent_sandbox_node::NodeOptions;
use agent_sandbox_node::kernel::{HelperProgram, KernelConfig};
use agent_sandbox_node::standalone::{Standalone, StandaloneConfig};
use agent_sandbox_testkit::ControlPlane;
use agent_sandbox_testkit::control_plane::client_from;
use serde_json::json;

/// Timeout for every wait, generous because the machine may be busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

pub(crate) struct Fixture {
    plane: &'static ControlPlane,
    node_name: String,
    pub(crate) namespace: String,
    node: Standalone,
    authority: String,
    _folder: tempfile::TempDir,
}

/// The result of a kubectl command.
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A running `kubectl port-forward`; killed when dropped.
pub(crate) struct Forward {
    pub(crate) port: u16,
    child: Child,
    /// Kept open because kubectl keeps writing to it and ends when it cannot.
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

impl Fixture {
    /// `None` when the test cannot run here; prints the reason.
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
        let fixture = Self {
            plane,
            node_name: name.to_owned(),
            namespace,
            node,
            authority: credentials.client_authority,
            _folder: folder,
        };
        fixture.ok(&["create", "namespace", &fixture.namespace]).await;
        fixture
            .until("the namespace has its service account", async || {
                fixture.kubectl(&["get", "serviceaccount", "default"], None).await.code == 0
            })
            .await;
        fixture.ok(&["wait", "--for=create", &format!("node/{name}"), "--timeout=60s"]).await;
        fixture.ok(&["wait", "--for=condition=Ready", &format!("node/{name}"), "--timeout=60s"]).await;
        Some(fixture)
    }

    /// Overrides that keep a Pod on this test's node, because nodes of other tests run at the same time.
    pub(crate) fn pinned(&self) -> String {
        json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": self.node_name}}}).to_string()
    }

    /// The same overrides, without injection of sandboxd.
    pub(crate) fn plain(&self) -> String {
        let off = json!({"annotations": {"runtime.agents.x-k8s.io/inject-sandboxd": "false"}});
        json!({"metadata": off, "spec": {"nodeSelector": {"kubernetes.io/hostname": self.node_name}}}).to_string()
    }

    /// Runs kubectl in this test's namespace. Some versions of kubectl drop output that arrives before they have opened
    /// the stream for it and print "Unknown stream id"; such a run is repeated.
    pub(crate) async fn kubectl(&self, arguments: &[&str], input: Option<&str>) -> CommandOutput {
        let mut ran = self.kubectl_once(arguments, input).await;
        for _ in 0..4 {
            if !ran.stderr.contains("Unknown stream id") {
                break;
            }
            ran = self.kubectl_once(arguments, input).await;
        }
        ran
    }

    async fn kubectl_once(&self, arguments: &[&str], input: Option<&str>) -> CommandOutput {
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
        CommandOutput {
            code: output.status.code().unwrap_or(-1),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }

    /// The output of a kubectl command that must succeed.
    pub(crate) async fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.kubectl(arguments, None).await;
        if ran.code != 0 {
            let objects = self.kubectl(&["get", "pods,events", "-o", "wide"], None).await.stdout;
            let nodes = self.kubectl(&["get", "nodes", "-o", "yaml"], None).await.stdout;
            assert_eq!(ran.code, 0, "kubectl {arguments:?}: {}\n{objects}\n{nodes}", ran.stderr);
        }
        ran.stdout
    }

    /// Waits until a condition holds.
    pub(crate) async fn until(&self, what: &str, wanted: impl AsyncFn() -> bool) {
        let look = async {
            while !wanted().await {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        assert!(tokio::time::timeout(LIMIT, look).await.is_ok(), "not in time: {what}");
    }

    /// Starts `kubectl port-forward` with a free local port.
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

    /// Sends a request to the kubelet's HTTPS server; returns the HTTP status.
    pub(crate) async fn get(&self, path: &str, token: Option<&str>) -> u16 {
        let request = crate::https_client::get(self.node.address(), &self.authority, path, token);
        tokio::time::timeout(LIMIT, request).await.expect("a response in time")
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
