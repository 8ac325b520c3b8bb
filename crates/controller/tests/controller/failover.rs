//! Two replicas, one lease: the leader is stopped (SIGSTOP) in the middle of a burst for longer than its lease, and
//! continued.

use std::time::Duration;

use agent_sandbox_api::v1beta1::SandboxClaim;
use agent_sandbox_controller::leader_election::LEASE_NAME;
use agent_sandbox_testkit::{ControllerFixture, eventually_within};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use rand::RngExt;

use crate::child::{LEASE, Running};

const CLAIMS: usize = 16;
const MEMBERS: usize = 8;
/// Generous, for a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);

fn rounds() -> usize {
    if std::env::var_os("AGENT_SANDBOX_SOAK").is_some() { 10 } else { 2 }
}

/// The replicas, by name. One that ends, as a deposed leader must, is restarted, as a cluster would.
struct Replicas<'a> {
    running: Vec<(String, Running)>,
    kubeconfig: &'a std::path::Path,
    started: usize,
}

impl<'a> Replicas<'a> {
    fn start(kubeconfig: &'a std::path::Path) -> Self {
        let mut replicas = Self { running: Vec::new(), kubeconfig, started: 0 };
        replicas.restart();
        replicas
    }

    fn restart(&mut self) {
        self.running.retain_mut(|(_, child)| !child.has_ended());
        while self.running.len() < 2 {
            self.started += 1;
            let name = format!("replica-{}", self.started);
            let child = Running::start(self.kubeconfig, Some(&name));
            self.running.push((name, child));
        }
    }

    fn named(&self, name: &str) -> Option<&Running> {
        self.running.iter().find(|(of, _)| of == name).map(|(_, child)| child)
    }
}

async fn leader(bench: &ControllerFixture) -> String {
    let lease = bench.api::<Lease>().get_opt(LEASE_NAME).await.expect("answers");
    lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default()
}

/// Architecture's invariant 1 under leader change, with late writes of a deposed leader: afterwards every claim
/// controls exactly one Sandbox, the burst was served while the old leader was frozen, and the deposed one has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_leader_is_replaced_and_does_no_harm_when_it_returns() {
    let bench = ControllerFixture::start().await.expect("a workbench");
    let served = bench.serve().await.expect("listens");
    bench.template("t").await;
    bench.pool("p", "t", 8).await;
    let mut replicas = Replicas::start(&served.kubeconfig);
    bench.pool_ready("p", 8).await;
    for round in 0..rounds() {
        let old = eventually_within(TIMEOUT, "one of the replicas leads", || async {
            let name = leader(&bench).await;
            if replicas.named(&name).is_some() { Ok(name) } else { Err(name) }
        })
        .await;
        let frozen = replicas.named(&old).expect("it leads");
        let prefix = format!("r{round}");
        let freeze = async {
            tokio::time::sleep(Duration::from_millis(rand::rng().random_range(0..300))).await;
            frozen.signal("STOP");
        };
        tokio::join!(bench.claims(&prefix, CLAIMS, "p"), freeze);
        let new = eventually_within(LEASE + TIMEOUT, "the other replica leads", || async {
            let name = leader(&bench).await;
            if name == old || name.is_empty() { Err(name) } else { Ok(name) }
        })
        .await;
        assert!(replicas.named(&new).is_some());
        eventually_within(TIMEOUT, "the new leader serves every claim", || bench.check_one_sandbox_per_claim(MEMBERS))
            .await;
        frozen.signal("CONT");
        eventually_within(TIMEOUT, "the deposed leader ends", || {
            replicas.restart();
            std::future::ready(if replicas.named(&old).is_none() { Ok(()) } else { Err(old.clone()) })
        })
        .await;
        eventually_within(TIMEOUT, "still one Sandbox for every claim", || bench.check_one_sandbox_per_claim(MEMBERS))
            .await;
        for number in 0..CLAIMS / 2 {
            let name = format!("{prefix}-{number}");
            bench.api::<SandboxClaim>().delete(&name, &DeleteParams::background()).await.expect("deleted");
        }
    }
}
