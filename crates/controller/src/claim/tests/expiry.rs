//! How claims end.

use std::time::Duration;

use agent_sandbox_api::{conditions::ConditionType, keys::labels};
use serde_json::Value;

use super::*;
use crate::{
    clock::Clock,
    model::Fault,
    object::Kind,
    ports::ApiError,
    reconcile::Next,
    request::{Propagation, Verb},
};

fn in_seconds(rig: &Rig, seconds: i64) -> String {
    let at = rig.clock.now().checked_add(jiff::SignedDuration::from_secs(seconds)).expect("in range");
    format!("{at:.0}")
}

/// A claim served warm, with this lifecycle from then on.
async fn served(rig: &Rig, lifecycle: Value) -> String {
    rig.warm_pool(1).await;
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    rig.model.edit(Kind::Claim, &key("c"), json!({"spec": {"lifecycle": lifecycle}}));
    rig.events();
    rig.writes();
    rig.bound("c").expect("bound")
}

fn finish(rig: &Rig, name: &str) {
    let finished = rig.condition("Finished", "True", "PodSucceeded", 1);
    let conditions = json!([finished, rig.condition("Ready", "False", "PodSucceeded", 1)]);
    rig.model.edit(Kind::Sandbox, &key(name), json!({"status": {"conditions": conditions}}));
}

fn deletes(rig: &Rig) -> Vec<(Kind, String, Option<Propagation>)> {
    let delete = |request: crate::request::Request| match request.verb {
        Verb::Delete { precondition, propagation } => {
            assert!(precondition.resource_version.is_some(), "uid and version");
            Some((request.kind, request.key.name.to_string(), propagation))
        }
        _ => None,
    };
    rig.writes().into_iter().filter_map(delete).collect()
}

/// said first, then cleaned up; the claim stays.
#[tokio::test]
async fn x_160_x_161_the_end_is_announced_before_it_is_acted_on() {
    let rig = Rig::new();
    let past = in_seconds(&rig, -1);
    let name = served(&rig, json!({"shutdownTime": past})).await;
    assert_ne!(name, "c", "X-161: a warm Sandbox has a name of its own");
    assert_eq!(rig.claim("c").await.expect("no error"), Next::After(Duration::from_millis(1)));
    assert_eq!(
        rig.ready_of("c"),
        ("False".into(), "ClaimExpired".into(), "Claim expired. Sandbox cleanup initiated.".into())
    );
    assert_eq!(deletes(&rig), [], "nothing before the word is out");
    assert_eq!(rig.events(), [("ClaimExpired", "Claim Expired", "Claim expired".to_owned())]);

    assert_eq!(rig.claim("c").await.expect("no error"), Next::Idle);
    assert_eq!(deletes(&rig), [(Kind::Sandbox, name, None)]);
    assert!(rig.sandboxes().is_empty());
    assert_eq!(rig.stored_claim("c").status.expect("status").sandbox, None);
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.writes(), [], "settled");
    assert_eq!(rig.events(), []);
}

/// Expiry takes every Sandbox that the claim controls, wherever its name is recorded.
#[tokio::test]
async fn expiry_takes_everything_the_claim_controls() {
    let rig = Rig::new();
    let past = in_seconds(&rig, -1);
    served(&rig, json!({"shutdownTime": past})).await;
    let owner = rig.stored_claim("c").controller_reference();
    rig.model.create(
        Kind::Sandbox,
        json!({"metadata": {"name": "unrecorded", "namespace": "ns", "ownerReferences": [owner]}, "spec": {}}),
    );
    rig.claim("c").await.expect("no error");
    rig.claim("c").await.expect("no error");
    assert!(rig.sandboxes().is_empty());
}

#[tokio::test]
async fn x_162_somebody_elses_sandbox_survives() {
    let rig = Rig::new();
    let past = in_seconds(&rig, -1);
    let name = served(&rig, json!({"shutdownTime": past})).await;
    rig.model.edit(Kind::Sandbox, &key(&name), json!({"metadata": {"ownerReferences": []}}));
    rig.claim("c").await.expect("no error");
    rig.claim("c").await.expect("no error");
    assert_eq!(deletes(&rig), []);
    let text = format!(
        "Claim expired. sandbox not owned by this claim: sandbox \"{name}\" is not owned by claim \"c\"; deletion skipped."
    );
    assert_eq!(rig.ready_of("c"), ("False".into(), "ClaimExpired".into(), text));
    assert_eq!(rig.stored_claim("c").status.expect("status").sandbox, None);
}

/// the claim itself goes; its Sandbox is the collector's.
#[tokio::test]
async fn x_163_x_164_delete_takes_the_claim() {
    for (policy, propagation) in [("Delete", None), ("DeleteForeground", Some(Propagation::Foreground))] {
        let rig = Rig::new();
        let past = in_seconds(&rig, -1);
        served(&rig, json!({"shutdownTime": past, "shutdownPolicy": policy})).await;
        rig.claim("c").await.expect("no error");
        assert_eq!(deletes(&rig), []);
        rig.events();
        rig.claim("c").await.expect("no error");
        assert_eq!(deletes(&rig), [(Kind::Claim, "c".to_owned(), propagation)]);
        assert_eq!(rig.events(), [("ClaimExpired", "Deleting", format!("Deleting Claim (ShutdownPolicy={policy})"))]);
        rig.claim("c").await.expect("no error");
        assert_eq!(rig.writes(), []);
    }
}

#[tokio::test]
async fn x_165_time_to_live_runs_from_the_end_of_the_sandbox() {
    let rig = Rig::new();
    let name = served(&rig, json!({"ttlSecondsAfterFinished": 120})).await;
    finish(&rig, &name);
    rig.clock.advance(Duration::from_secs(30));
    assert_eq!(rig.claim("c").await.expect("no error"), Next::After(Duration::from_secs(90)));
    let finished = rig.stored_claim("c").condition(ConditionType::Finished).cloned().expect("mirrored");
    assert_eq!(finished.reason, "PodSucceeded");

    // Without a Ready of the Sandbox's own.
    let finished = rig.condition("Finished", "True", "PodSucceeded", 1);
    rig.model.edit(Kind::Sandbox, &key(&name), json!({"status": {"conditions": [finished]}}));
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.ready_of("c").1, "SandboxNotReady");
}

/// no time to live: said in the write that mirrors the end, acted on in the next pass.
#[tokio::test]
async fn x_166_no_time_to_live() {
    let rig = Rig::new();
    let name = served(&rig, json!({"ttlSecondsAfterFinished": 0})).await;
    finish(&rig, &name);
    assert_eq!(rig.claim("c").await.expect("no error"), Next::After(Duration::from_millis(1)));
    assert_eq!(rig.ready_of("c").1, "ClaimExpired");
    assert_eq!(rig.events(), [("ClaimExpired", "Claim Expired", "Claim expired".to_owned())]);
    assert_eq!(rig.sandboxes().len(), 1);
    rig.claim("c").await.expect("no error");
    assert!(rig.sandboxes().is_empty());
    let finished = rig.stored_claim("c").condition(ConditionType::Finished).cloned().expect("kept");
    assert_eq!(finished.reason, "PodSucceeded");
}

/// with Delete, the claim follows its Sandbox's end.
#[tokio::test]
async fn x_167_time_to_live_with_delete() {
    let rig = Rig::new();
    let name = served(&rig, json!({"ttlSecondsAfterFinished": 5, "shutdownPolicy": "Delete"})).await;
    finish(&rig, &name);
    rig.claim("c").await.expect("no error");
    rig.clock.advance(Duration::from_secs(5));
    rig.claim("c").await.expect("no error");
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.model.get(Kind::Claim, &key("c")), None);
    rig.model.collect_garbage();
    assert!(rig.sandboxes().is_empty());
}

#[tokio::test]
async fn x_168_the_earlier_end_wins() {
    let rig = Rig::new();
    let shutdown = in_seconds(&rig, 10);
    let name =
        served(&rig, json!({"shutdownTime": shutdown, "ttlSecondsAfterFinished": 60, "shutdownPolicy": "Delete"}))
            .await;
    finish(&rig, &name);
    assert_eq!(rig.claim("c").await.expect("no error"), Next::After(Duration::from_secs(10)));
    rig.clock.advance(Duration::from_millis(9_999));
    rig.claim("c").await.expect("no error");
    assert_ne!(rig.ready_of("c").1, "ClaimExpired");
    rig.clock.advance(Duration::from_millis(1));
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.ready_of("c").1, "ClaimExpired");
}

#[tokio::test]
async fn x_169_without_an_end_a_finished_claim_stays() {
    let rig = Rig::new();
    let name = served(&rig, json!({})).await;
    finish(&rig, &name);
    assert_eq!(rig.claim("c").await.expect("no error"), Next::Idle);
    assert_eq!(rig.ready_of("c").1, "PodSucceeded");
    assert_eq!(rig.sandboxes().len(), 1);
}

#[tokio::test]
async fn x_170_nothing_is_cleaned_up_unannounced() {
    let rig = Rig::new();
    let past = in_seconds(&rig, -1);
    served(&rig, json!({"shutdownTime": past})).await;
    rig.model.fail(
        |request| matches!(request.verb, Verb::PatchStatus { .. }),
        Fault::Refuse(ApiError::Unknown { message: "reset".into() }),
    );
    rig.claim("c").await.expect_err("tried again");
    assert_eq!(deletes(&rig), []);
    assert_eq!(rig.sandboxes().len(), 1);
}

#[tokio::test]
async fn x_171_a_claim_whose_end_is_moved_lives_again() {
    let rig = Rig::new();
    let past = in_seconds(&rig, -1);
    served(&rig, json!({"shutdownTime": past})).await;
    rig.claim("c").await.expect("no error");
    rig.claim("c").await.expect("no error");
    assert!(rig.sandboxes().is_empty());
    let later = in_seconds(&rig, 3600);
    rig.model.edit(Kind::Claim, &key("c"), json!({"spec": {"lifecycle": {"shutdownTime": later}}}));
    assert_eq!(rig.claim("c").await.expect("no error"), Next::After(Duration::from_secs(3600)));
    let name = rig.bound("c").expect("bound again");
    assert_eq!(rig.sandbox(&name).label(labels::LAUNCH_TYPE), Some("cold"));
}

/// A deadline outlives errors: the back-off never outlasts it.
#[tokio::test]
async fn errors_do_not_delay_the_end() {
    let rig = Rig::new();
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 0);
    rig.model.create(Kind::Sandbox, json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {}}));
    let soon = in_seconds(&rig, 3);
    rig.claim_with("c", json!({}), json!({"warmPoolRef": {"name": "p"}, "lifecycle": {"shutdownTime": soon}}));
    let error = rig.claim("c").await.expect_err("somebody holds the name");
    assert_eq!(error.at_most, Some(Duration::from_secs(3)));
}
