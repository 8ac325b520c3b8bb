//! As PID 1 under a limit of 512 processes, in the machine's own root, in busybox and in Debian: thousands of commands,
//! bombs, floods, stubborn children and clients that vanish leave nothing behind, and memory stays bounded. With
//! `AGENT_SANDBOX_SOAK` in full size.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{inner_pid, roots};
use crate::client::{connect, head, send};
use crate::fixture::{Daemon, is_root, read, start_command, wait_for};

const LIMIT: u32 = 512;

/// What the scenarios use, apart from the shell's own commands.
const PROGRAMS: [&str; 6] = ["sh", "true", "sleep", "dd", "yes", "cat"];

#[derive(Clone, Copy, Debug)]
enum Ground {
    /// No root of its own.
    Machine,
    Busybox,
    Debian,
}

fn soak() -> bool {
    std::env::var_os("AGENT_SANDBOX_SOAK").is_some()
}

/// A daemon on its ground; the order of the fields is the order of their ends.
struct Survivor {
    daemon: Daemon,
    cgroup: Cgroup,
    _root: tempfile::TempDir,
}

impl Survivor {
    fn start(ground: Ground, cgroup: Cgroup) -> Result<Self, &'static str> {
        let root = tempfile::tempdir().expect("a directory");
        let at = root.path().display();
        let in_root =
            format!("mount --bind /dev {at}/dev && mount -t proc proc {at}/proc && exec chroot {at} /sandboxd");
        let (mut mounts, start) = match ground {
            Ground::Machine => {
                let here = format!("exec {} --base-dir={at} --root-dir={at}", crate::fixture::program());
                (Vec::new(), format!("mount -t proc proc /proc && {here}"))
            }
            Ground::Busybox => {
                roots::lay_out_busybox(root.path(), &PROGRAMS)?;
                (Vec::new(), in_root)
            }
            Ground::Debian => (roots::lay_out_debian(root.path())?, in_root),
        };
        mounts.insert(0, format!("echo 0 > {}/cgroup.procs", cgroup.path.display()));
        mounts.push(format!("{start} --listen 127.0.0.1:0 --kill-grace 500ms --shutdown-timeout 2s"));
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", &mounts.join(" && ")]);
        Ok(Self { daemon: start_command(command), cgroup, _root: root })
    }

    /// The daemon alone is left, without anybody's help.
    fn is_alone(&self) -> Option<()> {
        let members = read(self.cgroup.path.join("cgroup.procs"));
        (members.trim() == inner_pid(&self.daemon).to_string()).then_some(())
    }

    fn peak_kib(&self) -> u64 {
        let status = read(format!("/proc/{}/status", inner_pid(&self.daemon)));
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        peak.trim().trim_end_matches(" kB").parse().expect("a number")
    }
}

fn survive(ground: Ground) {
    let Some(cgroup) = Some(LIMIT).filter(|_| is_root()).and_then(Cgroup::new) else {
        println!("skipped: needs root and a writable pids cgroup");
        return;
    };
    let survivor = match Survivor::start(ground, cgroup) {
        Ok(survivor) => survivor,
        Err(missing) => return roots::skip(missing),
    };
    short_commands_leave_nothing(&survivor);
    a_bomb_ends_with_its_command(&survivor);
    floods_are_bounded(&survivor.daemon);
    a_stubborn_child_is_ended(&survivor.daemon);
    a_vanished_clients_command_is_ended(&survivor);
    // Last: nobody ends it but the end of the sandbox.
    a_bomb_left_behind_is_lived_with(&survivor.daemon);
    let peak = survivor.peak_kib();
    assert!(peak < 150_000, "{ground:?}: peak memory {peak} kB");
}

#[test]
fn in_the_machines_own_root() {
    survive(Ground::Machine);
}

#[test]
fn in_busybox() {
    survive(Ground::Busybox);
}

#[test]
fn in_debian() {
    survive(Ground::Debian);
}

/// A sandbox that used up its processes before the first file call: no thread can be started for it any more.
#[test]
fn files_are_served_where_nothing_can_be_started() {
    let Some(cgroup) = Some(LIMIT).filter(|_| is_root()).and_then(Cgroup::new) else {
        println!("skipped: needs root and a writable pids cgroup");
        return;
    };
    let survivor = Survivor::start(Ground::Machine, cgroup).expect("the machine's own root");
    survivor.cgroup.limit(survivor.cgroup.size());
    assert_eq!(survivor.daemon.upload("in-need", b"x").status, 200);
    assert_eq!(survivor.daemon.get("/download/in-need").text(), "x");
}

/// Ten thousand commands, by default a twentieth: no zombie, no descriptor left.
fn short_commands_leave_nothing(survivor: &Survivor) {
    let daemon = &survivor.daemon;
    let inner = inner_pid(daemon);
    let descriptors = || std::fs::read_dir(format!("/proc/{inner}/fd")).expect("root may look").count();
    daemon.execute("true");
    let before = descriptors();
    let rounds = if soak() { 2500 } else { 125 };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    assert_eq!(daemon.execute("true; (true &)")["exit_code"], 0);
                }
            });
        }
    });
    wait_for(|| (descriptors() <= before + 2).then_some(()), "descriptors are back to where they were");
    wait_for(|| survivor.is_alone(), "no child is left");
}

/// A bomb whose command lasts goes with it when its time is up.
fn a_bomb_ends_with_its_command(survivor: &Survivor) {
    let daemon = &survivor.daemon;
    let bomb = json!({"command": "b() { b | b & }; b; while :; do :; done", "timeout_seconds": 5});
    std::thread::scope(|scope| {
        let bombing = scope.spawn(|| daemon.post("/execute", &bomb));
        wait_for(|| (survivor.cgroup.size() > LIMIT / 2).then_some(()), "the bomb grows");
        assert_eq!(daemon.get("/").status, 200, "probes are still answered");
        assert_eq!(daemon.upload("during-the-bomb", b"x").status, 200, "and file calls");
        let ended = bombing.join().expect("an answer");
        assert_eq!((ended.status, &ended.json()["timed_out"]), (200, &json!(true)));
    });
    wait_for(|| survivor.is_alone(), "nothing of the bomb is left");
    assert_eq!(daemon.execute("echo recovered")["stdout"], "recovered\n");
}

/// A bomb that its command leaves behind is a process of the sandbox like any other: files, probes and (with patience)
/// commands go on beside it.
fn a_bomb_left_behind_is_lived_with(daemon: &Daemon) {
    daemon.post("/execute", &json!({"command": "b() { b | b & }; b", "timeout_seconds": 30}));
    assert_eq!(daemon.get("/").status, 200);
    assert_eq!(daemon.upload("beside-the-bomb", b"x").status, 200);
    wait_for(
        || (daemon.execute("echo still here")["stdout"] == "still here\n").then_some(()),
        "commands run beside the bomb",
    );
}

/// 10 GB of output, by default half of one.
fn floods_are_bounded(daemon: &Daemon) {
    let megabytes = if soak() { 10_000 } else { 500 };
    let flood = format!("dd if=/dev/zero bs=1M count={megabytes} 2>/dev/null");
    let answer = daemon.post("/execute", &json!({ "command": flood }));
    assert!(answer.text().contains("bytes of output left out"));
}

fn a_stubborn_child_is_ended(daemon: &Daemon) {
    let started = Instant::now();
    let stubborn = json!({"command": "trap '' TERM; while :; do sleep 1; done", "timeout_seconds": 0.5});
    assert_eq!(daemon.post("/execute", &stubborn).json()["timed_out"], true);
    assert!(started.elapsed() < Duration::from_secs(10));
}

fn a_vanished_clients_command_is_ended(survivor: &Survivor) {
    let daemon = &survivor.daemon;
    let body = json!({"command": "yes"}).to_string();
    let headers = [("accept", "application/x-ndjson"), ("content-type", "application/json")];
    let mut stream = connect(daemon.address);
    stream.write_all(&head("POST", "/sandbox/v1/exec", &headers, body.len())).expect("sent");
    stream.write_all(body.as_bytes()).expect("sent");
    let running = || send(daemon.address, "GET", "/sandbox/v1/usage", &[], b"").json()["runningCommands"].clone();
    wait_for(|| (running() == 1).then_some(()), "the flood runs");
    drop(stream);
    wait_for(|| (running() == 0).then_some(()), "the abandoned flood is ended");
    wait_for(|| survivor.is_alone(), "nothing of it is left");
}

/// A pids cgroup of our own, in whichever hierarchy there is.
struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    fn new(limit: u32) -> Option<Self> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("sandboxd-test-{}-{number}", std::process::id());
        ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].iter().find_map(|base| {
            let path = Path::new(base).join(&name);
            std::fs::create_dir(&path).ok()?;
            let cgroup = Self { path };
            cgroup.path.join("pids.max").exists().then(|| cgroup.limit(limit))?;
            Some(cgroup)
        })
    }

    fn limit(&self, processes: u32) {
        std::fs::write(self.path.join("pids.max"), processes.to_string()).expect("root may limit");
    }

    fn size(&self) -> u32 {
        read(self.path.join("pids.current")).trim().parse().expect("a number")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::remove_dir(&self.path).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
