//! What users do with the real kubectl.

use std::{process::Output, time::Duration};

use agent_sandbox_controller::{Config, Controller};
use agent_sandbox_testkit::ControllerFixture;
use tokio_util::sync::CancellationToken;

/// Maximum time between the readiness of the claim and of its Sandbox, as `kubectl wait` measures it.
const SOON: &str = "1s";

async fn kubectl(kubeconfig: &std::path::Path, arguments: &[&str]) -> std::io::Result<Output> {
    tokio::process::Command::new("kubectl").env("KUBECONFIG", kubeconfig).args(arguments).output().await
}

/// `kubectl wait` compares a condition's observedGeneration with the object's: the Sandbox's status must follow its adoption.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_wait_sees_an_adopted_sandbox_ready_within_a_second() {
    let bench = ControllerFixture::start().await.expect("a workbench");
    let served = bench.serve().await.expect("listens");
    if let Err(error) = kubectl(&served.kubeconfig, &["version", "--client"]).await {
        assert!(std::env::var_os("CI").is_none(), "kubectl is needed: {error}");
        eprintln!("SKIPPED: kubectl cannot be run: {error}");
        return;
    }
    let shutdown = CancellationToken::new();
    let controller = Controller::start(bench.controller_client(), Config::default(), shutdown.clone());
    bench.template("t").await;
    bench.pool("p", "t", 3).await;
    bench.pool_ready("p", 3).await;
    for name in ["a", "b", "c"] {
        bench.claim(name, "p").await;
        let sandbox = bench.ready(name).await.bound_sandbox().expect("bound").to_owned();
        assert_ne!(sandbox, name, "warm");
        let target = format!("sandbox/{sandbox}");
        let wait = ["wait", "--for=condition=Ready", &target, &format!("--timeout={SOON}")];
        let output = tokio::time::timeout(Duration::from_secs(60), kubectl(&served.kubeconfig, &wait))
            .await
            .expect("kubectl ends")
            .expect("kubectl runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stdout).contains("condition met"));
    }
    shutdown.cancel();
    controller.wait().await.expect("stops in order");
}
