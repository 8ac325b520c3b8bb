//! The controller in a process of its own, which can be stopped and killed. The test program runs itself.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use agent_sandbox_controller::{Config, Controller, api_client::connections, leader_election::LeaseConfig};
use tokio_util::sync::CancellationToken;

/// Environment variable of the child: the kubeconfig.
const KUBECONFIG: &str = "AGENT_SANDBOX_TEST_KUBECONFIG";
/// Environment variable of the child: its identity in the leader election. Without it there is no election.
const IDENTITY: &str = "AGENT_SANDBOX_TEST_IDENTITY";

/// Lease duration in these tests: long enough for a loaded machine, short enough for a test.
pub(crate) const LEASE: Duration = Duration::from_secs(4);

/// Not a test: the program of the child process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controller_process() {
    let Ok(kubeconfig) = std::env::var(KUBECONFIG) else { return };
    let election = std::env::var(IDENTITY).ok().map(|identity| LeaseConfig {
        duration: LEASE,
        renew_deadline: LEASE * 2 / 3,
        retry_period: LEASE / 8,
        ..LeaseConfig::new("default", identity)
    });
    let cluster = connections::cluster_config(&kubeconfig).await.expect("a kubeconfig");
    let clients = connections::connect(&cluster, 1).expect("connects");
    let config = Config { leader_election: election, ..Config::default() };
    let ended = Controller::start_with(clients, config, CancellationToken::new()).wait().await;
    eprintln!("the controller ended: {ended:?}");
}

/// A running child; it is killed at the end of the test.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(kubeconfig: &Path, identity: Option<&str>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("known"));
        command.args(["child::controller_process", "--exact", "--nocapture"]).env(KUBECONFIG, kubeconfig);
        if let Some(identity) = identity {
            command.env(IDENTITY, identity);
        }
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts"))
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("sh").arg("-c").arg(format!("kill -{name} {}", self.0.id())).status().expect("runs");
        assert!(status.success(), "{name} cannot be sent");
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("known").is_some()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
