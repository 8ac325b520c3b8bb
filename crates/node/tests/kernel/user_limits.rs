//! What the kernel counts per user or for the whole machine: one sandbox takes all that it gets, and the host's root,
//! the caller and a second sandbox are not affected.

use agent_sandbox_node::runtime::{Mount, MountSource, PodRuntime, WeaknessKind};

use crate::escape::attempts_program;
use crate::fixture::{DEADLINE, Node, pod, runs_as_root};

/// Names of the attempts: the one that takes all, and the one that takes one.
const COUNTED: [(&str, &str); 3] =
    [("hold-inotify", "inotify"), ("hold-timers", "timer"), ("hold-terminals", "terminal")];

/// Starts a container that runs one attempt.
async fn start(node: &Node, uid: &str, command: &[&str]) {
    node.runtime.create_pod(pod(uid)).await.unwrap();
    let mut spec = node.container(uid, "c", command).await;
    let source = MountSource::Host { path: attempts_program() };
    spec.mounts.push(Mount { source, target: "/attempt".into(), read_only: true });
    node.runtime.start_container(uid, spec).await.unwrap();
}

/// Waits until a container holds all that it gets; returns their number and the error that ended it.
async fn held(node: &Node, uid: &str) -> (u64, i32) {
    let wait = async {
        loop {
            let output = node.output(uid, "c");
            if let Some((number, errno)) = output.strip_prefix("held ").and_then(|rest| rest.split_once(" errno ")) {
                return (number.parse().unwrap(), errno.trim().parse().unwrap());
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("the kernel gives no more at some point")
}

/// One attempt on the host, as the user that runs this test.
fn on_the_host(name: &str) -> String {
    let output = std::process::Command::new(attempts_program()).arg(name).output().unwrap();
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_takes_all_affects_nobody_else() {
    let node = Node::start().await;
    start(&node, "second", &["sleep", "1000"]).await;
    for (all, one) in COUNTED {
        start(&node, all, &["/attempt", all]).await;
        let (number, errno) = held(&node, all).await;
        let expected = match one {
            "inotify" => libc::EMFILE,
            "timer" => libc::EAGAIN,
            _ => libc::ENOSPC,
        };
        assert_eq!(errno, expected, "{all}: {number}");
        assert!(number > 0 && (one != "terminal" || number == 128), "{all}: {number}");
        assert_eq!(on_the_host(one), "ok", "{one} on the host after {number} inside");
        let (_, _, inside) = node.exec("second", "c", &["/attempt", one]).await;
        assert_eq!(inside.trim(), "ok", "{one} in the second sandbox after {number} in the first");
        let (_, _, inside) = node.exec(all, "c", &["/attempt", one]).await;
        assert_eq!(inside.trim(), format!("errno {expected}"), "control: in the same sandbox no {one} is left");
        node.runtime.remove_pod(all).await.unwrap();
    }
    node.runtime.remove_pod("second").await.unwrap();
    let reported = node.runtime.weaknesses().iter().any(|weak| weak.kind == WeaknessKind::SharedUserLimits);
    assert_eq!(reported, !runs_as_root(), "without root the caller is told that they are counted together");
}
