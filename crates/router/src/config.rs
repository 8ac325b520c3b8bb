//! The validated configuration of a router. [`settings`] builds it from flags, a file and environment variables.

pub(crate) mod args;
pub(crate) mod file_watch;
pub mod settings;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use agent_sandbox_protocol::web::{AllowedHosts, AllowedOrigins};
use agent_sandbox_telemetry::audit::AuditConfig;

use crate::addressing::Routing;
use crate::auth::{AuthzConfig, TokenReviewConfig};
use crate::browser::CookieConfig;
use crate::links::LinkConfig;
use crate::resolve::Verification;

/// Behaviour of the proxy itself; the same for the router process and for an embedded router.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    pub verification: Verification,
    /// Domain of Service names; `None` disables DNS (embedded engine).
    pub cluster_domain: Option<String>,
    /// Namespace whose Pods are watched; `None` watches all namespaces.
    pub watch_namespace: Option<String>,
    /// Forms beside headers in which requests may name a sandbox.
    pub routing: Routing,
    /// File with the key that signs requests to sandboxes; `None` sends them unsigned.
    pub sandbox_token_key: Option<PathBuf>,
    pub timeouts: Timeouts,
    pub retries: Retries,
    pub limits: Limits,
    pub upgrades: UpgradeLimits,
    pub authz: AuthzConfig,
    /// How long a decision of mode `rbac` is cached; zero decides anew for every request.
    pub access_ttl: Duration,
    pub access_log: bool,
    /// Proxies in front of the router whose `X-Forwarded-For` identifies the client (for per-client limits only).
    pub trusted_proxies: Vec<Cidr>,
    /// Names by which clients may call the router, so that a web page cannot reach it through a DNS name of its own.
    /// Where any name is allowed and no credential is required, a request of a page needs a name that no public domain
    /// can have, or one below the domain of [`routing`](Self::routing). Connections that the API server authenticated
    /// may use any.
    pub allowed_hosts: AllowedHosts,
    /// Pages of other origins that may name a sandbox in a URL where no credential is required.
    pub allowed_origins: AllowedOrigins,
    /// Credentials in cookies; `None` accepts them in headers only.
    pub cookie: Option<CookieConfig>,
    /// Links to ports; they need a [`cookie`](Self::cookie) with a query parameter. `None` creates and accepts none.
    pub links: Option<LinkConfig>,
    /// Number of worker threads for connections; 0 serves them on the caller's runtime.
    pub workers: usize,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            verification: Verification { verify_targets: true, allow_loopback: false },
            cluster_domain: Some("cluster.local".to_owned()),
            watch_namespace: None,
            routing: Routing::default(),
            sandbox_token_key: None,
            timeouts: Timeouts::default(),
            retries: Retries::default(),
            limits: Limits::default(),
            upgrades: UpgradeLimits::default(),
            authz: AuthzConfig::AllowAll,
            access_ttl: TokenReviewConfig::default().ttl,
            access_log: true,
            trusted_proxies: Vec::new(),
            allowed_hosts: AllowedHosts::any(),
            allowed_origins: AllowedOrigins::default(),
            cookie: None,
            links: None,
            workers: 0,
        }
    }
}

/// Timeouts.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// Timeout for the head of a response, counted from the last progress of the request's body.
    pub proxy: Duration,
    /// A stricter timeout for the same wait, if configured.
    pub response_header: Option<Duration>,
    pub dial: Duration,
    /// Timeout for a response stream that transfers no byte; `None` means no timeout.
    pub stream_idle: Option<Duration>,
    /// Timeout for the head of a request, counted from its first byte.
    pub head_read: Duration,
    /// Timeout for an idle client connection between requests.
    pub client_idle: Duration,
    /// Time for which the router keeps accepting while it drains, so that load balancers can notice.
    pub drain_delay: Duration,
    /// Time that open requests get after that.
    pub shutdown: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            proxy: Duration::from_secs(180),
            response_header: None,
            // A Pod in the same cluster accepts within milliseconds; slow ones are covered by the retries.
            dial: Duration::from_secs(5),
            stream_idle: Some(Duration::from_secs(3600)),
            head_read: Duration::from_secs(10),
            client_idle: Duration::from_secs(120),
            drain_delay: Duration::ZERO,
            shutdown: Duration::from_secs(30),
        }
    }
}

/// Retries of failed connection attempts. A request that was sent is never sent again.
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

/// Limits of one router, beyond which it refuses. Zero means no limit.
#[derive(Clone, Debug)]
pub struct Limits {
    pub connections: usize,
    /// Keep a part of the connections for other clients than the one with the most, and close those without an admitted
    /// request after a time. Not behind a gateway, which is one client for the router.
    pub per_peer: bool,
    pub in_flight_requests: usize,
    pub requests_per_sandbox: u32,
    pub request_body_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        // 20,000 idle connections cost about 300 MB; 10,000 requests at once are beyond what two cores can serve.
        Self {
            connections: 20_000,
            per_peer: false,
            in_flight_requests: 10_000,
            requests_per_sandbox: 1_000,
            request_body_bytes: 0,
        }
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

/// A CIDR block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    network: IpAddr,
    prefix: u8,
}

impl Cidr {
    /// Whether the block contains `ip`.
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
        let wrong = || format!("'{text}' is not a CIDR block such as 10.0.0.0/8");
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

/// Configuration of the `agent-sandbox router` process beyond [`RouterConfig`].
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    pub router: RouterConfig,
    /// Address of plain HTTP; `None` disables it.
    pub http_bind: Option<String>,
    pub https: Option<HttpsConfig>,
    pub metrics_bind: Option<String>,
    pub probe_bind: Option<String>,
    /// `None` uses the in-cluster configuration or the default kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// Watch Pods. Can be off only if unverified targets are allowed.
    pub watch_pods: bool,
    /// Wake suspended Sandboxes for requests, and record the use of those with an idle time.
    pub sleep: bool,
    /// OTLP endpoints of the signals that are exported.
    pub trace_endpoint: Option<String>,
    pub metrics_endpoint: Option<String>,
    pub audit: Option<AuditConfig>,
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

/// Whether clients have to present a certificate.
#[derive(Clone, Debug)]
pub enum ClientAuth {
    Off,
    Optional { ca_file: PathBuf },
    Required { ca_file: PathBuf },
}
