//! The command line of `agent-sandbox controller`: upstream's flags, with upstream's names and defaults.
//!
//! Arguments become a validated [`Config`]; every mistake is reported at once, before the API is contacted.

mod go_values;

use std::{
    error::Error as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use agent_sandbox_telemetry::{
    Collector, ExportSettings,
    audit::{AuditConfig, AuditLog, OpenError},
};
use clap::{ArgAction, Parser};

pub use self::go_values::{parse_address, parse_duration, to_long_flags};
use crate::{
    claim::{ClaimSettings, validate::label_domains},
    config::{Config, Workers},
    leader_election::LeaseConfig,
    pool::{PacingSettings, PoolSettings},
    sandbox,
    serving::{
        tracing_context,
        webhook::{CertificateSource, ServiceNames, WebhookConfig},
    },
};

/// The file in a Pod that holds the Pod's namespace.
const OWN_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Where the ConfigMap with domains for claims' labels is mounted.
const LABEL_DOMAINS: &str = "/etc/sandbox-config/allowed-label-domains";

#[derive(Clone, Debug, Parser)]
#[command(
    name = "agent-sandbox-controller",
    about = "Run the controller on a Kubernetes cluster",
    disable_version_flag = true,
    next_line_help = true,
    max_term_width = 100
)]
pub struct Flags {
    /// Print the version and exit.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub version: bool,
    /// Path of a kubeconfig; else KUBECONFIG, the Pod's service account, or ~/.kube/config.
    #[arg(long, default_value = "")]
    pub kubeconfig: String,
    /// Work in this namespace only.
    #[arg(long, default_value = "")]
    pub watch_namespace: String,
    /// Suffix of Services' DNS names.
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Address to serve metrics on; 0 turns them off.
    #[arg(long, default_value = ":8080")]
    pub metrics_bind_address: String,
    /// Address to serve health and readiness on; 0 turns them off.
    #[arg(long, default_value = ":8081")]
    pub health_probe_bind_address: String,
    /// Take part in leader election before writing.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = ArgAction::Set)]
    pub leader_elect: bool,
    /// Namespace of the Lease; empty: the Pod's own.
    #[arg(long, default_value = "")]
    pub leader_election_namespace: String,
    /// Also run the claim, template and warm-pool controllers.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub extensions: bool,
    /// Trace passes; export spans to `OTEL_EXPORTER_OTLP_ENDPOINT` (http://localhost:4317).
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub enable_tracing: bool,
    /// Write audit records: a file, which is rotated, or `-` for standard output; empty: none.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub audit_log: String,
    /// File with regular expressions, one per line, that are removed from audit records.
    #[arg(long, default_value = "")]
    pub audit_redact_file: String,
    /// Accepted for compatibility.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub enable_pprof: bool,
    /// Accepted for compatibility.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub enable_pprof_debug: bool,
    /// Accepted for compatibility.
    #[arg(long, default_value_t = 1_000_000, allow_hyphen_values = true)]
    pub pprof_block_profile_rate: i64,
    /// Accepted for compatibility.
    #[arg(long, default_value_t = 10, allow_hyphen_values = true)]
    pub pprof_mutex_profile_fraction: i64,
    /// Requests per second to the API; negative: no limit, 0: the default of 5.
    #[arg(long, default_value_t = -1.0, allow_hyphen_values = true)]
    pub kube_api_qps: f64,
    /// How many requests may exceed the rate at once.
    #[arg(long, default_value_t = 10, allow_hyphen_values = true)]
    pub kube_api_burst: i64,
    /// Connection pools for requests other than watches.
    #[arg(long, default_value_t = 1, allow_hyphen_values = true)]
    pub api_connections: i64,
    /// Use a separate connection for watches.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub separate_watch_connection: bool,
    /// Cache only children that carry the tracking label.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub cache_label_selectors: bool,
    /// Number of Sandboxes reconciled concurrently.
    #[arg(long, default_value_t = 100, allow_hyphen_values = true)]
    pub sandbox_concurrent_workers: i64,
    /// How long a Pod's metadata may lag behind its Sandbox, at most a second.
    #[arg(long, default_value = "0", value_parser = parse_duration, allow_hyphen_values = true)]
    pub sandbox_write_behind_window: Duration,
    /// Serve the conversion webhook.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = ArgAction::Set)]
    pub enable_webhook: bool,
    /// Port of the conversion webhook.
    #[arg(long, default_value_t = 9443)]
    pub webhook_port: u16,
    /// Directory of the webhook's certificate.
    #[arg(long, default_value = "/tmp/k8s-webhook-server/serving-certs")]
    pub webhook_cert_dir: PathBuf,
    /// File name of a certificate that is not managed here.
    #[arg(long, default_value = "tls.crt")]
    pub webhook_cert_name: String,
    /// File name of a key that is not managed here.
    #[arg(long, default_value = "tls.key")]
    pub webhook_key_name: String,
    /// Name of the webhook's Service.
    #[arg(long, default_value = "agent-sandbox-webhook-service")]
    pub webhook_service_name: String,
    /// Namespace of the webhook's Service.
    #[arg(long, default_value = "agent-sandbox-system")]
    pub webhook_namespace: String,
    /// Create and rotate the webhook's certificate.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = ArgAction::Set)]
    pub manage_webhook_certs: bool,
    /// Number of claims reconciled concurrently.
    #[arg(long, default_value_t = 50, allow_hyphen_values = true)]
    pub sandbox_claim_concurrent_workers: i64,
    /// Number of pools reconciled concurrently.
    #[arg(long, default_value_t = 1, allow_hyphen_values = true)]
    pub sandbox_warm_pool_concurrent_workers: i64,
    /// Number of templates reconciled concurrently.
    #[arg(long, default_value_t = 1, allow_hyphen_values = true)]
    pub sandbox_template_concurrent_workers: i64,
    /// Maximum number of creates, and of deletes, in one pass over a pool.
    #[arg(long, default_value_t = 300, allow_hyphen_values = true)]
    pub sandbox_warm_pool_max_batch_size: i64,
    /// How long a pool waits after a claim before it refills.
    #[arg(long, default_value = "0", value_parser = parse_duration, allow_hyphen_values = true)]
    pub sandbox_warm_pool_replenish_delay: Duration,
    /// Maximum number of creates per second and pool; 0: no limit.
    #[arg(long, default_value_t = 0.0, allow_hyphen_values = true)]
    pub sandbox_warm_pool_max_refill_rate: f64,
    /// How long a pool's Sandbox may take to become Ready.
    #[arg(long, default_value = "5m", value_parser = parse_duration, allow_hyphen_values = true)]
    pub sandbox_warm_pool_readiness_grace_period: Duration,
    /// How often a pool checks Sandboxes that the scheduler cannot place.
    #[arg(long, default_value = "1m", value_parser = parse_duration, allow_hyphen_values = true)]
    pub sandbox_warm_pool_unschedulable_recheck_interval: Duration,
    /// Mark pool Pods as safe to evict.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", action = ArgAction::Set)]
    pub enable_warm_pool_eviction: bool,
    /// Send no Events about claims.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub disable_claim_events: bool,
    /// Do not record on claims when they were first seen.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub disable_claim_observability_annotations: bool,
    /// Log as text at debug level.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", action = ArgAction::Set)]
    pub zap_devel: bool,
    /// `json` or `console`.
    #[arg(long, default_value = "json")]
    pub zap_encoder: String,
    /// `debug`, `info`, `error`, `panic`, or a number (higher is more).
    #[arg(long, default_value = "info")]
    pub zap_log_level: String,
    /// Accepted for compatibility.
    #[arg(long, default_value = "error")]
    pub zap_stacktrace_level: String,
    /// Accepted for compatibility.
    #[arg(long, default_value = "")]
    pub zap_time_encoding: String,
}

/// All mistakes in a command line.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{}", .0.join("\n"))]
pub struct FlagErrors(pub Vec<String>);

impl Flags {
    /// Parses Go-style arguments (`-x` as well as `--x`); the first is the program's name.
    pub fn parse_from_go<I: IntoIterator<Item = String>>(arguments: I) -> Result<Self, clap::Error> {
        Self::try_parse_from(to_long_flags(arguments))
    }

    /// The configuration, or all mistakes in the flags.
    pub fn to_config(&self, identity: &str) -> Result<Config, FlagErrors> {
        let mut errors = Vec::new();
        let mut positive = |flag: &str, value: i64| {
            usize::try_from(value).ok().filter(|value| *value > 0).unwrap_or_else(|| {
                errors.push(format!("--{flag} must be greater than 0, but is {value}"));
                1
            })
        };
        let workers = Workers {
            sandbox: positive("sandbox-concurrent-workers", self.sandbox_concurrent_workers),
            claim: positive("sandbox-claim-concurrent-workers", self.sandbox_claim_concurrent_workers),
            pool: positive("sandbox-warm-pool-concurrent-workers", self.sandbox_warm_pool_concurrent_workers),
            template: positive("sandbox-template-concurrent-workers", self.sandbox_template_concurrent_workers),
        };
        let batch = positive("sandbox-warm-pool-max-batch-size", self.sandbox_warm_pool_max_batch_size);
        let burst = positive("kube-api-burst", self.kube_api_burst);
        positive("api-connections", self.api_connections);
        self.check_ranges(&mut errors);
        let mut address = |flag: &str, value: &str| {
            parse_address(value).unwrap_or_else(|error| {
                errors.push(format!("--{flag}: {error}"));
                None
            })
        };
        let metrics_address = address("metrics-bind-address", &self.metrics_bind_address);
        let health_address = address("health-probe-bind-address", &self.health_probe_bind_address);
        let leader_election = self.lease(identity, &mut errors);
        let tracing = self.tracing(&mut errors);
        let audit = self.audit(&mut errors);
        let label_domains = read_label_domains(LABEL_DOMAINS.as_ref()).unwrap_or_else(|error| {
            errors.push(error);
            Vec::new()
        });
        if !errors.is_empty() {
            return Err(FlagErrors(errors));
        }
        Ok(Config {
            namespace: Some(self.watch_namespace.clone()).filter(|namespace| !namespace.is_empty()),
            extensions: self.extensions,
            sandbox: sandbox::Settings {
                cluster_domain: self.cluster_domain.clone(),
                write_behind: self.sandbox_write_behind_window,
                ..sandbox::Settings::default()
            },
            claim: ClaimSettings {
                label_domains,
                observability_annotations: !self.disable_claim_observability_annotations,
                events: !self.disable_claim_events,
                ..ClaimSettings::default()
            },
            pool: PoolSettings {
                max_batch_size: batch,
                readiness_grace: self.sandbox_warm_pool_readiness_grace_period,
                unschedulable_recheck: self.sandbox_warm_pool_unschedulable_recheck_interval,
                eviction: self.enable_warm_pool_eviction,
                pacing: PacingSettings {
                    replenish_delay: self.sandbox_warm_pool_replenish_delay,
                    max_refill_rate: self.sandbox_warm_pool_max_refill_rate,
                },
                ..PoolSettings::default()
            },
            workers,
            cache_label_selectors: self.cache_label_selectors,
            leader_election,
            metrics_address,
            health_address,
            webhook: self.enable_webhook.then(|| self.webhook()),
            tracing,
            audit,
            api_rate: (self.kube_api_qps, burst),
            instance: identity.to_owned(),
            ..Config::default()
        })
    }

    fn check_ranges(&self, errors: &mut Vec<String>) {
        let rate = self.sandbox_warm_pool_max_refill_rate;
        if !rate.is_finite() || rate < 0.0 {
            errors.push(format!("--sandbox-warm-pool-max-refill-rate must be finite and not negative, but is {rate}"));
        }
        if !self.kube_api_qps.is_finite() {
            errors.push(format!("--kube-api-qps must be finite, but is {}", self.kube_api_qps));
        }
        for (flag, value) in [
            ("sandbox-warm-pool-readiness-grace-period", self.sandbox_warm_pool_readiness_grace_period),
            ("sandbox-warm-pool-unschedulable-recheck-interval", self.sandbox_warm_pool_unschedulable_recheck_interval),
        ] {
            if value.is_zero() {
                errors.push(format!("--{flag} must be greater than 0"));
            }
        }
        for (flag, value) in
            [("webhook-cert-name", &self.webhook_cert_name), ("webhook-key-name", &self.webhook_key_name)]
        {
            if value.trim().is_empty() {
                errors.push(format!("--{flag} must not be blank"));
            }
        }
        if !["json", "console"].contains(&self.zap_encoder.as_str()) {
            errors.push(format!("--zap-encoder must be json or console, but is {:?}", self.zap_encoder));
        }
        if self.log_level().is_none() {
            errors.push(format!(
                "--zap-log-level must be debug, info, error, panic or a number, but is {:?}",
                self.zap_log_level
            ));
        }
    }

    fn tracing(&self, errors: &mut Vec<String>) -> Option<ExportSettings> {
        if !self.enable_tracing {
            return None;
        }
        match tracing_context::export_settings(|name| std::env::var(name).ok()) {
            Ok(settings) => {
                errors.extend(Collector::check(&settings.endpoint).err().map(|error| error.to_string()));
                Some(settings)
            }
            Err(mistakes) => {
                errors.extend(mistakes.iter().map(ToString::to_string));
                None
            }
        }
    }

    fn audit(&self, errors: &mut Vec<String>) -> Option<AuditLog> {
        let target = Some(self.audit_log.clone()).filter(|target| !target.is_empty())?;
        let redaction_file = Some(PathBuf::from(&self.audit_redact_file)).filter(|path| !path.as_os_str().is_empty());
        let opened = AuditConfig { target, redaction_file }.open();
        let failed = |error: OpenError| {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            errors.push(format!("--audit-log: {error}{cause}"));
        };
        opened.map_err(failed).ok()
    }

    fn lease(&self, identity: &str, errors: &mut Vec<String>) -> Option<LeaseConfig> {
        if !self.leader_elect {
            return None;
        }
        let namespace = match self.leader_election_namespace.as_str() {
            "" => std::fs::read_to_string(OWN_NAMESPACE).ok().map(|namespace| namespace.trim().to_owned()),
            given => Some(given.to_owned()),
        };
        if namespace.is_none() {
            errors.push("not running in a cluster: give --leader-election-namespace, or turn election off with --leader-elect=false".to_owned());
        }
        namespace.map(|namespace| LeaseConfig::new(namespace, identity))
    }

    fn webhook(&self) -> WebhookConfig {
        let source = if self.manage_webhook_certs {
            CertificateSource::Managed
        } else {
            CertificateSource::External {
                certificate: self.webhook_cert_name.clone(),
                key: self.webhook_key_name.clone(),
            }
        };
        WebhookConfig {
            address: SocketAddr::from(([0, 0, 0, 0], self.webhook_port)),
            service: ServiceNames {
                name: self.webhook_service_name.clone(),
                namespace: self.webhook_namespace.clone(),
                cluster_domain: self.cluster_domain.clone(),
            },
            directory: self.webhook_cert_dir.clone(),
            source,
        }
    }

    /// Warnings about combinations that are allowed but probably not intended.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let workers = self.sandbox_concurrent_workers
            + self.sandbox_claim_concurrent_workers
            + self.sandbox_warm_pool_concurrent_workers
            + self.sandbox_template_concurrent_workers;
        if workers > 1000 {
            warnings.push(format!("{workers} workers in all may overload the API server"));
        }
        if self.kube_api_qps > 0.0 && workers > self.kube_api_burst {
            warnings.push(format!("{workers} workers share a burst of {}", self.kube_api_burst));
        }
        if !self.enable_webhook {
            warnings.push("the webhook is off: the installed CRDs must not use webhook conversion".to_owned());
        }
        if self.manage_webhook_certs && (self.webhook_cert_name != "tls.crt" || self.webhook_key_name != "tls.key") {
            warnings.push(
                "--webhook-cert-name and --webhook-key-name have no effect with --manage-webhook-certs".to_owned(),
            );
        }
        if self.enable_pprof || self.enable_pprof_debug {
            warnings.push("--enable-pprof is accepted, but this program serves no Go profiles".to_owned());
        }
        warnings
    }

    /// The log level for the controller's own messages.
    pub fn log_level(&self) -> Option<&'static str> {
        match self.zap_log_level.as_str() {
            "info" if self.zap_devel => Some("debug"),
            "info" => Some("info"),
            "debug" => Some("debug"),
            "error" | "panic" => Some("error"),
            number => match number.parse::<u8>().ok()? {
                0 => Some("info"),
                1 => Some("debug"),
                _ => Some("trace"),
            },
        }
    }
}

/// The domains whose labels claims may set. A missing file means the default; an unreadable one is an error.
fn read_label_domains(path: &Path) -> Result<Vec<String>, String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(label_domains(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(label_domains("")),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests;
