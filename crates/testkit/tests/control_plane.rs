//! The real control plane starts, runs Pods on fake nodes, enforces RBAC, and leaves no process or file behind, however
//! its owner ends.

use std::{path::Path, process::Stdio, time::Duration};

use agent_sandbox_testkit::{
    ControlPlane, ControlPlaneConfig, FakeNodes, control_plane::client_from, eventually, eventually_within,
};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::{Api, Client, api::PostParams};
use serde_json::json;

/// The processes that were started with this folder in their arguments.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.to_string_lossy().into_owned();
    let processes = std::fs::read_dir("/proc").expect("proc").filter_map(Result::ok);
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&folder))
        .collect()
}

async fn run_a_pod(client: &Client) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod = json!({ "metadata": { "name": "a" }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    pods.create(&PostParams::default(), &serde_json::from_value(pod).expect("a Pod")).await.expect("created");
    eventually("the Pod runs on a fake node", || async {
        let status = pods.get("a").await.expect("there").status.unwrap_or_default();
        (status.phase.as_deref() == Some("Running") && status.pod_ip.is_some()).then_some(()).ok_or(status)
    })
    .await;
}

#[tokio::test]
async fn it_runs_pods_on_fake_nodes_and_leaves_nothing_behind() {
    let Some(plane) = ControlPlane::start_or_skip(ControlPlaneConfig::default()).await else { return };
    let client = plane.client().await.expect("a client");
    plane.add_fake_nodes(FakeNodes { count: 1, tainted: false }).await.expect("a node");
    run_a_pod(&client).await;
    assert!(plane.request_counts().await.expect("metrics").keys().any(|request| request.resource == "pods/binding"));

    // A ServiceAccount has no permissions by default.
    let kubeconfig = plane.service_account_kubeconfig("default", "default").await.expect("a token");
    let account = client_from(&kubeconfig).await.expect("a client");
    let denied = Api::<Pod>::namespaced(account, "default").get("a").await.expect_err("denied");
    assert!(matches!(denied, kube::Error::Api(status) if status.code == 403));

    // A node may register itself, but no other node.
    let node = plane.node_credentials("ours").expect("credentials");
    let kubelet: Api<Node> = Api::all(client_from(&node.kubeconfig).await.expect("a client"));
    let named =
        |name: &str| -> Node { serde_json::from_value(json!({ "metadata": { "name": name } })).expect("a Node") };
    kubelet.create(&PostParams::default(), &named("ours")).await.expect("registers");
    let other = kubelet.create(&PostParams::default(), &named("other")).await.expect_err("denied");
    assert!(matches!(other, kube::Error::Api(status) if status.code == 403));

    let folder = plane.folder().to_owned();
    assert!(!processes_of(&folder).is_empty());
    drop(plane);
    assert_eq!(processes_of(&folder), Vec::<String>::new());
    assert!(!folder.exists());
}

/// A killed owner cannot clean up: the kernel closes its pipes, and the guard scripts clean up.
#[tokio::test]
async fn nothing_outlives_an_owner_that_is_killed() {
    if !ControlPlane::available_or_skip() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut owner = std::process::Command::new(env!("CARGO_BIN_EXE_test-cluster"))
        .arg("real")
        .arg(folder.path())
        // TMPDIR puts the control plane's folders inside this one.
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    eventually_within(Duration::from_secs(120), "it is ready", || async {
        folder.path().join("ready").exists().then_some(()).ok_or("not ready")
    })
    .await;
    let kubeconfig = folder.path().join("kubeconfig");
    let accounts: Api<ServiceAccount> = Api::namespaced(client_from(&kubeconfig).await.expect("a client"), "default");
    accounts.get("default").await.expect("answers");
    assert!(processes_of(folder.path()).len() > 5, "five programs and their owner");
    owner.kill().expect("killed");
    owner.wait().expect("waited for");
    eventually("all is gone", || async {
        let left = processes_of(folder.path());
        let folders = std::fs::read_dir(folder.path()).expect("a folder").filter_map(Result::ok);
        let folders: Vec<_> = folders.filter(|entry| entry.path().is_dir()).map(|entry| entry.path()).collect();
        (left.is_empty() && folders.is_empty()).then_some(()).ok_or((left, folders))
    })
    .await;
}
