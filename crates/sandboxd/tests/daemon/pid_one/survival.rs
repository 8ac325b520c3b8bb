//! As PID 1 under a limit of 512 processes, in the machine's own root, in busybox and in Debian: thousands of commands,
//! fork bombs, floods of output, children that ignore SIGTERM and clients that disconnect leave nothing behind, and
//! memory stays bounded. `AGENT_SANDBOX_SOAK` selects the full size.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{inner_pid, roots};
use crate::client::{connect, head, send};
use crate::fixture::{Daemon, is_root, read, start_command, wait_for};

const LIMIT: u32 = 512;

/// Programs that the scenarios use, apart from shell builtins.
const PROGRAMS: [&str; 6] = ["sh", "true", "sleep", "dd", "yes", "cat"];

#[derive(Clone, Copy, Debug)]
enum RootKind {
    /// The root of the host.
    Machine,
    Busybox,
    Debian,
}

fn soak() -> bool {
    std::env::var_os("AGENT_SANDBOX_SOAK").is_some()
}

/// A daemon under a process limit. Fields are dropped in order: the daemon before its cgroup and root.
struct LimitedDaemon {
    daemon: Daemon,
    cgroup: Cgroup,
    _root: tempfile::TempDir,
}

impl LimitedDaemon {
    fn start(root_kind: RootKind, cgroup: Cgroup) -> Result<Self, &'static str> {
        let root = tempfile::tempdir().expect("a directory");
        let at = root.path().display();
        let in_root =
            format!("mount --bind /dev {at}/dev && mount -t proc proc {at}/proc && exec chroot {at} /sandboxd");
        let (mut mounts, start) = match root_kind {
            RootKind::Machine => {
                let here = format!("exec {} --base-dir={at} --root-dir={at}", crate::fixture::program());
                (Vec::new(), format!("mount -t proc proc /proc && {here}"))
            }
            RootKind::Busybox => {
                roots::lay_out_busybox(root.path(), &PROGRAMS)?;
                (Vec::new(), in_root)
            }
            RootKind::Debian => (roots::lay_out_debian(root.path())?, in_root),
        };
        mounts.insert(0, format!("echo 0 > {}/cgroup.procs", cgroup.path.display()));
        mounts.push(format!("{start} --listen 127.0.0.1:0 --kill-grace 500ms --shutdown-timeout 2s"));
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", &mounts.join(" && ")]);
        Ok(Self { daemon: start_command(command), cgroup, _root: root })
    }

    /// The daemon is the only process left in the cgroup.
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

fn run_scenarios(root_kind: RootKind) {
    let Some(cgroup) = Some(LIMIT).filter(|_| is_root()).and_then(Cgroup::new) else {
        println!("skipped: needs root and a writable pids cgroup");
        return;
    };
    let limited = match LimitedDaemon::start(root_kind, cgroup) {
        Ok(limited) => limited,
        Err(missing) => return roots::skip(missing),
    };
    short_commands_leave_nothing(&limited);
    a_fork_bomb_ends_with_its_command(&limited);
    floods_are_bounded(&limited.daemon);
    a_child_that_ignores_sigterm_is_killed(&limited.daemon);
    the_command_of_a_disconnected_client_is_ended(&limited);
    // Last, because only the end of the sandbox ends it.
    a_fork_bomb_that_outlives_its_command_blocks_no_request(&limited.daemon);
    let peak = limited.peak_kib();
    assert!(peak < 150_000, "{root_kind:?}: peak memory {peak} kB");
}

#[test]
fn in_the_machines_own_root() {
    run_scenarios(RootKind::Machine);
}

#[test]
fn in_busybox() {
    run_scenarios(RootKind::Busybox);
}

#[test]
fn in_debian() {
    run_scenarios(RootKind::Debian);
}

/// The process limit is reached before the first file operation, so that no thread can be started for it.
#[test]
fn files_are_served_at_the_process_limit() {
    let Some(cgroup) = Some(LIMIT).filter(|_| is_root()).and_then(Cgroup::new) else {
        println!("skipped: needs root and a writable pids cgroup");
        return;
    };
    let limited = LimitedDaemon::start(RootKind::Machine, cgroup).expect("the machine's own root");
    limited.cgroup.limit(limited.cgroup.size());
    assert_eq!(limited.daemon.upload("in-need", b"x").status, 200);
    assert_eq!(limited.daemon.get("/download/in-need").text(), "x");
}

/// Ten thousand commands, by default a twentieth: no zombie and no descriptor is left.
fn short_commands_leave_nothing(limited: &LimitedDaemon) {
    let daemon = &limited.daemon;
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
    wait_for(|| limited.is_alone(), "no child is left");
}

/// A fork bomb whose command still runs ends with it at the time limit.
fn a_fork_bomb_ends_with_its_command(limited: &LimitedDaemon) {
    let daemon = &limited.daemon;
    let bomb = json!({"command": "b() { b | b & }; b; while :; do :; done", "timeout_seconds": 5});
    std::thread::scope(|scope| {
        let bombing = scope.spawn(|| daemon.post("/execute", &bomb));
        wait_for(|| (limited.cgroup.size() > LIMIT / 2).then_some(()), "the bomb grows");
        assert_eq!(daemon.get("/").status, 200, "probes are still answered");
        assert_eq!(daemon.upload("during-the-bomb", b"x").status, 200, "and file calls");
        let ended = bombing.join().expect("a response");
        assert_eq!((ended.status, &ended.json()["timed_out"]), (200, &json!(true)));
    });
    wait_for(|| limited.is_alone(), "nothing of the bomb is left");
    assert_eq!(daemon.execute("echo recovered")["stdout"], "recovered\n");
}

/// A fork bomb that outlives its command is a process of the sandbox like any other: files, probes and (with retries)
/// commands still work.
fn a_fork_bomb_that_outlives_its_command_blocks_no_request(daemon: &Daemon) {
    daemon.post("/execute", &json!({"command": "b() { b | b & }; b", "timeout_seconds": 30}));
    assert_eq!(daemon.get("/").status, 200);
    assert_eq!(daemon.upload("beside-the-bomb", b"x").status, 200);
    wait_for(
        || (daemon.execute("echo still here")["stdout"] == "still here\n").then_some(()),
        "commands run beside the bomb",
    );
}

/// 10 GB of output, by default half a gigabyte.
fn floods_are_bounded(daemon: &Daemon) {
    let megabytes = if soak() { 10_000 } else { 500 };
    let flood = format!("dd if=/dev/zero bs=1M count={megabytes} 2>/dev/null");
    let response = daemon.post("/execute", &json!({ "command": flood }));
    assert!(response.text().contains("bytes of output left out"));
}

fn a_child_that_ignores_sigterm_is_killed(daemon: &Daemon) {
    let started = Instant::now();
    let stubborn = json!({"command": "trap '' TERM; while :; do sleep 1; done", "timeout_seconds": 0.5});
    assert_eq!(daemon.post("/execute", &stubborn).json()["timed_out"], true);
    assert!(started.elapsed() < Duration::from_secs(10));
}

fn the_command_of_a_disconnected_client_is_ended(limited: &LimitedDaemon) {
    let daemon = &limited.daemon;
    let body = json!({"command": "yes"}).to_string();
    let headers = [("accept", "application/x-ndjson"), ("content-type", "application/json")];
    let mut stream = connect(daemon.address);
    stream.write_all(&head("POST", "/sandbox/v1/exec", &headers, body.len())).expect("sent");
    stream.write_all(body.as_bytes()).expect("sent");
    let running = || send(daemon.address, "GET", "/sandbox/v1/usage", &[], b"").json()["runningCommands"].clone();
    wait_for(|| (running() == 1).then_some(()), "the flood runs");
    drop(stream);
    wait_for(|| (running() == 0).then_some(()), "the abandoned flood is ended");
    wait_for(|| limited.is_alone(), "nothing of it is left");
}

/// A pids cgroup for the test, in cgroup v1 or v2.
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
