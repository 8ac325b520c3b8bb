//! Snapshots: sealed and copied layers, forks with other user ids, going back, and what is removed.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use agent_sandbox_node::kernel::{SnapshotRequest, SnapshotTaken};
use agent_sandbox_node::runtime::{PodRuntime, PodSandboxSpec, RuntimeError, SnapshotOrigin, chain};

use crate::fixture::{DEADLINE, Node, is_root, pod};

fn of(uid: &str, owner: &str) -> PodSandboxSpec {
    PodSandboxSpec { owner: owner.into(), ..pod(uid) }
}

fn from_snapshot(uid: &str, owner: &str, name: &str, restored_at: &str) -> PodSandboxSpec {
    let origin = SnapshotOrigin { name: name.into(), restored_at: restored_at.into() };
    PodSandboxSpec { snapshot: Some(origin), ..of(uid, owner) }
}

async fn take(node: &Node, owner: &str, name: &str) -> Result<SnapshotTaken, RuntimeError> {
    let request = SnapshotRequest {
        namespace: "default".into(),
        name: name.into(),
        uid: format!("uid-of-{name}"),
        owner: owner.into(),
    };
    node.runtime.take_snapshot(request).await
}

/// Runs a script in a Pod's container and returns what it prints.
async fn script(node: &Node, pod: &str, attempt: u32, script: &str) -> String {
    let mut container = node.container(pod, "c", &["sh", "-c", script]).await;
    container.attempt = attempt;
    node.run(pod, container).await;
    node.output(pod, "c")
}

fn sealed_layers(node: &Node) -> usize {
    std::fs::read_dir(node.data().join("sealed")).unwrap().count()
}

const SHOW: &str = "cd /home/user; cat kept second 2>/dev/null; ls -d gone 2>/dev/null; stat -c '%u %a' kept";

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_sandbox_is_sealed_and_forked_under_other_ids() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let parent = node.runtime.create_pod(of("p1", "parent")).await.unwrap();
    script(&node, "p1", 0, "cd /home/user; echo one > kept; chmod 640 kept; mkdir gone").await;
    node.runtime.remove_pod("p1").await.unwrap();
    let taken = take(&node, "parent", "first").await.unwrap();
    assert_eq!(taken.frozen, None, "nothing ran");
    assert_eq!(take(&node, "parent", "first").await.unwrap(), taken, "a repeated request is the same snapshot");
    assert_eq!(sealed_layers(&node), 1);

    // The parent goes on, and does not change the snapshot.
    let again = node.runtime.create_pod(of("p2", "parent")).await.unwrap();
    assert_eq!(parent.first_host_id, again.first_host_id);
    let change = format!("{SHOW}; echo two > second; echo changed > kept; rmdir gone");
    assert_eq!(script(&node, "p2", 0, &change).await, "one\ngone\n1000 640");

    let mut ids = vec![parent.first_host_id];
    for fork in ["f1", "f2"] {
        let made = node.runtime.create_pod(from_snapshot(fork, &format!("owner-{fork}"), "first", "")).await.unwrap();
        ids.push(made.first_host_id);
        assert_eq!(script(&node, fork, 0, SHOW).await, "one\ngone\n1000 640", "as the parent was");
        let write = "cd /home/user; echo fork > kept && rmdir gone && echo written";
        assert!(script(&node, fork, 1, write).await.ends_with("written"), "a fork writes to files of the snapshot");
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 3, "every fork has user ids of its own");

    // A fork keeps its files when its Pod is made anew, and loses them when it is set back.
    node.runtime.remove_pod("f1").await.unwrap();
    node.runtime.create_pod(from_snapshot("f1-b", "owner-f1", "first", "")).await.unwrap();
    assert_eq!(script(&node, "f1-b", 0, SHOW).await, "fork\n1000 640");
    node.runtime.remove_pod("f1-b").await.unwrap();
    node.runtime.create_pod(from_snapshot("f1-c", "owner-f1", "first", "later")).await.unwrap();
    assert_eq!(script(&node, "f1-c", 0, SHOW).await, "one\ngone\n1000 640");

    // Another sandbox of the owner's namespace names a snapshot that does not exist.
    node.runtime.create_pod(from_snapshot("f3", "owner-f3", "unknown", "")).await.unwrap();
    let container = node.container("f3", "c", &["true"]).await;
    let refused = chain(&node.runtime.start_container("f3", container).await.unwrap_err());
    assert!(refused.contains("no snapshot \"unknown\" in namespace default"), "{refused}");

    // Neither the snapshot nor its parent has to exist for the forks to go on.
    node.runtime.remove_snapshot("default", "first", "uid-of-first").await.unwrap();
    for (pod, owner) in [("p2", "parent"), ("f1-c", "owner-f1"), ("f3", "owner-f3")] {
        node.runtime.remove_pod(pod).await.unwrap();
        node.runtime.delete_owner_storage(owner).await.unwrap();
    }
    assert_eq!(sealed_layers(&node), 1, "the second fork still has it");
    assert!(script(&node, "f2", 2, SHOW).await.ends_with("written\nfork\n1000 640"));
    node.runtime.remove_pod("f2").await.unwrap();
    node.runtime.delete_owner_storage("owner-f2").await.unwrap();
    assert_eq!(sealed_layers(&node), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_sandbox_is_frozen_for_a_moment_and_every_acknowledged_write_is_in_the_snapshot() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    node.runtime.create_pod(of("p1", "parent")).await.unwrap();
    // Appends to a file and replaces another one by rename; reports each step after both.
    let writer =
        "cd /home/user; i=0; while :; do i=$((i+1)); echo $i >> log; echo $i > new; mv new last; echo $i; done";
    let container = node.container("p1", "c", &["sh", "-c", writer]).await;
    node.runtime.start_container("p1", container).await.unwrap();
    let reported = |node: &Node| node.output("p1", "c").lines().last().and_then(|line| line.parse().ok()).unwrap_or(0);
    while reported(&node) < 100 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut previous = 0u64;
    for number in 0..3 {
        let before: u64 = reported(&node);
        let name = format!("s{number}");
        let taken = take(&node, "parent", &name).await.unwrap();
        assert!(taken.frozen.is_some_and(|frozen| frozen < Duration::from_secs(5)), "{taken:?}");
        let fork = format!("f{number}");
        node.runtime.create_pod(from_snapshot(&fork, &fork, &name, "")).await.unwrap();
        let output = script(&node, &fork, 0, "cd /home/user; tail -n 1 log; cat last; wc -l < log").await;
        let found: Vec<u64> = output.lines().map(|line| line.trim().parse().unwrap()).collect();
        let [log, last, lines] = found[..] else { panic!("{output}") };
        assert!(log >= before && lines == log && (last == log || last + 1 == log), "{before} acknowledged: {output}");
        assert!(log > previous, "the sandbox went on after the snapshot before");
        previous = log;
    }
    let at_the_end: u64 = reported(&node);
    assert!(at_the_end >= previous, "it still runs");
    for uid in ["p1", "f0", "f1", "f2"] {
        node.runtime.remove_pod(uid).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_keeps_snapshots_and_thaws_what_it_froze() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    node.runtime.create_pod(of("p1", "parent")).await.unwrap();
    script(&node, "p1", 0, "echo one > /home/user/kept; chmod 640 /home/user/kept").await;
    let sleeper = node.container("p1", "d", &["sleep", "1000"]).await;
    node.runtime.start_container("p1", sleeper).await.unwrap();
    take(&node, "parent", "first").await.unwrap();
    // As a node leaves it that dies while it copies.
    let plan = std::fs::read(node.data().join("pods/p1/plan.json")).unwrap();
    let plan: serde_json::Value = serde_json::from_slice(&plan).unwrap();
    let freeze = std::path::Path::new(plan["plan"]["cgroup"]["unified"].as_str().unwrap()).join("cgroup.freeze");
    std::fs::write(&freeze, "1").unwrap();
    let node = node.restart().await;
    node.runtime.list().await.unwrap();
    assert_eq!(std::fs::read_to_string(&freeze).unwrap().trim(), "0");
    node.runtime.create_pod(from_snapshot("f1", "f1", "first", "")).await.unwrap();
    assert_eq!(script(&node, "f1", 0, SHOW).await, "one\n1000 640");
    for uid in ["p1", "f1"] {
        node.runtime.remove_pod(uid).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_replaced_and_files_deleted_through_several_snapshots_stay_so() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let steps = [
        "cd /home/user; mkdir -p d/e; echo 1 > d/e/f; echo 1 > a; ln a b",
        "cd /home/user; rm -r d; mkdir d; echo 2 > d/new; rm a",
        "cd /home/user; mv d moved; echo 3 > a; echo 3 >> b",
    ];
    for (number, step) in steps.iter().enumerate() {
        let uid = format!("p{number}");
        node.runtime.create_pod(of(&uid, "parent")).await.unwrap();
        script(&node, &uid, 0, step).await;
        node.runtime.remove_pod(&uid).await.unwrap();
        take(&node, "parent", &format!("s{number}")).await.unwrap();
    }
    let expected = ["a b d/e/f | 1 1", "b d/new | 1", "a b moved/new | 3 1 3"];
    for (number, expected) in expected.into_iter().enumerate() {
        let uid = format!("f{number}");
        node.runtime.create_pod(from_snapshot(&uid, &uid, &format!("s{number}"), "")).await.unwrap();
        let list = "cd /home/user; echo $(find . -type f -not -path './.*' -printf '%P\\n' | sort) '|' $(cat a 2>/dev/null; cat b)";
        assert_eq!(script(&node, &uid, 0, list).await, expected, "snapshot {number}");
        node.runtime.remove_pod(&uid).await.unwrap();
    }
}

/// Blocks every open of a file until it is dropped.
struct OpenGate(File);

impl OpenGate {
    #[expect(unsafe_code, reason = "fanotify has no safe interface here")]
    fn on(path: &Path) -> Self {
        let flags = libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC;
        // SAFETY: takes no pointers.
        let group = unsafe { libc::fanotify_init(flags, libc::O_RDONLY as u32) };
        assert!(group >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: a new descriptor that nothing else owns.
        let group = unsafe { File::from_raw_fd(group) };
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&group);
        // SAFETY: the name lives until the call returns.
        let marked =
            unsafe { libc::fanotify_mark(fd, libc::FAN_MARK_ADD, libc::FAN_OPEN_PERM, libc::AT_FDCWD, name.as_ptr()) };
        assert_eq!(marked, 0, "{}", std::io::Error::last_os_error());
        Self(group)
    }

    /// Waits until something tries to open the file; returns what lets it go on.
    fn wait(&mut self) -> [u8; 8] {
        let mut waiting = [rustix::event::PollFd::from_borrowed_fd(self.0.as_fd(), rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut waiting, Some(&limit)).unwrap(), 1, "nothing opens the file");
        let mut event = [0; 24];
        assert_eq!(self.0.read(&mut event).unwrap(), event.len());
        let [.., a, b, c, d, _, _, _, _] = event;
        let [e, f, g, h] = libc::FAN_ALLOW.to_ne_bytes();
        [a, b, c, d, e, f, g, h]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_sandboxes_start_and_are_deleted_while_files_are_copied() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    node.runtime.create_pod(of("p1", "parent")).await.unwrap();
    script(&node, "p1", 0, "echo one > /home/user/kept; chmod 640 /home/user/kept").await;
    let mut gate = OpenGate::on(&node.data().join("layers/parent/c/upper/home/user/kept"));
    let taken = {
        let taking = take(&node, "parent", "first");
        let others = async {
            let (go_on, gate) = tokio::task::spawn_blocking(move || (gate.wait(), gate)).await.unwrap();
            node.runtime.create_pod(of("p2", "other")).await.unwrap();
            let going_on = async {
                assert_eq!(script(&node, "p2", 0, "echo started").await, "started");
                node.runtime.remove_pod("p2").await.unwrap();
                // Removes the layers that nothing uses, and must not take the one that is being made.
                node.runtime.delete_owner_storage("other").await.unwrap();
            };
            let gone_on = tokio::time::timeout(DEADLINE, going_on).await;
            (&gate.0).write_all(&go_on).unwrap();
            drop(gate);
            gone_on.expect("sandboxes start and are deleted while files are copied");
        };
        let (taken, ()) = tokio::join!(taking, others);
        taken.unwrap()
    };
    assert!(taken.frozen.is_some());
    node.runtime.create_pod(from_snapshot("f1", "f1", "first", "")).await.unwrap();
    assert_eq!(script(&node, "f1", 0, SHOW).await, "one\n1000 640");
    for uid in ["p1", "f1"] {
        node.runtime.remove_pod(uid).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_fails_leaves_no_layer() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    node.runtime.create_pod(of("p1", "parent")).await.unwrap();
    let nest = "cd /home/user; i=0; while [ $i -lt 410 ]; do mkdir d; cd d; i=$((i+1)); done; echo made";
    assert_eq!(script(&node, "p1", 0, nest).await, "made");
    let failed = chain(&take(&node, "parent", "first").await.unwrap_err());
    assert!(failed.contains("nested more than 400 deep"), "{failed}");
    assert_eq!(sealed_layers(&node), 0);
    node.runtime.remove_pod("p1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_with_as_many_layers_as_are_mounted_is_refused_and_can_still_start() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    node.runtime.create_pod(of("p1", "parent")).await.unwrap();
    script(&node, "p1", 0, "echo one > /home/user/kept; chmod 640 /home/user/kept").await;
    node.runtime.remove_pod("p1").await.unwrap();
    let upper = node.data().join("layers/parent/c/upper");
    for number in 0..40 {
        take(&node, "parent", &format!("s{number}")).await.unwrap();
        take(&node, "parent", &format!("s{number}-unchanged")).await.unwrap();
        assert_eq!(sealed_layers(&node), number + 1, "a snapshot without changes adds no layer");
        std::fs::write(upper.join(number.to_string()), "changed").unwrap();
    }
    let refused = take(&node, "parent", "one-more").await.unwrap_err();
    assert!(matches!(refused, RuntimeError::Refused(_)), "{refused:?}");
    assert!(chain(&refused).contains("40 layers from earlier snapshots"), "{refused:?}");
    node.runtime.create_pod(of("p2", "parent")).await.unwrap();
    assert_eq!(script(&node, "p2", 0, SHOW).await, "one\n1000 640");
    node.runtime.remove_pod("p2").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_was_taken_without_root_is_refused_and_the_sandbox_keeps_its_files() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    node.runtime.create_pod(of("p1", "parent")).await.unwrap();
    script(&node, "p1", 0, "echo one > /home/user/kept; chmod 640 /home/user/kept").await;
    node.runtime.remove_pod("p1").await.unwrap();
    take(&node, "parent", "first").await.unwrap();
    let layer = std::fs::read_dir(node.data().join("sealed")).unwrap().next().unwrap().unwrap().path();
    let described = std::fs::read_to_string(layer.join("sealed.json")).unwrap();
    assert!(described.contains("trusted"), "{described}");
    std::fs::write(layer.join("sealed.json"), described.replace("trusted", "user")).unwrap();
    node.runtime.create_pod(of("p2", "other")).await.unwrap();
    script(&node, "p2", 0, "echo other > /home/user/kept; chmod 640 /home/user/kept").await;
    node.runtime.remove_pod("p2").await.unwrap();
    node.runtime.create_pod(from_snapshot("p3", "other", "first", "now")).await.unwrap();
    let container = node.container("p3", "c", &["true"]).await;
    let refused = node.runtime.start_container("p3", container).await.unwrap_err();
    assert!(matches!(refused, RuntimeError::Refused(_)), "{refused:?}");
    assert!(chain(&refused).contains("taken without root, and this node runs with"), "{refused:?}");
    node.runtime.remove_pod("p3").await.unwrap();
    node.runtime.create_pod(of("p4", "other")).await.unwrap();
    assert_eq!(script(&node, "p4", 0, SHOW).await, "other\n1000 640");
    node.runtime.remove_pod("p4").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_sandbox_with_a_size_limit_keeps_the_layers_below_after_a_restart() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let limited = async |node: &Node, pod: &str, script: &str| {
        let mut container = node.container(pod, "c", &["sh", "-c", script]).await;
        container.limits.layer_bytes = Some(16 << 20);
        node.run(pod, container).await;
        node.output(pod, "c")
    };
    node.runtime.create_pod(of("p1", "parent")).await.unwrap();
    limited(&node, "p1", "echo one > /home/user/kept; chmod 640 /home/user/kept").await;
    node.runtime.remove_pod("p1").await.unwrap();
    take(&node, "parent", "first").await.unwrap();
    node.runtime.create_pod(from_snapshot("f1", "fork", "first", "")).await.unwrap();
    assert_eq!(limited(&node, "f1", SHOW).await, "one\n1000 640");
    node.runtime.remove_pod("f1").await.unwrap();
    node.runtime.remove_snapshot("default", "first", "uid-of-first").await.unwrap();
    // Unmounts the file systems of layers with a limit.
    node.runtime.close();
    let node = node.restart().await;
    node.runtime.list().await.unwrap();
    node.runtime.delete_owner_storage("parent").await.unwrap();
    assert_eq!(sealed_layers(&node), 1);
    take(&node, "fork", "second").await.unwrap();
    node.runtime.create_pod(from_snapshot("f2", "fork", "first", "")).await.unwrap();
    assert_eq!(limited(&node, "f2", SHOW).await, "one\n1000 640");
    node.runtime.remove_pod("f2").await.unwrap();
}
