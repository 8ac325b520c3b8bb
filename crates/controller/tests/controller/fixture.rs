//! A fixture: a controller under test on the test kit's workbench.

use std::time::Duration;

use agent_sandbox_controller::{Config, Controller};
use agent_sandbox_testkit::ControllerFixture;
use tokio_util::sync::CancellationToken;

/// A running controller and everything around it.
pub(crate) struct Fixture {
    workbench: ControllerFixture,
    shutdown: CancellationToken,
    controller: Controller,
}

impl std::ops::Deref for Fixture {
    type Target = ControllerFixture;

    fn deref(&self) -> &ControllerFixture {
        &self.workbench
    }
}

impl Fixture {
    pub(crate) async fn start() -> Self {
        Self::with(Config::default()).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        let workbench = ControllerFixture::start().await.expect("a workbench");
        let shutdown = CancellationToken::new();
        let controller = Controller::start(workbench.controller_client(), config, shutdown.clone());
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
