//! The controller as a process on a cluster: from flags to an orderly shutdown.

use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    api_client::connections::{ConnectError, cluster_config, connect},
    config::Config,
    controller::{Controller, ControllerError},
    flags::{FlagErrors, Flags},
    memory,
};

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error(transparent)]
    Flags(#[from] FlagErrors),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Controller(#[from] ControllerError),
}

/// Runs the controller until `shutdown`. Mistakes in the flags are reported before the API is contacted.
pub async fn run_process(flags: Flags, shutdown: CancellationToken) -> Result<(), ProcessError> {
    let config = flags.to_config(&identity())?;
    for warning in flags.warnings() {
        warn!("{warning}");
    }
    run_with(&flags, config, shutdown).await
}

async fn run_with(flags: &Flags, config: Config, shutdown: CancellationToken) -> Result<(), ProcessError> {
    let cluster = cluster_config(&flags.kubeconfig).await?;
    let connections = usize::try_from(flags.api_connections).unwrap_or(1);
    let clients = connect(&cluster, connections)?;
    memory::disable_huge_pages();
    let stop = shutdown.child_token();
    let audit = config.audit.clone();
    let controller = Controller::start_with(clients, config, shutdown);
    let memory_task = tokio::spawn(memory::release_code_pages_when_idle(controller.store.clone(), stop));
    let outcome = controller.wait().await;
    memory_task.abort();
    if let Some(audit) = audit {
        audit.flush().await;
    }
    Ok(outcome?)
}

/// Identity of this process among the replicas: the host name, and a random uuid.
pub fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{}", host.trim(), uuid::Uuid::new_v4())
}

/// What `--version` prints.
pub fn version_text() -> String {
    let known = |value: Option<&'static str>| value.unwrap_or("unknown");
    format!(
        "agent-sandbox-controller, version {} (revision: {})\n  build date:       {}\n  go version:       none (Rust)\n  compiler:         rustc\n  platform:         {}/{}",
        env!("CARGO_PKG_VERSION"),
        known(option_env!("AGENT_SANDBOX_GIT_COMMIT")),
        known(option_env!("AGENT_SANDBOX_BUILD_DATE")),
        std::env::consts::OS,
        std::env::consts::ARCH,
    )
}
