//! As PID 1 of a pid namespace: reaping, signals, floods, bombs. Needs root for the namespaces.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{connect, head, send};
use crate::fixture::{Daemon, daemon, is_root, read, start_command, wait_for};

/// The daemon as PID 1 of its own pid and mount namespace, with `/proc` of its own.
fn as_pid_one(flags: &[&str], argv: &[&str]) -> Option<Daemon> {
    if !is_root() {
        println!("skipped: namespaces need root");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["--fork", "--pid", "--mount-proc", "--kill-child=KILL", env!("CARGO_BIN_EXE_sandboxd")]);
    command.args(["--listen", "127.0.0.1:0", "--kill-grace", "500ms", "--shutdown-timeout", "2s"]);
    command.args(flags);
    if !argv.is_empty() {
        command.arg("--").args(argv);
    }
    Some(start_command(command))
}

fn flags_in(directory: &Path) -> Vec<String> {
    vec![format!("--base-dir={}", directory.display()), format!("--root-dir={}", directory.display())]
}

fn in_directory(directory: &Path, argv: &[&str]) -> Option<Daemon> {
    let flags = flags_in(directory);
    as_pid_one(&flags.iter().map(String::as_str).collect::<Vec<_>>(), argv)
}

/// The daemon itself, seen from here: the child of `unshare`.
fn inner_pid(daemon: &Daemon) -> u32 {
    let children = read(format!("/proc/{0}/task/{0}/children", daemon.pid()));
    children.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("a child")
}

#[test]
fn orphans_are_reaped() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(daemon) = in_directory(directory.path(), &[]) else { return };
    for _ in 0..50 {
        daemon.execute("(sleep 0.01 &) ; (true &)");
    }
    wait_for(
        || {
            let processes = daemon.execute("ls -d /proc/[0-9]* | wc -l");
            // The daemon, the shell, ls and wc.
            (processes["stdout"].as_str()?.trim().parse::<u32>().ok()? <= 4).then_some(())
        },
        "no zombie is left",
    );
}

#[test]
fn the_containers_command_runs_and_its_status_is_ours() {
    let mut plain = daemon_with_command("trap 'exit 9' USR1; touch ready; while :; do sleep 0.02; done");
    wait_for(|| plain.base().join("ready").exists().then_some(()), "the command runs");
    plain.signal(rustix::process::Signal::USR1);
    assert_eq!(plain.wait().code(), Some(9), "signals are forwarded, the status is taken over");
    let mut killed = daemon_with_command("kill -9 $$");
    assert_eq!(killed.wait().code(), Some(137));
    let mut stopped = daemon_with_command("trap 'exit 3' TERM; touch ready; while :; do sleep 0.02; done");
    wait_for(|| stopped.base().join("ready").exists().then_some(()), "the command runs");
    stopped.signal(rustix::process::Signal::TERM);
    assert_eq!(stopped.wait().code(), Some(3), "the command's own answer to the signal counts");
}

fn daemon_with_command(script: &str) -> Daemon {
    let setup = daemon();
    // The command starts in the daemon's own directory, so it is told where the base is.
    setup.command(&["sh", "-c", &format!("cd \"$HOME\"; {script}")]).variable("HOME", "").start()
}

#[test]
fn a_command_that_ends_can_be_survived() {
    let daemon = daemon().flag("--keep-running").command(&["true"]).start();
    wait_for(|| daemon.log.lock().expect("a log").contains("Command ended").then_some(()), "the command ends");
    assert_eq!(daemon.get("/").status, 200);
}

/// As PID 1 a signal without a handler would be lost: handlers stand before the port accepts.
#[test]
fn a_stop_signal_right_after_the_port_accepts_is_not_lost() {
    for _ in 0..10 {
        let directory = tempfile::tempdir().expect("a directory");
        let Some(mut daemon) = in_directory(directory.path(), &["sleep", "60"]) else { return };
        drop(connect(daemon.address));
        let inner = i32::try_from(inner_pid(&daemon)).ok().and_then(rustix::process::Pid::from_raw).expect("a number");
        rustix::process::kill_process(inner, rustix::process::Signal::TERM).expect("sent");
        let started = Instant::now();
        daemon.wait();
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}

/// Ten thousand short commands: no zombie, no descriptor leak. (A tenth by default; all with AGENT_SANDBOX_SOAK=1.)
#[test]
fn short_commands_leave_nothing_behind() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(daemon) = in_directory(directory.path(), &[]) else { return };
    let inner = inner_pid(&daemon);
    let descriptors = || std::fs::read_dir(format!("/proc/{inner}/fd")).expect("root may look").count();
    daemon.execute("true");
    let before = descriptors();
    let rounds = if std::env::var_os("AGENT_SANDBOX_SOAK").is_some() { 2500 } else { 250 };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..rounds {
                    assert_eq!(daemon.execute("true")["exit_code"], 0);
                }
            });
        }
    });
    wait_for(|| (descriptors() <= before + 2).then_some(()), "descriptors are back to where they were");
    let children = read(format!("/proc/{inner}/task/{inner}/children"));
    assert_eq!(children.trim(), "", "no child is left");
}

/// A fork bomb under a limit of 512 processes, then business as usual.
#[test]
fn a_fork_bomb_is_survived() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(cgroup) = Cgroup::new(512) else {
        println!("skipped: no writable pids cgroup");
        return;
    };
    let Some(daemon) = in_directory(directory.path(), &[]) else { return };
    cgroup.take(daemon.pid());
    cgroup.take(inner_pid(&daemon));
    let bomb = "b() { b | b & }; b; sleep 3";
    let answer = daemon.post("/execute", &json!({"command": bomb, "timeout_seconds": 2}));
    assert_eq!(answer.status, 200);
    assert_eq!(daemon.get("/").status, 200, "file calls and probes are still answered");
    cgroup.kill_all_but(&[daemon.pid(), inner_pid(&daemon)]);
    let recovered = wait_for(
        || Some(daemon.execute("echo recovered")).filter(|answer| answer["stdout"] == "recovered\n"),
        "commands run again",
    );
    assert_eq!(recovered["exit_code"], 0);
}

/// A pids cgroup of our own, in whichever hierarchy there is.
struct Cgroup {
    path: std::path::PathBuf,
}

impl Cgroup {
    fn new(limit: u32) -> Option<Self> {
        let name = format!("sandboxd-test-{}", std::process::id());
        ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].iter().find_map(|base| {
            let path = Path::new(base).join(&name);
            std::fs::create_dir(&path).ok()?;
            let cgroup = Self { path };
            std::fs::write(cgroup.path.join("pids.max"), limit.to_string()).ok()?;
            Some(cgroup)
        })
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.path.join("cgroup.procs"), pid.to_string()).expect("the process is moved");
    }

    /// Ends the bomb's remains: members of our own cgroup, by number, until only `keep` are left.
    fn kill_all_but(&self, keep: &[u32]) {
        wait_for(
            || {
                let members = read(self.path.join("cgroup.procs"));
                let rest: Vec<u32> =
                    members.lines().filter_map(|pid| pid.parse().ok()).filter(|pid| !keep.contains(pid)).collect();
                for pid in &rest {
                    let pid = i32::try_from(*pid).ok().and_then(rustix::process::Pid::from_raw).expect("a number");
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
                rest.is_empty().then_some(())
            },
            "the bomb is cleared",
        );
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.path).is_err() && Instant::now() < deadline {
            for pid in std::fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default().lines() {
                let pid = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
                let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A flood of output (10 GB with AGENT_SANDBOX_SOAK=1), a child that ignores SIGTERM and a client that is gone.
#[test]
fn floods_and_stubborn_children_are_survived_with_bounded_memory() {
    use std::io::Write;
    let directory = tempfile::tempdir().expect("a directory");
    let Some(daemon) = in_directory(directory.path(), &[]) else { return };
    let megabytes = if std::env::var_os("AGENT_SANDBOX_SOAK").is_some() { 10_000 } else { 1_000 };
    let flood = format!("dd if=/dev/zero bs=1M count={megabytes} 2>/dev/null");
    let answer = daemon.post("/execute", &json!({ "command": flood }));
    assert!(answer.text().contains("bytes of output left out"));
    let started = Instant::now();
    let stubborn = json!({"command": "trap '' TERM; while :; do sleep 1; done", "timeout_seconds": 0.5});
    assert_eq!(daemon.post("/execute", &stubborn).json()["timed_out"], true);
    assert!(started.elapsed() < Duration::from_secs(10));
    let body = json!({"command": "yes"}).to_string();
    let headers = [("accept", "application/x-ndjson"), ("content-type", "application/json")];
    let mut stream = connect(daemon.address);
    stream.write_all(&head("POST", "/sandbox/v1/exec", &headers, body.len())).expect("sent");
    stream.write_all(body.as_bytes()).expect("sent");
    std::thread::sleep(Duration::from_millis(300));
    drop(stream);
    wait_for(
        || {
            let usage = send(daemon.address, "GET", "/sandbox/v1/usage", &[], b"").json();
            (usage["runningCommands"] == 0).then_some(())
        },
        "the abandoned flood is ended",
    );
    let status = read(format!("/proc/{}/status", inner_pid(&daemon)));
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(peak < 150_000, "peak memory {peak} kB");
}

/// In a root of busybox alone, read-only and without `/tmp`, as another user.
#[test]
fn it_works_in_a_read_only_root_of_busybox() {
    if !is_root() {
        println!("skipped: a root of its own needs root");
        return;
    }
    let (Some(busybox), Some(sandboxd)) = (find_busybox(), static_sandboxd()) else {
        println!("skipped: needs a static busybox and target/tiny/sandboxd");
        return;
    };
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path();
    for folder in ["bin", "dev", "proc", "home/user"] {
        std::fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    std::fs::copy(busybox, root.join("bin/busybox")).expect("a program");
    std::fs::copy(sandboxd, root.join("bin/sandboxd")).expect("a program");
    for applet in ["sh", "echo", "cat", "id", "touch"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).expect("a link");
    }
    let script = format!(
        "mount --bind {0} {0} && mount -o remount,bind,ro {0} && mount -t proc proc {0}/proc && \
         exec chroot --userspec=1000:1000 {0} /bin/sandboxd --listen 127.0.0.1:0",
        root.display()
    );
    let script =
        script.replace("setpriv --reuid=1000 --regid=1000 --clear-groups chroot", "chroot --userspec=1000:1000");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", &script]);
    let daemon = start_command(command);
    assert_eq!(daemon.execute("id -u; echo $0")["stdout"], "1000\n/bin/sh\n");
    assert_eq!(daemon.execute("touch /home/user/x")["exit_code"], 1, "the root is read-only");
    assert_eq!(daemon.upload("x", b"x").status, 500);
    assert_eq!(daemon.get("/list/%2Fbin").json().as_array().map(Vec::len), Some(7));
    assert_eq!(daemon.get("/download/%2Fproc%2F1%2Fenviron").status, 403);
}

fn find_busybox() -> Option<std::path::PathBuf> {
    ["/bin/busybox", "/usr/bin/busybox"].into_iter().map(Into::into).find(|path: &std::path::PathBuf| path.exists())
}

fn static_sandboxd() -> Option<std::path::PathBuf> {
    let built = Path::new(env!("CARGO_BIN_EXE_sandboxd")).parent()?.parent()?.join("tiny/sandboxd");
    built.exists().then_some(built)
}
