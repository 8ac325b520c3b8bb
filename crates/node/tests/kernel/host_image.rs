//! A sweep over the image `host`: sentinels in every place that should be hidden, every visible setuid file executed,
//! disks and inodes filled. Nothing is reached, and neighbours are not affected.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use agent_sandbox_node::runtime::{Limits, Mount, MountSource, PodRuntime, VolumeKey, VolumeRequest};

use crate::escape::attempts_program;
use crate::fixture::{DEADLINE, Node, is_root, pod};

/// Folders of the host whose contents must not be visible, if they exist here.
const HIDDEN: &[&str] =
    &["/root", "/home", "/etc", "/var/lib", "/var/tmp", "/var/log", "/tmp", "/run", "/opt", "/srv", "/mnt", "/dev/shm"];

/// A world-readable file and a world-writable socket in a hidden folder; removed when dropped.
struct Sentinel {
    file: PathBuf,
    socket: PathBuf,
    _listener: UnixListener,
}

impl Sentinel {
    fn plant(folder: &Path, word: &str) -> Option<Self> {
        let (file, socket) = (folder.join(format!("{word}-file")), folder.join(format!("{word}-socket")));
        std::fs::write(&file, word).ok()?;
        let listener = UnixListener::bind(&socket).ok()?;
        for path in [&file, &socket] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).ok()?;
        }
        Some(Self { file, socket, _listener: listener })
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
        let _ = std::fs::remove_file(&self.socket);
    }
}

async fn sandbox(node: &Node, uid: &str) {
    node.runtime.create_pod(pod(uid)).await.unwrap();
    let mut spec = node.container(uid, "c", &["sleep", "1000"]).await;
    let source = MountSource::Host { path: attempts_program() };
    spec.mounts.push(Mount { source, target: "/attempt".into(), read_only: true });
    node.runtime.start_container(uid, spec).await.unwrap();
}

async fn attempt(node: &Node, uid: &str, name: &str, argument: &str) -> String {
    node.exec(uid, "c", &["/attempt", name, argument]).await.2.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_in_every_hidden_place_are_not_reached() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    sandbox(&node, "p1").await;
    let word = format!("sentinel-{}-{:x}", std::process::id(), rand::random::<u32>());
    // The node's own data folder must be hidden too: it contains keys, tokens and plans of other Pods.
    let data = [node.data().to_owned(), node.data().join("pods"), node.data().join("volumes")];
    let folders = HIDDEN.iter().map(|folder| Path::new(folder).to_owned()).chain(data);
    let sentinels: Vec<_> = folders.filter_map(|folder| Sentinel::plant(&folder, &word)).collect();
    assert!(sentinels.len() >= 8, "only {} places could be prepared", sentinels.len());
    for sentinel in &sentinels {
        for (name, path) in [("look", &sentinel.file), ("read", &sentinel.file), ("socket-file", &sentinel.socket)] {
            let seen = attempt(&node, "p1", name, path.to_str().unwrap()).await;
            assert!(seen.starts_with("errno "), "{name} {}: {seen}", path.display());
            let control = Command::new(attempts_program()).args([name, path.to_str().unwrap()]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&control.stderr).trim(), "ok", "control: outside it is there");
        }
    }
    let find = format!(
        "find / -xdev -name '{word}*' 2>/dev/null; find /home /root /tmp /var /run /opt /srv /mnt /etc -name '{word}*' 2>/dev/null"
    );
    assert_eq!(node.exec("p1", "c", &["sh", "-c", &find]).await.1, "", "by whatever path");
    let tcp: Vec<_> = host_addresses().into_iter().filter_map(|ip| std::net::TcpListener::bind((ip, 0)).ok()).collect();
    assert!(!tcp.is_empty());
    for listener in &tcp {
        let address = listener.local_addr().unwrap();
        std::net::TcpStream::connect(address).expect("control: outside it answers");
        let seen = attempt(&node, "p1", "connect", &address.to_string()).await;
        assert!(seen.starts_with("errno "), "{address}: {seen}");
    }
    node.runtime.remove_pod("p1").await.unwrap();
}

/// Addresses on which a service of the host may listen.
fn host_addresses() -> Vec<std::net::IpAddr> {
    let text = Command::new("hostname").arg("-I").output().map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let own = text.split_whitespace().filter_map(|word| word.parse().ok()).filter(std::net::IpAddr::is_ipv4);
    std::iter::once([127, 0, 0, 1].into()).chain(own).collect()
}

/// Runs a program with LD_SHOW_AUXV, so that the loader prints its ids; it prints nothing for a program that gained
/// privileges.
const PRINT_IDS: &str = "timeout 5 env LD_SHOW_AUXV=1 \"$0\" </dev/null 2>/dev/null | sed -n 's/^AT_\\(EUID\\|EGID\\|SECURE\\): *//p' | tr '\\n' ' '";

#[tokio::test(flavor = "multi_thread")]
async fn every_visible_setuid_file_gains_nothing() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    sandbox(&node, "p1").await;
    // Files that are not executable by others gain nothing either.
    let find = "find /usr /bin /sbin /lib -perm /6000 -perm -0001 -type f 2>/dev/null";
    let (_, found, _) = node.exec("p1", "c", &["sh", "-c", find]).await;
    let files: Vec<_> = found.lines().filter(|path| is_program(path)).collect();
    assert!(!files.is_empty(), "this host has no setuid program at all");
    let mut gained = BTreeMap::new();
    for file in &files {
        let (_, inside, _) = node.exec("p1", "c", &["sh", "-c", PRINT_IDS, file]).await;
        // Some programs run another one, which prints its own ids.
        assert!(!inside.is_empty() && inside.replace("1000 1000 0 ", "").is_empty(), "{file}: {inside}");
        let mut outside = Command::new("sh");
        let outside = outside.args(["-c", PRINT_IDS, file]).uid(1000).gid(1000).output().unwrap();
        gained.insert(*file, String::from_utf8_lossy(&outside.stdout).into_owned());
    }
    let gains = |answer: &String| answer.is_empty() || !answer.replace("1000 1000 0 ", "").is_empty();
    assert!(gained.values().any(gains), "control: outside some gain something: {gained:?}");
    node.runtime.remove_pod("p1").await.unwrap();
}

/// Whether the dynamic loader runs for this file: not for scripts and static programs.
fn is_program(path: &str) -> bool {
    let bytes = std::fs::read(path).unwrap_or_default();
    bytes.starts_with(b"\x7fELF") && bytes.windows(9).any(|window| window == b"ld-linux-")
}

#[tokio::test(flavor = "multi_thread")]
async fn disks_and_inodes_are_filled_only_up_to_the_limit_and_neighbours_go_on() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    if node.runtime.weaknesses().iter().any(|weak| weak.kind.reason() == "StorageMeasuredOnly") {
        assert!(std::env::var_os("CI").is_none(), "mkfs.ext4 and loop devices are needed");
        eprintln!("skipped: needs mkfs.ext4 and loop devices");
        return;
    }
    sandbox(&node, "neighbour").await;
    let limits = Limits { layer_bytes: Some(24 << 20), ..Limits::default() };
    for (uid, limits, expected) in [("limited", limits, "errno 28"), ("control", Limits::default(), "ok")] {
        node.runtime.create_pod(pod(uid)).await.unwrap();
        let key = VolumeKey::Persistent { name: format!("of-{uid}") };
        let request = VolumeRequest { key, limit_bytes: limits.layer_bytes, group: None };
        let volume = node.runtime.ensure_volume(request).await.unwrap();
        let mut spec = node.container(uid, "c", &["sleep", "1000"]).await;
        spec.limits = limits;
        let mount = |source, target: &str| Mount { source, target: target.into(), read_only: false };
        spec.mounts = vec![
            mount(MountSource::Host { path: attempts_program() }, "/attempt"),
            mount(MountSource::Data { path: volume.path.clone(), sub_path: None }, "/volume"),
        ];
        node.runtime.start_container(uid, spec).await.unwrap();
        for folder in ["/home/user", "/volume"] {
            assert_eq!(attempt(&node, uid, "fill", folder).await, expected, "{uid}: {folder}");
            let usage = tokio::time::timeout(DEADLINE, node.runtime.storage_usage(uid)).await.unwrap().unwrap();
            let bytes = usage.layers[0].1;
            let filled = folder == "/volume" || bytes > 8 << 20;
            assert!(filled && (uid == "control" || bytes <= 24 << 20), "{uid}: {usage:?}");
            assert_eq!(attempt(&node, uid, "fill-inodes", folder).await, expected, "{uid}: {folder}");
        }
        let (code, _, error) = node.exec("neighbour", "c", &["sh", "-c", "echo fine > /home/user/f"]).await;
        assert_eq!(code, 0, "{error}");
    }
    for uid in ["neighbour", "limited", "control"] {
        node.runtime.remove_pod(uid).await.unwrap();
    }
    for uid in ["limited", "control"] {
        node.runtime.remove_volume(&VolumeKey::Persistent { name: format!("of-{uid}") }).await.unwrap();
        node.runtime.delete_owner_storage(&format!("owner-of-{uid}")).await.unwrap();
    }
    assert!(crate::leaks::host_traces(node.data()).iter().all(|trace| !trace.starts_with("mount ")));
}

/// A resumed Pod has the files that it wrote, and the limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_with_a_limit_is_kept_for_the_owners_next_pod() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let limits = Limits { layer_bytes: Some(24 << 20), ..Limits::default() };
    for (uid, command) in [("p1", "echo kept > /home/user/f"), ("p2", "cat /home/user/f; df -m / | tail -1")] {
        let spec = agent_sandbox_node::runtime::PodSandboxSpec { owner: "mine".into(), ..pod(uid) };
        node.runtime.create_pod(spec).await.unwrap();
        let mut container = node.container(uid, "c", &["sh", "-c", command]).await;
        container.limits = limits;
        assert_eq!(node.run(uid, container).await.code, 0, "{}", node.output(uid, "c"));
        node.runtime.remove_pod(uid).await.unwrap();
    }
    assert!(node.output("p2", "c").starts_with("kept\n"), "{}", node.output("p2", "c"));
    node.runtime.delete_owner_storage("mine").await.unwrap();
    assert!(crate::leaks::host_traces(node.data()).iter().all(|trace| !trace.starts_with("mount ")));
}
