//! Tests that run only inside a virtual machine: with cgroup v2 alone, and with a clock that can be set.

use std::path::Path;
use std::time::Duration;

use agent_sandbox_node::runtime::{
    Limits, Mount, MountSource, PodRuntime, PodSandboxSpec, StorageMechanism, VolumeKey, VolumeRequest, WeaknessKind,
};
use k8s_openapi::api::core::v1::Pod;

use crate::fixture::{Node, pod};
use crate::plain_user::USER;
use crate::pod_fixture::{Fixture, plain, shell};

/// Whether this process runs in such a machine; otherwise prints that the test is skipped.
fn is_inside() -> bool {
    let inside = std::env::var_os(crate::vm::INSIDE).is_some();
    if !inside {
        eprintln!("skipped: run by another test, inside a virtual machine");
    }
    inside
}

#[tokio::test(flavor = "multi_thread")]
async fn control_groups_are_unified() {
    if !is_inside() {
        return;
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(" - cgroup "), "control: there is no v1 hierarchy\n{mounts}");
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

/// As with a cgroup that systemd delegates to a user: the engine itself is in it, and has to move to a child before
/// Pods can get limits.
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

/// Run by the test above, in a separate process.
#[tokio::test(flavor = "multi_thread")]
async fn a_memory_bomb_ends_in_a_delegated_group() {
    if !is_inside() || !crate::plain_user::is_plain_user() {
        return;
    }
    let node = Node::start().await;
    let weak = node.runtime.weaknesses();
    assert!(weak.iter().all(|weak| weak.kind != WeaknessKind::LimitNotEnforced), "reported: {weak:?}");
    crate::limits::kill_a_memory_bomb(&node).await;
}

/// A file system with project quotas, mounted at a folder until dropped.
struct WithQuotas(tempfile::TempDir);

impl WithQuotas {
    fn mount(options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (image, top) = (folder.path().join("image"), folder.path().join("top"));
        std::fs::File::create(&image).unwrap().set_len(6 << 30).unwrap();
        std::fs::create_dir(&top).unwrap();
        let lean = "quotatype=prjquota,lazy_itable_init=1,lazy_journal_init=1,nodiscard";
        run("mkfs.ext4", &["-q", "-F", "-O", "quota,project", "-E", lean, image.to_str().unwrap()]);
        run("mount", &["-t", "ext4", "-o", options, image.to_str().unwrap(), top.to_str().unwrap()]);
        Self(folder)
    }

    fn top(&self) -> std::path::PathBuf {
        self.0.path().join("top")
    }
}

impl Drop for WithQuotas {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.top()).status();
    }
}

fn run(program: &str, arguments: &[&str]) {
    assert!(std::process::Command::new(program).args(arguments).status().unwrap().success(), "{program} {arguments:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn project_quotas_hold_layers_and_volumes() {
    if !is_inside() {
        return;
    }
    let disk = WithQuotas::mount("loop,prjquota");
    let data = disk.top().join("data");
    let node = Node::start_with(|config| config.data_dir.clone_from(&data)).await;
    node.runtime.create_pod(pod("p1")).await.unwrap();
    let request = |name: &str, limit_bytes| VolumeRequest {
        key: VolumeKey::Persistent { name: name.into() },
        limit_bytes,
        group: None,
    };
    let held = node.runtime.ensure_volume(request("held", Some(8 << 20))).await.unwrap();
    let free = node.runtime.ensure_volume(request("free", None)).await.unwrap();
    assert_eq!(
        (held.mechanism, free.mechanism),
        (StorageMechanism::ProjectQuota, StorageMechanism::Measured),
        "status says which mechanism holds"
    );
    let script = "for d in /held /home/user /free; do dd if=/dev/zero of=$d/big bs=1M count=20 2>/dev/null; echo $?; done; \
        rm /held/big; n=0; while touch /held/f$n 2>/dev/null; do n=$((n+1)); done; test $n -gt 500 -a $n -lt 2000 && echo bounded";
    let mut spec = node.container("p1", "c", &["sh", "-c", script]).await;
    spec.limits.layer_bytes = Some(8 << 20);
    let bind = |volume: &agent_sandbox_node::runtime::Volume, target: &str| Mount {
        source: MountSource::Data { path: volume.path.clone(), sub_path: None },
        target: target.into(),
        read_only: false,
    };
    spec.mounts = vec![bind(&held, "/held"), bind(&free, "/free")];
    node.run("p1", spec).await;
    // The last one is the control: the same command in a folder without a limit.
    assert_eq!(node.output("p1", "c"), "1\n1\n0\nbounded");
    let used = node.runtime.storage_usage("p1").await.unwrap();
    assert_eq!(used.layer_mechanism, StorageMechanism::ProjectQuota);
    assert!((4 << 20..=8 << 20).contains(&used.layers[0].1), "{used:?}");
    node.runtime.remove_pod("p1").await.unwrap();
    // A removed volume frees its space and its project id.
    node.runtime.remove_volume(&VolumeKey::Persistent { name: "held".into() }).await.unwrap();
    let again = node.runtime.ensure_volume(request("held", Some(8 << 20))).await.unwrap();
    assert_eq!(again.mechanism, StorageMechanism::ProjectQuota);
    assert_eq!(std::fs::read_dir(&again.path).unwrap().count(), 0);
    node.runtime.delete_owner_storage("owner-of-p1").await.unwrap();
    node.runtime.discard();
    drop(node);
    // Control: if the file system counts but does not enforce quotas, loop files enforce limits.
    drop(disk);
    let disk = WithQuotas::mount("loop");
    let data = disk.top().join("data");
    let node = Node::start_with(|config| config.data_dir.clone_from(&data)).await;
    let other = node.runtime.ensure_volume(request("held", Some(8 << 20))).await.unwrap();
    assert_eq!(other.mechanism, StorageMechanism::LoopFile);
    node.runtime.discard();
}

/// Moves the machine's clock by some seconds; needs root.
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
    let bench = Fixture::open().await;
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
        // Times of new containers follow the new clock.
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
