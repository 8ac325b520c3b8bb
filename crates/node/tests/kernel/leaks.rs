//! Many lives of Pods leave nothing behind, and a node that dies at any moment loses nothing.

use std::collections::BTreeSet;

use agent_sandbox_node::runtime::{NetworkMode, PodRuntime, PodSandboxSpec};

use crate::fixture::{DEADLINE, Node, is_root, pod};

/// How many lives: enough to see a leak per life, or many more for a soak.
fn rounds(few: usize, many: usize) -> usize {
    if std::env::var_os("AGENT_SANDBOX_SOAK").is_some() { many } else { few }
}

/// Everything of a node that the host can see.
fn traces(node: &Node) -> BTreeSet<String> {
    let data = node.data().to_str().unwrap().to_owned();
    let mut found = BTreeSet::new();
    for line in std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().filter(|line| line.contains(&data)) {
        found.insert(format!("mount {line}"));
    }
    for entry in std::fs::read_dir("/sys/class/net").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with(&cable_prefix(node)) {
            found.insert(format!("cable {name}"));
        }
    }
    for folder in ["pods", "layers"] {
        for entry in std::fs::read_dir(node.data().join(folder)).unwrap().flatten() {
            found.insert(format!("{folder} {}", entry.file_name().to_string_lossy()));
        }
    }
    found
}

/// Cables of this node's Pods begin with a word of its data folder.
fn cable_prefix(node: &Node) -> String {
    use sha2::Digest;
    let hash = sha2::Sha256::digest(node.data().as_os_str().as_encoded_bytes());
    format!("asb{:02x}{:02x}", hash[0], hash[1])
}

#[tokio::test(flavor = "multi_thread")]
async fn lives_of_pods_leave_nothing_behind() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    for round in 0..rounds(12, 1_000) {
        let uid = format!("leak-{round}");
        node.runtime.create_pod(PodSandboxSpec { network: NetworkMode::Routed, ..pod(&uid) }).await.unwrap();
        let spec = node.container(&uid, "c", &["sleep", "1000"]).await;
        let state = node.runtime.start_container(&uid, spec).await.unwrap();
        node.runtime.remove_pod(&uid).await.unwrap();
        node.runtime.forget_owner(&format!("owner-of-{uid}")).await.unwrap();
        assert!(!std::path::Path::new(&format!("/proc/{}", state.pid)).exists(), "round {round}");
    }
    assert_eq!(traces(&node), BTreeSet::new());
    assert_eq!(node.runtime.kept_owners().await.unwrap(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_again_and_again_keeps_its_pods() {
    if !is_root() {
        return;
    }
    let mut node = Node::start().await;
    node.runtime.create_pod(pod("survivor")).await.unwrap();
    let spec = node.container("survivor", "c", &["sleep", "1000"]).await;
    let before = node.runtime.start_container("survivor", spec).await.unwrap();
    for round in 0..rounds(4, 50) {
        // Dies in the middle of making and of removing other Pods.
        let uid = format!("victim-{round}");
        let runtime = std::sync::Arc::clone(&node.runtime);
        let made = uid.clone();
        let work = tokio::spawn(async move {
            let _ = runtime.create_pod(pod(&made)).await;
            let _ = runtime.remove_pod(&made).await;
        });
        tokio::time::sleep(std::time::Duration::from_millis((round as u64 * 13) % 60)).await;
        work.abort();
        node = node.restart().await;
        let listed = tokio::time::timeout(DEADLINE, node.runtime.list()).await.unwrap().unwrap();
        assert!(listed.iter().any(|state| state.sandbox.uid == "survivor" && state.alive), "round {round}: {listed:?}");
        assert_eq!(node.state("survivor", "c").await, before);
        node.runtime.remove_pod(&uid).await.unwrap();
    }
    assert_eq!(node.exec("survivor", "c", &["echo", "here"]).await.1, "here\n");
    node.runtime.remove_pod("survivor").await.unwrap();
    let left: Vec<_> = std::fs::read_dir(node.data().join("pods")).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}
