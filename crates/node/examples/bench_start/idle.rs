//! Memory of an idle sandbox: many at once, each with its supervisor and sandboxd, measured by the machine's available
//! memory.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use agent_sandbox_node::runtime::{Mount, MountSource, PodRuntime};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::Outcome;
use super::ours::{Bench, pod};

/// Number of sandboxes that are created concurrently.
const AT_ONCE: usize = 8;

/// Path of sandboxd inside a sandbox.
const DAEMON: &str = "/.agent-sandbox/sandboxd";

pub(crate) async fn measure(count: usize) -> Outcome<()> {
    let folder = super::folder()?;
    let bench = Bench::open(folder.path(), |config| config.ready_pods = 0).await?;
    let daemon = daemon()?;
    let before = memory()?;
    let began = Instant::now();
    let start = async |number: usize| -> Outcome<()> {
        let uid = format!("idle-{number}");
        bench.runtime.create_pod(pod(&uid)).await?;
        let command = ["--listen", "0.0.0.0:8888", "--base-dir", "/home/user"].map(str::to_owned);
        let mut spec = bench.container(&uid, std::iter::once(DAEMON.to_owned()).chain(command).collect());
        let source = MountSource::Program { path: daemon.clone() };
        spec.mounts.push(Mount { source, target: DAEMON.into(), read_only: true });
        bench.runtime.start_container(&uid, spec).await?;
        Ok(())
    };
    stream::iter(0..count).map(start).buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await?;
    let took = began.elapsed();
    // Wait until the daemons have started and returned the memory that only their start needed.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let after = memory()?;
    let each = |name: &str| {
        let of = |memory: &Memory| memory.get(name).copied().unwrap_or_default();
        (of(&after) - of(&before)) / count as f64
    };
    let total = -each("MemAvailable") / 1024.0;
    println!("{count} idle sandboxes with daemon and supervisor: {:.1} s, {total:.2} MB each", took.as_secs_f64());
    let split: Vec<_> = PARTS.iter().map(|part| format!("{part} {:.0} kB", each(part))).collect();
    println!("of that: {}", split.join(", "));
    let began = Instant::now();
    let remove = async |number: usize| -> Outcome<()> {
        let uid = format!("idle-{number}");
        bench.runtime.remove_pod(&uid).await?;
        Ok(bench.runtime.delete_owner_storage(&uid).await?)
    };
    stream::iter(0..count).map(remove).buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await?;
    println!("removed in {:.1} s", began.elapsed().as_secs_f64());
    bench.runtime.close();
    Ok(())
}

/// Path of sandboxd: `SANDBOXD`, or the one built beside this program.
fn daemon() -> Outcome<PathBuf> {
    let given = std::env::var_os("SANDBOXD").map(PathBuf::from);
    let beside = || std::env::current_exe().map(|path| path.with_file_name("sandboxd-for-tests"));
    let path = given.map_or_else(beside, Ok)?;
    Ok(path.canonicalize().map_err(|error| format!("{}: {error}; set SANDBOXD", path.display()))?)
}

/// The values of `/proc/meminfo` in kilobytes.
type Memory = HashMap<String, f64>;

/// Anonymous pages, shared memory, and kernel memory: stacks, page tables, per-CPU data and unreclaimable slab.
const PARTS: [&str; 6] = ["AnonPages", "Shmem", "KernelStack", "PageTables", "Percpu", "SUnreclaim"];

fn memory() -> Outcome<Memory> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().trim_end_matches(" kB").parse().ok()?))
    };
    Ok(text.lines().filter_map(line).collect())
}
