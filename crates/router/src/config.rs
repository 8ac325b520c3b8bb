//! What a router needs to know, validated. Flags, file and environment are turned into this in [`settings`].

pub mod settings;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::authz::{AuthzConfig, TokenReviewConfig};
use crate::resolve::Verification;

/// Behaviour of the proxy itself; the same for a process and for an embedded router.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    pub verification: Verification,
    /// Domain of Service names; `None` never asks DNS (embedded engine).
    pub cluster_domain: Option<String>,
    /// Namespace whose Pods are watched; `None` watches all.
    pub watch_namespace: Option<String>,
    pub timeouts: Timeouts,
    pub retries: Retries,
    pub limits: Limits,
    pub upgrades: UpgradeLimits,
    pub authz: AuthzConfig,
    /// How long a decision of mode `rbac` is cached; zero decides anew for every request.
    pub access_ttl: Duration,
    pub access_log: bool,
    /// Proxies in front of the router whose `X-Forwarded-For` names the client (for per-client limits only).
    pub trusted_proxies: Vec<Cidr>,
    /// Refuse requests on listeners whose `Host` is no loopback name: a web page must not reach a local router through a
    /// name of its own that resolves to loopback.
    pub loopback_hosts_only: bool,
    /// Threads of their own for connections; 0 serves on the caller's runtime.
    pub workers: usize,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            verification: Verification { verify_targets: true, allow_loopback: false },
            cluster_domain: Some("cluster.local".to_owned()),
            watch_namespace: None,
            timeouts: Timeouts::default(),
            retries: Retries::default(),
            limits: Limits::default(),
            upgrades: UpgradeLimits::default(),
            authz: AuthzConfig::AllowAll,
            access_ttl: TokenReviewConfig::default().ttl,
            access_log: true,
            trusted_proxies: Vec::new(),
            loopback_hosts_only: false,
            workers: 0,
        }
    }
}

/// Every wait has one.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// Longest wait for a response's head, counted from the last progress of the request's body.
    pub proxy: Duration,
    /// A stricter bound for the same wait, when somebody asks for one.
    pub response_header: Option<Duration>,
    pub dial: Duration,
    /// A stream that moves no byte for so long is closed; `None` never.
    pub stream_idle: Option<Duration>,
    /// A request's head must be complete so soon after its first byte.
    pub head_read: Duration,
    /// A client connection may be idle so long between requests.
    pub client_idle: Duration,
    /// While draining, the router keeps accepting so long, so that load balancers can notice.
    pub drain_delay: Duration,
    /// After that, requests under way may take so long.
    pub shutdown: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            proxy: Duration::from_secs(180),
            response_header: None,
            // A Pod of the same cluster answers within milliseconds; the retries after it are what waits for slow ones.
            dial: Duration::from_secs(5),
            stream_idle: Some(Duration::from_secs(3600)),
            head_read: Duration::from_secs(10),
            client_idle: Duration::from_secs(120),
            drain_delay: Duration::ZERO,
            shutdown: Duration::from_secs(30),
        }
    }
}

/// Retries of failed connection attempts; a request that was sent is never sent again.
#[derive(Clone, Debug)]
pub struct Retries {
    pub max: u32,
    pub initial_delay: Duration,
    pub max_delay: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Self { max: 3, initial_delay: Duration::from_millis(200), max_delay: Duration::from_millis(800) }
    }
}

/// What one router takes on before it says no. Zero means no limit.
#[derive(Clone, Debug)]
pub struct Limits {
    pub connections: usize,
    pub in_flight_requests: usize,
    pub requests_per_sandbox: u32,
    pub request_body_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        // 20,000 idle connections cost about 300 MB; 10,000 requests at once are beyond what two cores can serve.
        Self { connections: 20_000, in_flight_requests: 10_000, requests_per_sandbox: 1_000, request_body_bytes: 0 }
    }
}

/// Limits of upgraded connections. Zero or `None` means no limit.
#[derive(Clone, Debug)]
pub struct UpgradeLimits {
    pub idle: Option<Duration>,
    pub lifetime: Option<Duration>,
    pub per_client: usize,
    pub max_message_bytes: u64,
}

impl Default for UpgradeLimits {
    fn default() -> Self {
        Self { idle: Some(Duration::from_secs(3600)), lifetime: None, per_client: 0, max_message_bytes: 0 }
    }
}

/// A block of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// Whether `ip` is in the block.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self.network, ip) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                let shift = 32 - u32::from(self.prefix);
                u32::from(network).checked_shr(shift) == u32::from(ip).checked_shr(shift)
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                let shift = 128 - u32::from(self.prefix);
                u128::from(network).checked_shr(shift) == u128::from(ip).checked_shr(shift)
            }
            _ => false,
        }
    }
}

impl std::str::FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("'{text}' is no address block; write it like 10.0.0.0/8");
        let (network, prefix) = match text.split_once('/') {
            Some((network, prefix)) => (network, Some(prefix)),
            None => (text, None),
        };
        let network: IpAddr = network.trim().parse().map_err(|_| wrong())?;
        let longest = if network.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(prefix) => prefix.trim().parse().map_err(|_| wrong())?,
            None => longest,
        };
        if prefix > longest { Err(wrong()) } else { Ok(Self { network, prefix }) }
    }
}

/// Everything `agent-sandbox router` needs beyond [`RouterConfig`].
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    pub router: RouterConfig,
    /// Plain HTTP; `None` disables.
    pub http_bind: Option<String>,
    pub https: Option<HttpsConfig>,
    pub metrics_bind: Option<String>,
    pub probe_bind: Option<String>,
    /// `None` takes the in-cluster configuration or the default kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// Watch Pods; off only together with unverified targets.
    pub watch_pods: bool,
    /// OTLP endpoints, when the signals are switched on.
    pub trace_endpoint: Option<String>,
    pub metrics_endpoint: Option<String>,
}

/// The HTTPS listener.
#[derive(Clone, Debug)]
pub struct HttpsConfig {
    pub bind: String,
    pub tls: TlsConfig,
}

/// Certificates of the HTTPS listener.
#[derive(Clone, Debug)]
pub struct TlsConfig {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    pub client_auth: ClientAuth,
}

/// Whether clients have to show a certificate.
#[derive(Clone, Debug)]
pub enum ClientAuth {
    Off,
    Optional { ca_file: PathBuf },
    Required { ca_file: PathBuf },
}
