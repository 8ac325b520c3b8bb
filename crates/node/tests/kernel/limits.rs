//! Limits are enforced, and exceeding them is reported.

use agent_sandbox_node::runtime::{Limits, PodRuntime, PodSandboxSpec, RuntimeEvent, StorageMechanism};

use crate::fixture::{DEADLINE, Node, is_root, pod};

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_bomb_is_killed_and_reported_as_oom() {
    if !is_root() {
        return;
    }
    kill_a_memory_bomb(&Node::start().await).await;
}

/// The limit is enforced, and the exit reports it.
pub(crate) async fn kill_a_memory_bomb(node: &Node) {
    let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
    node.runtime.create_pod(PodSandboxSpec { limits, ..pod("p1") }).await.unwrap();
    let mut spec = node.container("p1", "c", &["tail", "/dev/zero"]).await;
    spec.limits = limits;
    let exit = node.run("p1", spec).await;
    assert_eq!((exit.code, exit.signal, exit.oom_killed), (137, Some(9), true));
    node.runtime.remove_pod("p1").await.unwrap();
}

/// The first process of a container shares its supervisor's memory until exec, and must not share its OOM score.
#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_keeps_the_lowest_oom_score() {
    let node = Node::start().await;
    let supervisor = node.runtime.create_pod(pod("p1")).await.unwrap().supervisor_pid;
    let score = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        text.trim().parse::<i32>().unwrap()
    };
    let before = score(supervisor);
    for attempt in 0..2 {
        let mut spec = node.container("p1", "c", &["sleep", "1000"]).await;
        spec.attempt = attempt;
        let state = node.runtime.start_container("p1", spec).await.unwrap();
        assert_eq!(score(supervisor), before, "attempt {attempt}");
        assert!(score(state.pid) >= before + 200, "{} beside {before}", score(state.pid));
        let mut events = node.runtime.events();
        node.runtime.kill_container("p1", "c").await.unwrap();
        node.exit_of(&mut events, "p1", "c", attempt).await;
    }
    node.runtime.remove_pod("p1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn all_pods_together_weigh_a_task_for_each_processor() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    node.runtime.create_pod(pod("p1")).await.unwrap();
    let state = node.runtime.start_container("p1", node.container("p1", "c", &["sleep", "1000"]).await).await.unwrap();
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", state.pid)).unwrap();
    let of = |controller: &str| {
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let found = fields.next()?.split(',').any(|name| name == controller);
            found.then(|| fields.next().unwrap_or_default().trim_start_matches('/').to_owned())
        })
    };
    let processors = std::thread::available_parallelism().unwrap().get();
    let (folder, file, unit) = match of("cpu") {
        Some(group) => (format!("/sys/fs/cgroup/cpu/{group}"), "cpu.shares", 1024),
        None => (format!("/sys/fs/cgroup/{}", of("").unwrap()), "cpu.weight", 100),
    };
    // From the container's or its Pod's cgroup up to the node's.
    let parent = std::path::Path::new(&folder)
        .ancestors()
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("agent-sandbox-")))
        .unwrap();
    let weight = std::fs::read_to_string(parent.join(file)).unwrap();
    assert_eq!(weight.trim(), (unit * processors).to_string(), "{}", parent.display());
    node.runtime.remove_pod("p1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_bomb_stops_at_the_limit_of_processes_and_neighbours_go_on() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let limits = Limits { pids: Some(40), ..Limits::default() };
    node.runtime.create_pod(PodSandboxSpec { limits, ..pod("bomb") }).await.unwrap();
    node.runtime.create_pod(pod("neighbour")).await.unwrap();
    let spec = node.container("neighbour", "c", &["sleep", "1000"]).await;
    node.runtime.start_container("neighbour", spec).await.unwrap();
    let script = "while :; do sleep 1000 & echo forked; done";
    let exit = node.run("bomb", node.container("bomb", "c", &["sh", "-c", script]).await).await;
    let output = node.output("bomb", "c");
    let forked = output.lines().filter(|line| *line == "forked").count();
    assert!((30..40).contains(&forked) && output.contains("fork:") | output.contains("Cannot fork"), "{output}");
    assert_eq!(exit.code, 2, "the shell ends when it cannot fork");
    assert_eq!(node.exec("neighbour", "c", &["echo", "fine"]).await.1, "fine\n");
    for uid in ["bomb", "neighbour"] {
        node.runtime.remove_pod(uid).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_supervisor_takes_its_pod_down_and_nothing_is_left() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let mut events = node.runtime.events();
    let sandbox = node.runtime.create_pod(pod("p1")).await.unwrap();
    let state = node.runtime.start_container("p1", node.container("p1", "c", &["sleep", "1000"]).await).await.unwrap();
    let supervisor = rustix::process::Pid::from_raw(sandbox.supervisor_pid as i32).unwrap();
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
    let lost = tokio::time::timeout(DEADLINE, events.recv()).await.unwrap().unwrap();
    assert_eq!(lost, RuntimeEvent::SupervisorLost { pod: "p1".into() });
    assert!(!node.runtime.state("p1").await.unwrap().unwrap().alive);
    node.runtime.remove_pod("p1").await.unwrap();
    let gone = async {
        while std::path::Path::new(&format!("/proc/{}", state.pid)).exists() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.expect("the container died with its supervisor");
    assert!(!node.data().join("pods/p1").exists());
}

/// Thousands of Pods need more descriptors than the default soft limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_takes_as_many_open_files_as_the_host_allows() {
    let _node = Node::start().await;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    assert_eq!(limit.current, limit.maximum);
}

/// The termination message lies on the same limited storage as the container's own files, and only its end is read: a
/// container can neither fill the host's disk with it nor the node's memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_termination_message_counts_against_the_storage_limit() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let limits = Limits { layer_bytes: Some(16 << 20), ..Limits::default() };
    node.runtime.create_pod(PodSandboxSpec { limits, ..pod("p1") }).await.unwrap();
    let container = async |attempt: u32, script: &str| {
        let mut spec = node.container("p1", "c", &["sh", "-c", script]).await;
        (spec.attempt, spec.limits) = (attempt, limits);
        spec.termination_message_path = Some("/msg".to_owned());
        spec
    };
    let exit = node.run("p1", container(0, "head -c 24M /dev/zero > /msg").await).await;
    let usage = node.runtime.storage_usage("p1").await.unwrap();
    let used: u64 = usage.layers.iter().map(|(_, bytes)| bytes).sum();
    match usage.layer_mechanism {
        StorageMechanism::Measured => assert!(used >= 24 << 20, "eviction would not see the message: {used}"),
        _ => assert!(exit.code != 0 && used <= 17 << 20, "the limit did not hold: {used}"),
    }
    let before = resident_bytes();
    node.run("p1", container(1, "truncate -s 3G /msg && printf end >> /msg").await).await;
    let message = node.runtime.termination_message("p1", "c", 4096).await;
    assert!(message.len() == 4096 && message.ends_with(b"end"), "{} bytes", message.len());
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "the node grew by {grown} bytes");
    node.runtime.remove_pod("p1").await.unwrap();
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
