//! A test engine in a temporary folder, and helpers to run commands with it.

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

    /// A folder for an engine that does not run yet.
    pub(crate) fn stopped() -> Option<Self> {
        can_run().then(|| Self { folder: tempfile::tempdir().unwrap() })
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
        let mut command = Command::new(PROGRAM);
        command.arg("--data-dir").arg(self.data()).args(words).env("COLUMNS", "100");
        command.env_remove("KUBECONFIG").env_remove("AGENT_SANDBOX_TARGET").stdin(Stdio::null());
        command
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
