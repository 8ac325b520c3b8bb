//! The command and file classes of the published SDKs, unmodified, against the daemon. Their environments are made
//! once, under the cache directory; without a package index the tests print so and are skipped, but fail in CI.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::client::send;
use crate::examples::{with_home, with_home_and};
use crate::fixture::wait_for;

/// Part of the cache key: a change here rebuilds every environment.
const EXTRAS: &str = "async,grpc";

fn cache() -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    base.unwrap_or_else(std::env::temp_dir).join("agent-sandbox/sdk")
}

/// The interpreter of an environment that has this version of the SDK.
fn environment(version: &str) -> Option<PathBuf> {
    environment_with(version, "installed-with-grpc", &[&format!("k8s-agent-sandbox[{EXTRAS}]=={version}")])
}

/// The interpreter of the environment `name`, which has these packages.
fn environment_with(name: &str, mark: &str, packages: &[&str]) -> Option<PathBuf> {
    let directory = cache().join(name);
    let python = directory.join("bin/python");
    let done = directory.join(mark);
    if done.exists() {
        return Some(python);
    }
    let run = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&directory))
        && run(Command::new(&python)
            .args(["-m", "pip", "install", "-q", "--disable-pip-version-check"])
            .args(packages));
    if !made {
        assert!(std::env::var_os("CI").is_none(), "cannot install {}", packages.join(" "));
        println!("skipped: cannot install {}", packages.join(" "));
        return None;
    }
    std::fs::write(done, "").expect("the cache is ours");
    Some(python)
}

fn run_scenario(version: &str) {
    let Some(python) = environment(version) else { return };
    let Some(daemon) = with_home() else { return };
    // The SDK requires different ports for REST and gRPC; every port of the daemon serves both.
    let second = wait_for(
        || {
            let log = daemon.log.lock().expect("a log");
            let address = log.split("Listening address=").nth(2)?.lines().next()?.trim();
            address.rsplit_once(':').map(|(_, port)| port.to_owned())
        },
        "the second port is served",
    );
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk/scenario.py");
    let output = Command::new(python)
        .arg(scenario)
        .args([version, &daemon.address.ip().to_string(), &daemon.address.port().to_string(), &second])
        .output()
        .expect("python runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.ends_with("passed\n"), "{version}: {stdout}\n{stderr}");
}

/// D-046, D-047, D-048, D-049
#[test]
fn version_0_4_6_passes() {
    run_scenario("0.4.6");
}

/// D-046, D-047, D-048, D-049, D-050
#[test]
fn version_0_5_6_passes() {
    run_scenario("0.5.6");
}

/// D-012, D-046, D-050, D-098, D-099, D-100
#[test]
fn version_1_0_8_passes() {
    run_scenario("1.0.8");
}

/// E2B's client with its `scenario`, against the port `Envd` of a sandbox with this access token, if any.
fn run_e2b(scenario: &str, token: &str) {
    let packages = ["e2b==2.63.0", "e2b-code-interpreter==2.11.5"];
    let Some(python) = environment_with("e2b-2.63.0", "installed", &packages) else { return };
    let flags = "--envd-listen 127.0.0.1:0 --interpreter-listen 127.0.0.1:0";
    let Some(daemon) = with_home_and(flags) else { return };
    let init = format!(r#"{{"accessToken":"{token}","envVars":{{"GREETING":"hello"}}}}"#);
    assert_eq!(send(daemon.port("Envd"), "POST", "/init", &[], init.as_bytes()).status, 204);
    let output = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk").join(scenario))
        .args([&format!("http://{}", daemon.port("Envd")), token])
        .output()
        .expect("python runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.ends_with("passed\n"), "{scenario}: {stdout}\n{stderr}");
}

/// E-003, E-009, E-012, E-071, E-072, E-073, E-074, E-075, E-080, E-081, E-082, E-083, E-084, E-085, E-086, E-090,
/// E-091, E-092, E-093, E-100, E-101, E-102, E-103
#[test]
fn the_published_e2b_client_runs_commands_and_moves_files() {
    run_e2b("e2b.py", "a token");
}

/// E-004, E-110, E-111, E-112, E-113, E-115, E-116, E-117, E-118
#[test]
fn the_published_code_interpreter_client_runs_code() {
    run_e2b("e2b_code.py", "");
}

/// E-010, E-111, E-117
#[test]
fn the_published_code_interpreter_client_sends_the_token_with_code() {
    run_e2b("e2b_code.py", "a token");
}
