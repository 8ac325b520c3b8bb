//! Volumes of claims.

use agent_sandbox_api::keys::{annotations, labels};
use serde_json::Value;

use super::*;
use crate::reconcile::Next;

fn volume(name: &str, size: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"resources": {"requests": {"storage": size}}}})
}

/// The reason and message of a claim with these volumes, and its Sandbox's volumes as `name=size`, if it got one.
async fn outcome(
    policy: Option<&str>,
    template: Value,
    claim: Option<Value>,
) -> (String, String, Option<Vec<String>>, Next) {
    let fixture = Fixture::new();
    let mut spec = json!({"volumeClaimTemplates": template});
    if let Some(policy) = policy {
        spec["volumeClaimTemplatesPolicy"] = policy.into();
    }
    fixture.template("t", spec);
    fixture.pool_of("p", "t", 0);
    let mut spec = json!({"warmPoolRef": {"name": "p"}});
    if let Some(claim) = claim {
        spec["volumeClaimTemplates"] = claim;
    }
    fixture.claim_with("c", json!({}), spec);
    let next = fixture.claim("c").await.expect("no error");
    let (_, reason, message) = fixture.ready_of("c");
    let sandbox = fixture.api.typed::<crate::cache::Sandbox>(&key("c"));
    let volumes = sandbox.map(|sandbox| {
        let volumes = sandbox.volume_claim_templates().iter();
        volumes
            .map(|volume| {
                format!("{}={}", volume.name(), volume.spec["resources"]["requests"]["storage"].as_str().expect("size"))
            })
            .collect()
    });
    (reason, message, volumes, next)
}

#[tokio::test]
async fn x_085_disallowed_refuses_volumes() {
    for policy in [None, Some("Disallowed")] {
        let (reason, message, volumes, next) = outcome(policy, json!([]), Some(json!([volume("a", "1Gi")]))).await;
        assert_eq!(reason, "VolumeClaimTemplatesError");
        assert_eq!(
            message,
            "failed to merge volume claim templates: volume claim templates are disallowed by the template"
        );
        assert!(volumes.is_none() && next == Next::Idle, "terminal");
    }
}

#[tokio::test]
async fn x_086_a_claim_without_volumes_is_served_warm() {
    let fixture = Fixture::new();
    fixture.template("t", json!({"volumeClaimTemplates": [volume("data", "1Gi")]}));
    fixture.pool_of("p", "t", 1);
    fixture.fill("p").await;
    fixture.all_ready();
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    let sandbox = fixture.sandbox(&fixture.bound("c").expect("bound"));
    assert_eq!(sandbox.label(labels::LAUNCH_TYPE), Some("warm"));
    assert_eq!(fixture.stored_claim("c").annotation(annotations::SANDBOX_NAME), Some(sandbox.name()));
    assert_eq!(sandbox.volume_claim_templates()[0].name(), "data");
}

#[tokio::test]
async fn x_087_allowed_adds_after_the_templates() {
    let (reason, _, volumes, _) =
        outcome(Some("Allowed"), json!([volume("a", "1Gi")]), Some(json!([volume("b", "2Gi")]))).await;
    assert_eq!((reason.as_str(), volumes), ("SandboxNotReady", Some(vec!["a=1Gi".into(), "b=2Gi".into()])));
}

#[tokio::test]
async fn x_088_allowed_does_not_override() {
    let (reason, message, volumes, _) =
        outcome(Some("Allowed"), json!([volume("a", "1Gi")]), Some(json!([volume("a", "2Gi")]))).await;
    assert_eq!(reason, "VolumeClaimTemplatesError");
    assert_eq!(
        message,
        "failed to merge volume claim templates: overriding volume claim templates is forbidden by the template: cannot override template volume \"a\""
    );
    assert!(volumes.is_none());
}

#[tokio::test]
async fn x_089_overrides_replace_in_place() {
    let template = json!([volume("a", "1Gi"), volume("b", "1Gi")]);
    let (_, _, volumes, _) =
        outcome(Some("Overrides"), template, Some(json!([volume("c", "3Gi"), volume("a", "2Gi")]))).await;
    assert_eq!(volumes, Some(vec!["a=2Gi".into(), "b=1Gi".into(), "c=3Gi".into()]));
}

#[tokio::test]
async fn x_090_names_of_a_claims_volumes_are_checked() {
    for (volumes, why) in [
        (json!([{"spec": {}}]), "claim: name at index 0 is empty"),
        (json!([volume("a", "1Gi"), volume("a", "2Gi")]), "claim: duplicate name \"a\""),
    ] {
        let (reason, message, sandbox, _) = outcome(Some("Allowed"), json!([]), Some(volumes)).await;
        assert_eq!(
            (reason.as_str(), message),
            ("VolumeClaimTemplatesError", format!("failed to merge volume claim templates: {why}"))
        );
        assert!(sandbox.is_none());
    }
    let (_, message, ..) = outcome(Some("Allowed"), json!([{"spec": {}}]), Some(json!([volume("a", "1Gi")]))).await;
    assert_eq!(message, "failed to merge volume claim templates: template: name at index 0 is empty");
}

#[tokio::test]
async fn x_091_names_of_a_templates_volumes_are_checked() {
    for (volumes, why) in [
        (json!([{"spec": {}}]), "name at index 0 is empty"),
        (json!([volume("a", "1Gi"), volume("a", "2Gi")]), "duplicate name \"a\""),
    ] {
        let (reason, message, sandbox, _) = outcome(None, volumes, None).await;
        assert_eq!(
            (reason.as_str(), message),
            ("VolumeClaimTemplatesError", format!("invalid volume claim templates in template: {why}"))
        );
        assert!(sandbox.is_none());
    }
}
