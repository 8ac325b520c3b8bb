//! The node as a separate process, killed with SIGKILL: Pods that should outlive it do, Pods that should not do not,
//! and interrupted work is found and finished or removed.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_node::kernel::KernelRuntime;
use agent_sandbox_node::runtime::{NetworkMode, PodRuntime, PodSandboxSpec};

use crate::fixture::{DEADLINE, Node, config, container_of, is_root, pod};
use crate::leaks::rounds;

const FOLDER: &str = "NODE_CRASH_FOLDER";
const EPHEMERAL: &str = "NODE_CRASH_EPHEMERAL";

/// Not a test: runs in a second process of this program, started by the tests below. Creates one Pod that stays, prints
/// its pids, then creates and removes others until it is killed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the tests of this file as a process of its own"]
async fn node_process() {
    let folder = std::env::var(FOLDER).unwrap();
    let ephemeral = std::env::var_os(EPHEMERAL).is_some();
    let runtime =
        KernelRuntime::open(config(Path::new(&folder), |config| config.pods_end_with_node = ephemeral)).await.unwrap();
    let known = runtime.list().await.unwrap();
    if !known.iter().any(|state| state.sandbox.uid == "stays") {
        let sandbox = runtime.create_pod(routed("stays")).await.unwrap();
        let spec = container_of(&runtime, Path::new(&folder), "stays", "c", &["sleep", "1000"]).await;
        let state = runtime.start_container("stays", spec).await.unwrap();
        println!("\nprocesses {} {}", sandbox.supervisor_pid, state.pid);
    }
    println!("\nunder load");
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..3 {
        let (runtime, folder) = (Arc::clone(&runtime), folder.clone());
        workers.spawn(async move {
            for round in 0.. {
                let uid = format!("load-{}-{worker}-{round}", std::process::id());
                runtime.create_pod(routed(&uid)).await.unwrap();
                let spec = container_of(&runtime, Path::new(&folder), &uid, "c", &["sh", "-c", "exit 7"]).await;
                runtime.start_container(&uid, spec).await.unwrap();
                runtime.remove_pod(&uid).await.unwrap();
                runtime.delete_owner_storage(&format!("owner-of-{uid}")).await.unwrap();
            }
        });
    }
    while workers.join_next().await.is_some() {}
}

fn routed(uid: &str) -> PodSandboxSpec {
    PodSandboxSpec { network: NetworkMode::Routed, ..pod(uid) }
}

/// A node in a separate process that is under load.
struct NodeProcess {
    child: Child,
    /// Pids of the supervisor and the container of the Pod that stays, if this process created it.
    processes: Vec<u32>,
}

impl NodeProcess {
    fn start(folder: &Path, ephemeral: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "crash::node_process", "--nocapture"])
            .env(FOLDER, folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        if ephemeral {
            command.env(EPHEMERAL, "1");
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut processes = Vec::new();
        for line in lines.map_while(Result::ok) {
            if let Some(rest) = line.strip_prefix("processes ") {
                processes = rest.split(' ').map(|word| word.parse().unwrap()).collect();
            }
            if line == "under load" {
                return Self { child, processes };
            }
        }
        let status = child.wait();
        panic!("the node's process exited before it was under load: {status:?}");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

async fn wait_until_gone(pid: u32) {
    let wait = async {
        while Path::new(&format!("/proc/{pid}")).exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.unwrap_or_else(|_| panic!("process {pid} is still there"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_killed_under_load_loses_no_pod_and_leaves_none() {
    if !is_root() {
        return;
    }
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let mut pid = 0;
    for round in 0..rounds(3, 50) {
        let process = NodeProcess::start(folder.path(), false);
        if round == 0 {
            pid = process.processes[1];
        }
        let pause = u64::from(rand::random::<u8>()) * 2;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        process.kill();
        // Without ready supervisors, so that what is counted below was left by the killed process.
        let node = Node::over(Arc::clone(&folder)).await;
        let listed = tokio::time::timeout(DEADLINE, node.runtime.list()).await.unwrap().unwrap();
        let stays = listed.iter().find(|state| state.sandbox.uid == "stays").expect("the Pod that stays is known");
        assert!(stays.alive && stays.containers.iter().all(|c| c.pid == pid && c.exit.is_none()), "{stays:?}");
        for state in listed.iter().filter(|state| state.sandbox.uid != "stays") {
            for container in &state.containers {
                let exit = node.runtime.state(&state.sandbox.uid).await.unwrap();
                assert!(
                    container.exit.is_none_or(|exit| exit.code == 7 || exit.code == 137),
                    "round {round}: {container:?} {exit:?}"
                );
            }
            node.runtime.remove_pod(&state.sandbox.uid).await.unwrap();
        }
        for owner in node.runtime.kept_owners().await.unwrap().iter().filter(|owner| *owner != "owner-of-stays") {
            node.runtime.delete_owner_storage(owner).await.unwrap();
        }
        let pods: Vec<_> =
            std::fs::read_dir(node.data().join("pods")).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(pods, ["stays"], "round {round}");
        assert_eq!(node.exec("stays", "c", &["echo", "here"]).await.1, "here\n");
        let clean = async {
            while crate::leaks::cgroups(&node).len() != 1 || crate::leaks::veths(&node).len() != 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let left = || format!("{:?} {:?}", crate::leaks::cgroups(&node), crate::leaks::veths(&node));
        assert!(tokio::time::timeout(DEADLINE, clean).await.is_ok(), "round {round}: {}", left());
        // Forgotten like in a crash, so that the Pod continues.
        if round + 1 < rounds(3, 50) {
            std::mem::forget(node);
        } else {
            node.runtime.remove_pod("stays").await.unwrap();
        }
    }
    wait_until_gone(pid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_an_ephemeral_node_end_with_it_however_it_ends() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let process = NodeProcess::start(folder.path(), true);
    let processes = process.processes.clone();
    process.kill();
    for pid in processes {
        wait_until_gone(pid).await;
    }
    // Nodes that start later on the machine clean up what the dead one could not; nodes of other tests may have done so
    // already.
    let clean = async {
        while crate::leaks::record_path(folder.path()).exists() {
            drop(Node::start().await);
        }
    };
    tokio::time::timeout(DEADLINE, clean).await.expect("its record is removed");
    // The kernel removes network namespaces, and their veths, asynchronously.
    let until = std::time::Instant::now() + DEADLINE;
    loop {
        let left = crate::leaks::host_traces(folder.path());
        if left.is_empty() {
            break;
        }
        assert!(std::time::Instant::now() < until, "{left:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
