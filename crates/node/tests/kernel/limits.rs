//! Limits are enforced, and exceeding them is reported.

use agent_sandbox_node::kernel::NodeDefaults;
use agent_sandbox_node::runtime::{
    Limits, Mount, MountSource, PodRuntime, PodSandboxSpec, RuntimeEvent, StorageMechanism, VolumeKey, VolumeRequest,
};

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

/// A Pod that sets no limit has the node's; one that sets its own, greater or smaller, has its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_limits_has_the_defaults_of_the_node() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let machine = NodeDefaults::of_machine();
    let half = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = half.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert_eq!(machine.memory_bytes, Some((kib / 2 / 1024).max(512) << 20), "of a machine with more than 1 GiB");
    let cpus = std::thread::available_parallelism().unwrap().get() as u64;
    assert_eq!(machine.cpu_millis, Some((cpus * 1000 - 1000).max(cpus * 750)));
    // With and without a supervisor that was ready, and one Pod after the other.
    let own = Limits { memory_bytes: Some(64 << 30), cpu_millis: Some(250), pids: Some(50), ..Limits::default() };
    let asking = Limits { memory_asked_bytes: 64 << 30, ..Limits::default() };
    for (uid, limits, memory, cpu, pids) in [
        ("p1", Limits::default(), machine.memory_bytes, machine.cpu_millis, Some(1024)),
        ("p2", own, Some(64 << 30), Some(250), Some(50)),
        ("p3", asking, Some(64 << 30), machine.cpu_millis, Some(1024)),
        ("p4", Limits::default(), machine.memory_bytes, machine.cpu_millis, Some(1024)),
    ] {
        node.runtime.create_pod(PodSandboxSpec { limits, ..pod(uid) }).await.unwrap();
        let spec = node.container(uid, "c", &["sleep", "1000"]).await;
        let pid = node.runtime.start_container(uid, spec).await.unwrap().pid;
        assert_eq!(limit_of(pid, "memory", "memory.limit_in_bytes", "memory.max"), memory, "{uid}");
        let quota = limit_of(pid, "cpu", "cpu.cfs_quota_us", "cpu.max");
        assert_eq!(quota.map(|micros| micros / 100), cpu, "{uid}");
        assert_eq!(limit_of(pid, "pids", "pids.max", "pids.max"), pids, "{uid}");
    }
    for uid in ["p1", "p2", "p3", "p4"] {
        node.runtime.remove_pod(uid).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_hog_without_limits_is_killed_within_the_default_and_neighbours_go_on() {
    if !is_root() {
        return;
    }
    let node = Node::start_with(|config| config.defaults.memory_bytes = Some(64 << 20)).await;
    for uid in ["hog", "neighbour"] {
        node.runtime.create_pod(pod(uid)).await.unwrap();
    }
    let spec = node.container("neighbour", "c", &["sleep", "1000"]).await;
    node.runtime.start_container("neighbour", spec).await.unwrap();
    let exit = node.run("hog", node.container("hog", "c", &["tail", "/dev/zero"]).await).await;
    assert_eq!((exit.code, exit.oom_killed), (137, true));
    assert_eq!(node.exec("neighbour", "c", &["echo", "fine"]).await.1, "fine\n");
    for uid in ["hog", "neighbour"] {
        node.runtime.remove_pod(uid).await.unwrap();
    }
}

/// The first number of a limit of a process's cgroup or the one above it, in the hierarchy of its controller.
fn limit_of(pid: u32, controller: &str, v1: &str, v2: &str) -> Option<u64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let bound = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        fields.next()?.split(',').any(|name| name == controller).then(|| fields.next().unwrap_or_default())
    });
    let (folder, file) = match bound {
        Some(group) => (format!("/sys/fs/cgroup/{controller}{group}"), v1),
        None => (format!("/sys/fs/cgroup{}", groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap()), v2),
    };
    let read = |folder: &std::path::Path| {
        let text = std::fs::read_to_string(folder.join(file)).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    // With controllers in the unified hierarchy a container has a cgroup of its own below its Pod's.
    let folder = std::path::Path::new(&folder);
    read(folder).or_else(|| read(folder.parent()?))
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

/// A Pod with memory volumes has a mount namespace of its own, in which the layers' loop files must appear as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_storage_limit_holds_beside_a_memory_volume() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let limits = Limits { layer_bytes: Some(16 << 20), ..Limits::default() };
    let memory_volumes = [("m".to_owned(), Some(8 << 20))].into();
    node.runtime.create_pod(PodSandboxSpec { limits, memory_volumes, ..pod("p1") }).await.unwrap();
    let key = VolumeKey::PodEphemeral { pod: "p1".into(), name: "v".into() };
    let request = VolumeRequest { key, limit_bytes: Some(16 << 20), group: None };
    let volume = node.runtime.ensure_volume(request).await.unwrap();
    for attempt in 0..2 {
        let script = "echo here > /m/f && head -c 1048576 /dev/zero > /v/f && head -c 25165824 /dev/zero > /tmp/big";
        let mut spec = node.container("p1", "c", &["sh", "-c", script]).await;
        (spec.attempt, spec.limits) = (attempt, limits);
        let mount = |source, target: &str| Mount { source, target: target.to_owned(), read_only: false };
        spec.mounts.push(mount(MountSource::Memory { volume: "m".to_owned(), sub_path: None }, "/m"));
        spec.mounts.push(mount(MountSource::Data { path: volume.path.clone(), sub_path: None }, "/v"));
        let exit = node.run("p1", spec).await;
        if volume.mechanism != StorageMechanism::Measured {
            assert!(exit.code != 0 && node.output("p1", "c").contains("No space left"), "{}", node.output("p1", "c"));
        }
        assert!(volume.path.join("f").metadata().unwrap().len() >= 1 << 20, "written to the volume's own file system");
    }
    node.runtime.remove_pod("p1").await.unwrap();
}

/// The termination message lies on a small file system in memory, and only its end is read: a container can fill
/// neither the host's disk with it nor the node's memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_termination_message_takes_neither_the_disk_nor_the_nodes_memory() {
    let node = Node::start().await;
    node.runtime.create_pod(pod("p1")).await.unwrap();
    let container = async |attempt: u32, script: &str| {
        let mut spec = node.container("p1", "c", &["sh", "-c", script]).await;
        spec.attempt = attempt;
        spec.termination_message_path = Some("/msg".to_owned());
        spec
    };
    let message = async || node.runtime.termination_message("p1", "c", 4096).await;
    let script = "printf early > /msg; head -c 25165824 /dev/zero >> /msg && exit 9; wc -c < /msg; exit 3";
    let exit = node.run("p1", container(0, script).await).await;
    assert_eq!(exit.code, 3, "24 MiB of it could be written");
    let used: u64 = node.runtime.storage_usage("p1").await.unwrap().layers.iter().map(|(_, bytes)| bytes).sum();
    assert!(used < 1 << 20, "it takes disk: {used} bytes");
    let end = message().await;
    let is_end = end == [0; 4096];
    assert!(is_end, "{} bytes are not the end of what was written: {}", end.len(), node.output("p1", "c"));
    let before = resident_bytes();
    node.run("p1", container(1, "truncate -s 3G /msg && printf end >> /msg").await).await;
    let end = message().await;
    assert!(end.len() == 4096 && end.ends_with(b"end"), "{} bytes", end.len());
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "the node grew by {grown} bytes");
    node.run("p1", container(2, "true").await).await;
    assert_eq!(message().await, b"", "that of the attempt before is gone");
    // Whatever the container does to its path, the file that it was given counts, also for the next node.
    let script = "printf kept > /msg; rm -f /msg; mv /msg /other; test -e /other && exit 9; exit 0";
    assert_eq!(node.run("p1", container(3, script).await).await.code, 0);
    let node = node.restart().await;
    node.runtime.list().await.unwrap();
    assert_eq!(node.runtime.termination_message("p1", "c", 4096).await, b"kept");
    assert_eq!(node.runtime.termination_message("p1", "c", 2).await, b"pt");
    node.runtime.remove_pod("p1").await.unwrap();
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
