//! `doctor`: checks which isolation this machine supports, and prints how to fix what is missing.

use crate::{
    args::{DoctorArgs, GlobalArgs},
    output,
};
use agent_sandbox_engine::{DataDir, host_check};
use agent_sandbox_node::{
    kernel::{
        KernelConfig, KernelRuntime, Leftover, NodeDefaults, SnapshotCount, leftovers as find_leftovers,
        remove_leftover,
    },
    kubelet::eviction::StoragePolicy,
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

/// Free bytes below which new sandboxes may be refused for lack of disk space.
const LOW_DISK: u64 = 2 << 30;
const MEBIBYTE: u64 = 1 << 20;
const GIBIBYTE: u64 = 1 << 30;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Status {
    Good,
    /// Sandboxes run, with something missing.
    Weaker,
    /// No sandbox can run.
    Broken,
}

/// One thing that was checked.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Check {
    #[serde(rename = "verdict")]
    status: Status,
    what: String,
    /// How to fix it; empty when there is nothing to do.
    fix: String,
}

impl Check {
    fn new(status: Status, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { status, what: what.into(), fix: fix.into() }
    }

    fn good(what: impl Into<String>) -> Self {
        Self::new(Status::Good, what, "")
    }
}

pub(crate) async fn doctor(global: &GlobalArgs, args: &DoctorArgs) -> Result<ExitCode> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    let mut checks = vec![user_namespaces()];
    checks.extend(isolation().await?);
    checks.push(default_limits());
    checks.extend(leftovers(args.fix));
    checks.push(snapshots(SnapshotCount::of(&data.path().join("node/kernel"))));
    checks.push(program("kubectl", "install kubectl to use the engine with it"));
    checks.push(oci_runtimes());
    checks.push(disk(data.path()));
    checks.extend([("API", 6443), ("router", 8080)].map(|(what, number)| port(what, number, data.running().is_some())));
    output::emit(args.output.output, &checks, || names(&checks), || page(&checks))?;
    let broken = checks.iter().any(|check| check.status == Status::Broken);
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn user_namespaces() -> Check {
    match host_check::diagnose() {
        Some(problem) => Check::new(Status::Broken, problem.cause, problem.fix),
        None if rustix::process::geteuid().is_root() => Check::good("runs as root: all isolation is available"),
        None => Check::good("user namespaces work without root"),
    }
}

/// Opens the runtime as the engine does, in a temporary folder, and lists its weaknesses.
async fn isolation() -> Result<Vec<Check>> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut config = KernelConfig::new(folder.path().join("kernel"));
    // No Pod is started here.
    (config.ready_pods, config.prepare_host) = (0, false);
    let runtime = match KernelRuntime::open(config).await {
        Ok(runtime) => runtime,
        Err(error) => {
            return Ok(vec![Check::new(
                Status::Broken,
                format!("processes cannot be isolated: {error}"),
                "run as root, or see the first line",
            )]);
        }
    };
    let weaknesses = runtime.weaknesses();
    runtime.close();
    if weaknesses.is_empty() {
        return Ok(vec![Check::good("namespaces, limits and network are all there")]);
    }
    let weaker =
        weaknesses.into_iter().map(|weakness| Check::new(Status::Weaker, weakness.message, fix_for(weakness.kind)));
    Ok(weaker.collect())
}

/// Limits of sandboxes that set none; the weaknesses above say what of them cannot be enforced.
fn default_limits() -> Check {
    let NodeDefaults { memory_bytes, cpu_millis, pids, .. } = NodeDefaults::of_machine();
    let StoragePolicy { default_limit, default_inodes, .. } = StoragePolicy::default();
    let amount =
        |found: Option<u64>, unit: u64| found.map_or("unlimited".to_owned(), |found| (found / unit).to_string());
    let cpus = cpu_millis.map_or("unlimited".to_owned(), |millis| format!("{}", millis as f64 / 1_000.0));
    Check::good(format!(
        "a sandbox that sets no limits gets {} MiB of memory, {cpus} CPUs, {} processes, {} GiB of disk and \
         {default_inodes} files",
        amount(memory_bytes, MEBIBYTE),
        amount(pids, 1),
        default_limit / GIBIBYTE
    ))
}

/// Leftovers of engines that no longer run, except those that the runtime removed itself when `isolation` opened it.
fn leftovers(fix: bool) -> Vec<Check> {
    let left = find_leftovers();
    if left.is_empty() {
        return vec![Check::good("nothing is left of engines that are gone")];
    }
    let check = |stray: &Leftover| match stray {
        Leftover::Pods { data_dir } => {
            // The runtime's folder is node/kernel in the engine's folder.
            let engine = data_dir.ancestors().nth(2).filter(|folder| folder.join("node/kernel") == *data_dir);
            let folder = engine.unwrap_or(data_dir).display();
            Check::new(
                Status::Weaker,
                format!("sandboxes of an engine that died still run; its folder is {folder}"),
                format!(
                    "agent-sandbox --data-dir {folder} up takes them over again, agent-sandbox --data-dir {folder} down stops them"
                ),
            )
        }
        other if fix => match remove_leftover(other) {
            Ok(()) => Check::good(format!("removed {}", describe(other))),
            Err(error) => Check::new(
                Status::Weaker,
                format!("{} cannot be removed: {error}", describe(other)),
                "see what uses it, or restart the machine",
            ),
        },
        other => {
            let what = format!("{} was left by an engine that is gone", describe(other));
            Check::new(Status::Weaker, what, "agent-sandbox doctor --fix removes it")
        }
    };
    left.iter().map(check).collect()
}

/// Snapshots of this engine, and layers that are kept for nothing or are missing.
fn snapshots(count: std::io::Result<SnapshotCount>) -> Check {
    let SnapshotCount { snapshots, layers, unused, missing } = match count {
        Ok(count) => count,
        Err(error) => {
            let what = format!("the snapshots of this engine cannot be read: {error}");
            return Check::new(Status::Weaker, what, "run doctor as the user who started the engine");
        }
    };
    let kept = format!("{snapshots} snapshots, {layers} layers of snapshots");
    if missing > 0 {
        return Check::new(
            Status::Weaker,
            format!("{kept}; {missing} layers that they or sandboxes need are missing"),
            "delete the snapshots from which nothing can be created, and take them again",
        );
    }
    match unused {
        Some(0) => Check::good(format!("{kept}, all in use")),
        None => Check::good(kept),
        Some(unused) => Check::new(
            Status::Weaker,
            format!("{kept}, {unused} of which nothing uses"),
            "unless a snapshot is being taken: start the engine again, which removes them",
        ),
    }
}

fn describe(stray: &Leftover) -> String {
    match stray {
        Leftover::Pods { data_dir } => format!("sandboxes of {}", data_dir.display()),
        Leftover::Table { name, data_dir: Some(folder) } => {
            format!("nftables table inet {name} (of {})", folder.display())
        }
        Leftover::Table { name, data_dir: None } => format!("nftables table inet {name}"),
        Leftover::Group { folder } => format!("control group {}", folder.display()),
    }
}

fn fix_for(kind: WeaknessKind) -> &'static str {
    match kind {
        WeaknessKind::SharedUid => {
            "install newuidmap (package uidmap) and give your user ranges in /etc/subuid and /etc/subgid, or run as root"
        }
        WeaknessKind::LimitNotEnforced => "run as root, or let systemd delegate memory and cpu to your user",
        WeaknessKind::StorageMeasuredOnly => "keep the data folder on a file system of its own to bound it",
        WeaknessKind::NoEgress => {
            "install pasta (package passt) and let users open /dev/net/tun, or run as root, to let sandboxes reach out where a policy allows it"
        }
        WeaknessKind::SharedUserLimits => "run as root, or raise fs.inotify.max_user_instances",
        WeaknessKind::OpenToRoot => {
            "mount the unified cgroup hierarchy (v2), run outside of containers, and use a kernel of 5.13 or newer"
        }
        WeaknessKind::NoLandlock => "boot a kernel with Landlock (5.13 or newer, lsm=landlock,…)",
    }
}

fn program(name: &str, fix: &str) -> Check {
    let path = std::env::var_os("PATH").unwrap_or_default();
    match std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file()) {
        Some(found) => Check::good(format!("{name} is {}", found.display())),
        None => Check::new(Status::Weaker, format!("{name} is not installed"), fix),
    }
}

/// OCI runtimes that are installed. None is needed.
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
        return Check::new(Status::Weaker, what, "make room, or choose another folder with --data-dir");
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
                Status::Weaker,
                format!("port {number} is in use"),
                format!("up --{flag}-listen 127.0.0.1:0 takes a free one"),
            )
        }
    }
}

fn names(checks: &[Check]) -> String {
    let states = checks.iter().map(|check| check.status);
    let broken = states.clone().any(|status| status == Status::Broken);
    let weaker = states.clone().any(|status| status == Status::Weaker);
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
        let label = match check.status {
            Status::Good => "ok    ",
            Status::Weaker => "weaker",
            Status::Broken => "BROKEN",
        };
        let _ = writeln!(text, "{label}  {}", check.what);
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
    fn every_problem_is_printed_with_its_fix() {
        let checks =
            [Check::good("a"), Check::new(Status::Weaker, "b", "do c"), Check::new(Status::Broken, "d", "do e")];
        assert_eq!(page(&checks), "ok      a\nweaker  b\n        fix: do c\nBROKEN  d\n        fix: do e\n");
        assert_eq!(names(&checks), "broken\n");
        assert_eq!(names(&checks[..2]), "weaker\n");
        assert_eq!(names(&checks[..1]), "good\n");
    }

    #[test]
    fn layers_that_nothing_uses_or_that_are_missing_are_reported() {
        let count = |unused, missing| snapshots(Ok(SnapshotCount { snapshots: 1, layers: 3, unused, missing }));
        assert_eq!(count(Some(0), 0), Check::good("1 snapshots, 3 layers of snapshots, all in use"));
        assert_eq!(count(None, 0).status, Status::Good);
        assert_eq!(count(Some(2), 0).status, Status::Weaker);
        assert!(count(Some(2), 0).what.ends_with("2 of which nothing uses"));
        assert!(count(Some(2), 1).what.ends_with("1 layers that they or sandboxes need are missing"));
        assert_eq!(snapshots(Err(std::io::ErrorKind::PermissionDenied.into())).status, Status::Weaker);
    }

    #[test]
    fn a_port_in_use_is_reported_with_a_way_around_it() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let number = taken.local_addr().unwrap().port();
        assert_eq!(port("router", number, false).fix, "up --router-listen 127.0.0.1:0 takes a free one");
        assert_eq!(port("router", number, true).status, Status::Good);
    }
}
