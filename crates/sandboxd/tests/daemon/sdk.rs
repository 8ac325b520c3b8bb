//! The command and file classes of the published SDKs, unmodified, against the daemon. Their environments are made
//! once, under the cache directory; without a package index the tests print so and are skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::examples::with_home;
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
    let directory = cache().join(version);
    let python = directory.join("bin/python");
    let done = directory.join("installed-with-grpc");
    if done.exists() {
        return Some(python);
    }
    let run = |command: &mut Command| command.status().is_ok_and(|status| status.success());
    let package = format!("k8s-agent-sandbox[{EXTRAS}]=={version}");
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&directory))
        && run(Command::new(&python).args(["-m", "pip", "install", "-q", "--disable-pip-version-check", &package]));
    if !made {
        println!("skipped: cannot install k8s-agent-sandbox {version}");
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
