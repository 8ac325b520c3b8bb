//! Runs the real kubectl, and normalizes its output for snapshots.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::Cluster;

/// True if kubectl is not installed; prints that the test is skipped.
pub fn missing() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = *FOUND.get_or_init(|| {
        let run =
            Command::new("kubectl").args(["version", "--client"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        run.is_ok_and(|status| status.success())
    });
    if !found {
        println!("skipped: kubectl is not on PATH; install it to run this test");
    }
    !found
}

/// Exit code and output of a command.
pub struct Output {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Output {
    /// Exit code, stdout and stderr in one text, for a snapshot.
    pub fn transcript(&self) -> String {
        let mut text = format!("exit {}\n", self.code);
        for (name, part) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !part.is_empty() {
                let lines: Vec<&str> = part.lines().map(str::trim_end).collect();
                text.push_str(&format!("--- {name} ---\n{}\n", lines.join("\n")));
            }
        }
        text
    }
}

impl Cluster {
    pub fn kubectl_command(&self, arguments: &[&str]) -> Command {
        self.in_environment("kubectl", arguments)
    }

    fn in_environment(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", self.kubeconfig())
            .env("KUBECACHEDIR", self.folder.path().join("cache"))
            .env("KUBE_EDITOR", "sed -i s/old/new/");
        command
    }

    pub fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Output {
        // With a timeout, so that a command that hangs fails only its own test.
        let limited = [&["90", "kubectl"], arguments].concat();
        let mut child = self
            .in_environment("timeout", &limited)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let input = input.to_owned();
        // Written in a thread, so that writing stdin and reading stdout cannot block each other.
        let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
        let output = child.wait_with_output().expect("kubectl ends");
        writer.join().expect("the writer ends");
        Output {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub fn kubectl(&self, arguments: &[&str]) -> Output {
        self.kubectl_with_input(arguments, "")
    }

    /// Runs a command that must succeed; returns its stdout.
    #[track_caller]
    pub fn kubectl_ok(&self, arguments: &[&str]) -> String {
        let output = self.kubectl(arguments);
        assert_eq!(output.code, 0, "kubectl {arguments:?}\n{}", output.transcript());
        output.stdout
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("the folder is writable");
        path
    }
}

/// Replaces what differs between runs.
pub fn filters() -> insta::Settings {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.add_filter(r"https://127\.0\.0\.1:\d+", "https://[server]");
    settings.add_filter(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "[uid]");
    settings.add_filter(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "[time]");
    // The padding after an age depends on its number of digits.
    settings.add_filter(r"(?m)\b\d+s +", "[age]  ");
    settings.add_filter(r"(?m)\b\d+s$", "[age]");
    settings.add_filter(r"(?m)^(\s*resourceVersion:\s+).*$", "$1[version]");
    settings.add_filter(r#"("?resourceVersion"?: ?)"\d+""#, "$1[version]");
    settings.add_filter(r"Resource Version:\s+\d+", "Resource Version:  [version]");
    settings.add_filter(r"/tmp/\S+/", "[folder]/");
    settings
}
