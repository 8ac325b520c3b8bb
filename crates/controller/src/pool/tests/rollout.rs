//! How a pool follows its template.

use agent_sandbox_api::keys::{annotations, labels};
use serde_json::Value;

use super::*;
use crate::object::Kind;

async fn pool(strategy: Option<&str>) -> Rig {
    let rig = Rig::new();
    rig.template("t", json!({}));
    rig.template("u", json!({}));
    let mut spec = json!({"sandboxTemplateRef": {"name": "t"}, "replicas": 2});
    if let Some(strategy) = strategy {
        spec["updateStrategy"] = json!({"type": strategy});
    }
    rig.pool_with("p", spec);
    rig.fill("p").await;
    rig.all_ready();
    rig
}

fn names(rig: &Rig) -> Vec<String> {
    rig.sandboxes().iter().map(|sandbox| sandbox.name().to_owned()).collect()
}

fn edit_template(rig: &Rig, spec: Value) {
    rig.model.edit(Kind::Template, &key("t"), json!({"spec": spec}));
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
        let rig = pool(Some("Recreate")).await;
        let (before, old_hash) = (names(&rig), rig.sandboxes()[0].label(labels::TEMPLATE_HASH).map(str::to_owned));
        edit_template(&rig, change.clone());
        rig.fill("p").await;
        let after = rig.sandboxes();
        assert_eq!(after.len(), 2, "{change}");
        assert!(after.iter().all(|sandbox| !before.contains(&sandbox.name().to_owned())), "{change}");
        assert_ne!(after[0].label(labels::TEMPLATE_HASH).map(str::to_owned), old_hash, "{change}");
    }
}

#[tokio::test]
async fn x_201_on_replenish_keeps_members() {
    for strategy in [None, Some("OnReplenish")] {
        let rig = pool(strategy).await;
        let before = names(&rig);
        edit_template(&rig, json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "new"}]}}}));
        rig.fill("p").await;
        assert_eq!(names(&rig), before);
        rig.model.remove(Kind::Sandbox, &key(&before[0]));
        rig.fill("p").await;
        let replacement =
            rig.sandboxes().into_iter().find(|sandbox| !before.contains(&sandbox.name().to_owned())).expect("one more");
        assert_eq!(replacement.spec.pod_template.spec["containers"][0]["image"], "new");
    }
}

#[tokio::test]
async fn x_202_metadata_is_no_reason_to_replace() {
    let rig = pool(Some("Recreate")).await;
    let before = names(&rig);
    edit_template(&rig, json!({"podTemplate": {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}}));
    rig.fill("p").await;
    assert_eq!(names(&rig), before);
}

#[tokio::test]
async fn x_203_another_template_replaces_members() {
    let rig = pool(Some("Recreate")).await;
    let before = names(&rig);
    rig.model.edit(Kind::Pool, &key("p"), json!({"spec": {"sandboxTemplateRef": {"name": "u"}}}));
    rig.fill("p").await;
    for sandbox in rig.sandboxes() {
        assert!(!before.contains(&sandbox.name().to_owned()));
        assert_eq!(sandbox.annotation(annotations::TEMPLATE_REF), Some("u"));
        assert_eq!(sandbox.label(labels::TEMPLATE_REF_HASH), Some(Rig::pool_hash("u").as_str()));
    }
}

#[tokio::test]
async fn x_204_other_pools_are_left_alone() {
    let rig = pool(Some("Recreate")).await;
    rig.pool_with(
        "q",
        json!({"sandboxTemplateRef": {"name": "u"}, "replicas": 2, "updateStrategy": {"type": "Recreate"}}),
    );
    rig.fill("q").await;
    let of_q = |rig: &Rig| names(rig).into_iter().filter(|name| name.starts_with("q-")).collect::<Vec<_>>();
    let before = of_q(&rig);
    edit_template(&rig, json!({"service": true}));
    rig.fill("p").await;
    rig.fill("q").await;
    assert_eq!(of_q(&rig), before);
}

/// a replacement never precedes what it replaces.
#[tokio::test]
async fn x_205_deletion_and_replacement_are_different_passes() {
    use crate::request::Verb;
    let rig = pool(Some("Recreate")).await;
    edit_template(&rig, json!({"service": true}));
    rig.writes();
    rig.pool("p").await.expect("no error");
    let writes = rig.writes();
    assert_eq!(writes.iter().filter(|request| matches!(request.verb, Verb::Delete { .. })).count(), 2);
    assert!(!writes.iter().any(|request| matches!(request.verb, Verb::Create { .. })));
    rig.pool("p").await.expect("no error");
    assert_eq!(rig.writes().iter().filter(|request| matches!(request.verb, Verb::Create { .. })).count(), 2);
}

/// Claimed Sandboxes are not the pool's to replace.
#[tokio::test]
async fn rollout_does_not_touch_claimed_sandboxes() {
    let rig = pool(Some("Recreate")).await;
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    let name = rig.bound("c").expect("bound");
    edit_template(&rig, json!({"service": true}));
    rig.fill("p").await;
    assert!(names(&rig).contains(&name));
    assert_eq!(rig.sandboxes().len(), 3);
}
