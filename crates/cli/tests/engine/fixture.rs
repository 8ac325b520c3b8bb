//! A test engine in a temporary folder, and helpers to run commands with it.

use crate::{plain_user, world::World};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_agent-sandbox");

/// Whether a static sandboxd was built; prints that the test is skipped when it was not.
pub(crate) fn can_run() -> bool {
    if Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/embed/sandboxd")).exists() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "run `make sandboxd` first");
    eprintln!("SKIPPED: no static sandboxd; run `make sandboxd` first");
    false
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Who runs the commands of a test, and with them the engine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// Whoever runs the tests: root, where CI is set.
    Caller,
    /// An ordinary user without newuidmap, pasta and delegated cgroups.
    PlainUser,
    /// An ordinary user with pasta, who may open /dev/net/tun.
    PastaUser,
}

impl Mode {
    /// Whether tests can run so; prints that they are skipped when they cannot.
    fn is_possible(self) -> bool {
        self == Self::Caller || plain_user::is_possible()
    }
}

/// Declares every test twice: as whoever runs the tests, and as an ordinary user.
macro_rules! in_both_modes {
    ($($name:ident),* $(,)?) => {
        mod as_caller {
            $(#[test] fn $name() { super::$name(crate::fixture::Mode::Caller); })*
        }
        mod as_plain_user {
            $(#[test] fn $name() { super::$name(crate::fixture::Mode::PlainUser); })*
        }
    };
}
pub(crate) use in_both_modes;

/// Waits up to 30 s until the condition is true.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An engine in a folder of its own, stopped and removed at the end, also when a test fails.
pub(crate) struct Engine {
    pub(crate) folder: tempfile::TempDir,
    /// The program, or a script that runs it as another user or in another network.
    program: PathBuf,
    mode: Mode,
}

impl Engine {
    /// `None`, with a message, where no static sandboxd was built.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(flags: &[&str]) -> Option<Self> {
        let engine = Self::stopped()?;
        engine.up_with(flags);
        Some(engine)
    }

    pub(crate) fn start_as(mode: Mode, flags: &[&str]) -> Option<Self> {
        let engine = Self::stopped_as(mode)?;
        engine.up_with(flags);
        Some(engine)
    }

    /// A folder for an engine that does not run yet.
    pub(crate) fn stopped() -> Option<Self> {
        Self::stopped_as(Mode::Caller)
    }

    pub(crate) fn stopped_as(mode: Mode) -> Option<Self> {
        Self::stopped_in(mode, None)
    }

    /// In a network of the test, or in this machine's.
    pub(crate) fn stopped_in(mode: Mode, world: Option<&World>) -> Option<Self> {
        if !can_run() || !mode.is_possible() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let program = match (mode, world) {
            (Mode::Caller, None) => PROGRAM.into(),
            _ => plain_user::launcher(folder.path(), mode, world),
        };
        Some(Self { folder, program, mode })
    }

    pub(crate) fn up(&self) {
        self.up_with(&[]);
    }

    pub(crate) fn up_with(&self, flags: &[&str]) {
        let words = ["up", "--detach", "--api-listen", "127.0.0.1:0", "--router-listen", "127.0.0.1:0"];
        let ready = self.ok(&[&words, flags].concat());
        assert!(ready.starts_with("ready: API https://127.0.0.1:"), "{ready}");
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--data-dir").arg(self.data()).args(words);
        self.set_environment(&mut command);
        command.env("COLUMNS", "100").stdin(Stdio::null());
        command
    }

    /// Runs a line of a shell in which `agent-sandbox` is this engine's program with its data folder. A line that takes
    /// longer than a minute ends with code 124.
    pub(crate) fn line(&self, line: &str) -> Output {
        let mut command = Command::new("timeout");
        command.args(["60", "sh", "-c", line]).env("PATH", self.path()).current_dir(self.folder.path());
        self.set_environment(&mut command);
        command.env("COLUMNS", "100").stdin(Stdio::null()).output().unwrap()
    }

    /// A PATH in which `agent-sandbox` is this engine's program with its data folder.
    pub(crate) fn path(&self) -> String {
        let own = self.folder.path().join("bin");
        if !own.exists() {
            fs::create_dir(&own).unwrap();
            let text =
                format!("#!/bin/sh\nexec {} --data-dir {} \"$@\"\n", self.program.display(), self.data().display());
            write_program(&own.join("agent-sandbox"), &text);
        }
        format!("{}:{}", own.display(), std::env::var("PATH").unwrap())
    }

    /// Sets what programs of this engine find in their environment.
    pub(crate) fn set_environment(&self, command: &mut Command) {
        command.env_remove("KUBECONFIG").env_remove("AGENT_SANDBOX_TARGET").env_remove("AGENT_SANDBOX_DATA_DIR");
        if self.mode != Mode::Caller {
            command.env("HOME", self.folder.path().join("home")).env("TMPDIR", "/tmp");
            command.env_remove("XDG_DATA_HOME").env_remove("XDG_CACHE_HOME").env_remove("XDG_RUNTIME_DIR");
        }
    }

    /// The program that runs commands of this engine; it needs `--data-dir`.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Makes a folder or file of the test belong to whoever runs the commands.
    pub(crate) fn give(&self, path: &Path) {
        if self.mode != Mode::Caller {
            std::os::unix::fs::chown(path, Some(plain_user::USER), Some(plain_user::USER)).unwrap();
        }
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    pub(crate) fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {stderr}{}", self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    /// All objects of a kind in namespace `default`, read from the engine's API.
    pub(crate) fn list<K>(&self) -> Vec<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let file = kube::config::Kubeconfig::read_from(self.data().join("kubeconfig")).unwrap();
            let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await.unwrap();
            let api: kube::Api<K> = kube::Api::namespaced(kube::Client::try_from(config).unwrap(), "default");
            api.list(&Default::default()).await.unwrap().items
        })
    }

    /// Exit code, standard output and standard error of a command that is expected to fail.
    pub(crate) fn fails(&self, words: &[&str]) -> (i32, String, String) {
        let output = self.run(words);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(!output.status.success(), "{words:?} was expected to fail");
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.data().join("up.log")).unwrap_or_default()
    }

    /// Content of the engine's state file.
    pub(crate) fn state(&self) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.data().join("up.json")).unwrap()).unwrap()
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.state()["pid"].as_i64().unwrap()).unwrap()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.run(&["down", "--purge", "--yes"]);
    }
}

/// Writes a program that everybody may run.
pub(crate) fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}
