//! Creating and removing many Pods leaves nothing behind, and a node that dies at any moment loses nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use agent_sandbox_node::runtime::{NetworkMode, PodRuntime, PodSandboxSpec};

use crate::fixture::{DEADLINE, Node, is_root, pod};

/// Number of rounds: enough to see a leak per Pod, or many more for a soak test.
pub(crate) fn rounds(few: usize, many: usize) -> usize {
    if std::env::var_os("AGENT_SANDBOX_SOAK").is_some() { many } else { few }
}

/// Everything of a node that is visible on the host, except its data folder.
pub(crate) fn host_traces(data: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let shown = data.to_str().unwrap();
    for line in std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().filter(|line| line.contains(shown)) {
        found.insert(format!("mount {line}"));
    }
    let node_id = node_id(data);
    for entry in std::fs::read_dir("/sys/class/net").unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with(&format!("asb{}", &node_id[..4])) {
            found.insert(format!("veth {name}"));
        }
    }
    for folder in cgroup_folders(data).iter().filter(|folder| folder.exists()) {
        found.insert(format!("group {}", folder.display()));
    }
    for table in nft_tables().filter(|table| table.contains(&node_id)) {
        found.insert(format!("table {table}"));
    }
    for process in processes_with(shown) {
        found.insert(format!("process {process}"));
    }
    found
}

/// Everything of a node that is still there after its last Pod.
fn traces(node: &Node) -> BTreeSet<String> {
    let kept = ["group", "table"];
    let mut found: BTreeSet<_> =
        host_traces(node.data()).into_iter().filter(|trace| !kept.iter().any(|kind| trace.starts_with(kind))).collect();
    found.extend(cgroups(node).into_iter().map(|name| format!("group {name}")));
    found.extend(id_blocks(node.data()).into_iter().map(|owner| format!("ids {owner}")));
    for folder in ["pods", "layers"] {
        for entry in std::fs::read_dir(node.data().join(folder)).unwrap().flatten() {
            found.insert(format!("{folder} {}", entry.file_name().to_string_lossy()));
        }
    }
    found.extend(chains(node).into_iter().map(|chain| format!("chain {chain}")));
    found
}

/// Owners with a block of ids: a line that begins with a plus adds one, a line with a minus removes it.
fn id_blocks(data: &std::path::Path) -> BTreeSet<String> {
    let mut owners = BTreeSet::new();
    for line in std::fs::read_to_string(data.join("ids.ledger")).unwrap().lines() {
        let owner = line[1..].split('\t').next().unwrap_or_default().to_owned();
        let known = if line.starts_with('+') { owners.insert(owner) } else { owners.remove(&owner) };
        assert!(known, "{line}");
    }
    owners
}

/// Cgroups of Pods, in any hierarchy.
pub(crate) fn cgroups(node: &Node) -> Vec<String> {
    let folders = cgroup_folders(node.data());
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let mut names: Vec<_> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names.dedup();
    names
}

pub(crate) fn veths(node: &Node) -> Vec<String> {
    host_traces(node.data()).into_iter().filter(|trace| trace.starts_with("veth ")).collect()
}

/// The cgroup above a node's Pods, in every hierarchy.
fn cgroup_folders(data: &Path) -> Vec<PathBuf> {
    let name = format!("agent-sandbox-{}", node_id(data));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let trees = mounts.lines().filter(|line| line.contains(" - cgroup")).filter_map(|line| line.split(' ').nth(4));
    trees.map(|tree| Path::new(tree).join(&name)).collect()
}

fn nft_tables() -> impl Iterator<Item = String> {
    let output = Command::new("nft").args(["list", "tables"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().map(str::to_owned).collect::<Vec<_>>().into_iter()
}

/// Chains of single Pods in the node's table.
fn chains(node: &Node) -> Vec<String> {
    let table = format!("agent-sandbox-{}", node_id(node.data()));
    let output = Command::new("nft").args(["list", "table", "inet", &table]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let chains = text.lines().filter_map(|line| line.trim().strip_prefix("chain ")).map(|line| line.replace(" {", ""));
    chains.filter(|name| name.starts_with("in-") || name.starts_with("out-")).collect()
}

fn processes_with(text: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let own = std::process::id().to_string();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    pids.filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()) && *pid != own)
        .filter(|pid| {
            let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            groups.contains(&node_id(Path::new(text))) || String::from_utf8_lossy(&line).contains(text)
        })
        .collect()
}

/// The node's id, which is part of the names of its veths, cgroups and table.
pub(crate) fn node_id(data: &Path) -> String {
    use sha2::Digest;
    let hash = sha2::Sha256::digest(data.as_os_str().as_encoded_bytes());
    hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// The node's record in the registry of this machine's nodes.
pub(crate) fn record_path(data: &Path) -> PathBuf {
    Path::new("/run/agent-sandbox/nodes").join(node_id(data))
}

#[tokio::test(flavor = "multi_thread")]
async fn created_and_removed_pods_leave_nothing_behind() {
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
        node.runtime.delete_owner_storage(&format!("owner-of-{uid}")).await.unwrap();
        assert!(!std::path::Path::new(&format!("/proc/{}", state.pid)).exists(), "round {round}");
    }
    assert_eq!(node.runtime.kept_owners().await.unwrap(), Vec::<String>::new());
    // Also ends the ready supervisors.
    node.runtime.close();
    let clean = async {
        while !traces(&node).is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    // The kernel removes network namespaces asynchronously.
    if tokio::time::timeout(DEADLINE, clean).await.is_err() {
        panic!("left behind: {:?}", traces(&node));
    }
    assert_eq!(host_traces(node.data()), BTreeSet::new(), "after the node is closed");
    assert!(!record_path(node.data()).exists());
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
        // The node dies while it creates and removes other Pods.
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

/// A node that died with nothing running is cleaned up by the next one, although its data folder still exists; one
/// whose Pods are running is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn resources_of_dead_nodes_are_removed_unless_their_pods_are_running() {
    if !is_root() {
        return;
    }
    let (empty, busy) = (tempfile::tempdir().unwrap(), Node::start().await);
    busy.runtime.create_pod(pod("runs-on")).await.unwrap();
    let dead = DeadNode::new(empty.path());
    let busy_record = record_path(busy.data());
    let text = std::fs::read_to_string(&busy_record).unwrap();
    // As if its process had died.
    std::fs::write(&busy_record, with_dead_process(&text)).unwrap();
    drop(Node::start().await);
    assert_eq!(host_traces(empty.path()), BTreeSet::new());
    assert!(!dead.record.exists());
    assert!(busy_record.exists() && host_traces(busy.data()).iter().any(|trace| trace.starts_with("table ")));
    std::fs::write(&busy_record, text).unwrap();
    busy.runtime.remove_pod("runs-on").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_be_opened_leaves_nothing() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let missing = agent_sandbox_node::kernel::HelperProgram::Path("/no/such/helper".into());
    let config = crate::fixture::config(folder.path(), |config| config.helper = missing);
    assert!(agent_sandbox_node::kernel::KernelRuntime::open(config).await.is_err());
    assert_eq!(host_traces(folder.path()), BTreeSet::new());
    assert!(!record_path(folder.path()).exists());
}

/// The resources of a node that died a moment after it was opened.
struct DeadNode {
    record: PathBuf,
}

impl DeadNode {
    fn new(data: &Path) -> Self {
        let name = format!("agent-sandbox-{}", node_id(data));
        assert!(Command::new("nft").args(["add", "table", "inet", &name]).status().unwrap().success());
        let groups: Vec<_> =
            cgroup_folders(data).into_iter().filter(|group| std::fs::create_dir(group).is_ok()).collect();
        assert!(!groups.is_empty());
        let process = serde_json::json!({"boot_id": "another", "pid": 1, "start_time": 1});
        let record = serde_json::json!({
            "data_dir": data, "process": process, "thrown_away": false, "table": name, "gateway": null, "groups": groups,
        });
        let path = record_path(data);
        std::fs::write(&path, record.to_string()).unwrap();
        Self { record: path }
    }
}

fn with_dead_process(record: &str) -> String {
    let mut record: serde_json::Value = serde_json::from_str(record).unwrap();
    record["process"]["boot_id"] = "another".into();
    record.to_string()
}

/// The caller that creates a Pod may be cancelled at any moment; the Pod is known all the same, and can be removed.
#[tokio::test(flavor = "multi_thread")]
async fn pods_of_cancelled_callers_are_found_and_removed() {
    if !is_root() {
        return;
    }
    let node = Node::start_with(|config| config.ready_pods = 0).await;
    for round in 0..rounds(12, 200) {
        let runtime = std::sync::Arc::clone(&node.runtime);
        let asked = tokio::spawn(async move { runtime.create_pod(pod(&format!("given-up-{round}"))).await });
        tokio::time::sleep(std::time::Duration::from_millis(round as u64 % 12)).await;
        asked.abort();
    }
    let listed = tokio::time::timeout(DEADLINE, node.runtime.list()).await.unwrap().unwrap();
    for state in listed {
        node.runtime.remove_pod(&state.sandbox.uid).await.unwrap();
    }
    node.runtime.close();
    assert_eq!(host_traces(node.data()), BTreeSet::new());
}
