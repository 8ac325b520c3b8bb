//! A router in its own process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_sandbox_router::{RouterArgs, run_router};
use clap::{Args, FromArgMatches};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Arguments for the child, separated by newlines.
const ARGUMENTS: &str = "ROUTER_TEST_ARGUMENTS";
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Not a test: the main function of the child. Without the variable it does nothing.
#[test]
fn be_a_router() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let command = RouterArgs::augment_args(clap::Command::new("router"));
    let matches = command.get_matches_from(std::iter::once("router").chain(arguments.lines()));
    let config = match RouterArgs::from_arg_matches(&matches).unwrap().into_config(&|_| None) {
        Ok(config) => config,
        Err(error) => exit(2, &error),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async {
        let (shutdown, mut terminate) = (CancellationToken::new(), signal(SignalKind::terminate()).unwrap());
        let stop = shutdown.clone();
        tokio::spawn(async move {
            terminate.recv().await;
            stop.cancel();
        });
        run_router(config, shutdown).await
    });
    match result {
        Ok(()) => exit(0, &"done"),
        Err(error) => exit(1, &error),
    }
}

#[allow(clippy::exit, reason = "the exit status is what is tested")]
fn exit(code: i32, why: &dyn std::fmt::Display) -> ! {
    eprintln!("exit {code}: {why}");
    std::process::exit(code)
}

/// A running router.
pub(crate) struct RouterProcess {
    child: Child,
    /// Everything it has logged.
    pub(crate) log: Arc<Mutex<String>>,
}

impl Drop for RouterProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RouterProcess {
    /// Starts a router that proxies to loopback without an API; `arguments` come last and take precedence.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let base =
            ["--cache-enabled=false", "--allow-unverified-targets", "--allow-loopback-pod-ip", "--access-log=false"];
        let all = [&base[..], arguments].concat().join("\n");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child::be_a_router", "--exact", "--nocapture"])
            .env(ARGUMENTS, all)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::<Mutex<String>>::default();
        let (theirs, stderr) = (Arc::clone(&log), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = theirs.lock();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { child, log }
    }

    pub(crate) async fn wait_ready(&self) {
        self.wait_for("Router is ready").await;
    }

    pub(crate) async fn wait_for(&self, text: &str) {
        let deadline = Instant::now() + TIMEOUT;
        while !self.log.lock().contains(text) {
            assert!(Instant::now() < deadline, "no '{text}' in: {}", self.log.lock());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn terminate(&self) {
        let pid = rustix::process::Pid::from_raw(self.child.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the router does not end: {}", self.log.lock());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Resident memory in KiB.
    pub(crate) fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

/// A port that is currently free. Another process may take it first; tests that care start again.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

pub(crate) fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// `GET path`: status and body; `None` if there is no response.
pub(crate) async fn get(port: u16, path: &str) -> Option<(u16, String)> {
    get_from(port, "r", path).await
}

/// The same with another `Host`.
pub(crate) async fn get_from(port: u16, host: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(local(port)).await.ok()?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    let mut answer = String::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_string(&mut answer)).await.ok()?.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}
