//! The controller is killed without warning, at random, in the middle of a burst of claims, again and again.

use std::time::Duration;

use agent_sandbox_api::v1beta1::SandboxClaim;
use agent_sandbox_testkit::{ControllerFixture, eventually_within};
use kube::api::DeleteParams;
use rand::RngExt;

use crate::child::Running;

const CLAIMS: usize = 12;
const MEMBERS: usize = 8;

fn rounds() -> usize {
    if std::env::var_os("AGENT_SANDBOX_SOAK").is_some() { 30 } else { 6 }
}

/// Architecture's invariants 1 and 3: no claim is lost, doubled or orphaned, however often the controller is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_random_during_bursts() {
    let bench = ControllerFixture::start().await.expect("a workbench");
    let served = bench.serve().await.expect("listens");
    bench.template("t").await;
    bench.pool("p", "t", 8).await;
    let claims = bench.api::<SandboxClaim>();
    let mut controller = Running::start(&served.kubeconfig, None);
    for round in 0..rounds() {
        let prefix = format!("r{round}");
        let killer = async {
            tokio::time::sleep(Duration::from_millis(rand::rng().random_range(0..400))).await;
            controller.kill();
        };
        tokio::join!(bench.claims(&prefix, CLAIMS, "p"), killer);
        controller = Running::start(&served.kubeconfig, None);
        eventually_within(Duration::from_secs(60), "one Sandbox for every claim, and a full pool", || {
            bench.check_one_sandbox_per_claim(MEMBERS)
        })
        .await;
        // Half of the claims are deleted, so that the garbage collector has work during the next burst.
        for number in 0..CLAIMS / 2 {
            claims.delete(&format!("{prefix}-{number}"), &DeleteParams::background()).await.expect("deleted");
        }
    }
}
