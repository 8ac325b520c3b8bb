//! As PID 1 of a pid namespace: reaping, signals, the container's own command. Needs root for the namespaces.

pub(crate) mod roots;
mod survival;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::client::connect;
use crate::fixture::{Daemon, daemon, is_root, read, start_command, wait_for};

/// The daemon as PID 1 of its own pid and mount namespace, with its own `/proc`.
fn as_pid_one(flags: &[&str], argv: &[&str]) -> Option<Daemon> {
    if !is_root() {
        println!("skipped: namespaces need root");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["--fork", "--pid", "--mount-proc", "--kill-child=KILL", crate::fixture::program().as_str()]);
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

/// The daemon's pid outside the namespace: the child of `unshare`.
pub(crate) fn inner_pid(daemon: &Daemon) -> u32 {
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
fn the_exit_status_is_that_of_the_containers_command() {
    let mut plain = daemon_with_command("trap 'exit 9' USR1; touch ready; while :; do sleep 0.02; done");
    wait_for(|| plain.base().join("ready").exists().then_some(()), "the command runs");
    plain.signal(rustix::process::Signal::USR1);
    assert_eq!(plain.wait().code(), Some(9), "signals are forwarded, the status is taken over");
    let mut killed = daemon_with_command("kill -9 $$");
    assert_eq!(killed.wait().code(), Some(137));
    let mut stopped = daemon_with_command("trap 'exit 3' TERM; touch ready; while :; do sleep 0.02; done");
    wait_for(|| stopped.base().join("ready").exists().then_some(()), "the command runs");
    stopped.signal(rustix::process::Signal::TERM);
    assert_eq!(stopped.wait().code(), Some(3), "the command's own response to the signal counts");
}

fn daemon_with_command(script: &str) -> Daemon {
    let setup = daemon();
    // The command starts in the daemon's own directory, so it changes to the base directory itself.
    setup.command(&["sh", "-c", &format!("cd \"$HOME\"; {script}")]).variable("HOME", "").start()
}

#[test]
fn the_daemon_can_outlive_its_command() {
    let daemon = daemon().flag("--keep-running").command(&["true"]).start();
    wait_for(|| daemon.log.lock().expect("a log").contains("Command ended").then_some(()), "the command ends");
    assert_eq!(daemon.get("/").status, 200);
}

/// PID 1 ignores a signal without a handler, so handlers are installed before the port accepts.
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

/// In a root with busybox alone, read-only and without `/tmp`, as another user.
#[test]
fn it_works_in_a_read_only_root_of_busybox() {
    if !is_root() {
        println!("skipped: a root of its own needs root");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let root = directory.path();
    if let Err(missing) = roots::lay_out_busybox(root, &["sh", "echo", "cat", "id", "touch"]) {
        return roots::skip(missing);
    }
    let script = format!(
        "mount --bind {0} {0} && mount -o remount,bind,ro {0} && mount -t proc proc {0}/proc && \
         exec chroot --userspec=1000:1000 {0} /sandboxd --listen 127.0.0.1:0",
        root.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child=KILL", "sh", "-c", &script]);
    let daemon = start_command(command);
    assert_eq!(daemon.execute("id -u; echo $0")["stdout"], "1000\n/bin/sh\n");
    assert_eq!(daemon.execute("touch /home/user/x")["exit_code"], 1, "the root is read-only");
    assert_eq!(daemon.upload("x", b"x").status, 500);
    assert_eq!(daemon.get("/list/%2Fbin").json().as_array().map(Vec::len), Some(6));
    assert_eq!(daemon.get("/download/%2Fproc%2F1%2Fenviron").status, 403);
}
