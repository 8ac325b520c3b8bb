//! The escape tests: every attempt fails with full isolation, and the same attempt succeeds once the layers that stop
//! it are disabled (the control), which shows that the attempt is a real one.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use agent_sandbox_node::kernel::Isolation;
use agent_sandbox_node::runtime::{Mount, MountSource, PodRuntime};

use crate::fixture::{Node, is_root, pod, runs_as_root};

/// Disables the layers of isolation for a control.
type Without = fn(&mut Isolation);

struct Attempt {
    name: &'static str,
    argument: String,
    /// Run as root of the sandbox instead of its ordinary user.
    as_root: bool,
    without: Without,
    control: Control,
}

/// For whom the control of an attempt succeeds. For all others the kernel refuses it even without our isolation, and
/// the test shows that it does.
#[derive(Clone, Copy)]
enum Control {
    AnyUser,
    /// Needs privileges over the Pod's own namespaces. With a single id, the sandbox's root is root of a nested user
    /// namespace only.
    WithIdBlock,
    /// Succeeds for the host's root only; the text is the reason.
    RootOnly(&'static str),
}

impl Control {
    fn succeeds(self, ids: u32) -> bool {
        match self {
            Self::AnyUser => true,
            Self::WithIdBlock => ids > 1,
            Self::RootOnly(_) => runs_as_root(),
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::RootOnly(why) => why,
            _ => "it has one id",
        }
    }
}

fn attempt(name: &'static str, argument: impl Into<String>, without: Without) -> Attempt {
    Attempt { name, argument: argument.into(), as_root: true, without, control: Control::AnyUser }
}

impl Attempt {
    fn with_id_block(self) -> Self {
        Self { control: Control::WithIdBlock, ..self }
    }

    fn root_only(self, why: &'static str) -> Self {
        Self { control: Control::RootOnly(why), ..self }
    }
}

/// The sandbox runs as the host's root with all capabilities: only mount and pid namespaces are left.
fn privileged(isolation: &mut Isolation) {
    isolation.user_namespace = false;
    isolation.capabilities = false;
    isolation.seccomp = false;
    isolation.landlock = false;
    isolation.masks = false;
}

/// Runs one attempt and returns its output.
async fn run(isolation: Isolation, attempt: &Attempt) -> String {
    run_with_ids(isolation, attempt).await.0
}

/// As [`run`], with the number of ids that the Pod had: if there are few, other Pods may have them all.
async fn run_with_ids(isolation: Isolation, attempt: &Attempt) -> (String, u32) {
    let node = Node::start_with(|config| config.isolation = isolation).await;
    let ids = match node.runtime.create_pod(pod("escape")).await {
        Ok(sandbox) => sandbox.id_count,
        Err(error) => return (format!("errno of the Pod itself: {error}"), 0),
    };
    let mut spec = node.container("escape", "c", &["/attempt", attempt.name, &attempt.argument]).await;
    spec.mounts.push(Mount {
        source: MountSource::Host { path: attempts_program() },
        target: "/attempt".into(),
        read_only: true,
    });
    if !isolation.private_root {
        // The host's own tree has no such mount point.
        spec.mounts.clear();
        spec.command[0] = attempts_program().to_str().unwrap().to_owned();
    }
    spec.working_dir = "/".into();
    if attempt.as_root {
        spec.user.user = "0".into();
    }
    let mut events = node.runtime.events();
    let output = match node.runtime.start_container("escape", spec).await {
        Ok(_) => {
            node.exit_of(&mut events, "escape", "c", 0).await;
            node.output("escape", "c")
        }
        Err(error) => format!("errno of the start: {error}"),
    };
    node.runtime.remove_pod("escape").await.unwrap();
    (output, ids)
}

pub(crate) fn attempts_program() -> std::path::PathBuf {
    let program: std::path::PathBuf =
        std::env::var_os("NODE_ATTEMPTS").map_or_else(|| env!("CARGO_BIN_EXE_escape-attempts").into(), Into::into);
    program.canonicalize().unwrap()
}

async fn check(list: &[Attempt]) {
    for attempt in list {
        let (name, argument) = (attempt.name, &attempt.argument);
        let isolated = run(Isolation::ALL, attempt).await;
        assert!(is_refusal(&isolated) && !isolated.contains(" of the "), "{name} {argument} escaped: {isolated}");
        let mut isolation = Isolation::ALL;
        (attempt.without)(&mut isolation);
        let (control, ids) = run_with_ids(isolation, attempt).await;
        if attempt.control.succeeds(ids) {
            assert_eq!(control, "ok", "control of {name} {argument}: the attempt proves nothing");
        } else {
            let why = attempt.control.reason();
            assert!(is_refusal(&control), "control of {name} {argument} succeeds, although {why}: {control}");
            eprintln!("listed: no control of {name} {argument} ({why}): {control}");
        }
    }
}

fn is_refusal(output: &str) -> bool {
    output.starts_with("errno ")
}

#[tokio::test(flavor = "multi_thread")]
async fn system_calls_that_open_the_kernel_are_refused() {
    check(&[
        attempt("mount", "", privileged).with_id_block(),
        attempt("user-namespace", "", |isolation| isolation.seccomp = false),
        attempt("keyring", "", |isolation| isolation.seccomp = false),
        attempt("userfaultfd", "", |isolation| isolation.seccomp = false),
        attempt("io-uring", "", |isolation| isolation.seccomp = false),
        attempt("asynchronous-io", "", |isolation| isolation.seccomp = false),
        attempt("hostname", "", |isolation| {
            isolation.seccomp = false;
            isolation.capabilities = false;
        })
        .with_id_block(),
        attempt("chroot", "", |isolation| isolation.capabilities = false),
        attempt("raw-socket", "", |isolation| isolation.capabilities = false).with_id_block(),
        attempt("packet-socket", "", |isolation| {
            isolation.seccomp = false;
            isolation.capabilities = false;
        })
        .with_id_block(),
        attempt("device", "", privileged).root_only("the kernel lets no user namespace make devices"),
        attempt("pidfd-getfd", "", |isolation| isolation.seccomp = false),
        attempt("control-groups", "", privileged).with_id_block(),
    ])
    .await;
}

const HOST_ROOT_FILE: &str = "the file belongs to the host's root, and the caller may not write it either";
const USER_NAMESPACE_ROOT: &str = "root of a user namespace cannot stay in the host's other namespaces";

#[tokio::test(flavor = "multi_thread")]
async fn the_kernels_own_files_are_out_of_reach() {
    check(&[
        attempt("write", "/proc/sys/kernel/core_pattern", privileged).root_only(HOST_ROOT_FILE),
        attempt("write", "/proc/irq/default_smp_affinity", privileged).root_only(HOST_ROOT_FILE),
        attempt("read", "/sys/kernel/uevent_seqnum", |isolation| isolation.masks = false),
    ])
    .await;
    // Hidden files exist but are empty.
    let interrupts = attempt("read", "/proc/interrupts", |_| {});
    assert_eq!(run(Isolation::ALL, &interrupts).await, "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hosts_files_sockets_and_processes_are_out_of_reach() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "secret").unwrap();
    let socket = folder.path().join("socket");
    let _listening = UnixListener::bind(&socket).unwrap();
    let name = format!("escape-{}", std::process::id());
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = sleeper.id().to_string();
    let without_private_root: Without = |isolation| {
        privileged(isolation);
        isolation.private_root = false;
    };
    let without_pid_namespace: Without = |isolation| {
        privileged(isolation);
        isolation.pid_namespace = false;
    };
    check(&[
        attempt("read", "/etc/shadow", without_private_root).root_only("the caller may not read it either"),
        attempt("read", secret.to_str().unwrap(), without_private_root),
        attempt("look", folder.path().to_str().unwrap(), without_private_root),
        attempt("socket-file", socket.to_str().unwrap(), without_private_root),
        attempt("abstract-socket", name.as_str(), |isolation| isolation.network_namespace = false)
            .root_only(USER_NAMESPACE_ROOT),
        attempt("connect", tcp.local_addr().unwrap().to_string(), |isolation| isolation.network_namespace = false)
            .root_only(USER_NAMESPACE_ROOT),
        attempt("signal", pid.as_str(), without_pid_namespace).root_only(USER_NAMESPACE_ROOT),
        attempt("trace", pid.as_str(), without_pid_namespace).root_only(USER_NAMESPACE_ROOT),
    ])
    .await;
    // No control for writing below /usr: it would change the host.
    let planted = attempt("create", "/usr/planted", |_| {});
    assert!(run(Isolation::ALL, &planted).await.starts_with("errno "));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setuid_program_gains_nothing() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    node.runtime.create_pod(pod("escape")).await.unwrap();
    let folder = node.data().join("planted");
    std::fs::create_dir(&folder).unwrap();
    let planted = folder.join("attempt");
    std::fs::copy(attempts_program(), &planted).unwrap();
    std::fs::set_permissions(&planted, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let mut spec = node.container("escape", "c", &["/planted/attempt", "effective-root"]).await;
    let source = MountSource::Data { path: folder, sub_path: None };
    spec.mounts.push(Mount { source, target: "/planted".into(), read_only: false });
    node.run("escape", spec.clone()).await;
    assert_eq!(node.output("escape", "c"), "errno 1");
    spec.attempt = 1;
    spec.user.user = "0".into();
    spec.log.path = node.log_path("escape", "control");
    node.run("escape", spec).await;
    assert_eq!(node.output("escape", "control"), "ok", "control: root of the sandbox is distinguished from its user");
    node.runtime.remove_pod("escape").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_do_not_see_each_other() {
    let node = Node::start().await;
    for uid in ["one", "two"] {
        node.runtime.create_pod(pod(uid)).await.unwrap();
    }
    // The server keeps accepting: if it exited, the pid namespace and the command that checks it would end.
    let server = "import socket\ns=socket.create_server(('127.0.0.1', 7000))\nopen('/home/user/mine','w').write('x')\nprint('up', flush=True)\nwhile True: s.accept()";
    let spec = node.container("one", "c", &["python3", "-c", server]).await;
    let neighbour = node.runtime.start_container("one", spec).await.unwrap();
    node.runtime.start_container("two", node.container("two", "c", &["sleep", "1000"]).await).await.unwrap();
    let up = async {
        while !node.output("one", "c").contains("up") {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::fixture::DEADLINE, up).await.unwrap();
    let (_, out, _) = node.exec("two", "c", &["sh", "-c", "ls /proc | grep -c '^[0-9]'; ls /home/user"]).await;
    let processes: u32 = out.lines().next().unwrap().parse().unwrap();
    assert!(processes <= 5, "{out}");
    assert!(!out.contains("mine"), "{out}");
    let (code, _, _) = node.exec("two", "c", &["sh", "-c", &format!("kill -0 {}", neighbour.pid)]).await;
    assert_ne!(code, 0);
    let connect = "import socket; socket.create_connection(('127.0.0.1', 7000), 1)";
    assert_ne!(node.exec("two", "c", &["python3", "-c", connect]).await.0, 0);
    assert_eq!(node.exec("one", "c", &["python3", "-c", connect]).await.0, 0, "control: inside, the port is open");
    for uid in ["one", "two"] {
        node.runtime.remove_pod(uid).await.unwrap();
    }
}

/// Everything that reads a container's accounts would wait for a pipe in their place.
#[tokio::test(flavor = "multi_thread")]
async fn pipes_in_place_of_accounts_delay_no_command() {
    let node = Node::start().await;
    node.runtime.create_pod(pod("p1")).await.unwrap();
    let command = "rm /etc/passwd /etc/group && mkfifo /etc/passwd /etc/group && echo made && exec sleep 1000";
    let mut spec = node.container("p1", "c", &["sh", "-c", command]).await;
    spec.user.user = "0".into();
    node.runtime.start_container("p1", spec).await.unwrap();
    let made = async {
        while !node.output("p1", "c").contains("made") {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(crate::fixture::DEADLINE, made).await.unwrap();
    let soon = std::time::Duration::from_secs(10);
    let (code, ..) = tokio::time::timeout(soon, node.exec("p1", "c", &["true"])).await.expect("it does not wait");
    assert_eq!(code, 0);
    node.runtime.remove_pod("p1").await.unwrap();
}
