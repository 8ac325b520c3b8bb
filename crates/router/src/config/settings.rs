//! Every setting of the router process in one table: flag, environment variable, default and help. Command line beats
//! file beats environment beats default; all errors are reported at once.

mod browser;
mod parse;
mod read;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Environment variables that are read but are not settings.
pub use agent_sandbox_telemetry::{OTLP_ENDPOINT, OTLP_METRICS_ENDPOINT, OTLP_TRACES_ENDPOINT};
pub(crate) use parse::parse_duration;
pub use read::read;

/// Whether a setting is a switch (`--access-log`, `--access-log=false`) or takes a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Switch,
    Value,
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Flag name without dashes, and key in the configuration file.
    pub name: &'static str,
    pub env: Option<&'static str>,
    pub default: &'static str,
    pub kind: Kind,
    pub help: &'static str,
}

const fn value(name: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { name, env: None, default, kind: Kind::Value, help }
}

const fn switch(name: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { name, env: None, default, kind: Kind::Switch, help }
}

impl Setting {
    const fn env(self, env: &'static str) -> Self {
        Self { env: Some(env), ..self }
    }
}

/// All settings.
pub const SETTINGS: &[Setting] = &[
    value("config", "", "YAML file with settings, one 'flag-name: value' per line").env("SANDBOX_ROUTER_CONFIG"),
    value("http-bind-address", ":8080", "Address of the proxy; empty disables plain HTTP"),
    value("https-bind-address", "", "Address of the proxy over TLS; empty disables it"),
    value("metrics-bind-address", ":9090", "Address of /metrics; empty disables it"),
    value("health-probe-bind-address", ":8081", "Address of /healthz and /readyz; empty disables it"),
    value("tls-cert-file", "", "Certificate chain for HTTPS (PEM); reloaded when it changes"),
    value("tls-key-file", "", "Private key for HTTPS (PEM); reloaded when it changes"),
    value("tls-client-ca-file", "", "CA bundle that client certificates are checked against (PEM)"),
    value("mtls-mode", "off", "Client certificates: off, optional or required"),
    value("cluster-domain", "cluster.local", "Domain of Service names").env("CLUSTER_DOMAIN"),
    value("proxy-timeout", "180s", "Timeout for a response; clients may ask for less with X-Sandbox-Timeout")
        .env("PROXY_TIMEOUT_SECONDS"),
    value("response-header-timeout", "", "A stricter timeout for the same wait; empty for none"),
    value("stream-idle-timeout", "1h", "Close response streams that are idle for this time; 0 for never"),
    value("shutdown-timeout", "30s", "Time that open requests get when the router stops"),
    value("drain-delay", "0s", "Keep accepting for this time after the stop signal, while load balancers notice"),
    value("max-request-body-bytes", "0", "Refuse larger request bodies with 413; 0 for any size"),
    value("max-connections", "20000", "Client connections at once; 0 for any number"),
    value("max-inflight-requests", "10000", "Requests at once; beyond it clients get 503; 0 for any number"),
    value("max-requests-per-sandbox", "1000", "Requests to one sandbox at once; 0 for any number"),
    value("workers", "0", "Threads that serve connections; 0 for one per core"),
    value(
        "upstream-max-retries",
        "3",
        "Retries of failed connection attempts; requests already sent are never repeated",
    ),
    value("upstream-retry-initial-delay", "200ms", "Delay before the first retry; doubles each time"),
    value("upstream-retry-max-delay", "800ms", "Maximum delay between retries"),
    switch("allow-loopback-pod-ip", "false", "Dial loopback addresses named by clients, unverified (tests only)"),
    switch("allow-unverified-targets", "false", "Dial addresses that no live sandbox Pod is known to have"),
    switch("cache-enabled", "true", "Keep an index of sandbox Pods; false needs --allow-unverified-targets"),
    value("cache-namespace", "", "Namespace whose Pods are indexed; empty for all"),
    value("kubeconfig", "", "Kubernetes client configuration; empty for in-cluster").env("KUBECONFIG"),
    value(
        "authz-mode",
        "",
        "allow-all, or a comma list of rbac, tokenreview, scoped-token, static-token [default: allow-all]",
    ),
    value("authz-tokenreview-ttl", "30s", "How long the review of a token, and in mode rbac of access, is cached"),
    value("authz-tokenreview-cache-size", "2048", "How many reviews are cached"),
    switch("authz-tokenreview-require-token", "false", "Refuse requests without a token in mode tokenreview"),
    value("authz-tokenreview-audiences", "", "Comma list of audiences a token must be for"),
    value("authz-scoped-token-secret-file", "", "Comma list of files with secrets of scoped tokens; each is accepted"),
    value(
        "sandbox-token-key-file",
        "",
        "Ed25519 private key (PEM); requests to sandboxes carry a token signed with it, which sandboxd can require",
    ),
    value("authz-static-token", "", "The token of mode static-token; prefer the variable").env("ROUTER_AUTH_TOKEN"),
    value(
        "path-routing-prefix",
        "",
        "Serve <prefix>/<namespace>/<id>/<port>/... without headers, for browsers; empty disables it",
    ),
    value(
        "host-routing-domain",
        "",
        "Serve <port>-<id>--<namespace>.<domain> without headers, for browsers; empty disables it",
    ),
    value(
        "authz-cookie-name",
        "",
        "Accept credentials in this cookie where the URL names the sandbox; empty disables it",
    ),
    value("authz-cookie-query-param", "", "Parameter of a link whose credential becomes the cookie; empty disables it"),
    value("authz-cookie-samesite", "lax", "SameSite of the cookie: lax, strict or none"),
    switch("authz-cookie-insecure", "false", "Let browsers send the cookie without TLS (local development only)"),
    value(
        "authz-cookie-allowed-origins",
        "",
        "Comma list of origins, scheme://host[:port], whose pages may use the cookie, beside the router's own",
    ),
    switch(
        "authz-trust-forwarded-proto",
        "false",
        "Take the scheme of the router's own pages from X-Forwarded-Proto; only behind a proxy that sets it",
    ),
    value(
        "links-secret-file",
        "",
        "Comma list of files with secrets that links to ports are signed with, the first, and checked with; empty for no links. In mode scoped-token its secrets are used. Needs to get and patch Sandboxes",
    ),
    value("public-url", "", "URL of this router for browsers, for links; empty for https://<host-routing-domain>"),
    value(
        "allowed-origins",
        "",
        "Comma list of origins whose pages may name a sandbox in a URL where no credential is required (allow-all)",
    ),
    value(
        "allowed-hosts",
        "",
        "Comma list of names, *.domain or *, by which clients may call the router, beside addresses, localhost and names of Services; empty for any, except for web pages where no credential is required",
    ),
    switch(
        "wake-sandboxes",
        "false",
        "Wake suspended sandboxes for requests, and record use so that idle ones are suspended; needs to get and patch Sandboxes",
    ),
    switch("access-log", "true", "Write a JSON line per request to standard error"),
    value("audit-log", "", "Write audit records: a file, which is rotated, or '-' for standard output; empty for none"),
    value("audit-redact-file", "", "File with regular expressions, one per line, that are removed from audit records"),
    value("enable-tracing", "auto", "Export spans over OTLP: auto (when an endpoint is set), true or false"),
    value("enable-otel-metrics", "auto", "Export metrics over OTLP: auto (when an endpoint is set), true or false"),
    value(
        "websocket-idle-timeout-seconds",
        "3600",
        "Close upgraded connections that are idle for this time; 0 for never",
    )
    .env("WEBSOCKET_IDLE_TIMEOUT_SECONDS"),
    value("websocket-max-lifetime-seconds", "0", "Close upgraded connections after this time; 0 for never")
        .env("WEBSOCKET_MAX_LIFETIME_SECONDS"),
    value("websocket-max-connections-per-client", "0", "Upgraded connections per client address; 0 for any number")
        .env("WEBSOCKET_MAX_CONNECTIONS_PER_CLIENT"),
    value("websocket-max-message-bytes", "0", "Largest WebSocket message; 0 for any size")
        .env("WEBSOCKET_MAX_MESSAGE_BYTES"),
    value("trusted-proxy-cidrs", "", "Proxies whose X-Forwarded-For names the client (for limits per client)")
        .env("TRUSTED_PROXY_CIDRS"),
];

/// Why the configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read configuration file {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("configuration file {path} is not a flat YAML map: {reason}")]
    Malformed { path: PathBuf, reason: String },
    #[error("configuration file {path}: unknown key '{key}'")]
    UnknownKey { path: PathBuf, key: String },
    #[error("configuration file {path}: value of '{key}' must be a single value")]
    Nested { path: PathBuf, key: String },
    #[error("{}", .problems.join("\n"))]
    Invalid { problems: Vec<String> },
}

/// Values by setting name, as text.
pub type Values = BTreeMap<&'static str, String>;

/// The table entry of a name.
pub fn setting(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// Merges the sources. `env` reads a variable; `file` is already parsed.
pub fn merge(command_line: Values, file: Values, env: &dyn Fn(&str) -> Option<String>) -> Values {
    let mut merged: Values =
        SETTINGS.iter().filter_map(|setting| Some((setting.name, from_env(setting, env)?))).collect();
    merged.extend(file);
    merged.extend(command_line);
    merged
}

/// An environment value in the form of its flag; empty and invalid values count as unset.
fn from_env(setting: &Setting, env: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let text = env(setting.env?)?;
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    if setting.name == "proxy-timeout" {
        let seconds: f64 = text.parse().ok()?;
        return (seconds.is_finite() && seconds > 0.0).then(|| format!("{seconds}s"));
    }
    Some(text.to_owned())
}

/// Reads a configuration file: a flat YAML map from flag names to scalars.
pub fn read_file(path: &Path) -> Result<Values, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    if text.trim().is_empty() {
        return Ok(Values::new());
    }
    let malformed = |reason: String| ConfigError::Malformed { path: path.to_owned(), reason };
    let parsed: Option<BTreeMap<String, serde_json::Value>> =
        serde_saphyr::from_str(&text).map_err(|error| malformed(error.to_string()))?;
    let mut values = Values::new();
    for (key, value) in parsed.unwrap_or_default() {
        let Some(setting) = setting(&key).filter(|setting| setting.name != "config") else {
            return Err(ConfigError::UnknownKey { path: path.to_owned(), key });
        };
        let text = match value {
            serde_json::Value::String(text) => text,
            serde_json::Value::Bool(switch) => switch.to_string(),
            serde_json::Value::Number(number) => number.to_string(),
            serde_json::Value::Null => String::new(),
            _ => return Err(ConfigError::Nested { path: path.to_owned(), key }),
        };
        values.insert(setting.name, text);
    }
    Ok(values)
}

#[cfg(test)]
mod tests;
