//! Fixtures of the tests with real clients: a running server over TLS, and commands that are run against it.

#![allow(dead_code, unreachable_pub, reason = "each test program uses its own part")]

pub mod kubectl;
pub mod node;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_sandbox_api::conversion;
use agent_sandbox_apiserver::{ApiServer, Config, Converter, Listener, ListenerConfig};
use serde_json::{Value, json};

/// Converts the product's four kinds between versions.
struct OurConverter;

impl Converter for OurConverter {
    fn handles(&self, group: &str, _kind: &str) -> bool {
        group.ends_with("agents.x-k8s.io")
    }

    fn convert(&self, object: Value, desired_api_version: &str) -> Result<Value, String> {
        conversion::convert(object, desired_api_version).map_err(|error| error.to_string())
    }
}

/// A server with a TLS listener, a test node and a kubeconfig in a temporary folder.
pub struct Cluster {
    pub server: ApiServer,
    pub listener: Listener,
    pub folder: tempfile::TempDir,
    /// The runtime of the server's tasks, for blocking tests.
    _runtime: Option<tokio::runtime::Runtime>,
}

impl Cluster {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = Config { converter: Some(Arc::new(OurConverter)), ..Config::default() };
        let server = ApiServer::open(config).await.expect("the server opens");
        server.attach_node(node::TestNode);
        let config = ListenerConfig {
            kubeconfig: Some(folder.path().join("kubeconfig")),
            name: "test".into(),
            extra_names: vec!["build.lan.test".into()],
            ..ListenerConfig::default()
        };
        let listener = server.listen(config).await.expect("the listener opens");
        Self { server, listener, folder, _runtime: None }
    }

    /// For blocking tests, which run commands.
    pub fn start_blocking() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let mut cluster = runtime.block_on(Self::start());
        cluster._runtime = Some(runtime);
        cluster
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Runs `work` on the server's own runtime.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self._runtime.as_ref().expect("a blocking cluster").block_on(work)
    }
}

/// A Pod whose containers use the image `host`.
pub fn running_pod(name: &str, containers: &[&str]) -> Value {
    let containers: Vec<Value> = containers.iter().map(|name| json!({"name": name, "image": "host"})).collect();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": {"app": name}}, "spec": {"containers": containers}})
}

/// The root folder of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).expect("the crate lies two folders deep")
}
