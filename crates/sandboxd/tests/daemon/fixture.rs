//! A daemon for one test: temporary directories, a free port, and an end when the test ends.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{HttpResponse, TIMEOUT, form, form_type, send};

/// Names another build of the daemon than the one Cargo makes for these tests: the released one is linked to another C
/// library.
const OTHER_BUILD: &str = "AGENT_SANDBOX_TEST_SANDBOXD";

pub(crate) fn other_build() -> Option<String> {
    std::env::var(OTHER_BUILD).ok()
}

/// The daemon under test.
pub(crate) fn program() -> String {
    other_build().unwrap_or_else(|| env!("CARGO_BIN_EXE_sandboxd").to_owned())
}

/// A running daemon. Its tree: `outside/` with sentinel files, in it `sandbox/` (the root), in it `home/user` (the
/// base), `app` (a link to it), `tmp` and `workspace`.
pub(crate) struct Daemon {
    pub(crate) address: SocketAddr,
    pub(crate) outside: PathBuf,
    pub(crate) process: Child,
    pub(crate) log: Arc<Mutex<String>>,
    /// Started through another program, which does not forward signals.
    wrapped: bool,
    directory: tempfile::TempDir,
}

/// How a daemon is started.
#[derive(Default)]
pub(crate) struct Setup {
    flags: Vec<String>,
    variables: Vec<(String, String)>,
    command: Vec<String>,
    before_exec: Option<fn() -> std::io::Result<()>>,
    whole_root: bool,
    default_base: bool,
}

pub(crate) fn daemon() -> Setup {
    Setup::default()
}

impl Setup {
    pub(crate) fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.into());
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    pub(crate) fn command(mut self, argv: &[&str]) -> Self {
        self.command = argv.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Runs in the child between fork and exec.
    pub(crate) fn before_exec(mut self, hook: fn() -> std::io::Result<()>) -> Self {
        self.before_exec = Some(hook);
        self
    }

    /// The real file system as sandbox root, as in production.
    pub(crate) fn whole_root(mut self) -> Self {
        self.whole_root = true;
        self
    }

    /// Starts without a flag for the base directory.
    pub(crate) fn default_base(mut self) -> Self {
        self.default_base = true;
        self.whole_root()
    }

    pub(crate) fn start(self) -> Daemon {
        let directory = tempfile::tempdir().expect("a directory");
        let outside = directory.path().canonicalize().expect("a path");
        let sandbox = outside.join("sandbox");
        for folder in ["home/user", "tmp", "workspace", "etc"] {
            std::fs::create_dir_all(sandbox.join(folder)).expect("a folder");
        }
        symlink("home/user", sandbox.join("app")).expect("a link");
        std::fs::write(outside.join("sentinel"), "SENTINEL").expect("a file");
        let mut command = Command::new(program());
        command.args(["--listen", "127.0.0.1:0", "--kill-grace", "500ms", "--shutdown-timeout", "1s"]);
        if !self.default_base {
            command.arg("--base-dir").arg(sandbox.join("home/user"));
        }
        if !self.flags.iter().any(|flag| flag.starts_with("--root-dir")) {
            command.arg("--root-dir").arg(sandbox.join("workspace"));
        }
        if !self.whole_root {
            command.arg("--sandbox-root").arg(&sandbox);
        }
        command.args(&self.flags).envs(self.variables).stdin(Stdio::null());
        if !self.command.is_empty() {
            command.arg("--").args(&self.command);
        }
        start(command, self.before_exec, directory, outside)
    }
}

#[expect(unsafe_code, reason = "a hook between fork and exec")]
fn start(
    mut command: Command,
    before_exec: Option<fn() -> std::io::Result<()>>,
    directory: tempfile::TempDir,
    outside: PathBuf,
) -> Daemon {
    if let Some(hook) = before_exec {
        // SAFETY: the hooks of these tests only make system calls.
        unsafe { command.pre_exec(hook) };
    }
    let mut process = command.stderr(Stdio::piped()).spawn().expect("the daemon starts");
    let log = Arc::new(Mutex::new(String::new()));
    let address = watch_log(&mut process, &log);
    Daemon { address, outside, process, log, wrapped: false, directory }
}

/// Starts any command that becomes a daemon and logs its address.
pub(crate) fn start_command(command: Command) -> Daemon {
    start_command_with(command, Stdio::null())
}

/// The same, with the given standard input.
pub(crate) fn start_command_with(mut command: Command, input: Stdio) -> Daemon {
    command.stdin(input);
    let directory = tempfile::tempdir().expect("a directory");
    let outside = directory.path().to_path_buf();
    let mut daemon = start(command, None, directory, outside);
    daemon.wrapped = true;
    daemon
}

/// Reads the address from the log and keeps collecting the rest.
fn watch_log(process: &mut Child, log: &Arc<Mutex<String>>) -> SocketAddr {
    let mut lines = BufReader::new(process.stderr.take().expect("piped")).lines();
    let address = loop {
        let Some(Ok(line)) = lines.next() else {
            panic!("the daemon did not start: {}", log.lock().expect("a log"));
        };
        log.lock().expect("a log").push_str(&format!("{line}\n"));
        if let Some((_, address)) = line.split_once("Listening address=") {
            break address.trim().parse().expect("an address");
        }
    };
    let log = Arc::clone(log);
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            log.lock().expect("a log").push_str(&format!("{line}\n"));
        }
    });
    address
}

impl Daemon {
    pub(crate) fn sandbox(&self) -> PathBuf {
        self.outside.join("sandbox")
    }

    pub(crate) fn base(&self) -> PathBuf {
        self.outside.join("sandbox/home/user")
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.outside.join("sandbox/workspace")
    }

    /// The address that the log gives for a kind of port, such as `Envd`.
    pub(crate) fn port(&self, kind: &str) -> SocketAddr {
        let address = || {
            let log = self.log.lock().expect("a log");
            let line = log.lines().find(|line| line.ends_with(&format!("port={kind}")))?;
            line.split("Listening address=").nth(1)?.split(' ').next()?.parse().ok()
        };
        wait_for(address, "the port is served")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn get(&self, path: &str) -> HttpResponse {
        send(self.address, "GET", path, &[], b"")
    }

    pub(crate) fn send(&self, method: &str, path: &str, body: &[u8]) -> HttpResponse {
        send(self.address, method, path, &[], body)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> HttpResponse {
        let body = serde_json::to_vec(body).expect("JSON");
        send(self.address, "POST", path, &[("content-type", "application/json")], &body)
    }

    /// `POST /execute`.
    pub(crate) fn execute(&self, command: &str) -> Value {
        let response = self.post("/execute", &json!({ "command": command }));
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()
    }

    pub(crate) fn upload(&self, filename: &str, content: &[u8]) -> HttpResponse {
        let form = form("file", Some(filename), None, content);
        send(self.address, "POST", "/upload", &[("content-type", &form_type())], &form)
    }

    /// Sends a signal to the daemon itself.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).expect("the daemon is there");
    }

    /// Ends what the wrapper started: a daemon that has changed its user does not die with its parent.
    fn kill_inner(&self) {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid())).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            if let Some(child) = rustix::process::Pid::from_raw(child) {
                let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
            }
        }
    }

    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        wait_for(|| self.process.try_wait().expect("a child"), "the daemon ends")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The daemon ends its commands on SIGTERM; after SIGKILL it could not.
        if !self.wrapped && matches!(self.process.try_wait(), Ok(None)) {
            self.signal(rustix::process::Signal::TERM);
            let deadline = Instant::now() + Duration::from_secs(15);
            while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if self.wrapped {
            self.kill_inner();
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = self.directory.path();
    }
}

/// Waits for a condition, up to the timeout.
pub(crate) fn wait_for<T>(mut condition: impl FnMut() -> Option<T>, what: &str) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process with this pid exists and is not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path.as_ref()).unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}
