//! How many members a pool has.

use agent_sandbox_api::keys::{annotations, labels};

use super::*;
use crate::{cache::Kind, reconcile::Next};

/// filling and emptying.
#[tokio::test]
async fn x_180_x_181_x_182_a_pool_has_the_size_asked_for() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 3);
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes().len(), 3);
    fixture.ready(fixture.sandboxes()[0].name());
    fixture.fill("p").await;
    let status = fixture.stored_pool("p").status.expect("status");
    assert_eq!((status.replicas, status.ready_replicas, status.observed_generation), (Some(3), Some(1), Some(1)));
    assert_eq!(status.selector, Some(format!("agents.x-k8s.io/warm-pool-sandbox={}", Fixture::pool_hash("p"))));

    fixture.writes();
    fixture.fill("p").await;
    assert_eq!(fixture.writes(), [], "a settled pool writes nothing");

    fixture.api.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": 0}}));
    fixture.fill("p").await;
    assert!(fixture.sandboxes().is_empty());
    let status = fixture.stored_pool("p").status.expect("status");
    assert_eq!((status.replicas, status.ready_replicas, status.observed_generation), (Some(0), Some(0), Some(2)));
}

#[tokio::test]
async fn members_have_their_templates_egress_rules_from_the_start() {
    let fixture = Fixture::new();
    fixture.template("t", json!({"podTemplate": {}}));
    let rules = json!({"metadata": {"annotations": {annotations::EGRESS: "a.com"}}});
    fixture.api.edit(Kind::Template, &key("t"), rules);
    fixture.pool_of("p", "t", 1);
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes()[0].annotation(annotations::EGRESS), Some("a.com"));
}

/// what a member carries.
#[tokio::test]
async fn x_185_members_carry_the_labels_of_their_stage() {
    let fixture = Fixture::new();
    fixture.template("t", json!({"podTemplate": {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}}));
    fixture.pool_of("p", "t", 1);
    fixture.fill("p").await;
    let member = &fixture.sandboxes()[0];
    assert!(member.name().starts_with("p-") && member.name().len() == 7, "{}", member.name());
    assert_eq!(fixture.api.list(Kind::Sandbox)[0]["metadata"]["generateName"], "p-");
    assert_eq!(member.label(labels::WARM_POOL_SANDBOX), Some(Fixture::pool_hash("p").as_str()));
    assert_eq!(member.label(labels::TEMPLATE_REF_HASH), Some(Fixture::pool_hash("t").as_str()));
    assert!(member.label(labels::TEMPLATE_HASH).is_some() && member.label(labels::POD_TEMPLATE_HASH).is_some());
    assert_eq!(
        (member.label(labels::LAUNCH_TYPE), member.label(labels::CREATED_BY)),
        (Some("warm"), Some("controller"))
    );
    assert_eq!(member.annotation(annotations::TEMPLATE_REF), Some("t"));
    assert_eq!(member.annotation(annotations::POD_NAME), Some(member.name()));
    let pod = member.spec.pod_template.metadata();
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
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 7);
    fixture.deliver_events();
    for _ in 0..5 {
        fixture.pools_pass("p").await.expect("no error");
    }
    assert_eq!(fixture.sandboxes().len(), 7);

    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 7);
    fixture.deliver_events();
    futures::future::join_all((0..8).map(|_| fixture.pools_pass("p"))).await;
    assert_eq!(fixture.sandboxes().len(), 7);
}

/// a terminating member blocks its replacement.
#[tokio::test]
async fn x_189_a_terminating_member_blocks_its_replacement() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 2);
    fixture.fill("p").await;
    let going = fixture.sandboxes()[0].name().to_owned();
    fixture.api.edit(Kind::Sandbox, &key(&going), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    fixture.writes();
    let next = fixture.pool("p").await.expect("no error");
    assert!(matches!(next, Next::After(delay) if delay > Duration::from_secs(60)), "{next:?}");
    assert_eq!(fixture.sandboxes().len(), 2);
    assert_eq!(fixture.stored_pool("p").status.expect("status").replicas, Some(1));
    fixture.api.remove(Kind::Sandbox, &key(&going));
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes().len(), 2);
}

/// from any number of members to the one asked for.
#[tokio::test]
async fn x_180_pools_grow_and_shrink() {
    for (present, wanted) in [(0, 3), (1, 3), (4, 3), (3, 3), (3, 0)] {
        let fixture = Fixture::new();
        fixture.template("t", json!({}));
        fixture.pool_of("p", "t", present);
        fixture.fill("p").await;
        fixture.api.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": wanted}}));
        fixture.fill("p").await;
        assert_eq!(fixture.sandboxes().len(), wanted as usize, "{present} to {wanted}");
    }
}

/// no number means one.
#[tokio::test]
async fn x_004_a_pool_without_a_number_has_one() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_with("p", json!({"sandboxTemplateRef": {"name": "t"}}));
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes().len(), 1);
}

/// The order of removal: not Ready first, then the newest.
#[tokio::test]
async fn excess_goes_newest_and_unready_first() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 0);
    let mut names = Vec::new();
    for replicas in 1..=4 {
        fixture.api.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": replicas}}));
        fixture.fill("p").await;
        names.extend(fixture.sandboxes().iter().map(|s| s.name().to_owned()).find(|name| !names.contains(name)));
        fixture.clock.advance(Duration::from_secs(1));
    }
    for ready in [0, 2, 3] {
        fixture.ready(&names[ready]);
    }
    for (replicas, gone) in [(3, 1), (2, 3), (1, 2)] {
        fixture.api.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": replicas}}));
        fixture.fill("p").await;
        assert_eq!(fixture.api.get(Kind::Sandbox, &key(&names[gone])), None, "{replicas}");
        assert_eq!(fixture.sandboxes().len(), replicas);
    }
}

fn orphan(fixture: &Fixture, name: &str, change: serde_json::Value) {
    let members = fixture.api.list(Kind::Sandbox).into_iter();
    let mut object =
        { members }.find(|sandbox| sandbox["metadata"]["ownerReferences"][0].is_object()).expect("a member");
    object["metadata"]["name"] = name.into();
    object["metadata"]["ownerReferences"] = json!([]);
    crate::testing::fake_api::merge(&mut object, &change);
    fixture.api.create(Kind::Sandbox, object);
}

/// orphans that match are adopted, others with the label are deleted or ignored.
#[tokio::test]
async fn x_183_x_184_orphans_are_taken_in_if_they_fit() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 1);
    fixture.fill("p").await;
    let deployment =
        json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "u", "controller": true}]);
    orphan(&fixture, "fits", json!({"metadata": {"labels": {labels::LAUNCH_TYPE: null}}}));
    orphan(
        &fixture,
        "forged",
        json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "evil"}]}}}}),
    );
    orphan(&fixture, "foreign", json!({"metadata": {"ownerReferences": deployment}}));
    orphan(&fixture, "used", json!({"metadata": {"labels": {labels::CLAIM_UID: "somebody"}}}));
    fixture.api.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": 2}}));
    fixture.fill("p").await;
    let uid = fixture.stored_pool("p").uid().to_owned();
    let owner = |name: &str| {
        agent_sandbox_api::owners::controller_of(&fixture.sandbox(name).metadata).map(|owner| owner.uid.clone())
    };
    assert_eq!(owner("fits").as_deref(), Some(uid.as_str()));
    assert_eq!(fixture.sandbox("fits").label(labels::LAUNCH_TYPE), Some("warm"));
    assert_eq!(fixture.api.get(Kind::Sandbox, &key("forged")), None, "X-184");
    assert_eq!(owner("foreign").as_deref(), Some("u"));
    assert_eq!(owner("used"), None, "who had a claim never returns to a pool");
    assert_eq!(fixture.stored_pool("p").status.expect("status").replicas, Some(2), "neither of these is counted");
}

/// whether pool Pods may be evicted.
#[tokio::test]
async fn x_186_eviction_is_the_templates_choice_first() {
    use crate::{claim::ClaimSettings, pool::PoolSettings};
    for (flag, template, expected) in [
        (true, None, Some("true")),
        (false, None, None),
        (true, Some("true"), Some("true")),
        (false, Some("true"), Some("true")),
        (true, Some("false"), Some("false")),
        (false, Some("false"), Some("false")),
    ] {
        let fixture =
            Fixture::with(ClaimSettings::default(), PoolSettings { eviction: flag, ..PoolSettings::default() });
        let metadata = template.map_or(json!({}), |value| json!({"annotations": {annotations::SAFE_TO_EVICT: value}}));
        fixture.template("t", json!({"podTemplate": {"metadata": metadata}}));
        fixture.pool_of("p", "t", 1);
        fixture.fill("p").await;
        let pod = fixture.sandboxes().remove(0).spec.pod_template.metadata();
        let value = pod.annotations.and_then(|map| map.get(annotations::SAFE_TO_EVICT).cloned());
        assert_eq!(value.as_deref(), expected, "{flag} {template:?}");
    }
}

/// volumes and secure defaults.
#[tokio::test]
async fn x_187_members_have_the_templates_volumes_and_secure_defaults() {
    let fixture = Fixture::new();
    fixture
        .template("t", json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}], "service": false}));
    fixture.template("u", json!({"networkPolicyManagement": "Unmanaged"}));
    fixture.pool_of("p", "t", 1);
    fixture.pool_of("q", "u", 1);
    fixture.fill("p").await;
    fixture.fill("q").await;
    let of = |pool: &str| fixture.sandboxes().into_iter().find(|s| s.name().starts_with(pool)).expect("a member");
    let member = of("p-");
    assert_eq!(member.volume_claim_templates()[0].name(), "data");
    assert_eq!(member.spec.service, Some(false));
    assert_eq!(member.spec.pod_template.spec["automountServiceAccountToken"], false);
    assert_eq!(member.spec.pod_template.spec["dnsPolicy"], "None");
    assert_eq!(of("q-").spec.pod_template.spec.get("dnsPolicy"), None);
}

/// the member to delete is gone already.
#[tokio::test]
async fn x_190_an_excess_member_that_is_gone_is_no_error() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 2);
    fixture.fill("p").await;
    fixture.api.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": 0}}));
    fixture.deliver_events();
    for member in fixture.sandboxes() {
        fixture.api.remove(Kind::Sandbox, &key(member.name()));
    }
    fixture.pools_pass("p").await.expect("no error");
    fixture.api.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": 1}}));
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes().len(), 1, "the pool is not blocked");
}

/// batches double; an error ends them.
#[tokio::test]
async fn x_191_writes_start_slowly() {
    use std::sync::{Arc, Mutex};
    let run = |fail_at: Option<usize>| async move {
        let calls = Arc::new(Mutex::new(0));
        let counted = calls.clone();
        let run = crate::pool::slow_start::slow_start((0..14).collect(), move |item: usize| {
            let counted = counted.clone();
            async move {
                *counted.lock().expect("lock") += 1;
                if Some(item) == fail_at { Err("no") } else { Ok(item) }
            }
        })
        .await;
        let calls = *calls.lock().expect("lock");
        (calls, run.done.len(), run.error, run.left)
    };
    assert_eq!(run(None).await, (14, 14, None, 0));
    assert_eq!(run(Some(3)).await, (7, 6, Some("no"), 7), "third batch");
    assert_eq!(run(Some(0)).await, (1, 0, Some("no"), 13), "one failing write, not fourteen");
}

/// a create whose response is lost is not sent under a second name; a rejected one is retried.
#[tokio::test]
async fn x_192_unanswered_creates_are_repeated_by_name() {
    use crate::{
        api_client::{ApiError, Verb},
        testing::fake_api::Fault,
    };
    let is_create = |request: &crate::api_client::Request| matches!(request.verb, Verb::Create { .. });
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 3);
    fixture.deliver_events();
    fixture.api.fail(is_create, Fault::LoseResponse);
    fixture.pools_pass("p").await.expect("repeated at once");
    assert_eq!(fixture.sandboxes().len(), 3);

    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 3);
    fixture.deliver_events();
    for _ in 0..3 {
        fixture.api.fail(is_create, Fault::Refuse(ApiError::Unknown { message: "reset".into() }));
    }
    fixture.pools_pass("p").await.expect_err("no answer");
    let names: Vec<_> =
        fixture.writes().iter().filter(|request| is_create(request)).map(|request| request.key.name.clone()).collect();
    assert!(names.windows(2).all(|pair| pair[0] == pair[1]), "the identical request: {names:?}");
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes().len(), 3);
    assert!(fixture.sandboxes().iter().any(|sandbox| sandbox.name() == &*names[0]), "the same name is tried first");

    // A rejection, such as by a quota, is an error; the status is written nevertheless.
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 3);
    fixture.api.fail(is_create, Fault::Refuse(ApiError::Forbidden { message: "quota".into() }));
    fixture.pool("p").await.expect_err("tried again");
    assert_eq!(fixture.stored_pool("p").status.expect("status").replicas, Some(0));
}

/// WP-15: without a template nothing is made, and that is no error.
#[tokio::test]
async fn a_pool_without_its_template_waits() {
    let fixture = Fixture::new();
    fixture.pool_of("p", "t", 2);
    assert_eq!(fixture.pool("p").await.expect("no error"), Next::Idle);
    assert_eq!(fixture.stored_pool("p").status.expect("status").replicas, Some(0));
    fixture.template("t", json!({}));
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes().len(), 2);
}

/// the in-memory state of a pool is dropped with it.
#[tokio::test]
async fn x_194_a_pool_that_is_gone_is_forgotten() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 1);
    fixture.fill("p").await;
    fixture.api.edit(Kind::Pool, &key("p"), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    fixture.writes();
    fixture.fill("p").await;
    assert_eq!(fixture.writes(), [], "a deleting pool is left to the collector");
    fixture.api.remove(Kind::Pool, &key("p"));
    fixture.fill("p").await;
    assert_eq!(fixture.pools.tracked(), 0);
    fixture.api.collect_garbage();
    assert!(fixture.sandboxes().is_empty());
}

/// A claim adopts a member while the pool, with a stale cache, scales to zero: the member survives.
#[tokio::test]
async fn a_member_that_was_claimed_meanwhile_survives_its_pool() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    fixture.api.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": 0}}));
    fixture.deliver_events();
    let other = Fixture::on(
        fixture.api.clone(),
        fixture.clock.clone(),
        crate::claim::ClaimSettings::default(),
        crate::pool::PoolSettings::default(),
    );
    other.deliver_events();
    fixture.claims_pass("c").await.expect("no error");
    other.pools_pass("p").await.expect("no error");
    assert_eq!(fixture.sandboxes().len(), 1);
    assert_eq!(fixture.ready_of("c").0, "True");
}

/// Bursts of changes are reported together.
#[tokio::test]
async fn status_writes_are_coalesced() {
    use crate::{claim::ClaimSettings, pool::PoolSettings};
    let settings = PoolSettings::default();
    let fixture = Fixture::with(ClaimSettings::default(), settings.clone());
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 2);
    fixture.pool("p").await.expect("no error");
    let statuses = |fixture: &Fixture| super::status_writes(&fixture.writes());
    assert_eq!(statuses(&fixture), 1);
    let next = fixture.pool("p").await.expect("no error");
    assert_eq!(statuses(&fixture), 0, "written a moment ago");
    assert!(matches!(next, Next::After(delay) if delay <= settings.status_interval), "{next:?}");
    fixture.clock.advance(settings.status_interval);
    fixture.pool("p").await.expect("no error");
    assert_eq!(statuses(&fixture), 1);
    assert_eq!(fixture.stored_pool("p").status.expect("status").replicas, Some(2));
}
