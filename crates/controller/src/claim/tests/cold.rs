//! Claims that get a Sandbox of their own.

use std::time::Duration;

use agent_sandbox_api::{
    keys::{annotations, labels},
    names, owners,
};
use serde_json::Value;

use super::*;
use crate::{model::Fault, object::Kind, ports::ApiError, reconcile::Next, request::Verb};

fn empty_pool(rig: &Rig) {
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 0);
}

/// X-030, X-031, X-042: a pool without candidates.
#[tokio::test]
async fn x_030_x_031_x_042_an_empty_pool_means_a_new_sandbox() {
    let rig = Rig::new();
    empty_pool(&rig);
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");

    let sandbox = rig.sandbox("c");
    let claim = rig.stored_claim("c");
    assert_eq!(owners::owning_claim(&sandbox.metadata).expect("owned").uid, claim.uid());
    let hash = names::name_hash("t");
    assert_eq!(sandbox.label(labels::LAUNCH_TYPE), Some("cold"));
    assert_eq!(sandbox.label(labels::TEMPLATE_REF_HASH), Some(hash.as_str()));
    assert_eq!(sandbox.label(labels::CLAIM_UID), Some(claim.uid()));
    assert_eq!(sandbox.annotation(annotations::TEMPLATE_REF), Some("t"));
    let pod_labels = sandbox.spec.pod_template.metadata.as_ref().and_then(|m| m.labels.as_ref()).expect("labels");
    assert_eq!(pod_labels.get(labels::TEMPLATE_REF_HASH), Some(&hash));
    assert_eq!(pod_labels.get(labels::CLAIM_UID).map(String::as_str), Some(claim.uid()));

    assert_eq!(rig.ready_of("c"), ("False".into(), "SandboxNotReady".into(), "Sandbox is not ready".into()));
    assert_eq!(rig.bound("c").as_deref(), Some("c"));
    assert_eq!(claim.annotation(annotations::SANDBOX_NAME), None, "only warm assignments are recorded");
    assert!(claim.annotation(annotations::CONTROLLER_FIRST_OBSERVED_AT).is_some());
    assert_eq!(rig.events(), [("SandboxProvisioned", "Provisioning", "Created Sandbox \"c\"".to_owned())]);
    assert_eq!(rig.writes().len(), 3, "create, stamp, status");
}

/// X-045: the cold Sandbox becomes Ready, and so does the claim.
#[tokio::test]
async fn x_045_readiness_of_a_cold_sandbox_is_mirrored() {
    let rig = Rig::new();
    empty_pool(&rig);
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    rig.ready("c");
    assert_eq!(rig.claim("c").await.expect("no error"), Next::Idle);
    assert_eq!(rig.ready_of("c").0, "True");
    assert_eq!(
        rig.stored_claim("c").status.expect("status").sandbox.expect("bound").pod_ips,
        Some(vec!["10.0.0.1".into()])
    );
    rig.writes();
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.writes(), [], "a settled claim writes nothing");
}

/// X-034: said only after a live look; heals when the template appears.
#[tokio::test]
async fn x_034_a_missing_template_is_said_and_heals() {
    let rig = Rig::new();
    rig.pool_of("p", "t", 0);
    rig.claim_on("c", "p");
    assert_eq!(rig.claim("c").await.expect("no error"), Next::After(Duration::from_secs(60)));
    assert_eq!(
        rig.ready_of("c"),
        ("False".into(), "TemplateNotFound".into(), "SandboxTemplate \"t\" not found".into())
    );
    assert!(rig.sandboxes().is_empty());

    rig.store.queues.claim.next().await.expect("the claim's own wake-up");
    rig.template("t", json!({}));
    rig.pump();
    let woken = tokio::time::timeout(Duration::from_secs(5), rig.store.queues.claim.next()).await;
    assert_eq!(woken.expect("woken by the template").expect("open").key, key("c"));
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.sandboxes().len(), 1);
}

#[tokio::test]
async fn x_035_a_missing_pool_is_said_and_heals() {
    let rig = Rig::new();
    rig.template("t", json!({}));
    rig.claim_on("c", "p");
    assert_eq!(rig.claim("c").await.expect("no error"), Next::After(Duration::from_secs(60)));
    assert_eq!(
        rig.ready_of("c"),
        ("False".into(), "WarmPoolNotFound".into(), "SandboxWarmPool \"p\" not found".into())
    );
    rig.pool_of("p", "t", 0);
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.bound("c").as_deref(), Some("c"));
}

/// A pool that exists but is not yet in the cache is never called missing.
#[tokio::test]
async fn a_dependency_the_cache_lacks_is_looked_up_before_it_is_called_missing() {
    let rig = Rig::new();
    rig.claim_on("c", "p");
    rig.pump();
    empty_pool(&rig);
    rig.claims_pass("c").await.expect("no error");
    assert_eq!(rig.bound("c").as_deref(), Some("c"));
}

#[tokio::test]
async fn x_036_a_foreign_sandbox_of_that_name_is_left_alone() {
    let rig = Rig::new();
    empty_pool(&rig);
    rig.model.create(Kind::Sandbox, json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {}}));
    let before = rig.sandbox("c");
    rig.claim_on("c", "p");
    rig.claim("c").await.expect_err("tried again");
    let text = "Error seen: sandbox \"c\" is not controlled by claim \"c\". Please use a different claim name or delete the sandbox manually";
    assert_eq!(rig.ready_of("c"), ("False".into(), "ReconcilerError".into(), text.into()));
    assert_eq!(rig.sandbox("c"), before);
}

#[tokio::test]
async fn x_037_a_controlled_sandbox_without_labels_is_completed() {
    let rig = Rig::new();
    empty_pool(&rig);
    rig.claim_on("c", "p");
    let claim = rig.stored_claim("c");
    let metadata = json!({"name": "c", "namespace": "ns", "ownerReferences": [claim.controller_reference()]});
    rig.model.create(Kind::Sandbox, json!({"metadata": metadata, "spec": {"podTemplate": {"spec": {}}}}));
    rig.claim("c").await.expect("no error");
    let sandbox = rig.sandbox("c");
    assert_eq!(rig.sandboxes().len(), 1);
    assert_eq!(sandbox.label(labels::LAUNCH_TYPE), Some("cold"));
    assert_eq!(sandbox.label(labels::CLAIM_UID), Some(claim.uid()));
    assert_eq!(sandbox.label(labels::TEMPLATE_REF_HASH), Some(names::name_hash("t").as_str()));
    let pod_labels = sandbox.spec.pod_template.metadata().labels.expect("labels");
    assert_eq!(pod_labels.get(labels::CLAIM_UID).map(String::as_str), Some(claim.uid()));
}

#[tokio::test]
async fn x_038_a_missing_template_does_not_unready_a_bound_claim() {
    let rig = Rig::new();
    empty_pool(&rig);
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    rig.ready("c");
    rig.model.remove(Kind::Template, &key("t"));
    rig.model.remove(Kind::Pool, &key("p"));
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.ready_of("c").0, "True");
}

#[tokio::test]
async fn x_039_the_trace_context_follows_the_claim() {
    let rig = Rig::new();
    empty_pool(&rig);
    let context = r#"{"traceparent":"00-1-2-01"}"#;
    let metadata =
        json!({"annotations": {annotations::TRACE_CONTEXT: context}, "labels": {labels::CREATED_BY: "go-client"}});
    rig.claim_with("c", metadata, json!({"warmPoolRef": {"name": "p"}}));
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.sandbox("c").annotation(annotations::TRACE_CONTEXT), Some(context));
    assert_eq!(rig.sandbox("c").label(labels::CREATED_BY), Some("go-client"));
}

#[tokio::test]
async fn x_040_the_templates_volumes_are_the_sandboxs() {
    let rig = Rig::new();
    rig.template("t", json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}], "service": true}));
    rig.pool_of("p", "t", 0);
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    let sandbox = rig.sandbox("c");
    assert_eq!(names::volume_claim(sandbox.volume_claim_templates()[0].name(), sandbox.name()), "data-c");
    assert_eq!(sandbox.spec.service, Some(true));
}

/// X-041: the Sandbox is there, but neither cache nor answer shows it.
#[tokio::test]
async fn x_041_a_create_that_already_happened_is_no_error() {
    let rig = Rig::new();
    empty_pool(&rig);
    rig.claim_on("c", "p");
    rig.pump();
    rig.model.fail(|request| matches!(request.verb, Verb::Create { .. }), Fault::LoseAnswer);
    rig.claims_pass("c").await.expect_err("the answer was lost");
    // The watch still lags: the create is repeated, and the Sandbox is found to be ours.
    rig.claims_pass("c").await.expect("no error");
    assert_eq!(rig.bound("c").as_deref(), Some("c"));
    assert_eq!(rig.sandboxes().len(), 1);
}

#[tokio::test]
async fn x_041_a_sandbox_that_cannot_be_seen_is_waited_for() {
    let rig = Rig::new();
    empty_pool(&rig);
    rig.claim_on("c", "p");
    rig.pump();
    let exists = ApiError::AlreadyExists { message: "exists".into() };
    rig.model.fail(|request| matches!(request.verb, Verb::Create { .. }), Fault::Refuse(exists));
    assert_eq!(rig.claims_pass("c").await.expect("no error"), Next::After(Duration::from_millis(200)));
    assert_eq!(rig.ready_of("c").1, "SandboxCreatePending");
    rig.claims_pass("c").await.expect("no error");
    assert_eq!(rig.bound("c").as_deref(), Some("c"));
}

#[tokio::test]
async fn x_043_a_deleted_cold_sandbox_is_made_anew() {
    let rig = Rig::new();
    empty_pool(&rig);
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    let first = rig.sandbox("c").uid().to_owned();
    rig.model.remove(Kind::Sandbox, &key("c"));
    rig.claim("c").await.expect("no error");
    assert_ne!(rig.sandbox("c").uid(), first);
    assert_eq!(rig.bound("c").as_deref(), Some("c"));
}

#[tokio::test]
async fn x_044_the_legacy_network_policy_goes_and_a_foreign_one_stays() {
    let rig = Rig::new();
    for name in ["mine", "other"] {
        rig.claim_on(name, "p");
    }
    let claim = rig.stored_claim("mine");
    let owned =
        json!({"name": "mine-network-policy", "namespace": "ns", "ownerReferences": [claim.controller_reference()]});
    rig.model.create(Kind::NetworkPolicy, json!({"metadata": owned, "spec": {"podSelector": {}}}));
    rig.model.create(
        Kind::NetworkPolicy,
        json!({"metadata": {"name": "other-network-policy", "namespace": "ns"}, "spec": {"podSelector": {}}}),
    );
    for name in ["mine", "other"] {
        rig.claim(name).await.expect("no error");
    }
    assert_eq!(rig.model.get(Kind::NetworkPolicy, &key("mine-network-policy")), None);
    assert!(rig.model.get(Kind::NetworkPolicy, &key("other-network-policy")).is_some());
}

/// X-265: a claim of v1alpha1 that names only a template (CNV-12), as conversion stores it.
#[tokio::test]
async fn x_265_a_claim_that_names_only_a_template_works() {
    let rig = Rig::new();
    let state = json!({"spec": {"sandboxTemplateRef": {"name": "t"}, "warmpool": "default"}}).to_string();
    let claim = |rig: &Rig, name: &str, state: Option<&str>| {
        let metadata =
            state.map_or(json!({}), |state| json!({"annotations": {annotations::V1ALPHA1_CLAIM_STATE: state}}));
        rig.claim_with(name, metadata, json!({"warmPoolRef": {"name": "shadow-pool-t"}}));
    };
    claim(&rig, "old", Some(&state));
    claim(&rig, "new", None);
    rig.claim("old").await.expect("no error");
    rig.claim("new").await.expect("no error");
    assert_eq!(
        rig.ready_of("old"),
        ("False".into(), "TemplateNotFound".into(), "SandboxTemplate \"t\" not found".into())
    );
    assert_eq!(rig.ready_of("new").1, "WarmPoolNotFound");

    rig.template("t", json!({}));
    rig.claim("old").await.expect("no error");
    assert_eq!(rig.bound("old").as_deref(), Some("old"));
}

/// Where the cached object and the Sandbox's spec meet: nothing of a Pod spec is lost on the way.
#[tokio::test]
async fn unknown_fields_of_a_pod_spec_reach_the_sandbox() {
    let rig = Rig::new();
    rig.template("t", json!({"podTemplate": {"spec": {"notYetInvented": {"a": [1]}}}}));
    rig.pool_of("p", "t", 0);
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.sandbox("c").spec.pod_template.spec["notYetInvented"], json!({"a": [1]}));
    assert_eq!(rig.sandbox("c").spec.pod_template.spec["automountServiceAccountToken"], Value::Bool(false));
}
