//! The controller's configuration, already validated. [`crate::flags`] makes one from the command line; an embedding
//! program fills it in.

use std::{net::SocketAddr, time::Duration};

use agent_sandbox_telemetry::{ExportSettings, audit::AuditLog};

use crate::{
    claim::ClaimSettings, leader_election::LeaseConfig, pool::PoolSettings, sandbox, serving::webhook::WebhookConfig,
};

#[derive(Clone, Debug)]
pub struct Config {
    /// The only namespace to work in; `None`: all.
    pub namespace: Option<String>,
    /// Whether to run the claim, pool and template reconcilers too.
    pub extensions: bool,
    pub sandbox: sandbox::Settings,
    pub claim: ClaimSettings,
    pub pool: PoolSettings,
    pub workers: Workers,
    /// Whether to cache only Pods, PVCs and Services that carry the tracking label.
    pub cache_label_selectors: bool,
    /// `None`: no leader election, because there is no other replica.
    pub leader_election: Option<LeaseConfig>,
    pub metrics_address: Option<SocketAddr>,
    pub health_address: Option<SocketAddr>,
    /// `None`: no conversion webhook; an embedded API converts by itself.
    pub webhook: Option<WebhookConfig>,
    /// Where to export the spans of passes; `None`: no tracing.
    pub tracing: Option<ExportSettings>,
    /// Gets a record of every write except statuses; `None`: no audit log.
    pub audit: Option<AuditLog>,
    /// Requests per second to the API (negative: no limit), and how many may exceed that rate at once.
    pub api_rate: (f64, usize),
    /// The reporting instance of Events.
    pub instance: String,
    /// How long running passes may take to end after a shutdown was requested.
    pub grace: Duration,
}

/// Maximum number of concurrent passes of each reconciler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    pub sandbox: usize,
    pub claim: usize,
    pub pool: usize,
    pub template: usize,
}

impl Default for Workers {
    /// Pools are independent of one another, so several refill at the same time.
    fn default() -> Self {
        Self { sandbox: 100, claim: 50, pool: 10, template: 2 }
    }
}

impl Default for Config {
    /// For a program that embeds the controller beside its API: no other replicas, no listeners, all kinds.
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
            audit: None,
            api_rate: (-1.0, 10),
            instance: "agent-sandbox".to_owned(),
            grace: Duration::from_secs(30),
        }
    }
}
