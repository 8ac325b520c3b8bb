//! What an idle sandbox costs: many at once, each with its supervisor and the daemon, measured by what the machine has left.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use agent_sandbox_node::runtime::{Mount, MountSource, PodRuntime};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::Outcome;
use super::ours::{Bench, pod};

/// Sandboxes made at the same time.
const AT_ONCE: usize = 8;

/// Where the daemon is inside.
const DAEMON: &str = "/.agent-sandbox/sandboxd";

pub(crate) async fn measure(count: usize) -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    let bench = Bench::open(folder.path(), |config| config.ready_pods = 0).await?;
    let daemon = daemon()?;
    let before = available()?;
    let began = Instant::now();
    let start = async |number: usize| -> Outcome<()> {
        let uid = format!("idle-{number}");
        bench.runtime.create_pod(pod(&uid)).await?;
        let command = ["--listen", "0.0.0.0:8888", "--base-dir", "/home/user"].map(str::to_owned);
        let mut spec = bench.container(&uid, std::iter::once(DAEMON.to_owned()).chain(command).collect());
        let source = MountSource::Host { path: daemon.clone() };
        spec.mounts.push(Mount { source, target: DAEMON.into(), read_only: true });
        bench.runtime.start_container(&uid, spec).await?;
        Ok(())
    };
    stream::iter(0..count).map(start).buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await?;
    let took = began.elapsed();
    // Daemons come up, the kernel settles.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let each = before.saturating_sub(available()?) as f64 / count as f64 / 1024.0;
    println!("{count} idle sandboxes with daemon and supervisor: {:.1} s, {each:.2} MB each", took.as_secs_f64());
    let began = Instant::now();
    let remove = async |number: usize| -> Outcome<()> {
        let uid = format!("idle-{number}");
        bench.runtime.remove_pod(&uid).await?;
        Ok(bench.runtime.forget_owner(&uid).await?)
    };
    stream::iter(0..count).map(remove).buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await?;
    println!("removed in {:.1} s", began.elapsed().as_secs_f64());
    bench.runtime.close();
    Ok(())
}

/// The daemon to put into them: `SANDBOXD`, or the one built beside this program.
fn daemon() -> Outcome<PathBuf> {
    let given = std::env::var_os("SANDBOXD").map(PathBuf::from);
    let beside = || std::env::current_exe().map(|path| path.with_file_name("sandboxd-for-tests"));
    let path = given.map_or_else(beside, Ok)?;
    Ok(path.canonicalize().map_err(|error| format!("{}: {error}; set SANDBOXD", path.display()))?)
}

/// `MemAvailable`, in kilobytes.
fn available() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).ok_or("no MemAvailable")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
