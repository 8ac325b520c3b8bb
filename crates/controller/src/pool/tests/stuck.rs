//! Members that do not become Ready.

use super::*;
use crate::{cache::Kind, claim::ClaimSettings, pool::PoolSettings, reconcile::Next};

async fn pool(settings: PoolSettings) -> (Fixture, String) {
    let fixture = Fixture::with(ClaimSettings::default(), PoolSettings { status_interval: Duration::ZERO, ..settings });
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 1);
    fixture.fill("p").await;
    let name = fixture.sandboxes().remove(0).name().to_owned();
    fixture.events();
    (fixture, name)
}

fn minutes(number: u64) -> Duration {
    Duration::from_secs(60 * number)
}

fn pod(fixture: &Fixture, name: &str, status: &str, reason: &str) {
    let owner = json!([{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name, "uid": fixture.sandbox(name).uid(), "controller": true}]);
    let conditions = json!([{"type": "PodScheduled", "status": status, "reason": reason}]);
    fixture.api.create(Kind::Pod, json!({"metadata": {"name": name, "namespace": "ns", "ownerReferences": owner}, "status": {"phase": "Pending", "conditions": conditions}}));
}

/// too long is five minutes; two are fine.
#[tokio::test]
async fn x_210_a_member_that_takes_too_long_is_replaced() {
    let (fixture, name) = pool(PoolSettings::default()).await;
    fixture.clock.advance(minutes(2));
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes()[0].name(), name);
    fixture.clock.advance(minutes(8));
    assert_eq!(fixture.pool("p").await.expect("no error"), Next::After(Duration::ZERO));
    assert!(fixture.sandboxes().is_empty(), "replaced only after it is gone");
    fixture.fill("p").await;
    assert_ne!(fixture.sandboxes()[0].name(), name);
}

/// The grace period counts from when readiness was lost, not from creation: a short unreadiness does not delete an old
/// member.
#[tokio::test]
async fn a_short_unreadiness_of_an_old_member_is_tolerated() {
    let (fixture, name) = pool(PoolSettings::default()).await;
    fixture.clock.advance(minutes(60));
    fixture.networked(&name);
    fixture.clock.advance(minutes(2));
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes()[0].name(), name);
}

/// A member whose Pod has finished is replaced at once.
#[tokio::test]
async fn a_finished_member_is_replaced_at_once() {
    let (fixture, name) = pool(PoolSettings::default()).await;
    let finished = fixture.condition("Finished", "True", "PodFailed", 1);
    fixture.api.edit(Kind::Sandbox, &key(&name), json!({"status": {"conditions": [finished]}}));
    fixture.fill("p").await;
    assert_ne!(fixture.sandboxes()[0].name(), name);
}

/// a member that waits for the scheduler is kept; one event at the start, and one at the end.
#[tokio::test]
async fn x_211_unschedulable_members_are_held() {
    let (fixture, name) = pool(PoolSettings::default()).await;
    pod(&fixture, &name, "False", "Unschedulable");
    fixture.clock.advance(minutes(6));
    for _ in 0..3 {
        assert_eq!(fixture.pool("p").await.expect("no error"), Next::After(minutes(1)));
    }
    assert_eq!(fixture.sandboxes()[0].name(), name);
    let note = "1/1 sandboxes are unschedulable past the 5m0s readiness grace period; holding them instead of replacing (replacements would be equally unschedulable)";
    assert_eq!(fixture.events(), [("WarmPoolNotProgressing", "Reconciling", note.to_owned())]);
    assert_eq!(fixture.stored_pool("p").status.expect("status").replicas, Some(1), "it counts");
    fixture.ready(&name);
    assert_eq!(fixture.pool("p").await.expect("no error"), Next::Idle);
    assert_eq!(fixture.events(), [("WarmPoolProgressing", "Reconciling", "Warm pool is progressing again".to_owned())]);
}

/// a Pod that was scheduled, or none, is no reason to hold.
#[tokio::test]
async fn x_212_other_stuck_members_are_replaced() {
    for (status, reason) in [("True", ""), ("False", "SchedulerError")] {
        let (fixture, name) = pool(PoolSettings::default()).await;
        pod(&fixture, &name, status, reason);
        fixture.clock.advance(minutes(6));
        fixture.fill("p").await;
        assert!(!fixture.sandboxes().iter().any(|sandbox| sandbox.name() == name), "{status} {reason}");
    }
    let (fixture, name) = pool(PoolSettings::default()).await;
    pod(&fixture, &name, "False", "Unschedulable");
    fixture.api.edit(Kind::Pod, &key(&name), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    fixture.clock.advance(minutes(6));
    fixture.fill("p").await;
    assert!(!fixture.sandboxes().iter().any(|sandbox| sandbox.name() == name), "a Pod on its way out holds nothing");
}

/// the next deadline, a little late; nothing when all are Ready.
#[tokio::test]
async fn x_213_the_next_deadline_is_met() {
    let (fixture, name) = pool(PoolSettings::default()).await;
    fixture.clock.advance(minutes(1));
    let Next::After(delay) = fixture.pool("p").await.expect("no error") else { panic!("a deadline") };
    let earliest = minutes(4) + Duration::from_secs(2);
    assert!(delay >= earliest && delay <= earliest.mul_f64(1.5), "{delay:?}");
    fixture.ready(&name);
    assert_eq!(fixture.pool("p").await.expect("no error"), Next::Idle);
}

#[tokio::test]
async fn x_214_grace_and_recheck_are_settings() {
    let settings = PoolSettings {
        readiness_grace: minutes(10),
        unschedulable_recheck: Duration::from_secs(30),
        ..PoolSettings::default()
    };
    let (fixture, name) = pool(settings).await;
    pod(&fixture, &name, "False", "Unschedulable");
    fixture.clock.advance(minutes(9));
    fixture.pool("p").await.expect("no error");
    assert_eq!(fixture.events(), []);
    fixture.clock.advance(minutes(1));
    assert_eq!(fixture.pool("p").await.expect("no error"), Next::After(Duration::from_secs(30)));
    let defaults = PoolSettings::default();
    assert_eq!((defaults.readiness_grace, defaults.unschedulable_recheck), (minutes(5), minutes(1)));
}
