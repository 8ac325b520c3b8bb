//! Measures how long a sandbox takes from its creation to the exit of its command, and the memory of an idle one,
//! beside other tools on the same machine in the same run.
//!
//! `bench_start [rounds]`, as root; `bench_start node AT_ONCE ROUNDS` measures only a running node, for profiling;
//! `bench_start idle SANDBOXES`. Two rows are ours: a running node that creates a complete Pod each time (a new
//! supervisor, all namespaces, cgroups, overlay, seccomp, Landlock), and a new process each time that opens a node,
//! runs one Pod and removes everything, as `run` does. Peers run `/bin/true` over the host's `/usr` with the same
//! namespaces and the same pids limit, one new process per start.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a benchmark prints its table")]

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

mod idle;
mod ours;
mod peers;

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    agent_sandbox_node::helper_main();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match dispatch(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[&str]) -> Outcome<()> {
    match words {
        ["one", folder] => return on_runtime(ours::run_once(Path::new(folder))),
        ["peer", name, rounds] => return peers::measure_oci(name, rounds.parse()?),
        ["node", concurrency, rounds] => {
            return on_runtime(ours::measure(&[concurrency.parse()?], rounds.parse()?));
        }
        ["idle", count] => return on_runtime(idle::measure(count.parse()?)),
        _ => {}
    }
    let rounds = words.first().map_or(Ok(200), |word| word.parse())?;
    println!("| what | at once | p50 ms | p99 ms | per second |\n|---|---|---|---|---|");
    on_runtime(ours::measure(&[1, 8], rounds))?;
    ours::measure_fresh(rounds.min(200))?;
    peers::measure(rounds)
}

fn on_runtime(work: impl Future<Output = Outcome<()>>) -> Outcome<()> {
    tokio::runtime::Runtime::new()?.block_on(work)
}

/// A data folder below `/var/lib`, where a node has it, and not in `/tmp`: some file systems create files slowly in
/// places where many were deleted shortly before.
pub(crate) fn folder() -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("agent-sandbox-bench-").tempdir_in("/var/lib")
}

/// One line of the table.
pub(crate) fn row(name: &str, concurrency: usize, list: &mut [Duration], rate: f64) {
    list.sort_unstable();
    let at = |part: f64| list.get(((list.len() as f64 - 1.0) * part) as usize).map_or(0.0, |d| d.as_secs_f64() * 1e3);
    println!("| {name} | {concurrency} | {:.2} | {:.2} | {rate:.0} |", at(0.5), at(0.99));
}

/// Runs `start` `rounds` times from `concurrency` threads; returns the times and the rate per second.
pub(crate) fn on_threads(
    concurrency: usize,
    rounds: usize,
    start: impl Fn(usize, usize) -> std::io::Result<bool> + Sync,
) -> Option<(Vec<Duration>, f64)> {
    let began = std::time::Instant::now();
    let work = |worker: usize| {
        (0..rounds / concurrency)
            .map(|round| {
                let began = std::time::Instant::now();
                start(worker, round).ok().filter(|ok| *ok).map(|_| began.elapsed())
            })
            .collect::<Option<Vec<_>>>()
    };
    let lists = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..concurrency).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().map(|worker| worker.join().ok().flatten()).collect::<Option<Vec<_>>>()
    })?;
    let list: Vec<_> = lists.into_iter().flatten().collect();
    let rate = list.len() as f64 / began.elapsed().as_secs_f64();
    (!list.is_empty()).then_some((list, rate))
}
