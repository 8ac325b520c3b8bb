//! `doctor`: what this machine offers for isolation, and how to get what it lacks.

use crate::{
    args::{DoctorArgs, GlobalArgs},
    data::DataDir,
    host, output,
};
use agent_sandbox_node::{
    kernel::{KernelConfig, KernelRuntime, Stray, remove_stray, strays},
    runtime::{PodRuntime as _, WeaknessKind},
};
use anyhow::{Context as _, Result};
use serde::Serialize;
use std::{
    fmt::Write as _,
    net::TcpListener,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Below this, new sandboxes may be refused for want of disk.
const LOW_DISK: u64 = 2 << 30;
const MEBIBYTE: u64 = 1 << 20;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Verdict {
    Good,
    /// Sandboxes run, with something missing.
    Weaker,
    /// No sandbox can run.
    Broken,
}

/// One thing that was looked at.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    verdict: Verdict,
    what: String,
    /// What to do about it; empty when there is nothing to do.
    fix: String,
}

impl Check {
    fn new(verdict: Verdict, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { verdict, what: what.into(), fix: fix.into() }
    }

    fn good(what: impl Into<String>) -> Self {
        Self::new(Verdict::Good, what, "")
    }
}

pub(crate) async fn doctor(global: &GlobalArgs, args: &DoctorArgs) -> Result<ExitCode> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    let mut checks = vec![user_namespaces()];
    checks.extend(isolation().await?);
    checks.extend(remains(args.fix));
    checks.push(programs("kubectl", "install kubectl to use the engine with it"));
    checks.push(oci_runtimes());
    checks.push(disk(data.path()));
    checks.extend([("API", 6443), ("router", 8080)].map(|(what, number)| port(what, number, data.running().is_some())));
    output::emit(args.output.output, &checks, || names(&checks), || page(&checks))?;
    let broken = checks.iter().any(|check| check.verdict == Verdict::Broken);
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn user_namespaces() -> Check {
    match host::suspected() {
        Some(blocked) => Check::new(Verdict::Broken, blocked.cause, blocked.fix),
        None if rustix::process::geteuid().is_root() => Check::good("runs as root: every wall is available"),
        None => Check::good("user namespaces work without root"),
    }
}

/// Opens the runtime as the engine does, in a folder of its own, and asks what it lacks.
async fn isolation() -> Result<Vec<Check>> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut config = KernelConfig::new(folder.path().join("kernel"));
    // No Pod is ever made here.
    (config.ready_pods, config.prepare_host) = (0, false);
    let runtime = match KernelRuntime::open(config).await {
        Ok(runtime) => runtime,
        Err(error) => {
            return Ok(vec![Check::new(
                Verdict::Broken,
                format!("processes cannot be isolated: {error}"),
                "run as root, or see the first line",
            )]);
        }
    };
    let weaknesses = runtime.weaknesses();
    runtime.close();
    if weaknesses.is_empty() {
        return Ok(vec![Check::good("namespaces, limits, network and Landlock are all there")]);
    }
    let weaker =
        weaknesses.into_iter().map(|weakness| Check::new(Verdict::Weaker, weakness.message, remedy(weakness.kind)));
    Ok(weaker.collect())
}

/// What dead nodes left on the machine and the runtime, which has just been opened, did not clear away by itself.
fn remains(fix: bool) -> Vec<Check> {
    let left = strays();
    if left.is_empty() {
        return vec![Check::good("nothing is left of engines that are gone")];
    }
    let judge = |stray: &Stray| match stray {
        Stray::Pods { data_dir } => {
            // The node's folder is two levels down in the engine's.
            let engine = data_dir.ancestors().nth(2).filter(|folder| folder.join("node/kernel") == *data_dir);
            let folder = engine.unwrap_or(data_dir).display();
            Check::new(
                Verdict::Weaker,
                format!("sandboxes of an engine that died still run; its folder is {folder}"),
                format!(
                    "agent-sandbox --data-dir {folder} up takes them over again, agent-sandbox --data-dir {folder} down stops them"
                ),
            )
        }
        other if fix => match remove_stray(other) {
            Ok(()) => Check::good(format!("removed {}", describe(other))),
            Err(error) => Check::new(
                Verdict::Weaker,
                format!("{} cannot be removed: {error}", describe(other)),
                "see what uses it, or restart the machine",
            ),
        },
        other => {
            let what = format!("{} was left by an engine that is gone", describe(other));
            Check::new(Verdict::Weaker, what, "agent-sandbox doctor --fix removes it")
        }
    };
    left.iter().map(judge).collect()
}

fn describe(stray: &Stray) -> String {
    match stray {
        Stray::Pods { data_dir } => format!("sandboxes of {}", data_dir.display()),
        Stray::Table { name, data_dir: Some(folder) } => {
            format!("nftables table inet {name} (of {})", folder.display())
        }
        Stray::Table { name, data_dir: None } => format!("nftables table inet {name}"),
        Stray::Group { folder } => format!("control group {}", folder.display()),
    }
}

fn remedy(kind: WeaknessKind) -> &'static str {
    match kind {
        WeaknessKind::SharedUid => {
            "install newuidmap (package uidmap) and give your user ranges in /etc/subuid and /etc/subgid, or run as root"
        }
        WeaknessKind::LimitNotEnforced => "run as root, or let systemd delegate memory and cpu to your user",
        WeaknessKind::StorageMeasuredOnly => "keep the data folder on a file system of its own to bound it",
        WeaknessKind::NoEgress => {
            "install pasta (package passt) and let users open /dev/net/tun, or run as root, to let sandboxes reach out where a policy allows it"
        }
        WeaknessKind::NoLandlock => "boot a kernel with Landlock (5.13 or newer, lsm=landlock,…)",
    }
}

fn programs(name: &str, fix: &str) -> Check {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file()) {
        Some(found) => Check::good(format!("{name} is {}", found.display())),
        None => Check::new(Verdict::Weaker, format!("{name} is not installed"), fix),
    }
}

/// Other isolation, by runtime class; none is needed.
fn oci_runtimes() -> Check {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let here = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let found: Vec<&str> =
        ["crun", "runc", "runsc", "kata-runtime"].into_iter().filter(|program| here(program)).collect();
    match found.is_empty() {
        true => Check::good("no OCI runtime is installed; the built-in isolation needs none"),
        false => Check::good(format!("besides the built-in isolation: {}", found.join(", "))),
    }
}

fn disk(folder: &Path) -> Check {
    let existing: PathBuf = folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned();
    let free = rustix::fs::statvfs(&existing).map_or(0, |disk| disk.f_bavail * disk.f_frsize);
    let what = format!("{} MiB are free for {}", free / MEBIBYTE, folder.display());
    if free < LOW_DISK {
        return Check::new(Verdict::Weaker, what, "make room, or choose another folder with --data-dir");
    }
    Check::good(what)
}

fn port(what: &str, number: u16, engine_runs: bool) -> Check {
    match TcpListener::bind(("127.0.0.1", number)) {
        Ok(_) => Check::good(format!("port {number} is free for the {what}")),
        Err(_) if engine_runs => Check::good(format!("port {number} is in use; the engine already runs")),
        Err(_) => {
            let flag = what.to_lowercase();
            Check::new(
                Verdict::Weaker,
                format!("port {number} is in use"),
                format!("up --{flag}-listen 127.0.0.1:0 takes a free one"),
            )
        }
    }
}

fn names(checks: &[Check]) -> String {
    let worst = checks.iter().map(|check| check.verdict);
    let broken = worst.clone().any(|verdict| verdict == Verdict::Broken);
    let weaker = worst.clone().any(|verdict| verdict == Verdict::Weaker);
    let word = if broken {
        "broken"
    } else if weaker {
        "weaker"
    } else {
        "good"
    };
    format!("{word}\n")
}

fn page(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let sign = match check.verdict {
            Verdict::Good => "ok    ",
            Verdict::Weaker => "weaker",
            Verdict::Broken => "BROKEN",
        };
        let _ = writeln!(text, "{sign}  {}", check.what);
        if !check.fix.is_empty() {
            let _ = writeln!(text, "        fix: {}", check.fix);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_comes_with_a_remedy() {
        let checks =
            [Check::good("a"), Check::new(Verdict::Weaker, "b", "do c"), Check::new(Verdict::Broken, "d", "do e")];
        assert_eq!(page(&checks), "ok      a\nweaker  b\n        fix: do c\nBROKEN  d\n        fix: do e\n");
        assert_eq!(names(&checks), "broken\n");
        assert_eq!(names(&checks[..2]), "weaker\n");
        assert_eq!(names(&checks[..1]), "good\n");
    }

    #[test]
    fn a_taken_port_is_said_and_worked_around() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = taken.local_addr().unwrap().port();
        assert_eq!(port("router", number, false).fix, "up --router-listen 127.0.0.1:0 takes a free one");
        assert_eq!(port("router", number, true).verdict, Verdict::Good);
    }
}
