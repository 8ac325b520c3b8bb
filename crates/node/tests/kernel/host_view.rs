//! What a sandbox sees of its host through the image `host`, `/proc` and `/sys`: no events and no locks of the host or
//! of other sandboxes, and nothing by which the host is known.

use agent_sandbox_node::runtime::{Mount, MountSource, PodRuntime};

use crate::escape::attempts_program;
use crate::fixture::{DEADLINE, Node, pod};

/// Prints the name of every file that is opened in /usr/bin, or `itself` for the file that is watched alone.
const WATCH: &str = "
import ctypes, os, struct
libc = ctypes.CDLL(None)
events = libc.inotify_init()
folder = libc.inotify_add_watch(events, b'/usr/bin', 0x20)
file = libc.inotify_add_watch(events, b'/usr/bin/factor', 0x20)
assert folder > 0 and file > 0
print('watching', flush=True)
while True:
    data = os.read(events, 65536)
    while data:
        watch, _, _, length = struct.unpack('iIII', data[:16])
        name = data[16:16 + length].rstrip(bytes(1)).decode()
        print('itself' if watch == file else name, flush=True)
        data = data[16 + length:]
";

async fn until_output(node: &Node, uid: &str, word: &str) -> String {
    let wait = async {
        loop {
            let output = node.output(uid, "c");
            if output.lines().any(|line| line == word) {
                return output;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.expect("the output comes")
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_that_the_host_runs_cannot_be_watched() {
    let node = Node::start().await;
    node.runtime.create_pod(pod("p1")).await.unwrap();
    let spec = node.container("p1", "c", &["python3", "-c", WATCH]).await;
    node.runtime.start_container("p1", spec).await.unwrap();
    until_output(&node, "p1", "watching").await;
    assert!(std::process::Command::new("/usr/bin/factor").arg("6").output().unwrap().status.success());
    assert_eq!(node.exec("p1", "c", &["/usr/bin/uname"]).await.0, 0);
    let seen = until_output(&node, "p1", "uname").await;
    assert!(seen.lines().all(|line| line != "factor" && line != "itself"), "{seen}");
    assert_eq!(node.exec("p1", "c", &["/usr/bin/factor", "6"]).await.0, 0);
    until_output(&node, "p1", "itself").await;
    node.runtime.remove_pod("p1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_carry_nothing_between_sandboxes_and_the_host() {
    let node = Node::start().await;
    // Folders and files of the image, and the program that every sandbox gets.
    let paths = ["/usr", "/usr/bin/factor", "/program"];
    let hold = paths.iter().fold("echo held; exec sleep 1000".to_owned(), |inner, path| {
        format!("exec flock -n {path} sh -c '{}'", inner.replace('\'', "'\\''"))
    });
    for (uid, command) in [("holder", hold.as_str()), ("other", "exec sleep 1000")] {
        node.runtime.create_pod(pod(uid)).await.unwrap();
        let mut spec = node.container(uid, "c", &["sh", "-c", command]).await;
        let source = MountSource::Program { path: attempts_program() };
        spec.mounts.push(Mount { source, target: "/program".into(), read_only: true });
        node.runtime.start_container(uid, spec).await.unwrap();
    }
    until_output(&node, "holder", "held").await;
    for path in paths {
        let take = ["flock", "-n", path, "true"];
        assert_eq!(node.exec("other", "c", &take).await.0, 0, "{path} is locked in one sandbox only");
        assert_eq!(node.exec("holder", "c", &take).await.0, 1, "control: in the same sandbox {path} is locked");
        let outside = if path == "/program" { attempts_program() } else { path.into() };
        let outside = std::process::Command::new("flock").arg("-n").arg(outside).arg("true").status().unwrap();
        assert!(outside.success(), "{path} is not locked on the host");
    }
    for uid in ["holder", "other"] {
        node.runtime.remove_pod(uid).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_inside_tells_the_host_or_its_paths() {
    let node = Node::start().await;
    let mut boot_ids = vec![std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap()];
    for uid in ["4f1c-pod-one", "4f1c-pod-two"] {
        node.runtime.create_pod(pod(uid)).await.unwrap();
        let mut spec = node.container(uid, "c", &["sleep", "1000"]).await;
        let source = MountSource::Program { path: attempts_program() };
        spec.mounts.push(Mount { source, target: "/program".into(), read_only: true });
        // As in every Pod that is made through the API.
        spec.termination_message_path = Some("/dev/termination-log".into());
        node.runtime.start_container(uid, spec).await.unwrap();
        let (code, boot_id, _) = node.exec(uid, "c", &["cat", "/proc/sys/kernel/random/boot_id"]).await;
        assert!(code == 0 && boot_id.trim().len() == 36, "{boot_id}");
        assert!(!boot_ids.contains(&boot_id), "{boot_id} is the host's or another Pod's");
        assert_eq!(node.exec(uid, "c", &["cat", "/proc/sys/kernel/random/boot_id"]).await.1, boot_id, "it stays");
        boot_ids.push(boot_id);
        assert_eq!(node.exec(uid, "c", &["cat", "/proc/cmdline"]).await.1, "");
        let (_, mounts, _) = node.exec(uid, "c", &["cat", "/proc/self/mountinfo"]).await;
        let program = attempts_program();
        for hidden in
            [node.data().to_str().unwrap(), uid, program.parent().unwrap().to_str().unwrap(), "=/usr", ":/usr"]
        {
            assert!(!mounts.contains(hidden), "{hidden} is in the mount table:\n{mounts}");
        }
        let message = mounts.lines().find(|line| line.contains(" /dev/termination-log "));
        assert!(message.is_some_and(|line| line.contains(" - tmpfs ")), "of its own file system:\n{mounts}");
        let (_, devices, _) = node.exec(uid, "c", &["sh", "-c", "cd /sys/devices; ls -d * */*"]).await;
        let known = ["system", "system/cpu", "system/node", "virtual", "virtual/net"];
        assert!(devices.lines().all(|line| known.contains(&line)), "{devices}");
    }
    // What programs use still works.
    let count = "import os; print(os.cpu_count(), os.sysconf('SC_NPROCESSORS_CONF'))";
    let host = std::process::Command::new("python3").args(["-c", count]).output().unwrap();
    let (_, inside, error) = node.exec("4f1c-pod-one", "c", &["python3", "-c", count]).await;
    assert_eq!(inside, String::from_utf8_lossy(&host.stdout), "{error}");
    let (code, _, error) =
        node.exec("4f1c-pod-one", "c", &["cat", "/sys/devices/system/cpu/online", "/sys/class/net/lo/address"]).await;
    assert_eq!(code, 0, "{error}");
    for uid in ["4f1c-pod-one", "4f1c-pod-two"] {
        node.runtime.remove_pod(uid).await.unwrap();
    }
}
