//! What a controller runs with, already validated. [`crate::flags`] makes one from the command line; an embedding program fills it in.

use std::{net::SocketAddr, time::Duration};

use agent_sandbox_telemetry::ExportSettings;

use crate::{claim::ClaimSettings, lease::LeaseConfig, pool::PoolSettings, sandbox, webhook::WebhookConfig};

#[derive(Clone, Debug)]
pub struct Config {
    /// One namespace to work in, or all.
    pub namespace: Option<String>,
    /// Run the claim, pool and template reconcilers too.
    pub extensions: bool,
    pub sandbox: sandbox::Settings,
    pub claim: ClaimSettings,
    pub pool: PoolSettings,
    pub workers: Workers,
    /// Cache only Pods, PVCs and Services that carry the tracking label.
    pub cache_label_selectors: bool,
    /// `None`: there is no other controller.
    pub leader_election: Option<LeaseConfig>,
    pub metrics_address: Option<SocketAddr>,
    pub health_address: Option<SocketAddr>,
    /// `None`: conversion is somebody else's, as with an embedded API.
    pub webhook: Option<WebhookConfig>,
    /// Trace passes, and export their spans so.
    pub tracing: Option<ExportSettings>,
    /// Requests per second to the API, negative for no limit, and how many may exceed it at once.
    pub api_rate: (f64, usize),
    /// Who reports events.
    pub instance: String,
    /// How long passes under way may take to end after a stop was asked for.
    pub grace: Duration,
}

/// How many objects of a kind are worked on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    pub sandbox: usize,
    pub claim: usize,
    pub pool: usize,
    pub template: usize,
}

impl Default for Workers {
    /// Pools are independent of one another: several refill at the same time.
    fn default() -> Self {
        Self { sandbox: 100, claim: 50, pool: 10, template: 2 }
    }
}

impl Default for Config {
    /// For a program that embeds the controller beside its API: no rivals, no listeners, all kinds.
    fn default() -> Self {
        Self {
            namespace: None,
            extensions: true,
            sandbox: sandbox::Settings::default(),
            claim: ClaimSettings::default(),
            pool: PoolSettings::default(),
            workers: Workers::default(),
            cache_label_selectors: false,
            leader_election: None,
            metrics_address: None,
            health_address: None,
            webhook: None,
            tracing: None,
            api_rate: (-1.0, 10),
            instance: "agent-sandbox".to_owned(),
            grace: Duration::from_secs(30),
        }
    }
}
