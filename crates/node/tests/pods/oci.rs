//! Tests of Pods that run in an OCI runtime chosen by `runtimeClassName`: they have everything that Pods of the
//! built-in runtime have, as far as the OCI runtime specification allows.

use std::collections::BTreeSet;

use agent_sandbox_node::kubelet::logs::LogOptions;
use agent_sandbox_node::runtime::{ExecRequest, TerminalSize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{CommandOutput, Fixture, LIMIT, is_root, key, plain, shell, terminated};

/// Whether a runtime is installed. Its absence is a failure where `CI` is set; elsewhere the test is skipped.
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

/// The owner of `/dev/null`. OCI runtimes chown the standard streams to the container's user, which must never happen
/// to a device of the host.
fn owner_of_null() -> (u32, u32) {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata("/dev/null").unwrap();
    (found.uid(), found.gid())
}

/// Paths of all cgroups below those of our nodes, in all hierarchies.
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

/// The cgroups of a container, found by its name, which no other test uses.
fn groups_named(name: &str) -> Vec<String> {
    groups().into_iter().filter(|group| group.ends_with(&format!("/{name}"))).collect()
}

/// A ready Pod `p` of an OCI runtime.
struct OciPod {
    fixture: Fixture,
    /// Name of its only container, which no other test uses.
    name: String,
    owner_of_null: (u32, u32),
}

impl OciPod {
    /// Starts a Pod of this runtime class; `None` when the test has to be skipped.
    async fn start(class: &str, program: &str) -> Option<Self> {
        if !is_root() || !installed(program) {
            return None;
        }
        let owner_of_null = owner_of_null();
        let fixture = Fixture::open().await;
        let name = format!("only-{program}-{}", std::process::id());
        let container = json!({"name": name, "image": "host", "resources": {"limits": {"memory": "256Mi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]});
        let spec = json!({"runtimeClassName": class, "containers": [container], "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "data", "emptyDir": {}}]});
        fixture.create("p", json!({}), spec).await;
        fixture.until_ready("p").await;
        Some(Self { fixture, name, owner_of_null })
    }

    async fn output(&self, command: &[&str]) -> String {
        self.fixture.output("p", &self.name, command).await
    }

    /// Checks commands, host name, user, volume and network.
    async fn check(&self) {
        let failed = self.fixture.exec("p", &self.name, &["sh", "-c", "echo out; echo err >&2; exit 3"]).await;
        assert_eq!(failed, CommandOutput { code: 3, stdout: "out\n".into(), stderr: "err\n".into() });
        assert_eq!(self.output(&["hostname"]).await, "p\n");
        assert_eq!(self.output(&["id", "-u"]).await, "1000\n");
        assert_eq!(self.output(&["sh", "-c", "echo kept > /data/file && cat /data/file"]).await, "kept\n");
        let mut stream = self.fixture.node.dial(&key("p"), 8888).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut response = String::new();
        tokio::time::timeout(LIMIT, stream.read_to_string(&mut response)).await.unwrap().unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "sandboxd responds in the Pod's network: {response}");
    }

    /// Deletes the Pod and checks that nothing of it is left.
    async fn end(self) {
        assert!(!groups_named(&self.name).is_empty(), "control: its cgroups are found");
        self.fixture.delete("p").await;
        assert_eq!(groups_named(&self.name), Vec::<String>::new(), "nothing is left of it");
        assert_eq!(owner_of_null(), self.owner_of_null, "the host's devices are as they were");
        self.fixture.close().await;
    }
}

async fn check_oci_pod(program: &str) {
    let Some(pod) = OciPod::start(program, program).await else { return };
    pod.check().await;
    let map = pod.output(&["cat", "/proc/self/uid_map"]).await;
    assert!(map.split_whitespace().nth(1).is_some_and(|first| first != "0"), "a user namespace: {map}");
    let status = pod.output(&["cat", "/proc/self/status"]).await;
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).map(|v| v.trim().to_owned());
    assert_eq!(field("Seccomp:").as_deref(), Some("2"));
    assert_eq!(field("NoNewPrivs:").as_deref(), Some("1"));
    assert_eq!(field("CapBnd:").as_deref(), Some("0000000000000000"));
    pod.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_runc_has_everything_a_pod_needs() {
    check_oci_pod("runc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_crun_has_everything_a_pod_needs() {
    check_oci_pod("crun").await;
}

/// gVisor handles system calls itself: programs do not see the kernel of this machine.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_gvisor_has_a_kernel_of_its_own() {
    let Some(pod) = OciPod::start("gvisor", "runsc").await else { return };
    pod.check().await;
    assert_ne!(pod.output(&["cat", "/proc/version"]).await, std::fs::read_to_string("/proc/version").unwrap());
    assert!(pod.output(&["dmesg"]).await.contains("gVisor"));
    pod.end().await;
}

async fn check_exits(program: &str) {
    if !is_root() || !installed(program) {
        return;
    }
    let fixture = Fixture::open().await;
    let pod = |container: Value| {
        json!({"runtimeClassName": program, "restartPolicy": "Never", "containers": [container],
            "terminationGracePeriodSeconds": 1})
    };
    fixture
        .create("code", plain(), pod(shell("echo one; echo two >&2; printf bye > /dev/termination-log; exit 7")))
        .await;
    let ended = terminated(&fixture.until_phase("code", "Failed").await);
    assert_eq!((ended.exit_code, ended.message.as_deref()), (7, Some("bye")));
    let mut lines: Vec<String> =
        fixture.logs("code", "main", false, LogOptions::default()).await.lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["one", "two"]);
    let missing = json!({"name": "main", "image": "host", "command": ["/no/such/program"]});
    fixture.create("none", plain(), pod(missing)).await;
    let ended = terminated(&fixture.until_phase("none", "Failed").await);
    assert_eq!(ended.reason.as_deref(), Some("StartError"));
    let mut hungry = shell("python3 -c 'x = bytearray(200 << 20)'; exit $?");
    hungry["resources"] = json!({"limits": {"memory": "64Mi"}});
    fixture.create("oom", plain(), pod(hungry)).await;
    let ended = terminated(&fixture.until_phase("oom", "Failed").await);
    assert_eq!(
        (ended.exit_code, ended.reason.as_deref()),
        (137, Some("OOMKilled")),
        "the limit is enforced: {ended:?}"
    );
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exits_of_runc_containers_are_reported() {
    check_exits("runc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exits_of_crun_containers_are_reported() {
    check_exits("crun").await;
}

async fn check_terminals(program: &str) {
    if !is_root() || !installed(program) {
        return;
    }
    let fixture = Fixture::open().await;
    let mut container = shell("test -t 1 && echo terminal; sleep 1000");
    container["tty"] = true.into();
    let spec = json!({"runtimeClassName": program, "containers": [container], "terminationGracePeriodSeconds": 0});
    fixture.create("p", plain(), spec).await;
    fixture.until_ready("p").await;
    let shown = async {
        while !fixture.logs("p", "main", false, LogOptions::default()).await.contains("terminal") {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, shown).await.expect("its own terminal, by the console socket");
    // runc sets the terminal size shortly after it has started the command.
    let command = "while [ \"$(stty size)\" = '0 0' ]; do sleep 0.02; done; stty size; exit 4";
    let request = ExecRequest {
        command: vec!["sh".into(), "-c".into(), command.into()],
        stdin: true,
        stdout: true,
        tty: true,
        size: Some(TerminalSize { rows: 31, columns: 97 }),
        ..ExecRequest::default()
    };
    let mut session = fixture.node.exec(&key("p"), "main", request).await.unwrap();
    let mut text = String::new();
    let mut output = session.stdout.take().unwrap();
    let read = async { tokio::join!(output.read_to_string(&mut text), session.exit) };
    let (_, exit) = tokio::time::timeout(LIMIT, read).await.expect("the command ends");
    assert_eq!(exit.unwrap().code, 4);
    assert!(text.contains("31 97"), "{text:?}");
    fixture.delete("p").await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminals_of_runc_work() {
    check_terminals("runc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminals_of_crun_work() {
    check_terminals("crun").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_is_not_installed_is_named_in_an_event() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    fixture.create("p", plain(), json!({"runtimeClassName": "no-such-runtime", "containers": [shell("true")]})).await;
    let message = fixture.until_event("RuntimeClassUnavailable").await;
    assert!(message.contains("no-such-runtime") && message.contains("install"), "{message}");
    fixture.close().await;
}
