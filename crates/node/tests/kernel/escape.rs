//! The escape suite: every attempt fails behind all walls, and the same attempt succeeds once the walls that stop it are
//! taken away, which shows that the attempt is a real one.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use agent_sandbox_node::kernel::Walls;
use agent_sandbox_node::runtime::{Mount, MountSource, PodRuntime};

use crate::fixture::{Node, is_root, pod, runs_as_root};

/// Which walls a control takes away.
type Without = fn(&mut Walls);

struct Attempt {
    name: &'static str,
    argument: String,
    /// As root of the sandbox instead of its ordinary user.
    as_root: bool,
    without: Without,
    control: Control,
}

/// Whose control of an attempt succeeds. To everybody else the kernel refuses it whatever we take away, and the suite shows that it does.
#[derive(Clone, Copy)]
enum Control {
    Everybodys,
    /// Needs power over the Pod's own namespaces. With one id the sandbox's root is root of a user namespace within that.
    OfThoseWithIds,
    /// Why nobody else can.
    OfRoot(&'static str),
}

impl Control {
    fn succeeds(self, ids: u32) -> bool {
        match self {
            Self::Everybodys => true,
            Self::OfThoseWithIds => ids > 1,
            Self::OfRoot(_) => runs_as_root(),
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::OfRoot(why) => why,
            _ => "it has one id",
        }
    }
}

fn attempt(name: &'static str, argument: impl Into<String>, without: Without) -> Attempt {
    Attempt { name, argument: argument.into(), as_root: true, without, control: Control::Everybodys }
}

impl Attempt {
    fn with_ids(self) -> Self {
        Self { control: Control::OfThoseWithIds, ..self }
    }

    fn of_root(self, why: &'static str) -> Self {
        Self { control: Control::OfRoot(why), ..self }
    }
}

/// The sandbox runs as the host's root with every capability: only mount and process namespaces are left.
fn privileged(walls: &mut Walls) {
    walls.user_namespace = false;
    walls.capabilities = false;
    walls.seccomp = false;
    walls.landlock = false;
    walls.masks = false;
}

/// Runs one attempt and gives what it printed.
async fn run(walls: Walls, attempt: &Attempt) -> String {
    run_with_ids(walls, attempt).await.0
}

/// As [`run`], with the number of ids that the Pod had: where there are few, somebody else may have them all.
async fn run_with_ids(walls: Walls, attempt: &Attempt) -> (String, u32) {
    let node = Node::start_with(|config| config.walls = walls).await;
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
    if !walls.private_root {
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
        let behind = run(Walls::ALL, attempt).await;
        assert!(is_refusal(&behind) && !behind.contains(" of the "), "{name} {argument} got out: {behind}");
        let mut walls = Walls::ALL;
        (attempt.without)(&mut walls);
        let (control, ids) = run_with_ids(walls, attempt).await;
        if attempt.control.succeeds(ids) {
            assert_eq!(control, "ok", "control of {name} {argument}: the attempt proves nothing");
        } else {
            let why = attempt.control.reason();
            assert!(is_refusal(&control), "control of {name} {argument} succeeds, although {why}: {control}");
            eprintln!("listed: no control of {name} {argument} ({why}): {control}");
        }
    }
}

fn is_refusal(said: &str) -> bool {
    said.starts_with("errno ")
}

#[tokio::test(flavor = "multi_thread")]
async fn system_calls_that_open_the_kernel_are_refused() {
    check(&[
        attempt("mount", "", privileged).with_ids(),
        attempt("user-namespace", "", |walls| walls.seccomp = false),
        attempt("keyring", "", |walls| walls.seccomp = false),
        attempt("userfaultfd", "", |walls| walls.seccomp = false),
        attempt("io-uring", "", |walls| walls.seccomp = false),
        attempt("hostname", "", |walls| {
            walls.seccomp = false;
            walls.capabilities = false;
        })
        .with_ids(),
        attempt("chroot", "", |walls| walls.capabilities = false),
        attempt("raw-socket", "", |walls| walls.capabilities = false).with_ids(),
        attempt("packet-socket", "", |walls| {
            walls.seccomp = false;
            walls.capabilities = false;
        })
        .with_ids(),
        attempt("device", "", privileged).of_root("the kernel lets no user namespace make devices"),
        attempt("pidfd-getfd", "", |walls| walls.seccomp = false),
        attempt("control-groups", "", privileged).with_ids(),
    ])
    .await;
}

const KERNELS_FILE: &str = "it belongs to the host's root, and the caller may not write it either";
const BESIDE: &str = "who is root of a user namespace only cannot stay in the host's others";

#[tokio::test(flavor = "multi_thread")]
async fn the_kernels_own_files_are_out_of_reach() {
    check(&[
        attempt("write", "/proc/sys/kernel/core_pattern", privileged).of_root(KERNELS_FILE),
        attempt("write", "/proc/irq/default_smp_affinity", privileged).of_root(KERNELS_FILE),
        attempt("read", "/sys/kernel/uevent_seqnum", |walls| walls.masks = false),
    ])
    .await;
    // Hidden files are there but empty: what they would tell is not.
    let interrupts = attempt("read", "/proc/interrupts", |_| {});
    assert_eq!(run(Walls::ALL, &interrupts).await, "ok");
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
    let as_host_root: Without = |walls| {
        privileged(walls);
        walls.private_root = false;
    };
    let beside_host: Without = |walls| {
        privileged(walls);
        walls.pid_namespace = false;
    };
    check(&[
        attempt("read", "/etc/shadow", as_host_root).of_root("the caller may not read it either"),
        attempt("read", secret.to_str().unwrap(), as_host_root),
        attempt("look", folder.path().to_str().unwrap(), as_host_root),
        attempt("socket-file", socket.to_str().unwrap(), as_host_root),
        attempt("abstract-socket", name.as_str(), |walls| walls.network_namespace = false).of_root(BESIDE),
        attempt("connect", tcp.local_addr().unwrap().to_string(), |walls| walls.network_namespace = false)
            .of_root(BESIDE),
        attempt("signal", pid.as_str(), beside_host).of_root(BESIDE),
        attempt("trace", pid.as_str(), beside_host).of_root(BESIDE),
    ])
    .await;
    // No control for writing below /usr: it would leave the host changed.
    let planted = attempt("create", "/usr/planted", |_| {});
    assert!(run(Walls::ALL, &planted).await.starts_with("errno "));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_user_id_program_gives_nothing() {
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
    assert_eq!(node.output("escape", "control"), "ok", "control: root of the sandbox is told from its user");
    node.runtime.remove_pod("escape").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_do_not_see_each_other() {
    let node = Node::start().await;
    for uid in ["one", "two"] {
        node.runtime.create_pod(pod(uid)).await.unwrap();
    }
    // It goes on accepting: were it to end, the namespace would go, and the command that asks in it.
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
