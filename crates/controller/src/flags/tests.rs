//! The command line, as deployments write it.

use super::*;

fn parse(arguments: &[&str]) -> Flags {
    let all = std::iter::once("controller").chain(arguments.iter().copied()).map(str::to_owned);
    Flags::parse_from_go(all).expect("parses")
}

fn config(arguments: &[&str]) -> Result<Config, FlagErrors> {
    let mut all = vec!["--leader-election-namespace=sys"];
    all.extend_from_slice(arguments);
    parse(&all).to_config("me")
}

/// The defaults are upstream's.
#[test]
fn defaults() {
    let config = config(&[]).expect("valid");
    assert_eq!(config.workers, Workers { sandbox: 100, claim: 50, pool: 1, template: 1 });
    assert!(!config.extensions && config.tracing.is_none() && !config.cache_label_selectors);
    assert_eq!(config.metrics_address.map(|address| address.port()), Some(8080));
    assert_eq!(config.health_address.map(|address| address.port()), Some(8081));
    let lease = config.leader_election.expect("on");
    assert_eq!(
        (lease.duration, lease.renew_deadline, lease.retry_period),
        (Duration::from_secs(15), Duration::from_secs(10), Duration::from_secs(2))
    );
    let webhook = config.webhook.expect("on");
    assert_eq!((webhook.address.port(), webhook.source), (9443, CertificateSource::Managed));
    assert_eq!(webhook.service.dns_names()[2], "agent-sandbox-webhook-service.agent-sandbox-system.svc");
}

/// FLG: booleans and dashes as Go takes them.
#[test]
fn go_style_flags() {
    assert!(parse(&["--extensions"]).extensions);
    assert!(parse(&["-extensions"]).extensions);
    assert!(parse(&["--extensions=true"]).extensions);
    assert!(!parse(&["--leader-elect=false"]).leader_elect);
    assert!((parse(&["--kube-api-qps=-1.000000"]).kube_api_qps + 1.0).abs() < f64::EPSILON);
    assert_eq!(
        parse(&["-sandbox-write-behind-window", "250ms"]).sandbox_write_behind_window,
        Duration::from_millis(250)
    );
    assert!(config(&["--leader-elect=false"]).expect("valid").leader_election.is_none());
    assert!(config(&["--metrics-bind-address=0"]).expect("valid").metrics_address.is_none());
}

/// S-215: election can be turned off and its namespace chosen; the Lease keeps its name.
#[test]
fn s_215_lease_flags() {
    let lease = config(&[]).expect("valid").leader_election.expect("on");
    assert_eq!((lease.name.as_str(), lease.namespace.as_str()), ("a3317529.agent-sandbox.x-k8s.io", "sys"));
    let outside = parse(&[]).to_config("me").expect_err("not in a cluster");
    assert!(outside.to_string().contains("--leader-election-namespace"));
}

/// S-216, S-225, X-241: switches reach the configuration.
#[test]
fn s_216_s_225_switches() {
    assert!(config(&["--cache-label-selectors"]).expect("valid").cache_label_selectors);
    assert!(config(&["--enable-webhook=false"]).expect("valid").webhook.is_none());
    let external =
        config(&["--manage-webhook-certs=false", "--webhook-cert-name=c", "--webhook-key-name=k"]).expect("valid");
    let expected = CertificateSource::External { certificate: "c".into(), key: "k".into() };
    assert_eq!(external.webhook.expect("on").source, expected);
}

/// S-217, S-223: every bad value is refused, and all of them at once.
#[test]
fn s_217_s_223_bad_values() {
    for bad in [
        "--sandbox-concurrent-workers=0",
        "--sandbox-claim-concurrent-workers=-1",
        "--sandbox-warm-pool-concurrent-workers=0",
        "--sandbox-template-concurrent-workers=0",
        "--sandbox-warm-pool-max-batch-size=0",
        "--sandbox-warm-pool-max-refill-rate=-1",
        "--sandbox-warm-pool-max-refill-rate=inf",
        "--sandbox-warm-pool-readiness-grace-period=0",
        "--sandbox-warm-pool-unschedulable-recheck-interval=0s",
        "--kube-api-burst=0",
        "--api-connections=0",
        "--api-connections=-1",
        "--webhook-cert-name= ",
        "--metrics-bind-address=nowhere",
        "--zap-encoder=xml",
        "--zap-log-level=loud",
    ] {
        let error = config(&[bad]).expect_err(bad);
        let flag = bad.split('=').next().expect("a flag");
        assert!(error.to_string().starts_with(flag), "{error}");
    }
    let both = config(&["--kube-api-burst=0", "--api-connections=0"]).expect_err("two mistakes");
    assert_eq!(both.0.len(), 2);
    for bad in ["--sandbox-write-behind-window=-1s", "--webhook-port=x", "--no-such-flag"] {
        let arguments = ["controller".to_owned(), bad.to_owned()];
        assert!(Flags::parse_from_go(arguments).is_err(), "{bad}");
    }
}

#[test]
fn durations_and_addresses() {
    for (text, duration) in [("5m", 300_000), ("1h30m", 5_400_000), ("250ms", 250), ("1.5s", 1500), ("0", 0)] {
        assert_eq!(parse_duration(text), Ok(Duration::from_millis(duration)), "{text}");
    }
    for text in ["", "5", "m", "5x", "-5s"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
    assert_eq!(parse_address("[::1]:80").expect("valid").map(|address| address.is_ipv6()), Some(true));
    assert_eq!(parse_address("localhost:80").expect("valid").map(|address| address.ip().is_loopback()), Some(true));
}

#[test]
fn questionable_combinations_are_pointed_out() {
    assert!(parse(&[]).warnings().is_empty());
    assert_eq!(parse(&["--sandbox-concurrent-workers=2000"]).warnings().len(), 1);
    assert_eq!(parse(&["--kube-api-qps=5"]).warnings().len(), 1);
    assert_eq!(parse(&["--webhook-cert-name=c", "--enable-webhook=false"]).warnings().len(), 2);
}
