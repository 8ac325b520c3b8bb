//! Converts merged values into a validated configuration.

use std::path::PathBuf;
use std::time::Duration;

use agent_sandbox_telemetry::DEFAULT_ENDPOINT;
use agent_sandbox_telemetry::audit::AuditConfig;

use super::browser;
use super::parse::Reader;
use super::{ConfigError, OTLP_ENDPOINT, OTLP_METRICS_ENDPOINT, OTLP_TRACES_ENDPOINT, Values};
use crate::auth::{AuthzConfig, Modes, StaticToken, TokenReviewConfig};
use crate::config::{
    Cidr, ClientAuth, HttpsConfig, Limits, ProcessConfig, Retries, RouterConfig, Timeouts, TlsConfig, UpgradeLimits,
};
use crate::resolve::Verification;

/// Converts values into a configuration, or reports every error in them.
pub fn read(values: &Values, env: &dyn Fn(&str) -> Option<String>) -> Result<ProcessConfig, ConfigError> {
    let mut reader = Reader::new(values);
    let https = read_https(&mut reader);
    let (router, watch_pods) = read_router(&mut reader);
    let sleep = reader.switch("wake-sandboxes");
    if sleep && !watch_pods {
        reader
            .problems
            .push("--wake-sandboxes needs the index of sandbox Pods; remove --cache-enabled=false".to_owned());
    }
    let config = ProcessConfig {
        http_bind: reader.non_empty("http-bind-address").map(str::to_owned),
        https,
        metrics_bind: reader.non_empty("metrics-bind-address").map(str::to_owned),
        probe_bind: reader.non_empty("health-probe-bind-address").map(str::to_owned),
        kubeconfig: reader.non_empty("kubeconfig").map(PathBuf::from),
        watch_pods,
        sleep,
        trace_endpoint: endpoint(&mut reader, "enable-tracing", OTLP_TRACES_ENDPOINT, env),
        metrics_endpoint: endpoint(&mut reader, "enable-otel-metrics", OTLP_METRICS_ENDPOINT, env),
        audit: reader.non_empty("audit-log").map(str::to_owned).map(|target| AuditConfig {
            target,
            redaction_file: reader.non_empty("audit-redact-file").map(PathBuf::from),
        }),
        router,
    };
    if config.http_bind.is_none() && reader.non_empty("https-bind-address").is_none() {
        reader
            .problems
            .push("--http-bind-address and --https-bind-address are both empty: nothing to serve".to_owned());
    }
    if reader.problems.is_empty() { Ok(config) } else { Err(ConfigError::Invalid { problems: reader.problems }) }
}

fn read_router(reader: &mut Reader<'_>) -> (RouterConfig, bool) {
    let watch_pods = reader.switch("cache-enabled");
    let allow_unverified = reader.switch("allow-unverified-targets");
    if !watch_pods && !allow_unverified {
        reader.problems.push(
            "--cache-enabled=false means that addresses cannot be verified; add --allow-unverified-targets to accept that"
                .to_owned(),
        );
    }
    let domain = reader.text("cluster-domain").to_owned();
    if domain.is_empty() {
        reader.problem("cluster-domain", "", "must not be empty");
    }
    let mut trusted_proxies = Vec::new();
    for block in reader.list("trusted-proxy-cidrs") {
        match block.parse::<Cidr>() {
            Ok(block) => trusted_proxies.push(block),
            Err(why) => reader.problem("trusted-proxy-cidrs", &block, &why),
        }
    }
    let authz = read_authz(reader);
    let routing = browser::read_routing(reader);
    let links = browser::read_links(reader, watch_pods);
    let cookie = browser::read_cookie(reader, &routing, &authz, links.is_some());
    let access_ttl = match &authz {
        AuthzConfig::AnyOf(Modes { token_review: Some(review), .. }) => review.ttl,
        _ => TokenReviewConfig::default().ttl,
    };
    let config = RouterConfig {
        verification: Verification {
            verify_targets: !allow_unverified,
            allow_loopback: reader.switch("allow-loopback-pod-ip"),
        },
        cluster_domain: Some(domain),
        sandbox_token_key: reader.non_empty("sandbox-token-key-file").map(PathBuf::from),
        watch_namespace: reader.non_empty("cache-namespace").map(str::to_owned),
        timeouts: read_timeouts(reader),
        retries: Retries {
            max: reader.number("upstream-max-retries"),
            initial_delay: reader.duration("upstream-retry-initial-delay"),
            max_delay: reader.duration("upstream-retry-max-delay"),
        },
        limits: Limits {
            connections: reader.number("max-connections"),
            per_peer: false,
            in_flight_requests: reader.number("max-inflight-requests"),
            requests_per_sandbox: reader.number("max-requests-per-sandbox"),
            request_body_bytes: reader.number("max-request-body-bytes"),
        },
        upgrades: UpgradeLimits {
            idle: reader.seconds("websocket-idle-timeout-seconds"),
            lifetime: reader.seconds("websocket-max-lifetime-seconds"),
            per_client: reader.number("websocket-max-connections-per-client"),
            max_message_bytes: reader.number("websocket-max-message-bytes"),
        },
        authz,
        access_ttl,
        access_log: reader.switch("access-log"),
        trusted_proxies,
        allowed_hosts: browser::read_hosts(reader),
        allowed_origins: browser::read_origins(reader, "allowed-origins"),
        cookie,
        links,
        routing,
        workers: match reader.number("workers") {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            workers => workers,
        },
    };
    (config, watch_pods)
}

fn read_timeouts(reader: &mut Reader<'_>) -> Timeouts {
    let response_header =
        reader.non_empty("response-header-timeout").map(|_| reader.positive_duration("response-header-timeout"));
    Timeouts {
        proxy: reader.positive_duration("proxy-timeout"),
        response_header,
        stream_idle: Some(reader.duration("stream-idle-timeout")).filter(|limit| *limit > Duration::ZERO),
        shutdown: reader.duration("shutdown-timeout"),
        drain_delay: reader.duration("drain-delay"),
        ..Timeouts::default()
    }
}

fn read_authz(reader: &mut Reader<'_>) -> AuthzConfig {
    let static_token = reader.non_empty("authz-static-token").map(|token| StaticToken(token.to_owned()));
    let mut names = reader.list("authz-mode");
    if names.is_empty() {
        // For compatibility, a token in the environment means that clients must send it.
        names.push(if static_token.is_some() { "static-token" } else { "allow-all" }.to_owned());
    }
    if names == ["allow-all"] {
        return AuthzConfig::AllowAll;
    }
    let mut modes = Modes::default();
    for name in &names {
        match name.as_str() {
            "rbac" if names.iter().any(|other| other == "tokenreview") => {
                reader.problem(
                    "authz-mode",
                    name,
                    "cannot be combined with tokenreview, which admits every valid token",
                );
            }
            "rbac" => {
                modes.token_review = Some(TokenReviewConfig { require_token: true, ..read_token_review(reader) });
                modes.rbac = true;
            }
            "tokenreview" => modes.token_review = Some(read_token_review(reader)),
            "scoped-token" => {
                modes.scoped_token_secrets =
                    reader.list("authz-scoped-token-secret-file").into_iter().map(PathBuf::from).collect();
                if modes.scoped_token_secrets.is_empty() {
                    reader.problem("authz-mode", name, "needs --authz-scoped-token-secret-file");
                }
            }
            "static-token" => {
                modes.static_token.clone_from(&static_token);
                if modes.static_token.is_none() {
                    reader.problem("authz-mode", name, "needs ROUTER_AUTH_TOKEN");
                }
            }
            "allow-all" => reader.problem("authz-mode", name, "accepts every request and cannot be combined"),
            _ => reader.problem(
                "authz-mode",
                name,
                "is not one of allow-all, rbac, tokenreview, scoped-token, static-token",
            ),
        }
    }
    AuthzConfig::AnyOf(modes)
}

fn read_token_review(reader: &mut Reader<'_>) -> TokenReviewConfig {
    let cache_size = reader.number("authz-tokenreview-cache-size");
    if cache_size == 0 {
        reader.problem("authz-tokenreview-cache-size", "0", "must be at least 1");
    }
    TokenReviewConfig {
        ttl: reader.positive_duration("authz-tokenreview-ttl"),
        cache_size,
        require_token: reader.switch("authz-tokenreview-require-token"),
        audiences: reader.list("authz-tokenreview-audiences"),
    }
}

fn read_https(reader: &mut Reader<'_>) -> Option<HttpsConfig> {
    let bind = reader.non_empty("https-bind-address").map(str::to_owned);
    let ca_file = reader.non_empty("tls-client-ca-file").map(PathBuf::from);
    let mode = reader.text("mtls-mode");
    let client_auth = match (mode, ca_file) {
        ("off" | "", _) => ClientAuth::Off,
        ("optional", Some(ca_file)) => ClientAuth::Optional { ca_file },
        ("required", Some(ca_file)) => ClientAuth::Required { ca_file },
        ("optional" | "required", None) => {
            reader.problem("mtls-mode", mode, "needs --tls-client-ca-file");
            ClientAuth::Off
        }
        _ => {
            reader.problem("mtls-mode", mode, "is not one of off, optional, required");
            ClientAuth::Off
        }
    };
    if bind.is_none() && matches!(mode, "optional" | "required") {
        reader.problem("mtls-mode", mode, "needs --https-bind-address");
    }
    let files = (reader.non_empty("tls-cert-file"), reader.non_empty("tls-key-file"));
    match (bind, files) {
        (None, _) => None,
        (Some(bind), (Some(cert), Some(key))) => Some(HttpsConfig {
            bind,
            tls: TlsConfig { cert_file: PathBuf::from(cert), key_file: PathBuf::from(key), client_auth },
        }),
        (Some(bind), _) => {
            reader.problem("https-bind-address", &bind, "needs --tls-cert-file and --tls-key-file");
            None
        }
    }
}

/// Where a signal is exported to: the flag decides, or else whether an endpoint is set.
fn endpoint(
    reader: &mut Reader<'_>,
    name: &str,
    variable: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Option<String> {
    let set = |variable| env(variable).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let found = set(variable).or_else(|| set(OTLP_ENDPOINT));
    match reader.switch_or_auto(name) {
        Some(false) => None,
        Some(true) => Some(found.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned())),
        None => found,
    }
}
