//! How a pool follows its template.

use agent_sandbox_api::keys::{annotations, labels};
use serde_json::Value;

use super::*;
use crate::cache::Kind;

async fn pool(strategy: Option<&str>) -> Fixture {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.template("u", json!({}));
    let mut spec = json!({"sandboxTemplateRef": {"name": "t"}, "replicas": 2});
    if let Some(strategy) = strategy {
        spec["updateStrategy"] = json!({"type": strategy});
    }
    fixture.pool_with("p", spec);
    fixture.fill("p").await;
    fixture.all_ready();
    fixture
}

fn names(fixture: &Fixture) -> Vec<String> {
    fixture.sandboxes().iter().map(|sandbox| sandbox.name().to_owned()).collect()
}

fn edit_template(fixture: &Fixture, spec: Value) {
    fixture.api.edit(Kind::Template, &key("t"), json!({"spec": spec}));
}

/// every kind of change replaces the members, with the new hash.
#[tokio::test]
async fn x_200_x_207_recreate_replaces_stale_members() {
    for change in [
        json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "new"}]}}}),
        json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "image", "env": [{"name": "A", "value": "b"}]}]}}}),
        json!({"podTemplate": {"spec": {"dnsPolicy": "Default"}}}),
        json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}),
        json!({"service": true}),
    ] {
        let fixture = pool(Some("Recreate")).await;
        let (before, old_hash) =
            (names(&fixture), fixture.sandboxes()[0].label(labels::TEMPLATE_HASH).map(str::to_owned));
        edit_template(&fixture, change.clone());
        fixture.fill("p").await;
        let after = fixture.sandboxes();
        assert_eq!(after.len(), 2, "{change}");
        assert!(after.iter().all(|sandbox| !before.contains(&sandbox.name().to_owned())), "{change}");
        assert_ne!(after[0].label(labels::TEMPLATE_HASH).map(str::to_owned), old_hash, "{change}");
    }
}

#[tokio::test]
async fn x_201_on_replenish_keeps_members() {
    for strategy in [None, Some("OnReplenish")] {
        let fixture = pool(strategy).await;
        let before = names(&fixture);
        edit_template(&fixture, json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "new"}]}}}));
        fixture.fill("p").await;
        assert_eq!(names(&fixture), before);
        fixture.api.remove(Kind::Sandbox, &key(&before[0]));
        fixture.fill("p").await;
        let replacement = fixture
            .sandboxes()
            .into_iter()
            .find(|sandbox| !before.contains(&sandbox.name().to_owned()))
            .expect("one more");
        assert_eq!(replacement.spec.pod_template.spec["containers"][0]["image"], "new");
    }
}

#[tokio::test]
async fn x_202_metadata_is_no_reason_to_replace() {
    let fixture = pool(Some("Recreate")).await;
    let before = names(&fixture);
    edit_template(&fixture, json!({"podTemplate": {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}}));
    fixture.fill("p").await;
    assert_eq!(names(&fixture), before);
}

#[tokio::test]
async fn x_203_another_template_replaces_members() {
    let fixture = pool(Some("Recreate")).await;
    let before = names(&fixture);
    fixture.api.edit(Kind::Pool, &key("p"), json!({"spec": {"sandboxTemplateRef": {"name": "u"}}}));
    fixture.fill("p").await;
    for sandbox in fixture.sandboxes() {
        assert!(!before.contains(&sandbox.name().to_owned()));
        assert_eq!(sandbox.annotation(annotations::TEMPLATE_REF), Some("u"));
        assert_eq!(sandbox.label(labels::TEMPLATE_REF_HASH), Some(Fixture::pool_hash("u").as_str()));
    }
}

#[tokio::test]
async fn x_204_other_pools_are_left_alone() {
    let fixture = pool(Some("Recreate")).await;
    fixture.pool_with(
        "q",
        json!({"sandboxTemplateRef": {"name": "u"}, "replicas": 2, "updateStrategy": {"type": "Recreate"}}),
    );
    fixture.fill("q").await;
    let of_q = |fixture: &Fixture| names(fixture).into_iter().filter(|name| name.starts_with("q-")).collect::<Vec<_>>();
    let before = of_q(&fixture);
    edit_template(&fixture, json!({"service": true}));
    fixture.fill("p").await;
    fixture.fill("q").await;
    assert_eq!(of_q(&fixture), before);
}

/// a replacement never precedes what it replaces.
#[tokio::test]
async fn x_205_deletion_and_replacement_are_different_passes() {
    use crate::api_client::Verb;
    let fixture = pool(Some("Recreate")).await;
    edit_template(&fixture, json!({"service": true}));
    fixture.writes();
    fixture.pool("p").await.expect("no error");
    let writes = fixture.writes();
    assert_eq!(writes.iter().filter(|request| matches!(request.verb, Verb::Delete { .. })).count(), 2);
    assert!(!writes.iter().any(|request| matches!(request.verb, Verb::Create { .. })));
    fixture.pool("p").await.expect("no error");
    assert_eq!(fixture.writes().iter().filter(|request| matches!(request.verb, Verb::Create { .. })).count(), 2);
}

/// Claimed Sandboxes are not the pool's to replace.
#[tokio::test]
async fn rollout_does_not_touch_claimed_sandboxes() {
    let fixture = pool(Some("Recreate")).await;
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    let name = fixture.bound("c").expect("bound");
    edit_template(&fixture, json!({"service": true}));
    fixture.fill("p").await;
    assert!(names(&fixture).contains(&name));
    assert_eq!(fixture.sandboxes().len(), 3);
}
