//! The life of a Pod: create, run, exec, attach, remove.

use agent_sandbox_node::runtime::{PodRuntime, RuntimeError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{DEADLINE, Node, pod, runs_as_root};

#[tokio::test(flavor = "multi_thread")]
async fn a_container_runs_isolated_and_everything_is_gone_afterwards() {
    let node = Node::start().await;
    let sandbox = node.runtime.create_pod(pod("p1")).await.unwrap();
    assert!(!runs_as_root() || sandbox.id_count == 65_536);
    let script =
        "id -u; cat /proc/1/comm; hostname; cat /proc/self/uid_map; ls /; touch /home/user/x && echo wrote; exit 7";
    let exit = node.run("p1", node.container("p1", "c", &["sh", "-c", script]).await).await;
    let output = node.output("p1", "c");
    assert_eq!((exit.code, exit.signal), (7, None), "{output}");
    let lines: Vec<_> = output.lines().collect();
    assert_eq!(lines[..3], ["1000", "sh", "sandbox"], "{output}");
    let first = sandbox.first_host_id.to_string();
    let map: &[&str] = match sandbox.id_count {
        65_536 => &["0", &first, "65536"],
        // As seen by the set-up process, which has left the host's user namespace.
        1 => &["1000", "0", "1"],
        _ => &["0", "1", "2047"],
    };
    assert!(lines[3].split_whitespace().eq(map.iter().copied()), "{output}");
    assert!(output.contains("wrote"), "{output}");
    node.runtime.remove_pod("p1").await.unwrap();
    assert!(!node.data().join("pods/p1").exists());
    assert!(
        std::fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .lines()
            .all(|l| !l.contains(node.data().to_str().unwrap()))
    );
    assert!(node.runtime.state("p1").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_in_a_running_container() {
    let node = Node::start().await;
    node.runtime.create_pod(pod("p1")).await.unwrap();
    let spec = node.container("p1", "c", &["sleep", "1000"]).await;
    node.runtime.start_container("p1", spec).await.unwrap();
    let (code, out, err) =
        node.exec("p1", "c", &["sh", "-c", "echo out; echo err >&2; cat /proc/1/comm; exit 3"]).await;
    assert_eq!((code, out.as_str(), err.as_str()), (3, "out\nsleep\n", "err\n"));
    let (_, out, _) = node.exec("p1", "c", &["cat", "/proc/self/status"]).await;
    let field = |name: &str| {
        out.lines().find_map(|line| line.strip_prefix(name)).map(|v| v.trim().to_owned()).unwrap_or_default()
    };
    assert_eq!(field("CapBnd:"), "0000000000000000");
    assert_eq!(field("CapPrm:"), "0000000000000000");
    assert_eq!((field("NoNewPrivs:").as_str(), field("Seccomp:").as_str()), ("1", "2"));
    let missing = node
        .runtime
        .exec(
            "p1",
            "c",
            agent_sandbox_node::runtime::ExecRequest { command: vec!["no-such".into()], ..Default::default() },
        )
        .await;
    assert!(matches!(missing, Err(RuntimeError::CannotRun { .. })), "{missing:?}");
    node.runtime.remove_pod("p1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_a_terminal_of_the_container() {
    let node = Node::start().await;
    node.runtime.create_pod(pod("p1")).await.unwrap();
    let spec = node.container("p1", "c", &["sleep", "1000"]).await;
    node.runtime.start_container("p1", spec).await.unwrap();
    let request = agent_sandbox_node::runtime::ExecRequest {
        command: vec!["sh".into(), "-c".into(), "tty; stty size; read line; echo got $line".into()],
        stdin: true,
        stdout: true,
        tty: true,
        size: Some(agent_sandbox_node::runtime::TerminalSize { rows: 40, columns: 123 }),
        ..Default::default()
    };
    let mut session = node.runtime.exec("p1", "c", request).await.unwrap();
    session.stdin.as_mut().unwrap().write_all(b"hello\n").await.unwrap();
    let mut out = String::new();
    tokio::time::timeout(DEADLINE, session.stdout.as_mut().unwrap().read_to_string(&mut out)).await.unwrap().unwrap();
    assert!(out.contains("/dev/pts/0") && out.contains("40 123") && out.contains("got hello"), "{out:?}");
    assert_eq!(session.exit.await.unwrap().code, 0);
    node.runtime.remove_pod("p1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loopback_port_inside_is_dialled_from_outside() {
    let node = Node::start().await;
    node.runtime.create_pod(pod("p1")).await.unwrap();
    let server = "import socket; s=socket.create_server(('127.0.0.1', 80)); print('up', flush=True); c,_=s.accept(); c.sendall(b'from inside'); c.close()";
    let spec = node.container("p1", "c", &["python3", "-c", server]).await;
    node.runtime.start_container("p1", spec).await.unwrap();
    let dial = async {
        loop {
            match node.runtime.dial("p1", 80).await {
                Ok(stream) => return stream,
                Err(RuntimeError::Kernel { .. }) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let mut stream = tokio::time::timeout(DEADLINE, dial).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "from inside");
    node.runtime.remove_pod("p1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_finds_its_pods_and_what_ended_meanwhile() {
    let node = Node::start().await;
    node.runtime.create_pod(pod("p1")).await.unwrap();
    let spec = node.container("p1", "stays", &["sleep", "1000"]).await;
    let before = node.runtime.start_container("p1", spec).await.unwrap();
    let spec = node.container("p1", "ends", &["sh", "-c", "sleep 0.3; echo last words; exit 9"]).await;
    node.runtime.start_container("p1", spec).await.unwrap();
    let node = node.restart().await;
    let mut events = node.runtime.events();
    let listed = node.runtime.list().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(listed[0].alive);
    let ended = listed[0].containers.iter().find(|c| c.name == "ends").unwrap();
    if ended.exit.is_none() {
        node.exit_of(&mut events, "p1", "ends", 0).await;
    }
    assert_eq!(node.state("p1", "ends").await.exit.unwrap().code, 9);
    assert_eq!(node.output("p1", "ends"), "last words");
    assert_eq!(node.state("p1", "stays").await, before);
    assert_eq!(node.exec("p1", "stays", &["echo", "still here"]).await.1, "still here\n");
    node.runtime.remove_pod("p1").await.unwrap();
}

/// A command without standard error gets /dev/null, which must keep its owner, the host's root.
#[tokio::test(flavor = "multi_thread")]
async fn the_owner_of_the_hosts_devices_never_changes() {
    use std::os::unix::fs::MetadataExt;
    let owner = || std::fs::metadata("/dev/null").map(|found| (found.uid(), found.gid(), found.mode())).unwrap();
    let node = Node::start().await;
    let before = owner();
    let uid = "devices";
    node.runtime.create_pod(pod(uid)).await.unwrap();
    node.runtime.start_container(uid, node.container(uid, "c", &["sleep", "100"]).await).await.unwrap();
    let request = agent_sandbox_node::runtime::ExecRequest {
        command: vec!["sh".into(), "-c".into(), "chmod 000 /proc/self/fd/2 2>&1; true".into()],
        stdout: true,
        ..Default::default()
    };
    let session = node.runtime.exec(uid, "c", request).await.unwrap();
    assert_eq!(session.exit.await.unwrap().code, 0);
    assert_eq!(owner(), before);
    node.runtime.remove_pod(uid).await.unwrap();
}

/// Writes to an attachment are the container's input, its output is copied back, and the first client's end of input
/// ends the container's.
#[tokio::test(flavor = "multi_thread")]
async fn an_attachment_talks_to_the_first_process() {
    let node = Node::start().await;
    let uid = "attach";
    node.runtime.create_pod(pod(uid)).await.unwrap();
    let mut spec = node.container(uid, "c", &["sh", "-c", "while read line; do echo got $line; done; exit 5"]).await;
    (spec.stdin, spec.stdin_once) = (true, true);
    node.runtime.start_container(uid, spec).await.unwrap();
    let request = agent_sandbox_node::runtime::AttachRequest { stdin: true, stdout: true, stderr: false };
    let mut session = node.runtime.attach(uid, "c", request).await.unwrap();
    let mut input = session.stdin.take().unwrap();
    input.write_all(b"one\ntwo\n").await.unwrap();
    let mut buffer = [0; 16];
    tokio::time::timeout(DEADLINE, session.stdout.as_mut().unwrap().read_exact(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(&buffer, b"got one\ngot two\n");
    drop(input);
    let exit = tokio::time::timeout(DEADLINE, session.exit).await.unwrap().unwrap();
    assert_eq!(exit.code, 5);
    assert_eq!(node.output(uid, "c"), "got one\ngot two", "the log has it too");
    node.runtime.remove_pod(uid).await.unwrap();
}
