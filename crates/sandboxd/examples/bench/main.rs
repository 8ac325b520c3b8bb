//! Measures the daemon side by side, in one run: with the same program spawned bare, with a Python runtime of the
//! documented shape, with a bare read/write loop over loopback, and with another daemon of the same dialect given by
//! path. Prints a table; nothing here asserts a time. Only the standard library, so that it builds in seconds. See
//! `bench/sandboxd/README.md`.

#![expect(clippy::print_stdout, reason = "the table is the program's output")]

mod http;
mod measure;
mod peers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Connection;
use measure::{Latency, TURNS, in_turns, latency, latency_of, rate};
use peers::{Dialect, Peer, Transfer};

const SIZE: usize = 100 << 20;

struct Options {
    sandboxd: PathBuf,
    uvicorn: Option<PathBuf>,
    peer: Option<PathBuf>,
    settle: Duration,
}

fn options() -> Options {
    let mut options = Options {
        sandboxd: "target/embed/sandboxd".into(),
        uvicorn: None,
        peer: None,
        settle: Duration::from_secs(60),
    };
    let mut arguments = std::env::args().skip(1);
    while let (Some(name), Some(value)) = (arguments.next(), arguments.next()) {
        match name.as_str() {
            "--sandboxd" => options.sandboxd = value.into(),
            "--uvicorn" => options.uvicorn = Some(value.into()),
            "--peer" => options.peer = Some(value.into()),
            "--settle" => options.settle = Duration::from_secs(value.parse().unwrap_or(60)),
            other => println!("ignored {other}"),
        }
    }
    options
}

/// Longer by a second than the daemon waits before it releases memory.
const IDLE_AFTER: Duration = Duration::from_secs(6);

fn main() -> std::io::Result<()> {
    let options = options();
    let work = peers::Scratch::new()?;
    let ours = Peer::sandboxd(&options.sandboxd, work.path())?;
    // Idle memory is measured after the daemon has released what only start-up needs.
    std::thread::sleep(IDLE_AFTER);
    let idle = ours.memory();
    let python = options.uvicorn.as_ref().map(|uvicorn| Peer::python(uvicorn, work.path())).transpose()?;
    let python_idle = python.as_ref().map(Peer::memory);
    let daemon = options.peer.as_ref().map(|path| Peer::daemon(path, work.path())).transpose()?;

    compare_latencies(&ours, python.as_ref());
    compare_rates(&ours, python.as_ref());
    compare_transfers(&ours, daemon.as_ref(), python.as_ref(), work.path())?;

    println!("\nlisting 10,000 files (ms, median)");
    peers::many_files(work.path(), 10_000)?;
    for peer in [Some(&ours), python.as_ref()].into_iter().flatten() {
        let mut connection = Connection::open(peer.address)?;
        let listed = latency_of(2, 15, || assert!(connection.get("/list/many") > 10_000));
        println!("  {:<34} {:>9.2}", peer.name, listed.median.as_secs_f64() * 1e3);
    }

    println!("\nmemory (MB resident)");
    println!("  {:<34} idle {:>6.1}   after transfers {:>6.1}", ours.name, idle, ours.memory());
    if let (Some(python), Some(before)) = (&python, python_idle) {
        println!("  {:<34} idle {:>6.1}   after transfers {:>6.1}", python.name, before, python.memory());
    }
    if let Some(daemon) = &daemon {
        println!("  {:<34} after transfers {:>6.1}", daemon.name, daemon.memory());
    }
    std::thread::sleep(options.settle);
    println!("  {:<34} {} s later {:>6.1}", ours.name, options.settle.as_secs(), ours.memory());
    Ok(())
}

fn compare_latencies(ours: &Peer, python: Option<&Peer>) {
    println!("\ncommands, one at a time (median, 95th percentile; best of {TURNS} turns)");
    let mut bare = || latency(|| measure::spawn_bare("/bin/true", &[]));
    let mut bare_shell = || latency(|| measure::spawn_bare("/bin/sh", &["-c", "true"]));
    let mut argv = || exec_latency(ours, "/sandbox/v1/exec", ARGV);
    let mut shell = || exec_latency(ours, "/execute", SHELL);
    let mut theirs = || exec_latency(python.unwrap_or(ours), "/execute", SHELL);
    let mut contestants: Vec<&mut dyn FnMut() -> Latency> = vec![&mut bare, &mut bare_shell, &mut argv, &mut shell];
    if python.is_some() {
        contestants.push(&mut theirs);
    }
    let found = in_turns(&mut contestants, |new, best| new.median < best.median);
    show("bare spawn of true", &found[0], None);
    show("bare spawn of sh -c true", &found[1], None);
    show("sandboxd argv", &found[2], Some(&found[0]));
    show("sandboxd shell (/execute)", &found[3], Some(&found[1]));
    if let Some(theirs) = found.get(4) {
        show("python runtime (/execute)", theirs, Some(&found[0]));
        let ratio = |ours: &Latency| theirs.median.as_secs_f64() / ours.median.as_secs_f64();
        println!("  python / sandboxd: argv {:.2}, shell {:.2}", ratio(&found[2]), ratio(&found[3]));
    }
}

fn compare_rates(ours: &Peer, python: Option<&Peer>) {
    println!("\ncommands, 16 at a time (per second; best of {TURNS} turns)");
    let mut bare = || rate(16, || (), |()| measure::spawn_bare("/bin/true", &[]));
    let mut bare_shell = || rate(16, || (), |()| measure::spawn_bare("/bin/sh", &["-c", "true"]));
    let mut argv = || exec_rate(ours, "/sandbox/v1/exec", ARGV);
    let mut shell = || exec_rate(ours, "/execute", SHELL);
    let mut theirs = || exec_rate(python.unwrap_or(ours), "/execute", SHELL);
    let mut contestants: Vec<&mut dyn FnMut() -> f64> = vec![&mut bare, &mut bare_shell, &mut argv, &mut shell];
    if python.is_some() {
        contestants.push(&mut theirs);
    }
    let found = in_turns(&mut contestants, |new, best| new > best);
    show_rate("bare spawn of true", found[0], found[0]);
    show_rate("bare spawn of sh -c true", found[1], found[0]);
    show_rate("sandboxd argv", found[2], found[0]);
    show_rate("sandboxd shell (/execute)", found[3], found[1]);
    if let Some(theirs) = found.get(4) {
        show_rate("python runtime (/execute)", *theirs, found[0]);
        println!("  sandboxd / python: argv {:.2}, shell {:.2}", found[2] / theirs, found[3] / theirs);
    }
}

fn compare_transfers(ours: &Peer, daemon: Option<&Peer>, python: Option<&Peer>, work: &Path) -> std::io::Result<()> {
    println!("\ntransfers of {} MB over loopback (MB/s, best of {TURNS} turns)", SIZE >> 20);
    let contestants = [
        ("sandboxd /upload, /download", Some(ours), Dialect::Runtime),
        ("sandboxd native files", Some(ours), Dialect::Native),
        ("sandboxd /v1/files (with fsync)", Some(ours), Dialect::Workspace),
        ("peer daemon /v1/files", daemon, Dialect::Workspace),
        ("python runtime", python, Dialect::Runtime),
    ];
    let mut bare = Transfer { up: 0.0, down: 0.0 };
    let mut found = [bare; 5];
    for _ in 0..TURNS {
        bare = bare.best(Transfer { up: peers::bare_up(work, SIZE)?, down: peers::bare_down(work, SIZE)? });
        for ((_, peer, dialect), found) in contestants.iter().zip(&mut found) {
            if let Some(peer) = peer {
                *found = found.best(peer.transfer_in(*dialect, SIZE)?);
            }
        }
    }
    show_transfer("bare read/write loop", bare, bare);
    for ((name, peer, _), found) in contestants.iter().zip(found) {
        if peer.is_some() {
            show_transfer(name, found, bare);
        }
    }
    Ok(())
}

const ARGV: &str = r#"{"argv":["/bin/true"]}"#;
const SHELL: &str = r#"{"command":"true"}"#;

fn exec_latency(peer: &Peer, path: &str, body: &str) -> Latency {
    let mut connection = Connection::open(peer.address).expect("the peer listens");
    latency(|| connection.post_json(path, body))
}

fn exec_rate(peer: &Peer, path: &str, body: &str) -> f64 {
    let address = peer.address;
    rate(
        16,
        move || Connection::open(address).expect("the peer listens"),
        |connection| connection.post_json(path, body),
    )
}

fn show(name: &str, latency: &Latency, base: Option<&Latency>) {
    let ratio = base.map_or(String::new(), |base| {
        format!("{:>6.2} × bare", latency.median.as_secs_f64() / base.median.as_secs_f64())
    });
    let (median, late) = (latency.median.as_secs_f64() * 1e3, latency.late.as_secs_f64() * 1e3);
    println!("  {name:<34} {median:>7.3} ms {late:>7.3} ms {ratio}");
}

fn show_rate(name: &str, rate: f64, base: f64) {
    println!("  {name:<34} {rate:>7.0}/s {:>6.0} % of bare", rate / base * 100.0);
}

fn show_transfer(name: &str, transfer: Transfer, bare: Transfer) {
    println!(
        "  {name:<34} up {:>6.0} ({:>3.0} %)   down {:>6.0} ({:>3.0} %)",
        transfer.up,
        transfer.up / bare.up * 100.0,
        transfer.down,
        transfer.down / bare.down * 100.0
    );
}
