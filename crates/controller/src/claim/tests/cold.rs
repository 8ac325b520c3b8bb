//! Claims that get a Sandbox of their own.

use std::time::Duration;

use agent_sandbox_api::{
    keys::{annotations, labels},
    names, owners,
};
use serde_json::Value;

use super::*;
use crate::{
    api_client::{ApiError, Verb},
    cache::Kind,
    reconcile::Next,
    testing::fake_api::Fault,
};

fn empty_pool(fixture: &Fixture) {
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 0);
}

/// X-030, X-031, X-042: a pool without candidates.
#[tokio::test]
async fn x_030_x_031_x_042_an_empty_pool_means_a_new_sandbox() {
    let fixture = Fixture::new();
    empty_pool(&fixture);
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");

    let sandbox = fixture.sandbox("c");
    let claim = fixture.stored_claim("c");
    assert_eq!(owners::owning_claim(&sandbox.metadata).expect("owned").uid, claim.uid());
    let hash = names::name_hash("t");
    assert_eq!(sandbox.label(labels::LAUNCH_TYPE), Some("cold"));
    assert_eq!(sandbox.label(labels::TEMPLATE_REF_HASH), Some(hash.as_str()));
    assert_eq!(sandbox.label(labels::CLAIM_UID), Some(claim.uid()));
    assert_eq!(sandbox.annotation(annotations::TEMPLATE_REF), Some("t"));
    let pod_labels = sandbox.spec.pod_template.metadata.as_ref().and_then(|m| m.labels.as_ref()).expect("labels");
    assert_eq!(pod_labels.get(labels::TEMPLATE_REF_HASH), Some(&hash));
    assert_eq!(pod_labels.get(labels::CLAIM_UID).map(String::as_str), Some(claim.uid()));

    assert_eq!(fixture.ready_of("c"), ("False".into(), "SandboxNotReady".into(), "Sandbox is not ready".into()));
    assert_eq!(fixture.bound("c").as_deref(), Some("c"));
    assert_eq!(claim.annotation(annotations::SANDBOX_NAME), None, "only warm assignments are recorded");
    assert!(claim.annotation(annotations::CONTROLLER_FIRST_OBSERVED_AT).is_some());
    assert_eq!(fixture.events(), [("SandboxProvisioned", "Provisioning", "Created Sandbox \"c\"".to_owned())]);
    assert_eq!(fixture.writes().len(), 3, "create, stamp, status");
}

/// X-045: the cold Sandbox becomes Ready, and so does the claim.
#[tokio::test]
async fn x_045_readiness_of_a_cold_sandbox_is_mirrored() {
    let fixture = Fixture::new();
    empty_pool(&fixture);
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    fixture.ready("c");
    assert_eq!(fixture.claim("c").await.expect("no error"), Next::Idle);
    assert_eq!(fixture.ready_of("c").0, "True");
    assert_eq!(
        fixture.stored_claim("c").status.expect("status").sandbox.expect("bound").pod_ips,
        Some(vec!["10.0.0.1".into()])
    );
    fixture.writes();
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.writes(), [], "a settled claim writes nothing");
}

/// X-034: reported only after a live read; the claim recovers when the template appears.
#[tokio::test]
async fn x_034_a_missing_template_is_reported_and_recovered_from() {
    let fixture = Fixture::new();
    fixture.pool_of("p", "t", 0);
    fixture.claim_on("c", "p");
    assert_eq!(fixture.claim("c").await.expect("no error"), Next::After(Duration::from_secs(60)));
    assert_eq!(
        fixture.ready_of("c"),
        ("False".into(), "TemplateNotFound".into(), "SandboxTemplate \"t\" not found".into())
    );
    assert!(fixture.sandboxes().is_empty());

    fixture.store.queues.claim.next().await.expect("the claim's own wake-up");
    fixture.template("t", json!({}));
    fixture.deliver_events();
    let woken = tokio::time::timeout(Duration::from_secs(5), fixture.store.queues.claim.next()).await;
    assert_eq!(woken.expect("woken by the template").expect("open").key, key("c"));
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.sandboxes().len(), 1);
}

#[tokio::test]
async fn x_035_a_missing_pool_is_reported_and_recovered_from() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.claim_on("c", "p");
    assert_eq!(fixture.claim("c").await.expect("no error"), Next::After(Duration::from_secs(60)));
    assert_eq!(
        fixture.ready_of("c"),
        ("False".into(), "WarmPoolNotFound".into(), "SandboxWarmPool \"p\" not found".into())
    );
    fixture.pool_of("p", "t", 0);
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.bound("c").as_deref(), Some("c"));
}

/// A pool that exists but is not yet in the cache is never reported as missing.
#[tokio::test]
async fn a_dependency_the_cache_lacks_is_looked_up_before_it_is_called_missing() {
    let fixture = Fixture::new();
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    empty_pool(&fixture);
    fixture.claims_pass("c").await.expect("no error");
    assert_eq!(fixture.bound("c").as_deref(), Some("c"));
}

#[tokio::test]
async fn x_036_a_foreign_sandbox_of_that_name_is_left_alone() {
    let fixture = Fixture::new();
    empty_pool(&fixture);
    fixture.api.create(Kind::Sandbox, json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {}}));
    let before = fixture.sandbox("c");
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect_err("tried again");
    let text = "Error seen: sandbox \"c\" is not controlled by claim \"c\". Please use a different claim name or delete the sandbox manually";
    assert_eq!(fixture.ready_of("c"), ("False".into(), "ReconcilerError".into(), text.into()));
    assert_eq!(fixture.sandbox("c"), before);
}

#[tokio::test]
async fn x_037_a_controlled_sandbox_without_labels_is_completed() {
    let fixture = Fixture::new();
    empty_pool(&fixture);
    fixture.claim_on("c", "p");
    let claim = fixture.stored_claim("c");
    let metadata = json!({"name": "c", "namespace": "ns", "ownerReferences": [claim.controller_reference()]});
    fixture.api.create(Kind::Sandbox, json!({"metadata": metadata, "spec": {"podTemplate": {"spec": {}}}}));
    fixture.claim("c").await.expect("no error");
    let sandbox = fixture.sandbox("c");
    assert_eq!(fixture.sandboxes().len(), 1);
    assert_eq!(sandbox.label(labels::LAUNCH_TYPE), Some("cold"));
    assert_eq!(sandbox.label(labels::CLAIM_UID), Some(claim.uid()));
    assert_eq!(sandbox.label(labels::TEMPLATE_REF_HASH), Some(names::name_hash("t").as_str()));
    let pod_labels = sandbox.spec.pod_template.metadata().labels.expect("labels");
    assert_eq!(pod_labels.get(labels::CLAIM_UID).map(String::as_str), Some(claim.uid()));
}

#[tokio::test]
async fn x_038_a_missing_template_does_not_unready_a_bound_claim() {
    let fixture = Fixture::new();
    empty_pool(&fixture);
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    fixture.ready("c");
    fixture.api.remove(Kind::Template, &key("t"));
    fixture.api.remove(Kind::Pool, &key("p"));
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.ready_of("c").0, "True");
}

#[tokio::test]
async fn x_039_the_trace_context_follows_the_claim() {
    let fixture = Fixture::new();
    empty_pool(&fixture);
    let context = r#"{"traceparent":"00-1-2-01"}"#;
    let metadata =
        json!({"annotations": {annotations::TRACE_CONTEXT: context}, "labels": {labels::CREATED_BY: "go-client"}});
    fixture.claim_with("c", metadata, json!({"warmPoolRef": {"name": "p"}}));
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.sandbox("c").annotation(annotations::TRACE_CONTEXT), Some(context));
    assert_eq!(fixture.sandbox("c").label(labels::CREATED_BY), Some("go-client"));
}

#[tokio::test]
async fn x_040_the_templates_volumes_are_the_sandboxs() {
    let fixture = Fixture::new();
    fixture.template("t", json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}], "service": true}));
    fixture.pool_of("p", "t", 0);
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    let sandbox = fixture.sandbox("c");
    assert_eq!(names::volume_claim(sandbox.volume_claim_templates()[0].name(), sandbox.name()), "data-c");
    assert_eq!(sandbox.spec.service, Some(true));
}

/// X-041: the Sandbox exists, but neither cache nor response shows it.
#[tokio::test]
async fn x_041_a_create_that_already_happened_is_no_error() {
    let fixture = Fixture::new();
    empty_pool(&fixture);
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    fixture.api.fail(|request| matches!(request.verb, Verb::Create { .. }), Fault::LoseResponse);
    fixture.claims_pass("c").await.expect_err("the answer was lost");
    // The watch still lags: the create is repeated, and the existing Sandbox is found to be owned by the claim.
    fixture.claims_pass("c").await.expect("no error");
    assert_eq!(fixture.bound("c").as_deref(), Some("c"));
    assert_eq!(fixture.sandboxes().len(), 1);
}

#[tokio::test]
async fn x_041_a_sandbox_that_cannot_be_seen_is_waited_for() {
    let fixture = Fixture::new();
    empty_pool(&fixture);
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    let exists = ApiError::AlreadyExists { message: "exists".into() };
    fixture.api.fail(|request| matches!(request.verb, Verb::Create { .. }), Fault::Refuse(exists));
    assert_eq!(fixture.claims_pass("c").await.expect("no error"), Next::After(Duration::from_millis(200)));
    assert_eq!(fixture.ready_of("c").1, "SandboxCreatePending");
    fixture.claims_pass("c").await.expect("no error");
    assert_eq!(fixture.bound("c").as_deref(), Some("c"));
}

#[tokio::test]
async fn x_043_a_deleted_cold_sandbox_is_made_anew() {
    let fixture = Fixture::new();
    empty_pool(&fixture);
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    let first = fixture.sandbox("c").uid().to_owned();
    fixture.api.remove(Kind::Sandbox, &key("c"));
    fixture.claim("c").await.expect("no error");
    assert_ne!(fixture.sandbox("c").uid(), first);
    assert_eq!(fixture.bound("c").as_deref(), Some("c"));
}

#[tokio::test]
async fn x_044_the_legacy_network_policy_goes_and_a_foreign_one_stays() {
    let fixture = Fixture::new();
    for name in ["mine", "other"] {
        fixture.claim_on(name, "p");
    }
    let claim = fixture.stored_claim("mine");
    let owned =
        json!({"name": "mine-network-policy", "namespace": "ns", "ownerReferences": [claim.controller_reference()]});
    fixture.api.create(Kind::NetworkPolicy, json!({"metadata": owned, "spec": {"podSelector": {}}}));
    fixture.api.create(
        Kind::NetworkPolicy,
        json!({"metadata": {"name": "other-network-policy", "namespace": "ns"}, "spec": {"podSelector": {}}}),
    );
    for name in ["mine", "other"] {
        fixture.claim(name).await.expect("no error");
    }
    assert_eq!(fixture.api.get(Kind::NetworkPolicy, &key("mine-network-policy")), None);
    assert!(fixture.api.get(Kind::NetworkPolicy, &key("other-network-policy")).is_some());
}

/// X-265: a claim of v1alpha1 that names only a template (CNV-12), as conversion stores it.
#[tokio::test]
async fn x_265_a_claim_that_names_only_a_template_works() {
    let fixture = Fixture::new();
    let state = json!({"spec": {"sandboxTemplateRef": {"name": "t"}, "warmpool": "default"}}).to_string();
    let claim = |fixture: &Fixture, name: &str, state: Option<&str>| {
        let metadata =
            state.map_or(json!({}), |state| json!({"annotations": {annotations::V1ALPHA1_CLAIM_STATE: state}}));
        fixture.claim_with(name, metadata, json!({"warmPoolRef": {"name": "shadow-pool-t"}}));
    };
    claim(&fixture, "old", Some(&state));
    claim(&fixture, "new", None);
    fixture.claim("old").await.expect("no error");
    fixture.claim("new").await.expect("no error");
    assert_eq!(
        fixture.ready_of("old"),
        ("False".into(), "TemplateNotFound".into(), "SandboxTemplate \"t\" not found".into())
    );
    assert_eq!(fixture.ready_of("new").1, "WarmPoolNotFound");

    fixture.template("t", json!({}));
    fixture.claim("old").await.expect("no error");
    assert_eq!(fixture.bound("old").as_deref(), Some("old"));
}

/// No field of a Pod spec is lost between the cached template and the Sandbox's spec.
#[tokio::test]
async fn unknown_fields_of_a_pod_spec_reach_the_sandbox() {
    let fixture = Fixture::new();
    fixture.template("t", json!({"podTemplate": {"spec": {"notYetInvented": {"a": [1]}}}}));
    fixture.pool_of("p", "t", 0);
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.sandbox("c").spec.pod_template.spec["notYetInvented"], json!({"a": [1]}));
    assert_eq!(fixture.sandbox("c").spec.pod_template.spec["automountServiceAccountToken"], Value::Bool(false));
}
