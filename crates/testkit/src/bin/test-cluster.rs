//! Runs a cluster for tests until it is told to stop: `test-cluster real|embedded FOLDER [--audit] [--lifeline]
//! [--no-pods] [--node=NAME] [APISERVER-FLAG...]`.
//!
//! `real` is a Kubernetes control plane with two fake nodes; `embedded` is our own API with a simulated kubelet. Both
//! write FOLDER/kubeconfig, and FOLDER/ready when everything responds. With `--audit`, `real` writes FOLDER/audit.log.
//! With `--lifeline` the program also ends when its standard input is closed, so that it cannot outlive a test that was
//! killed. With `--no-pods` there are no fake nodes and no simulated kubelet, so Pods stay Pending. With `--node=NAME`,
//! `real` also writes what `agent-sandbox node` of that name needs to join: node.kubeconfig, node.crt, node.key and
//! callers.pem.

use std::path::{Path, PathBuf};

use agent_sandbox_apiserver::ListenerConfig;
use agent_sandbox_testkit::{Cluster, ControlPlane, ControlPlaneConfig, FakeNodes, Kubelet, KubeletConfig};
use anyhow::{Context, bail};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str =
    "usage: test-cluster real|embedded FOLDER [--audit] [--lifeline] [--no-pods] [--node=NAME] [APISERVER-FLAG...]";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (engine, folder) = (arguments.next().context(USAGE)?, PathBuf::from(arguments.next().context(USAGE)?));
    let mut rest: Vec<String> = arguments.collect();
    let mut has = |flag: &str| {
        let given = rest.iter().any(|argument| argument == flag);
        rest.retain(|argument| argument != flag);
        given
    };
    let (audit, lifeline, pods) = (has("--audit"), has("--lifeline"), !has("--no-pods"));
    let node = rest.iter().find_map(|argument| argument.strip_prefix("--node=").map(str::to_owned));
    rest.retain(|argument| !argument.starts_with("--node="));
    tokio::select! {
        outcome = async {
            match engine.as_str() {
                "real" => real(&folder, audit, pods, node, rest).await,
                "embedded" => embedded(&folder, pods).await,
                _ => bail!(USAGE),
            }
        } => outcome,
        () = end_of_input(), if lifeline => Ok(()),
    }
}

/// Returns when standard input is closed. It reads in a separate thread, because the read cannot be cancelled and must
/// not delay the program's end.
async fn end_of_input() {
    let (ended, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = ended.send(());
    });
    let _ = end.await;
}

async fn real(
    folder: &Path,
    audit: bool,
    pods: bool,
    node: Option<String>,
    arguments: Vec<String>,
) -> anyhow::Result<()> {
    let plane = ControlPlane::start(ControlPlaneConfig { audit, apiserver_arguments: arguments }).await?;
    if pods {
        plane.add_fake_nodes(FakeNodes { count: 2, tainted: false }).await?;
    }
    if audit {
        std::os::unix::fs::symlink(plane.audit_log(), folder.join("audit.log"))?;
    }
    if let Some(node) = node {
        let credentials = plane.node_credentials(&node)?;
        std::fs::copy(credentials.kubeconfig, folder.join("node.kubeconfig"))?;
        std::fs::write(folder.join("node.crt"), credentials.serving_certificate)?;
        std::fs::write(folder.join("node.key"), credentials.serving_key)?;
        std::fs::write(folder.join("callers.pem"), credentials.client_authority)?;
    }
    std::fs::copy(plane.kubeconfig(), folder.join("kubeconfig"))?;
    serve_until_stopped(folder).await
}

async fn embedded(folder: &Path, pods: bool) -> anyhow::Result<()> {
    let cluster = Cluster::start().await?;
    let config = ListenerConfig { kubeconfig: Some(folder.join("kubeconfig")), ..ListenerConfig::default() };
    let _listener = cluster.api.listen(config).await?;
    let _kubelet = pods.then(|| Kubelet::start(cluster.client(), KubeletConfig::default()));
    serve_until_stopped(folder).await
}

async fn serve_until_stopped(folder: &Path) -> anyhow::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    std::fs::write(folder.join("ready"), "")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
