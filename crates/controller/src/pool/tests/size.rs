//! How many members a pool has.

use agent_sandbox_api::keys::{annotations, labels};

use super::*;
use crate::{object::Kind, reconcile::Next};

/// filling and emptying.
#[tokio::test]
async fn x_180_x_181_x_182_a_pool_has_the_size_asked_for() {
    let rig = Rig::new();
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 3);
    rig.fill("p").await;
    assert_eq!(rig.sandboxes().len(), 3);
    rig.ready(rig.sandboxes()[0].name());
    rig.fill("p").await;
    let status = rig.stored_pool("p").status.expect("status");
    assert_eq!((status.replicas, status.ready_replicas, status.observed_generation), (Some(3), Some(1), Some(1)));
    assert_eq!(status.selector, Some(format!("agents.x-k8s.io/warm-pool-sandbox={}", Rig::pool_hash("p"))));

    rig.writes();
    rig.fill("p").await;
    assert_eq!(rig.writes(), [], "a settled pool writes nothing");

    rig.model.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": 0}}));
    rig.fill("p").await;
    assert!(rig.sandboxes().is_empty());
    let status = rig.stored_pool("p").status.expect("status");
    assert_eq!((status.replicas, status.ready_replicas, status.observed_generation), (Some(0), Some(0), Some(2)));
}

/// what a member carries.
#[tokio::test]
async fn x_185_members_carry_the_labels_of_their_stage() {
    let rig = Rig::new();
    rig.template("t", json!({"podTemplate": {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}}));
    rig.pool_of("p", "t", 1);
    rig.fill("p").await;
    let member = &rig.sandboxes()[0];
    assert!(member.name().starts_with("p-") && member.name().len() == 7, "{}", member.name());
    assert_eq!(member.metadata.generate_name.as_deref(), Some("p-"));
    assert_eq!(member.label(labels::WARM_POOL_SANDBOX), Some(Rig::pool_hash("p").as_str()));
    assert_eq!(member.label(labels::TEMPLATE_REF_HASH), Some(Rig::pool_hash("t").as_str()));
    assert!(member.label(labels::TEMPLATE_HASH).is_some() && member.label(labels::POD_TEMPLATE_HASH).is_some());
    assert_eq!(
        (member.label(labels::LAUNCH_TYPE), member.label(labels::CREATED_BY)),
        (Some("warm"), Some("controller"))
    );
    assert_eq!(member.annotation(annotations::TEMPLATE_REF), Some("t"));
    assert_eq!(member.annotation(annotations::POD_NAME), Some(member.name()));
    let pod = member.spec.pod_template.metadata.clone().expect("metadata");
    let pod_labels = pod.labels.expect("labels");
    assert_eq!(pod_labels.get("a").map(String::as_str), Some("b"));
    for key in [labels::WARM_POOL_SANDBOX, labels::TEMPLATE_REF_HASH, labels::TEMPLATE_HASH, labels::POD_TEMPLATE_HASH]
    {
        assert_eq!(pod_labels.get(key).map(String::as_str), member.label(key), "{key}");
    }
    let pod_annotations = pod.annotations.expect("annotations");
    assert_eq!(pod_annotations.get(annotations::SAFE_TO_EVICT).map(String::as_str), Some("true"));
    assert_eq!(pod_annotations.get("c").map(String::as_str), Some("d"));
}

/// passes from a cache that lags, one after the other and at once, create no more than asked for.
#[tokio::test]
async fn x_188_a_lagging_cache_never_overfills() {
    let rig = Rig::new();
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 7);
    rig.pump();
    for _ in 0..5 {
        rig.pools_pass("p").await.expect("no error");
    }
    assert_eq!(rig.sandboxes().len(), 7);

    let rig = Rig::new();
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 7);
    rig.pump();
    futures::future::join_all((0..8).map(|_| rig.pools_pass("p"))).await;
    assert_eq!(rig.sandboxes().len(), 7);
}

/// a member on its way out blocks its replacement.
#[tokio::test]
async fn x_189_a_terminating_member_blocks_its_replacement() {
    let rig = Rig::new();
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 2);
    rig.fill("p").await;
    let going = rig.sandboxes()[0].name().to_owned();
    rig.model.edit(Kind::Sandbox, &key(&going), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    rig.writes();
    let next = rig.pool("p").await.expect("no error");
    assert!(matches!(next, Next::After(delay) if delay > Duration::from_secs(60)), "{next:?}");
    assert_eq!(rig.sandboxes().len(), 2);
    assert_eq!(rig.stored_pool("p").status.expect("status").replicas, Some(1));
    rig.model.remove(Kind::Sandbox, &key(&going));
    rig.fill("p").await;
    assert_eq!(rig.sandboxes().len(), 2);
}
