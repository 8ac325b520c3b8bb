//! Precedence, files, validation.

use std::time::Duration;

use super::*;
use crate::auth::AuthzConfig;
use crate::config::ProcessConfig;

fn values(pairs: &[(&'static str, &str)]) -> Values {
    pairs.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

fn no_env(_: &str) -> Option<String> {
    None
}

fn config(pairs: &[(&'static str, &str)]) -> Result<ProcessConfig, ConfigError> {
    read(&values(pairs), &no_env)
}

fn file(text: &str) -> Result<Values, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("router.yaml");
    std::fs::write(&path, text).unwrap();
    read_file(&path)
}

#[test]
fn defaults_are_the_contracts() {
    let config = config(&[]).unwrap();
    assert_eq!(config.http_bind.as_deref(), Some(":8080"));
    assert_eq!(config.metrics_bind.as_deref(), Some(":9090"));
    assert_eq!(config.probe_bind.as_deref(), Some(":8081"));
    assert!(config.https.is_none() && config.watch_pods);
    let router = config.router;
    assert_eq!(router.cluster_domain.as_deref(), Some("cluster.local"));
    assert_eq!((router.timeouts.proxy, router.timeouts.response_header), (Duration::from_secs(180), None));
    assert_eq!((router.retries.max, router.retries.initial_delay), (3, Duration::from_millis(200)));
    assert!(router.verification.verify_targets && !router.verification.allow_loopback && router.access_log);
    assert!(matches!(router.authz, AuthzConfig::AllowAll));
}

#[test]
fn names_of_the_router_can_be_listed() {
    assert!(config(&[]).unwrap().router.allowed_hosts.contain("any.example"));
    let listed = config(&[("allowed-hosts", "router.example.com,*.boxes.example.com")]).unwrap().router.allowed_hosts;
    for (host, allowed) in [
        ("router.example.com", true),
        ("1-a--b.boxes.example.com", true),
        ("10.0.0.1:80", true),
        ("sandbox-router-svc.agent-sandbox-system.svc.cluster.local", true),
        ("evil.example", false),
    ] {
        assert_eq!(listed.contain(host), allowed, "{host}");
    }
    let error = config(&[("allowed-hosts", "router.example.com:80")]).unwrap_err();
    assert!(error.to_string().contains("--allowed-hosts"), "{error}");
}

#[test]
fn cookies_need_a_credential_and_a_url_to_protect() {
    let usual = [
        ("path-routing-prefix", "/router"),
        ("authz-mode", "static-token"),
        ("authz-static-token", "s"),
        ("authz-cookie-name", "session"),
    ];
    let with = |more: &[(&'static str, &str)]| config(&[&usual[..], more].concat());
    let cookie = with(&[]).unwrap().router.cookie.unwrap();
    assert!(cookie.secure && cookie.query_param.is_none() && cookie.same_site == crate::SameSite::Lax);
    let none = with(&[("authz-cookie-samesite", "none"), ("authz-cookie-query-param", "token")]).unwrap();
    assert_eq!(none.router.cookie.unwrap().query_param.as_deref(), Some("token"));
    for wrong in [
        &[("authz-cookie-samesite", "none"), ("authz-cookie-insecure", "true")][..],
        &[("authz-cookie-samesite", "other")],
        &[("authz-cookie-allowed-origins", "app.example")],
        &[("authz-cookie-name", "a b")],
        &[("authz-cookie-query-param", "a&b")],
        &[("authz-mode", "allow-all")],
        &[("path-routing-prefix", "")],
        &[("path-routing-prefix", "router")],
        &[("path-routing-prefix", "/router/")],
        &[("path-routing-prefix", "//router")],
        &[("path-routing-prefix", "/a/../b")],
        &[("host-routing-domain", "*.example")],
    ] {
        assert!(with(wrong).is_err(), "{wrong:?}");
    }
    for alone in [
        ("authz-cookie-query-param", "t"),
        ("authz-cookie-allowed-origins", "https://a"),
        ("authz-trust-forwarded-proto", "true"),
    ] {
        assert!(config(&[alone]).is_err(), "{alone:?}");
    }
    assert!(config(&[]).unwrap().router.cookie.is_none());
}

/// D-117
#[test]
fn the_cluster_domain_comes_from_the_environment() {
    let env = |value: &'static str| move |name: &str| (name == "CLUSTER_DOMAIN").then(|| value.to_owned());
    let domain = |value| {
        let merged = merge(Values::new(), Values::new(), &env(value));
        read(&merged, &no_env).unwrap().router.cluster_domain.unwrap()
    };
    assert_eq!(domain("example.local"), "example.local");
    assert_eq!(domain(""), "cluster.local");
}

/// D-165
#[test]
fn files_are_flat_maps_of_known_keys() {
    assert!(matches!(file("proxy-timeoutt: 5s"), Err(ConfigError::UnknownKey { key, .. }) if key == "proxy-timeoutt"));
    assert!(matches!(file("proxy-timeout: {a: 1}"), Err(ConfigError::Nested { .. })));
    assert!(matches!(file("proxy-timeout: [1]"), Err(ConfigError::Nested { .. })));
    assert!(matches!(file("a: b: c"), Err(ConfigError::Malformed { .. })));
    assert!(matches!(file("- a"), Err(ConfigError::Malformed { .. })));
    assert!(matches!(read_file(Path::new("/nonexistent/router.yaml")), Err(ConfigError::Read { .. })));
    let read = file("proxy-timeout: 5s\naccess-log: false\nupstream-max-retries: 0\n").unwrap();
    assert_eq!(read, values(&[("proxy-timeout", "5s"), ("access-log", "false"), ("upstream-max-retries", "0")]));
    assert_eq!(file("").unwrap(), Values::new());
}

/// D-165
#[test]
fn command_line_beats_file_beats_environment_beats_default() {
    let env = |name: &str| match name {
        "PROXY_TIMEOUT_SECONDS" => Some("1.5".to_owned()),
        "CLUSTER_DOMAIN" => Some("env.local".to_owned()),
        "KUBECONFIG" => Some("/env".to_owned()),
        _ => None,
    };
    let file = values(&[("cluster-domain", "file.local"), ("proxy-timeout", "2s")]);
    let merged = merge(values(&[("proxy-timeout", "3s")]), file, &env);
    let config = read(&merged, &env).unwrap();
    assert_eq!(config.router.timeouts.proxy, Duration::from_secs(3));
    assert_eq!(config.router.cluster_domain.as_deref(), Some("file.local"));
    assert_eq!(config.kubeconfig.as_deref(), Some(Path::new("/env")));
    let only_env = read(&merge(Values::new(), Values::new(), &env), &env).unwrap();
    assert_eq!(only_env.router.timeouts.proxy, Duration::from_millis(1500));
}

#[test]
fn an_unusable_timeout_in_the_environment_is_ignored() {
    for bad in ["abc", "-1", "0", "nan", "inf"] {
        let env = |name: &str| (name == "PROXY_TIMEOUT_SECONDS").then(|| bad.to_owned());
        let config = read(&merge(Values::new(), Values::new(), &env), &env).unwrap();
        assert_eq!(config.router.timeouts.proxy, Duration::from_secs(180), "{bad}");
    }
}

/// D-166
#[test]
fn otlp_endpoints_switch_export_on_unless_the_flag_says_no() {
    let env = |name: &str| (name == OTLP_ENDPOINT).then(|| "http://collector:4317".to_owned());
    let with = |pairs: &[(&'static str, &str)]| read(&values(pairs), &env).unwrap();
    assert_eq!(with(&[]).trace_endpoint.as_deref(), Some("http://collector:4317"));
    assert_eq!(with(&[]).metrics_endpoint.as_deref(), Some("http://collector:4317"));
    let off = with(&[("enable-tracing", "false")]);
    assert_eq!((off.trace_endpoint, off.metrics_endpoint.is_some()), (None, true));
    let traces_only = |name: &str| (name == OTLP_TRACES_ENDPOINT).then(|| "http://t:4317".to_owned());
    let config = read(&Values::new(), &traces_only).unwrap();
    assert_eq!((config.trace_endpoint.as_deref(), config.metrics_endpoint), (Some("http://t:4317"), None));
    assert_eq!(config_of(&[]).trace_endpoint, None);
    assert!(config_of(&[("enable-otel-metrics", "true")]).metrics_endpoint.is_some());
}

fn config_of(pairs: &[(&'static str, &str)]) -> ProcessConfig {
    config(pairs).unwrap()
}

#[test]
fn every_mistake_is_reported_at_once() {
    let error = config(&[("proxy-timeout", "0s"), ("mtls-mode", "maybe"), ("authz-mode", "none")]).unwrap_err();
    let ConfigError::Invalid { problems } = error else { panic!("{error}") };
    assert_eq!(problems.len(), 3, "{problems:?}");
}

#[test]
fn contradictions_are_refused() {
    for (pairs, about) in [
        (vec![("http-bind-address", "")], "both empty"),
        (vec![("https-bind-address", ":8443")], "--tls-cert-file"),
        (vec![("mtls-mode", "required")], "--https-bind-address"),
        (
            vec![
                ("mtls-mode", "required"),
                ("https-bind-address", ":1"),
                ("tls-cert-file", "c"),
                ("tls-key-file", "k"),
            ],
            "--tls-client-ca-file",
        ),
        (vec![("response-header-timeout", "0s")], "response-header-timeout"),
        (vec![("shutdown-timeout", "-1s")], "shutdown-timeout"),
        (vec![("max-request-body-bytes", "-1")], "max-request-body-bytes"),
        (vec![("upstream-max-retries", "-1")], "upstream-max-retries"),
        (vec![("upstream-retry-max-delay", "-1s")], "upstream-retry-max-delay"),
        (vec![("cluster-domain", "")], "cluster-domain"),
        (vec![("authz-mode", "tokenreview"), ("authz-tokenreview-ttl", "0s")], "authz-tokenreview-ttl"),
        (vec![("authz-mode", "tokenreview"), ("authz-tokenreview-cache-size", "0")], "cache-size"),
        (vec![("authz-mode", "scoped-token")], "secret-file"),
        (vec![("authz-mode", "static-token")], "ROUTER_AUTH_TOKEN"),
        (vec![("authz-mode", "allow-all,tokenreview")], "cannot be combined"),
        (vec![("authz-mode", "rbac,tokenreview")], "cannot be combined with tokenreview"),
        (vec![("cache-enabled", "false")], "--allow-unverified-targets"),
        (vec![("trusted-proxy-cidrs", "10.0.0.0/33")], "10.0.0.0/33"),
        (vec![("links-secret-file", "s")], "needs --authz-cookie-query-param"),
        (vec![("public-url", "https://boxes.example")], "needs --links-secret-file"),
        (vec![("links-secret-file", "s"), ("public-url", "boxes.example")], "is not a URL"),
        (vec![("links-secret-file", "s"), ("public-url", "https://boxes.example/a")], "without a path"),
        (
            vec![("links-secret-file", "s"), ("cache-enabled", "false"), ("allow-unverified-targets", "true")],
            "remove --cache-enabled=false",
        ),
    ] {
        let error = config(&pairs).expect_err(about).to_string();
        assert!(error.contains(about), "{pairs:?}: {error}");
    }
}

/// Where nothing is required a cookie has no effect, but the session of a link restricts who uses it.
#[test]
fn links_need_a_cookie_and_give_it_a_meaning_in_every_mode() {
    let cookie = [
        ("host-routing-domain", "boxes.example"),
        ("authz-cookie-name", "session"),
        ("authz-cookie-query-param", "token"),
    ];
    assert!(config(&cookie).unwrap_err().to_string().contains("allow-all"));
    let with_links =
        [&cookie[..], &[("links-secret-file", "a,b"), ("public-url", "http://boxes.example:8080")]].concat();
    let links = config(&with_links).unwrap().router.links.unwrap();
    assert_eq!(links.secrets, [std::path::Path::new("a"), std::path::Path::new("b")]);
    assert_eq!(links.public_url.as_deref(), Some("http://boxes.example:8080"));
}

/// D-148
#[test]
fn audiences_are_trimmed_and_empties_skipped() {
    let config = config(&[("authz-mode", "tokenreview"), ("authz-tokenreview-audiences", "a, b ,,c")]).unwrap();
    let AuthzConfig::AnyOf(modes) = config.router.authz else { panic!() };
    assert_eq!(modes.token_review.unwrap().audiences, ["a", "b", "c"]);
}

#[test]
fn a_token_in_the_environment_is_required_from_callers() {
    let env = |name: &str| (name == "ROUTER_AUTH_TOKEN").then(|| " secret \n".to_owned());
    let config = read(&merge(Values::new(), Values::new(), &env), &env).unwrap();
    let AuthzConfig::AnyOf(modes) = config.router.authz else { panic!() };
    assert_eq!(modes.static_token.unwrap().0, "secret");
}

#[test]
fn names_in_the_table_are_unique() {
    let names: std::collections::HashSet<_> = SETTINGS.iter().map(|setting| setting.name).collect();
    assert_eq!(names.len(), SETTINGS.len());
}

#[test]
fn mode_rbac_always_requires_a_token() {
    let config = config(&[("authz-mode", "rbac,scoped-token"), ("authz-scoped-token-secret-file", "s")]).unwrap();
    let AuthzConfig::AnyOf(modes) = config.router.authz else { panic!("modes") };
    assert!(modes.rbac && modes.token_review.unwrap().require_token);
    assert_eq!(modes.scoped_token_secrets.len(), 1);
}
