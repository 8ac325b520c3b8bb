//! Labels and annotations that claims put on their Pods.

use agent_sandbox_api::{keys::annotations, template::PodMetadata};
use serde_json::Value;

use super::*;
use crate::{
    cache::Kind,
    claim::{ClaimSettings, validate::label_domains},
    pool::PoolSettings,
    reconcile::Next,
};

/// The reason and message that a claim with this metadata ends with, and the Pod metadata of its Sandbox, if it got
/// one.
async fn outcome(domains: &str, template: Value, extra: Value) -> (String, String, Option<PodMetadata>, Next) {
    let settings = ClaimSettings { label_domains: label_domains(domains), ..ClaimSettings::default() };
    let fixture = Fixture::with(settings, PoolSettings::default());
    fixture.template("t", json!({"podTemplate": {"metadata": template}}));
    fixture.pool_of("p", "t", 0);
    fixture.claim_with("c", json!({}), json!({"warmPoolRef": {"name": "p"}, "additionalPodMetadata": extra}));
    let next = fixture.claim("c").await.expect("no error");
    let (_, reason, message) = fixture.ready_of("c");
    let sandbox = fixture.api.typed::<crate::cache::Sandbox>(&key("c"));
    (reason, message, sandbox.map(|sandbox| sandbox.spec.pod_template.metadata()), next)
}

async fn refused(extra: Value) -> String {
    let (reason, message, pod, next) = outcome("", json!({}), extra).await;
    assert_eq!(reason, "InvalidMetadata", "{message}");
    assert!(pod.is_none(), "no Sandbox");
    assert_eq!(next, Next::Idle, "no retry loop");
    message
}

async fn accepted(domains: &str, extra: Value) -> PodMetadata {
    let (reason, message, pod, _) = outcome(domains, json!({}), extra).await;
    assert_eq!(reason, "SandboxNotReady", "{message}");
    pod.expect("a Sandbox")
}

#[tokio::test]
async fn x_050_labels_and_annotations_reach_the_pod_template() {
    let pod = accepted("", json!({"labels": {"sandbox.users.io/x": "v"}, "annotations": {"a": "v"}})).await;
    assert_eq!(pod.labels.expect("labels").get("sandbox.users.io/x").map(String::as_str), Some("v"));
    assert_eq!(pod.annotations.expect("annotations").get("a").map(String::as_str), Some("v"));
}

#[tokio::test]
async fn x_051_a_label_needs_a_domain() {
    let message = refused(json!({"labels": {"team": "v"}})).await;
    assert!(message.starts_with("invalid additionalPodMetadata: failed to validate label \"team\": "), "{message}");
}

#[tokio::test]
async fn x_052_label_values_are_label_values() {
    for value in ["x".repeat(64), "sp ace".to_owned(), "-x".to_owned(), "x-".to_owned()] {
        refused(json!({"labels": {"sandbox.users.io/x": value}})).await;
    }
    for value in ["", "x", &"x".repeat(63)] {
        accepted("", json!({"labels": {"sandbox.users.io/x": value}})).await;
    }
}

#[tokio::test]
async fn x_053_label_keys_are_qualified_names() {
    for name in [
        "sandbox.users.io/invalid@key",
        "sandbox.users.io/",
        "sandbox.users.io/a/b",
        "Upper.users.io/x",
        "-x.io/y",
        "sandbox..io/x",
    ] {
        let message = refused(json!({"labels": {name: "v"}})).await;
        assert!(message.contains("failed to validate label"), "{message}");
    }
    refused(json!({"labels": {format!("sandbox.users.io/{}", "x".repeat(64)): "v"}})).await;
    refused(json!({"labels": {format!("{}.io/x", "x".repeat(251)): "v"}})).await;
    let domain = |length: usize| format!("{}.sandbox.users.io", "x".repeat(length - ".sandbox.users.io".len()));
    accepted("", json!({"labels": {format!("{}/{}", domain(253), "x".repeat(63)): "v"}})).await;
    let message = refused(json!({"labels": {format!("{}/x", domain(254)): "v"}})).await;
    assert!(message.contains("prefix part must be"), "{message}");
}

#[tokio::test]
async fn x_054_other_domains_are_closed() {
    for domain in ["kubernetes.io", "example.com", "notsandbox.users.io", "users.io"] {
        let message = refused(json!({"labels": {format!("{domain}/x"): "v"}})).await;
        assert!(message.contains(&format!("label domain \"{domain}\" is not in the allowlist")), "{message}");
    }
}

#[tokio::test]
async fn x_055_the_routers_label_is_refused() {
    for (name, value) in [("app", "sandbox-router"), ("APP", "Sandbox-Router")] {
        let message = refused(json!({"labels": {name: value}})).await;
        let text =
            format!("restricted system label value: \"{name}\"=\"{value}\" is not allowed in AdditionalPodMetadata");
        assert!(message.contains(&text), "{message}");
    }
    let message = refused(json!({"labels": {"app": "mine"}})).await;
    assert!(message.contains("must have a domain prefix"), "only the router's name is the router's: {message}");
    accepted("", json!({"labels": {"sandbox.users.io/app": "sandbox-router"}})).await;
}

#[tokio::test]
async fn x_056_eviction_may_be_forbidden() {
    let pod = accepted("", json!({"annotations": {annotations::SAFE_TO_EVICT: "false"}})).await;
    assert_eq!(
        pod.annotations.expect("annotations").get(annotations::SAFE_TO_EVICT).map(String::as_str),
        Some("false")
    );
}

#[tokio::test]
async fn x_057_system_annotations_are_closed() {
    for name in ["agents.x-k8s.io/x", "k8s.io/x", "foo.kubernetes.io/x", "my.agents.x-k8s.io/x"] {
        let message = refused(json!({"annotations": {name: "v"}})).await;
        let text = format!("restricted system domain: \"{name}\" is not allowed in AdditionalPodMetadata");
        assert!(message.contains(&text), "{message}");
        assert!(
            message.starts_with(&format!("invalid additionalPodMetadata: failed to validate annotation \"{name}\": "))
        );
    }
    // Another snapshot would replace the files of the Sandbox at its next start.
    for name in [annotations::SNAPSHOT, annotations::COPIED_VOLUMES, annotations::EGRESS] {
        assert!(refused(json!({"annotations": {name: "v"}})).await.contains("restricted system domain"), "{name}");
    }
    for name in ["plain", "example.com/x", "mykubernetes.io/x", annotations::E2B_TRAFFIC] {
        accepted("", json!({"annotations": {name: "any value at all"}})).await;
    }
}

#[tokio::test]
async fn x_058_the_installation_names_its_domains() {
    let domains = " Sandbox.users.io,\ncustom.company.com ,";
    for name in ["custom.company.com/my-label", "sub.custom.company.com/x", "sandbox.users.io/x"] {
        accepted(domains, json!({"labels": {name: "v"}})).await;
    }
    assert_eq!(label_domains(" \n"), ["sandbox.users.io"]);
}

/// no overriding; refused without a hot retry.
#[tokio::test]
async fn x_059_the_templates_metadata_cannot_be_overridden() {
    for (what, field, name) in [("label", "labels", "sandbox.users.io/x"), ("annotation", "annotations", "a")] {
        let (reason, message, pod, next) = outcome("", json!({field: {name: "a"}}), json!({field: {name: "b"}})).await;
        let text = format!(
            "Error seen: metadata override conflict: {what} \"{name}\" is defined in template with value \"a\", but claim requests \"b\""
        );
        assert_eq!((reason.as_str(), message), ("ReconcilerError", text));
        assert!(pod.is_none() && next == Next::After(std::time::Duration::from_secs(60)));
        let (reason, ..) = outcome("", json!({field: {name: "a"}}), json!({field: {name: "a"}})).await;
        assert_eq!(reason, "SandboxNotReady", "equal values are fine");
    }
}

/// edits of a bound claim flow to its Sandbox, removals too.
#[tokio::test]
async fn x_060_edits_flow_to_a_bound_sandbox() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    let name = fixture.bound("c").expect("bound");
    let extra = |labels: Value| json!({"spec": {"additionalPodMetadata": {"labels": labels}}});
    fixture.api.edit(Kind::Claim, &key("c"), extra(json!({"sandbox.users.io/x": "v"})));
    fixture.claim("c").await.expect("no error");
    let labels = |fixture: &Fixture| fixture.sandbox(&name).spec.pod_template.metadata().labels.expect("labels");
    assert_eq!(labels(&fixture).get("sandbox.users.io/x").map(String::as_str), Some("v"));
    fixture.api.edit(Kind::Claim, &key("c"), extra(json!({"sandbox.users.io/x": null})));
    fixture.claim("c").await.expect("no error");
    assert_eq!(labels(&fixture).get("sandbox.users.io/x"), None);
    assert_eq!(fixture.sandboxes().len(), 1, "the Sandbox stays the same");
}

/// bad metadata is reported even when the pool is missing, and on a bound claim.
#[tokio::test]
async fn x_061_metadata_is_checked_before_anything_is_looked_up() {
    let fixture = Fixture::new();
    fixture.claim_with(
        "c",
        json!({}),
        json!({"warmPoolRef": {"name": "missing"}, "additionalPodMetadata": {"labels": {"team": "v"}}}),
    );
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.ready_of("c").1, "InvalidMetadata");
}

/// When a Sandbox sleeps and wakes: the claim's word, else the template's; the claim's later changes as well.
#[tokio::test]
async fn a_sandbox_inherits_its_sleep_policy() {
    for warm in [0, 1] {
        let fixture = Fixture::new();
        fixture.warm_pool(warm).await;
        let policy = json!({annotations::IDLE_TIMEOUT: "15m", annotations::WAKE: "Never", "other": "x"});
        fixture.api.edit(Kind::Template, &key("t"), json!({"metadata": {"annotations": policy}}));
        let claimed = |time: &str| json!({"annotations": {annotations::IDLE_TIMEOUT: time}});
        fixture.claim_with("c", claimed("5m"), json!({"warmPoolRef": {"name": "p"}}));
        fixture.claim("c").await.expect("no error");
        let name = if warm > 0 { fixture.bound("c").expect("bound") } else { "c".to_owned() };
        let sandbox = fixture.sandbox(&name);
        assert_eq!(sandbox.annotation(annotations::IDLE_TIMEOUT), Some("5m"), "warm: {warm}");
        assert_eq!(sandbox.annotation(annotations::WAKE), Some("Never"), "warm: {warm}");
        assert_eq!(sandbox.annotation("other"), None);
        fixture.api.edit(Kind::Claim, &key("c"), json!({"metadata": claimed("1h")}));
        fixture.claim("c").await.expect("no error");
        assert_eq!(fixture.sandbox(&name).annotation(annotations::IDLE_TIMEOUT), Some("1h"), "warm: {warm}");
    }
}

/// A claim narrows its template's egress rules, and its Sandbox begins with them: a running member would have had the
/// wider ones.
#[tokio::test]
async fn a_sandbox_inherits_egress_rules_and_a_claim_that_narrows_them_starts_cold() {
    let fixture = Fixture::new();
    fixture.warm_pool(2).await;
    let rules = json!({"metadata": {"annotations": {annotations::EGRESS: "*.com"}}});
    fixture.api.edit(Kind::Template, &key("t"), rules);
    fixture.claim_with("plain", json!({}), json!({"warmPoolRef": {"name": "p"}}));
    fixture.claim("plain").await.expect("no error");
    let adopted = fixture.sandbox(&fixture.bound("plain").expect("bound"));
    assert_ne!(adopted.name(), "plain", "warm");
    assert_eq!(adopted.annotation(annotations::EGRESS), Some("*.com"));
    assert_eq!(adopted.annotation(annotations::EGRESS_OF_CLAIM), None);
    let narrowing = |rules: Value| json!({"annotations": {annotations::EGRESS: rules}});
    fixture.claim_with("narrow", narrowing("a.com".into()), json!({"warmPoolRef": {"name": "p"}}));
    fixture.claim("narrow").await.expect("no error");
    let of_claim = || fixture.sandbox("narrow").annotation(annotations::EGRESS_OF_CLAIM).map(str::to_owned);
    assert_eq!(fixture.sandbox("narrow").annotation(annotations::EGRESS), Some("*.com"));
    assert_eq!(of_claim().as_deref(), Some("a.com"));
    for rules in [json!("b.com"), Value::Null] {
        fixture.api.edit(Kind::Claim, &key("narrow"), json!({"metadata": narrowing(rules.clone())}));
        fixture.claim("narrow").await.expect("no error");
        assert_eq!(of_claim().as_deref(), rules.as_str());
    }
}
