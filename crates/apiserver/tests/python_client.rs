//! The published Python `kubernetes` client runs its list, watch, patch and stream suite against a running server.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests fail the test")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::PostParams;
use support::{Cluster, running_pod};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// The newest published version; it sends no Content-Type for custom objects.
const CLIENT: &str = "kubernetes==37.0.2";

/// The Python of a virtual environment with the client, which is created once in the build folder; `Err` is why it
/// could not be created.
fn python() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(CLIENT.replace("==", "-"));
    let program = folder.join("bin/python");
    let works = |program: &Path| {
        Command::new(program).args(["-c", "import kubernetes"]).output().is_ok_and(|run| run.status.success())
    };
    if works(&program) {
        return Ok(program);
    }
    let run = |program: &Path, arguments: &[&str]| {
        let output = Command::new(program)
            .args(arguments)
            .output()
            .map_err(|error| format!("cannot run {}: {error}", program.display()))?;
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    };
    run(Path::new("python3"), &["-m", "venv", folder.to_str().expect("a plain path")])?;
    run(&program, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", CLIENT])?;
    Ok(program)
}

async fn upper_case_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 1024];
                while let Ok(length @ 1..) = connection.read(&mut buffer).await {
                    buffer[..length].make_ascii_uppercase();
                    if connection.write_all(&buffer[..length]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// D-183, D-184, D-185, D-186, D-192, D-193, D-194, D-195, D-197, D-198: see `tests/python/suite.py`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_client_passes_its_suite() {
    let python = match tokio::task::spawn_blocking(python).await.expect("the set-up ends") {
        Ok(python) => python,
        Err(why) => {
            println!("skipped: the Python client {CLIENT} cannot be installed here: {why}");
            return;
        }
    };
    let cluster = Cluster::start().await;
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.server.client());
    for crd in agent_sandbox_api::crd::crds() {
        crds.create(&PostParams::default(), &serde_json::from_value(crd).unwrap()).await.unwrap();
    }
    let pods: Api<Pod> = Api::default_namespaced(cluster.server.client());
    pods.create(&PostParams::default(), &serde_json::from_value(running_pod("p", &["main"])).unwrap()).await.unwrap();
    let output = tokio::process::Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/suite.py"))
        .arg(upper_case_server().await.to_string())
        .env("KUBECONFIG", cluster.kubeconfig())
        .kill_on_drop(true)
        .output();
    let output =
        tokio::time::timeout(std::time::Duration::from_secs(120), output).await.expect("the suite ends").unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(shown.lines().filter(|line| line.starts_with("ok ")).count() >= 12, "{shown}");
}
