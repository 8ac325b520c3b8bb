//! A controller under test on a workbench.

use std::time::Duration;

use agent_sandbox_controller::{Config, Controller};
use agent_sandbox_testkit::Workbench;
use tokio_util::sync::CancellationToken;

/// A running controller and everything around it.
pub(crate) struct Bench {
    workbench: Workbench,
    shutdown: CancellationToken,
    controller: Controller,
}

impl std::ops::Deref for Bench {
    type Target = Workbench;

    fn deref(&self) -> &Workbench {
        &self.workbench
    }
}

impl Bench {
    pub(crate) async fn start() -> Self {
        Self::with(Config::default()).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        let workbench = Workbench::start().await.expect("a workbench");
        let shutdown = CancellationToken::new();
        let controller = Controller::start(workbench.controllers(), config, shutdown.clone());
        Self { workbench, shutdown, controller }
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(30), self.controller.wait())
            .await
            .expect("stops in time")
            .expect("stops in order");
    }
}
