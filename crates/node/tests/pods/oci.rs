//! Pods isolated by another runtime of this machine, chosen by `runtimeClassName`: everything a Pod of the built-in
//! isolation has, as far as the convention allows.

use std::collections::BTreeSet;

use agent_sandbox_node::logs::LogOptions;
use agent_sandbox_node::runtime::{ExecRequest, TerminalSize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::bench::{Bench, LIMIT, Ran, is_root, key, plain, shell, terminated};

/// Whether a runtime can be tried here. Where everything is installed, its absence is a failure.
fn installed(program: &str) -> bool {
    let found = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"]
        .iter()
        .any(|folder| std::path::Path::new(folder).join(program).exists());
    assert!(found || std::env::var_os("CI").is_none(), "{program} must be installed where CI is set");
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// Runtimes give the streams they find to the sandbox's user: that must never be a device of the host.
fn owner_of_null() -> (u32, u32) {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata("/dev/null").unwrap();
    (found.uid(), found.gid())
}

/// Every group below one of our nodes, in any tree.
fn groups() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![(std::path::PathBuf::from("/sys/fs/cgroup"), false)];
    while let Some((folder, ours)) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if ours {
                    found.insert(entry.path().display().to_string());
                }
                let ours = ours || entry.file_name().to_string_lossy().starts_with("agent-sandbox-");
                folders.push((entry.path(), ours));
            }
        }
    }
    found
}

/// The groups that hold this container's processes, by its name, which no other test has.
fn groups_named(name: &str) -> Vec<String> {
    groups().into_iter().filter(|group| group.ends_with(&format!("/{name}"))).collect()
}

/// A Pod of another runtime that is ready, with what every such Pod must have.
struct Computer {
    bench: Bench,
    /// Of its only container, which no other test has.
    name: String,
    owner_of_null: (u32, u32),
}

impl Computer {
    /// A Pod of this runtime class; `None` where its program cannot be tried.
    async fn start(class: &str, program: &str) -> Option<Self> {
        if !is_root() || !installed(program) {
            return None;
        }
        let owner_of_null = owner_of_null();
        let bench = Bench::open().await;
        let name = format!("only-{program}-{}", std::process::id());
        let container = json!({"name": name, "image": "host", "resources": {"limits": {"memory": "256Mi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]});
        let spec = json!({"runtimeClassName": class, "containers": [container], "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "data", "emptyDir": {}}]});
        bench.create("p", json!({}), spec).await;
        bench.until_ready("p").await;
        Some(Self { bench, name, owner_of_null })
    }

    async fn output(&self, command: &[&str]) -> String {
        self.bench.output("p", &self.name, command).await
    }

    /// Commands, its name, its user, its volume and its network.
    async fn check(&self) {
        let failed = self.bench.exec("p", &self.name, &["sh", "-c", "echo out; echo err >&2; exit 3"]).await;
        assert_eq!(failed, Ran { code: 3, stdout: "out\n".into(), stderr: "err\n".into() });
        assert_eq!(self.output(&["hostname"]).await, "p\n");
        assert_eq!(self.output(&["id", "-u"]).await, "1000\n");
        assert_eq!(self.output(&["sh", "-c", "echo kept > /data/file && cat /data/file"]).await, "kept\n");
        let mut stream = self.bench.node.dial(&key("p"), 8888).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(LIMIT, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "the daemon answers in the Pod's network: {answer}");
    }

    /// Deletes the Pod; nothing of it may stay.
    async fn end(self) {
        assert!(!groups_named(&self.name).is_empty(), "control: its groups are found");
        self.bench.delete("p").await;
        assert_eq!(groups_named(&self.name), Vec::<String>::new(), "nothing is left of it");
        assert_eq!(owner_of_null(), self.owner_of_null, "the host's devices are as they were");
        self.bench.close().await;
    }
}

async fn a_whole_computer(program: &str) {
    let Some(computer) = Computer::start(program, program).await else { return };
    computer.check().await;
    let map = computer.output(&["cat", "/proc/self/uid_map"]).await;
    assert!(map.split_whitespace().nth(1).is_some_and(|first| first != "0"), "a user namespace: {map}");
    let status = computer.output(&["cat", "/proc/self/status"]).await;
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.trim().to_owned());
    assert_eq!(field("Seccomp:").as_deref(), Some("2"));
    assert_eq!(field("NoNewPrivs:").as_deref(), Some("1"));
    assert_eq!(field("CapBnd:").as_deref(), Some("0000000000000000"));
    computer.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_runc_is_a_whole_computer() {
    a_whole_computer("runc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_crun_is_a_whole_computer() {
    a_whole_computer("crun").await;
}

/// gVisor answers system calls itself: what programs see of a kernel is not this machine's.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_gvisor_has_a_kernel_of_its_own() {
    let Some(computer) = Computer::start("gvisor", "runsc").await else { return };
    computer.check().await;
    assert_ne!(computer.output(&["cat", "/proc/version"]).await, std::fs::read_to_string("/proc/version").unwrap());
    assert!(computer.output(&["dmesg"]).await.contains("gVisor"));
    computer.end().await;
}

async fn ends_are_reported(program: &str) {
    if !is_root() || !installed(program) {
        return;
    }
    let bench = Bench::open().await;
    let pod = |container: Value| {
        json!({"runtimeClassName": program, "restartPolicy": "Never", "containers": [container],
            "terminationGracePeriodSeconds": 1})
    };
    bench
        .create("code", plain(), pod(shell("echo one; echo two >&2; printf bye > /dev/termination-log; exit 7")))
        .await;
    let ended = terminated(&bench.until_phase("code", "Failed").await);
    assert_eq!((ended.exit_code, ended.message.as_deref()), (7, Some("bye")));
    let mut lines: Vec<String> =
        bench.logs("code", "main", false, LogOptions::default()).await.lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["one", "two"]);
    let missing = json!({"name": "main", "image": "host", "command": ["/no/such/program"]});
    bench.create("none", plain(), pod(missing)).await;
    let ended = terminated(&bench.until_phase("none", "Failed").await);
    assert_eq!(ended.reason.as_deref(), Some("StartError"));
    let mut hungry = shell("python3 -c 'x = bytearray(200 << 20)'; exit $?");
    hungry["resources"] = json!({"limits": {"memory": "64Mi"}});
    bench.create("oom", plain(), pod(hungry)).await;
    let ended = terminated(&bench.until_phase("oom", "Failed").await);
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (137, Some("OOMKilled")), "the limit is held: {ended:?}");
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_of_runc_containers_are_reported() {
    ends_are_reported("runc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_of_crun_containers_are_reported() {
    ends_are_reported("crun").await;
}

async fn terminals_work(program: &str) {
    if !is_root() || !installed(program) {
        return;
    }
    let bench = Bench::open().await;
    let mut container = shell("test -t 1 && echo terminal; sleep 1000");
    container["tty"] = true.into();
    let spec = json!({"runtimeClassName": program, "containers": [container], "terminationGracePeriodSeconds": 0});
    bench.create("p", plain(), spec).await;
    bench.until_ready("p").await;
    let shown = async {
        while !bench.logs("p", "main", false, LogOptions::default()).await.contains("terminal") {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, shown).await.expect("its own terminal, by the console socket");
    // runc passes the size on a moment after it has started the command.
    let command = "while [ \"$(stty size)\" = '0 0' ]; do sleep 0.02; done; stty size; exit 4";
    let request = ExecRequest {
        command: vec!["sh".into(), "-c".into(), command.into()],
        stdin: true,
        stdout: true,
        tty: true,
        size: Some(TerminalSize { rows: 31, columns: 97 }),
        ..ExecRequest::default()
    };
    let mut session = bench.node.exec(&key("p"), "main", request).await.unwrap();
    let mut text = String::new();
    let mut output = session.stdout.take().unwrap();
    let read = async { tokio::join!(output.read_to_string(&mut text), session.exit) };
    let (_, exit) = tokio::time::timeout(LIMIT, read).await.expect("the command ends");
    assert_eq!(exit.unwrap().code, 4);
    assert!(text.contains("31 97"), "{text:?}");
    bench.delete("p").await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminals_of_runc_work() {
    terminals_work("runc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminals_of_crun_work() {
    terminals_work("crun").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_is_not_installed_is_named_in_an_event() {
    if !is_root() {
        return;
    }
    let bench = Bench::open().await;
    bench.create("p", plain(), json!({"runtimeClassName": "no-such-runtime", "containers": [shell("true")]})).await;
    let message = bench.until_event("RuntimeClassUnavailable").await;
    assert!(message.contains("no-such-runtime") && message.contains("install"), "{message}");
    bench.close().await;
}
