//! What is tried only inside a machine of its own: control groups of the unified tree alone, and a clock that moves.

use std::path::Path;
use std::time::Duration;

use agent_sandbox_node::runtime::{Limits, PodRuntime, PodSandboxSpec, WeaknessKind};
use k8s_openapi::api::core::v1::Pod;

use crate::bench::{Bench, plain, shell};
use crate::fixture::{Node, pod};
use crate::plain_user::USER;

/// Whether this is such a machine; prints that it is not.
fn is_inside() -> bool {
    let inside = std::env::var_os(crate::vm::INSIDE).is_some();
    if !inside {
        eprintln!("skipped: run by another test, inside a machine of its own");
    }
    inside
}

#[tokio::test(flavor = "multi_thread")]
async fn control_groups_are_unified() {
    if !is_inside() {
        return;
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(" - cgroup "), "control: no tree of the first kind is here\n{mounts}");
    let node = Node::start().await;
    let weak = node.runtime.weaknesses();
    assert!(weak.is_empty(), "Debian's kernel has everything a node wants: {weak:?}");
    let limits = Limits { memory_bytes: Some(64 << 20), cpu_millis: Some(250), pids: Some(77), ..Limits::default() };
    node.runtime.create_pod(PodSandboxSpec { limits, ..pod("p1") }).await.unwrap();
    let mut spec = node.container("p1", "c", &["sleep", "1000"]).await;
    spec.limits = Limits { memory_bytes: Some(32 << 20), ..Limits::default() };
    let state = node.runtime.start_container("p1", spec).await.unwrap();
    let group = std::fs::read_to_string(format!("/proc/{}/cgroup", state.pid)).unwrap();
    let group = Path::new("/sys/fs/cgroup").join(group.trim().trim_start_matches("0::/"));
    let read = |folder: &Path, file: &str| std::fs::read_to_string(folder.join(file)).unwrap().trim().to_owned();
    assert_eq!(read(&group, "memory.max"), (32 << 20).to_string());
    let of_pod = group.parent().unwrap();
    assert_eq!(read(of_pod, "memory.max"), (64 << 20).to_string());
    assert_eq!(read(of_pod, "cpu.max"), "25000 100000");
    assert_eq!(read(of_pod, "pids.max"), "77");
    let of_node = of_pod.parent().unwrap();
    assert_ne!(read(of_node, "memory.max"), "max", "all Pods together leave a reserve to the machine");
    let (of_pod, of_node) = (of_pod.to_owned(), of_node.to_owned());
    node.runtime.remove_pod("p1").await.unwrap();
    assert!(!of_pod.exists());
    node.runtime.close();
    assert!(!of_node.exists(), "nothing is left");
}

/// As systemd delegates a group to a user: the engine itself sits in it, and has to make room before Pods can.
#[test]
fn a_delegated_group_holds_limits_without_root() {
    use std::io::Write;
    use std::os::unix::process::CommandExt;
    if !is_inside() {
        return;
    }
    let group = Path::new("/sys/fs/cgroup/delegated");
    std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory +cpu +pids").unwrap();
    std::fs::create_dir(group).unwrap();
    for name in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
        std::os::unix::fs::chown(group.join(name), Some(USER), Some(USER)).unwrap();
    }
    let own = std::env::current_exe().unwrap();
    let mut child = std::process::Command::new("sh")
        .args(["-c", "read line; exec \"$0\" \"$@\""])
        .arg(own)
        .args(["--exact", "machine::a_memory_bomb_ends_in_a_delegated_group"])
        .env(crate::plain_user::MARK, "1")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .uid(USER)
        .gid(USER)
        .spawn()
        .unwrap();
    std::fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Run by the test above.
#[tokio::test(flavor = "multi_thread")]
async fn a_memory_bomb_ends_in_a_delegated_group() {
    if !is_inside() || !crate::plain_user::is_plain_user() {
        return;
    }
    let node = Node::start().await;
    let weak = node.runtime.weaknesses();
    assert!(weak.iter().all(|weak| weak.kind != WeaknessKind::LimitNotEnforced), "said: {weak:?}");
    let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
    node.runtime.create_pod(PodSandboxSpec { limits, ..pod("p1") }).await.unwrap();
    let mut spec = node.container("p1", "c", &["tail", "/dev/zero"]).await;
    spec.limits = limits;
    let exit = node.run("p1", spec).await;
    assert_eq!((exit.code, exit.signal, exit.oom_killed), (137, Some(9), true));
    node.runtime.remove_pod("p1").await.unwrap();
}

/// The clock as programs see it, in seconds; set by root of the machine.
fn move_clock(seconds: i64) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let then = rustix::time::Timespec { tv_sec: now.tv_sec + seconds, tv_nsec: now.tv_nsec };
    rustix::time::clock_settime(rustix::time::ClockId::Realtime, then).unwrap();
    let moved = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec - now.tv_sec;
    assert!((moved - seconds).abs() < 60, "control: the clock has moved");
}

fn started_at(pod: &Pod) -> Option<jiff::Timestamp> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    Some(status.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0)
}

fn restarts(pod: &Pod) -> i32 {
    pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].restart_count
}

const DAY: i64 = 24 * 3_600;

#[tokio::test(flavor = "multi_thread")]
async fn pods_go_on_when_the_clock_moves() {
    if !is_inside() {
        return;
    }
    let bench = Bench::open().await;
    let spec = || {
        let mut container = shell("trap 'exit 7' TERM; while :; do sleep 0.1; done");
        container["readinessProbe"] = serde_json::json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
        container["livenessProbe"] = serde_json::json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
        serde_json::json!({"containers": [container], "terminationGracePeriodSeconds": 5})
    };
    bench.create("steady", plain(), spec()).await;
    let before = bench.until_ready("steady").await;
    let first = bench.output("steady", "main", &["cat", "/proc/1/stat"]).await;
    for (name, seconds) in [("ahead", 30 * DAY), ("back", -60 * DAY)] {
        move_clock(seconds);
        // Longer than the period of its probes.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        let now = bench.until_ready("steady").await;
        assert_eq!((restarts(&now), started_at(&now)), (0, started_at(&before)), "{name}: nothing happened to it");
        let same = bench.output("steady", "main", &["cat", "/proc/1/stat"]).await;
        let start = |stat: &str| stat.split_whitespace().nth(21).map(str::to_owned);
        assert_eq!(start(&same), start(&first), "{name}: it is the same process");
        // What begins and ends from now on is told by the new clock.
        bench.create(name, plain(), spec()).await;
        let fresh = bench.until_ready(name).await;
        let age = jiff::Timestamp::now().as_second() - started_at(&fresh).unwrap().as_second();
        assert!((0..120).contains(&age), "{name}: {age} s old");
        bench.exec(name, "main", &["kill", "-TERM", "1"]).await;
        let again = bench.until(name, "started again", |pod| restarts(pod) == 1 && started_at(pod).is_some()).await;
        let last = again.status.unwrap().container_statuses.unwrap()[0].last_state.clone().unwrap();
        assert_eq!(last.terminated.unwrap().exit_code, 7);
        bench.delete(name).await;
    }
    let bench = bench.restart().await;
    let found = bench.until_ready("steady").await;
    assert_eq!((restarts(&found), started_at(&found)), (0, started_at(&before)), "a new node process finds it");
    bench.delete("steady").await;
    bench.close().await;
}
