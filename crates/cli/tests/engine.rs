//! The engine on this machine, driven by the CLI as a user would: create, run, copy, suspend, resume, claim, crash, stop.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_agent-sandbox");

/// An engine in a folder of its own, stopped and removed at the end, also when a test fails.
struct Engine {
    folder: tempfile::TempDir,
}

impl Engine {
    /// `None`, with a message, where no sandbox can be carried.
    fn start() -> Option<Self> {
        if !Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/embed/sandboxd")).exists() {
            assert!(std::env::var_os("CI").is_none(), "run `make sandboxd` first");
            eprintln!("SKIPPED: no static sandboxd; run `make sandboxd` first");
            return None;
        }
        let engine = Self { folder: tempfile::tempdir().unwrap() };
        engine.up();
        Some(engine)
    }

    fn up(&self) {
        let ready = self.ok(&["up", "--detach", "--api-listen", "127.0.0.1:0", "--router-listen", "127.0.0.1:0"]);
        assert!(ready.starts_with("ready: API https://127.0.0.1:"), "{ready}");
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.arg("--data-dir").arg(self.data()).args(words);
        command.env_remove("KUBECONFIG").env_remove("AGENT_SANDBOX_TARGET").stdin(std::process::Stdio::null());
        command.output().unwrap()
    }

    fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {said}{}", self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Exit code, standard output and standard error of a command that is expected to fail.
    fn fails(&self, words: &[&str]) -> (i32, String, String) {
        let output = self.run(words);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(!output.status.success(), "{words:?} was expected to fail");
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.data().join("up.log")).unwrap_or_default()
    }

    fn pid(&self) -> i32 {
        let state: serde_json::Value = serde_json::from_slice(&fs::read(self.data().join("up.json")).unwrap()).unwrap();
        i32::try_from(state["pid"].as_i64().unwrap()).unwrap()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.run(&["down", "--purge"]);
    }
}

#[test]
fn a_sandbox_runs_commands_keeps_files_and_survives_suspend() {
    let Some(engine) = Engine::start() else { return };
    assert!(engine.ok(&["create", "box"]).starts_with("sandbox box is Ready"));
    let (code, out, err) = engine.fails(&["exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((code, out.as_str(), err.as_str()), (7, "out\n", "err\n"));
    assert_eq!(engine.ok(&["exec", "box", "--", "hostname"]), "box\n");

    let local = engine.folder.path().join("local");
    fs::create_dir_all(local.join("sub")).unwrap();
    fs::write(local.join("a.txt"), "hello").unwrap();
    fs::write(local.join("sub/b.bin"), [0_u8, 159, 146, 150]).unwrap();
    let local_text = local.to_str().unwrap();
    engine.ok(&["cp", local_text, "box:/home/user/copy"]);
    engine.ok(&["cp", local.join("a.txt").to_str().unwrap(), "box:/home/user/"]);
    let back = engine.folder.path().join("back");
    engine.ok(&["cp", "box:/home/user/copy", back.to_str().unwrap()]);
    assert_eq!(fs::read(back.join("sub/b.bin")).unwrap(), [0_u8, 159, 146, 150]);

    engine.ok(&["suspend", "box"]);
    assert!(engine.fails(&["exec", "box", "--", "true"]).2.contains("`box` is suspended; resume it first"));
    engine.ok(&["resume", "box"]);
    assert_eq!(engine.ok(&["exec", "box", "--", "cat", "a.txt", "copy/a.txt"]), "hellohello");

    let (_, _, said) = engine.fails(&["get", "bxo"]);
    assert!(said.contains("did you mean `box`?"), "{said}");
    let (_, _, said) = engine.fails(&["create", "box"]);
    assert!(said.contains("already exists"), "{said}");
    assert_eq!(engine.ok(&["list", "-o", "name", "-l", "!agents.x-k8s.io/warm-pool-sandbox"]).lines().count(), 1);
    assert_eq!(engine.ok(&["delete", "box"]), "sandbox box deleted\n");
}

#[test]
fn a_crashed_engine_finds_its_sandboxes_running() {
    let Some(engine) = Engine::start() else { return };
    engine.ok(&["create", "box"]);
    engine.ok(&["claim", "python-sandbox-template", "--name", "mine"]);
    engine.ok(&["exec", "box", "--", "sh", "-c", "echo kept > /home/user/f; sleep 1000 >/dev/null 2>&1 &"]);
    let boot = |name: &str| engine.ok(&["exec", name, "--", "stat", "-c", "%Y", "/proc/1"]);
    let (first_box, first_claim) = (boot("box"), boot("mine"));
    rustix::process::kill_process(rustix::process::Pid::from_raw(engine.pid()).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    // While it dies, the engine may still be found and then not answer.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while engine.run(&["status", "-o", "name"]).stdout != b"stopped\n" {
        assert!(std::time::Instant::now() < deadline, "a killed engine stops");
    }
    engine.up();
    assert_eq!(engine.ok(&["exec", "box", "--", "cat", "/home/user/f"]), "kept\n");
    assert_eq!((boot("box"), boot("mine")), (first_box, first_claim), "the same processes still run");
    assert!(engine.ok(&["exec", "box", "--", "ps", "ax"]).contains("sleep 1000"));
}

#[test]
fn down_stops_sandboxes_and_up_brings_them_back() {
    let Some(engine) = Engine::start() else { return };
    engine.ok(&["create", "box"]);
    engine.ok(&["exec", "box", "--", "sh", "-c", "echo kept > /home/user/f"]);
    engine.ok(&["down"]);
    assert_eq!(engine.ok(&["status", "-o", "name"]), "stopped\n");
    engine.up();
    let target = "box";
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    // The sandbox is started again in the background.
    while !engine.run(&["exec", target, "--", "true"]).status.success() {
        assert!(std::time::Instant::now() < deadline, "it comes back: {}", engine.log());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(engine.ok(&["exec", target, "--", "cat", "/home/user/f"]), "kept\n");
}

#[test]
fn short_manifests_are_written_out_and_applied() {
    let Some(engine) = Engine::start() else { return };
    let file = engine.folder.path().join("short.yaml");
    let manifest = "apiVersion: agents.x-k8s.io/v1alpha1\nkind: SandboxTemplate\nmetadata:\n  name: agent\nspec:\n  template:\n    spec:\n      containers:\n      - name: agent\n        image: host\n---\napiVersion: agents.x-k8s.io/v1alpha1\nkind: SandboxClaim\nmetadata:\n  name: my-claim\nspec:\n  template: agent\n---\napiVersion: agents.x-k8s.io/v1alpha1\nkind: SandboxWarmPool\nspec:\n  size: 1\n  template: agent\n";
    fs::write(&file, manifest).unwrap();
    let said = engine.ok(&["apply", "-f", file.to_str().unwrap()]);
    for expected in [
        "# understood as:",
        "sandboxtemplate/agent created",
        "sandboxclaim/my-claim created",
        "sandboxwarmpool/agent created",
    ] {
        assert!(said.contains(expected), "{expected} in {said}");
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !engine.run(&["exec", "my-claim", "--", "true"]).status.success() {
        assert!(std::time::Instant::now() < deadline, "the claim gets a sandbox: {}", engine.log());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(engine.ok(&["apply", "-f", file.to_str().unwrap()]).contains("sandboxtemplate/agent unchanged"));
}

#[test]
fn run_passes_the_exit_code_and_the_streams_through() {
    if !Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/embed/sandboxd")).exists() {
        eprintln!("SKIPPED: no static sandboxd; run `make sandboxd` first");
        return;
    }
    let run = |words: &[&str]| {
        Command::new(PROGRAM).arg("run").args(words).stdin(std::process::Stdio::null()).output().unwrap()
    };
    let output = run(&["--", "python3", "-c", "print(1)"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), b"1\n".as_slice()), "{output:?}");
    let output = run(&["--env", "A=b", "--", "sh", "-c", "echo $A; echo no >&2; exit 9"]);
    assert_eq!(
        (output.status.code(), output.stdout.as_slice(), output.stderr.as_slice()),
        (Some(9), b"b\n".as_slice(), b"no\n".as_slice())
    );
    let output = run(&["--timeout", "1s", "--", "sleep", "60"]);
    assert_eq!(output.status.code(), Some(124));
    match run(&["--", "/no/such/program"]).status.code() {
        Some(126 | 127 | 1) => {}
        other => panic!("a missing program is an error, not {other:?}"),
    }
}
