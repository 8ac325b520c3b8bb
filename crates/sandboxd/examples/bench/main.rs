//! Measures the daemon side by side, in one run: with the same program spawned bare, with a Python runtime of the
//! documented shape, with a bare read/write loop over loopback, and with another daemon of the same dialect given by
//! path. Prints a table; nothing here asserts a time. Only the standard library, so that it builds in seconds. See
//! `bench/sandboxd/README.md`.

#![expect(clippy::print_stdout, reason = "the table is the program's output")]

mod http;
mod measure;
mod peers;

use std::path::PathBuf;
use std::time::Duration;

use http::Connection;
use measure::{Latency, latency, latency_of, rate};
use peers::{Peer, Transfer};

const SIZE: usize = 100 << 20;

struct Options {
    sandboxd: PathBuf,
    uvicorn: Option<PathBuf>,
    peer: Option<PathBuf>,
    settle: Duration,
}

fn options() -> Options {
    let mut options =
        Options { sandboxd: "target/tiny/sandboxd".into(), uvicorn: None, peer: None, settle: Duration::from_secs(60) };
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

fn main() -> std::io::Result<()> {
    let options = options();
    let work = peers::Scratch::new()?;
    let ours = Peer::sandboxd(&options.sandboxd, work.path())?;
    let idle = ours.memory();
    let python = options.uvicorn.as_ref().map(|uvicorn| Peer::python(uvicorn, work.path())).transpose()?;
    let python_idle = python.as_ref().map(Peer::memory);
    let daemon = options.peer.as_ref().map(|path| Peer::daemon(path, work.path())).transpose()?;

    println!("\ncommands, one at a time (median, 95th percentile)");
    let bare = latency(|| measure::spawn_bare("/bin/true", &[]));
    let bare_shell = latency(|| measure::spawn_bare("/bin/sh", &["-c", "true"]));
    show("bare spawn of true", &bare, None);
    show("bare spawn of sh -c true", &bare_shell, None);
    show("sandboxd argv", &exec_latency(&ours, "/sandbox/v1/exec", ARGV), Some(&bare));
    show("sandboxd shell (/execute)", &exec_latency(&ours, "/execute", SHELL), Some(&bare_shell));
    if let Some(python) = &python {
        show("python runtime (/execute)", &exec_latency(python, "/execute", SHELL), Some(&bare));
    }

    println!("\ncommands, 16 at a time (per second)");
    let bare_rate = rate(16, || (), |()| measure::spawn_bare("/bin/true", &[]));
    show_rate("bare spawn of true", bare_rate, bare_rate);
    let bare_shell_rate = rate(16, || (), |()| measure::spawn_bare("/bin/sh", &["-c", "true"]));
    show_rate("bare spawn of sh -c true", bare_shell_rate, bare_rate);
    show_rate("sandboxd argv", exec_rate(&ours, "/sandbox/v1/exec", ARGV), bare_rate);
    show_rate("sandboxd shell (/execute)", exec_rate(&ours, "/execute", SHELL), bare_shell_rate);
    if let Some(python) = &python {
        show_rate("python runtime (/execute)", exec_rate(python, "/execute", SHELL), bare_rate);
    }

    println!("\ntransfers of {} MB over loopback (MB/s, best of five)", SIZE >> 20);
    let bare_up = peers::bare_up(work.path(), SIZE)?;
    let bare_down = peers::bare_down(work.path(), SIZE)?;
    show_transfer("bare read/write loop", Transfer { up: bare_up, down: bare_down }, bare_up, bare_down);
    show_transfer("sandboxd /upload, /download", ours.runtime_transfer(SIZE)?, bare_up, bare_down);
    show_transfer("sandboxd native files", ours.native_transfer(SIZE)?, bare_up, bare_down);
    show_transfer("sandboxd /v1/files (with fsync)", ours.workspace_transfer(SIZE)?, bare_up, bare_down);
    if let Some(daemon) = &daemon {
        show_transfer("peer daemon /v1/files", daemon.workspace_transfer(SIZE)?, bare_up, bare_down);
    }
    if let Some(python) = &python {
        show_transfer("python runtime", python.runtime_transfer(SIZE)?, bare_up, bare_down);
    }

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

fn show_transfer(name: &str, transfer: Transfer, up: f64, down: f64) {
    println!(
        "  {name:<34} up {:>6.0} ({:>3.0} %)   down {:>6.0} ({:>3.0} %)",
        transfer.up,
        transfer.up / up * 100.0,
        transfer.down,
        transfer.down / down * 100.0
    );
}
