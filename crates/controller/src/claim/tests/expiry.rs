//! The expiry of claims.

use std::time::Duration;

use agent_sandbox_api::{conditions::ConditionType, keys::labels};
use serde_json::Value;

use super::*;
use crate::{
    api_client::{ApiError, Propagation, Verb},
    cache::Kind,
    clock::Clock,
    reconcile::Next,
    testing::fake_api::Fault,
};

fn in_seconds(fixture: &Fixture, seconds: i64) -> String {
    let at = fixture.clock.now().checked_add(jiff::SignedDuration::from_secs(seconds)).expect("in range");
    format!("{at:.0}")
}

/// A claim served warm, with this lifecycle from then on.
async fn served(fixture: &Fixture, lifecycle: Value) -> String {
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    fixture.api.edit(Kind::Claim, &key("c"), json!({"spec": {"lifecycle": lifecycle}}));
    fixture.events();
    fixture.writes();
    fixture.bound("c").expect("bound")
}

fn finish(fixture: &Fixture, name: &str) {
    let finished = fixture.condition("Finished", "True", "PodSucceeded", 1);
    let conditions = json!([finished, fixture.condition("Ready", "False", "PodSucceeded", 1)]);
    fixture.api.edit(Kind::Sandbox, &key(name), json!({"status": {"conditions": conditions}}));
}

fn deletes(fixture: &Fixture) -> Vec<(Kind, String, Option<Propagation>)> {
    let delete = |request: crate::api_client::Request| match request.verb {
        Verb::Delete { precondition, propagation } => {
            assert!(precondition.resource_version.is_some(), "uid and version");
            Some((request.kind, request.key.name.to_string(), propagation))
        }
        _ => None,
    };
    fixture.writes().into_iter().filter_map(delete).collect()
}

/// reported first, then cleaned up; the claim stays.
#[tokio::test]
async fn x_160_x_161_the_end_is_announced_before_it_is_acted_on() {
    let fixture = Fixture::new();
    let past = in_seconds(&fixture, -1);
    let name = served(&fixture, json!({"shutdownTime": past})).await;
    assert_ne!(name, "c", "X-161: a warm Sandbox has a name of its own");
    assert_eq!(fixture.claim("c").await.expect("no error"), Next::After(Duration::from_millis(1)));
    assert_eq!(
        fixture.ready_of("c"),
        ("False".into(), "ClaimExpired".into(), "Claim expired. Sandbox cleanup initiated.".into())
    );
    assert_eq!(deletes(&fixture), [], "nothing before the word is out");
    assert_eq!(fixture.events(), [("ClaimExpired", "Claim Expired", "Claim expired".to_owned())]);

    assert_eq!(fixture.claim("c").await.expect("no error"), Next::Idle);
    assert_eq!(deletes(&fixture), [(Kind::Sandbox, name, None)]);
    assert!(fixture.sandboxes().is_empty());
    assert_eq!(fixture.stored_claim("c").status.expect("status").sandbox, None);
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.writes(), [], "settled");
    assert_eq!(fixture.events(), []);
}

/// Expiry deletes every Sandbox that the claim controls, wherever its name is recorded.
#[tokio::test]
async fn expiry_takes_everything_the_claim_controls() {
    let fixture = Fixture::new();
    let past = in_seconds(&fixture, -1);
    served(&fixture, json!({"shutdownTime": past})).await;
    let owner = fixture.stored_claim("c").controller_reference();
    fixture.api.create(
        Kind::Sandbox,
        json!({"metadata": {"name": "unrecorded", "namespace": "ns", "ownerReferences": [owner]}, "spec": {}}),
    );
    fixture.claim("c").await.expect("no error");
    fixture.claim("c").await.expect("no error");
    assert!(fixture.sandboxes().is_empty());
}

#[tokio::test]
async fn x_162_a_foreign_sandbox_survives() {
    let fixture = Fixture::new();
    let past = in_seconds(&fixture, -1);
    let name = served(&fixture, json!({"shutdownTime": past})).await;
    fixture.api.edit(Kind::Sandbox, &key(&name), json!({"metadata": {"ownerReferences": []}}));
    fixture.claim("c").await.expect("no error");
    fixture.claim("c").await.expect("no error");
    assert_eq!(deletes(&fixture), []);
    let text = format!(
        "Claim expired. sandbox not owned by this claim: sandbox \"{name}\" is not owned by claim \"c\"; deletion skipped."
    );
    assert_eq!(fixture.ready_of("c"), ("False".into(), "ClaimExpired".into(), text));
    assert_eq!(fixture.stored_claim("c").status.expect("status").sandbox, None);
}

/// the claim itself is deleted; its Sandbox is left to the garbage collector.
#[tokio::test]
async fn x_163_x_164_delete_takes_the_claim() {
    for (policy, propagation) in [("Delete", None), ("DeleteForeground", Some(Propagation::Foreground))] {
        let fixture = Fixture::new();
        let past = in_seconds(&fixture, -1);
        served(&fixture, json!({"shutdownTime": past, "shutdownPolicy": policy})).await;
        fixture.claim("c").await.expect("no error");
        assert_eq!(deletes(&fixture), []);
        fixture.events();
        fixture.claim("c").await.expect("no error");
        assert_eq!(deletes(&fixture), [(Kind::Claim, "c".to_owned(), propagation)]);
        assert_eq!(
            fixture.events(),
            [("ClaimExpired", "Deleting", format!("Deleting Claim (ShutdownPolicy={policy})"))]
        );
        fixture.claim("c").await.expect("no error");
        assert_eq!(fixture.writes(), []);
    }
}

#[tokio::test]
async fn x_165_time_to_live_runs_from_the_end_of_the_sandbox() {
    let fixture = Fixture::new();
    let name = served(&fixture, json!({"ttlSecondsAfterFinished": 120})).await;
    finish(&fixture, &name);
    fixture.clock.advance(Duration::from_secs(30));
    assert_eq!(fixture.claim("c").await.expect("no error"), Next::After(Duration::from_secs(90)));
    let finished = fixture.stored_claim("c").condition(ConditionType::Finished).cloned().expect("mirrored");
    assert_eq!(finished.reason, "PodSucceeded");

    // Without a Ready of the Sandbox's own.
    let finished = fixture.condition("Finished", "True", "PodSucceeded", 1);
    fixture.api.edit(Kind::Sandbox, &key(&name), json!({"status": {"conditions": [finished]}}));
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.ready_of("c").1, "SandboxNotReady");
}

/// no time to live: reported in the write that mirrors the Finished condition, cleaned up in the next pass.
#[tokio::test]
async fn x_166_no_time_to_live() {
    let fixture = Fixture::new();
    let name = served(&fixture, json!({"ttlSecondsAfterFinished": 0})).await;
    finish(&fixture, &name);
    assert_eq!(fixture.claim("c").await.expect("no error"), Next::After(Duration::from_millis(1)));
    assert_eq!(fixture.ready_of("c").1, "ClaimExpired");
    assert_eq!(fixture.events(), [("ClaimExpired", "Claim Expired", "Claim expired".to_owned())]);
    assert_eq!(fixture.sandboxes().len(), 1);
    fixture.claim("c").await.expect("no error");
    assert!(fixture.sandboxes().is_empty());
    let finished = fixture.stored_claim("c").condition(ConditionType::Finished).cloned().expect("kept");
    assert_eq!(finished.reason, "PodSucceeded");
}

/// with Delete, the claim follows its Sandbox's end.
#[tokio::test]
async fn x_167_time_to_live_with_delete() {
    let fixture = Fixture::new();
    let name = served(&fixture, json!({"ttlSecondsAfterFinished": 5, "shutdownPolicy": "Delete"})).await;
    finish(&fixture, &name);
    fixture.claim("c").await.expect("no error");
    fixture.clock.advance(Duration::from_secs(5));
    fixture.claim("c").await.expect("no error");
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.api.get(Kind::Claim, &key("c")), None);
    fixture.api.collect_garbage();
    assert!(fixture.sandboxes().is_empty());
}

#[tokio::test]
async fn x_168_the_earlier_end_wins() {
    let fixture = Fixture::new();
    let shutdown = in_seconds(&fixture, 10);
    let name =
        served(&fixture, json!({"shutdownTime": shutdown, "ttlSecondsAfterFinished": 60, "shutdownPolicy": "Delete"}))
            .await;
    finish(&fixture, &name);
    assert_eq!(fixture.claim("c").await.expect("no error"), Next::After(Duration::from_secs(10)));
    fixture.clock.advance(Duration::from_millis(9_999));
    fixture.claim("c").await.expect("no error");
    assert_ne!(fixture.ready_of("c").1, "ClaimExpired");
    fixture.clock.advance(Duration::from_millis(1));
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.ready_of("c").1, "ClaimExpired");
}

#[tokio::test]
async fn x_169_without_an_end_a_finished_claim_stays() {
    let fixture = Fixture::new();
    let name = served(&fixture, json!({})).await;
    finish(&fixture, &name);
    assert_eq!(fixture.claim("c").await.expect("no error"), Next::Idle);
    assert_eq!(fixture.ready_of("c").1, "PodSucceeded");
    assert_eq!(fixture.sandboxes().len(), 1);
}

#[tokio::test]
async fn x_170_nothing_is_cleaned_up_unannounced() {
    let fixture = Fixture::new();
    let past = in_seconds(&fixture, -1);
    served(&fixture, json!({"shutdownTime": past})).await;
    fixture.api.fail(
        |request| matches!(request.verb, Verb::PatchStatus { .. }),
        Fault::Refuse(ApiError::Unknown { message: "reset".into() }),
    );
    fixture.claim("c").await.expect_err("tried again");
    assert_eq!(deletes(&fixture), []);
    assert_eq!(fixture.sandboxes().len(), 1);
}

#[tokio::test]
async fn x_171_a_claim_whose_end_is_moved_lives_again() {
    let fixture = Fixture::new();
    let past = in_seconds(&fixture, -1);
    served(&fixture, json!({"shutdownTime": past})).await;
    fixture.claim("c").await.expect("no error");
    fixture.claim("c").await.expect("no error");
    assert!(fixture.sandboxes().is_empty());
    let later = in_seconds(&fixture, 3600);
    fixture.api.edit(Kind::Claim, &key("c"), json!({"spec": {"lifecycle": {"shutdownTime": later}}}));
    assert_eq!(fixture.claim("c").await.expect("no error"), Next::After(Duration::from_secs(3600)));
    let name = fixture.bound("c").expect("bound again");
    assert_eq!(fixture.sandbox(&name).label(labels::LAUNCH_TYPE), Some("cold"));
}

/// Errors do not delay a deadline: the backoff never exceeds it.
#[tokio::test]
async fn errors_do_not_delay_the_end() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 0);
    fixture.api.create(Kind::Sandbox, json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {}}));
    let soon = in_seconds(&fixture, 3);
    fixture.claim_with("c", json!({}), json!({"warmPoolRef": {"name": "p"}, "lifecycle": {"shutdownTime": soon}}));
    let error = fixture.claim("c").await.expect_err("another object has the name");
    assert_eq!(error.at_most, Some(Duration::from_secs(3)));
}
