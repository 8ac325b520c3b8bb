//! Members that do not become Ready.

use super::*;
use crate::{claim::ClaimSettings, object::Kind, pool::PoolSettings, reconcile::Next};

async fn pool(settings: PoolSettings) -> (Rig, String) {
    let rig = Rig::with(ClaimSettings::default(), PoolSettings { status_interval: Duration::ZERO, ..settings });
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 1);
    rig.fill("p").await;
    let name = rig.sandboxes().remove(0).name().to_owned();
    rig.events();
    (rig, name)
}

fn minutes(number: u64) -> Duration {
    Duration::from_secs(60 * number)
}

fn pod(rig: &Rig, name: &str, status: &str, reason: &str) {
    let owner = json!([{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name, "uid": rig.sandbox(name).uid(), "controller": true}]);
    let conditions = json!([{"type": "PodScheduled", "status": status, "reason": reason}]);
    rig.model.create(Kind::Pod, json!({"metadata": {"name": name, "namespace": "ns", "ownerReferences": owner}, "status": {"phase": "Pending", "conditions": conditions}}));
}

/// too long is five minutes; two are fine.
#[tokio::test]
async fn x_210_a_member_that_takes_too_long_is_replaced() {
    let (rig, name) = pool(PoolSettings::default()).await;
    rig.clock.advance(minutes(2));
    rig.fill("p").await;
    assert_eq!(rig.sandboxes()[0].name(), name);
    rig.clock.advance(minutes(8));
    assert_eq!(rig.pool("p").await.expect("no error"), Next::After(Duration::ZERO));
    assert!(rig.sandboxes().is_empty(), "replaced only after it is gone");
    rig.fill("p").await;
    assert_ne!(rig.sandboxes()[0].name(), name);
}

/// Time counts from when readiness was lost, not from creation: a flap does not cost an old member its life.
#[tokio::test]
async fn a_flap_of_an_old_member_is_forgiven() {
    let (rig, name) = pool(PoolSettings::default()).await;
    rig.clock.advance(minutes(60));
    rig.networked(&name);
    rig.clock.advance(minutes(2));
    rig.fill("p").await;
    assert_eq!(rig.sandboxes()[0].name(), name);
}

/// A member whose Pod has ended is replaced at once.
#[tokio::test]
async fn a_finished_member_is_replaced_at_once() {
    let (rig, name) = pool(PoolSettings::default()).await;
    let finished = rig.condition("Finished", "True", "PodFailed", 1);
    rig.model.edit(Kind::Sandbox, &key(&name), json!({"status": {"conditions": [finished]}}));
    rig.fill("p").await;
    assert_ne!(rig.sandboxes()[0].name(), name);
}

/// one that waits for the scheduler is held; said once, and once when it is over.
#[tokio::test]
async fn x_211_unschedulable_members_are_held() {
    let (rig, name) = pool(PoolSettings::default()).await;
    pod(&rig, &name, "False", "Unschedulable");
    rig.clock.advance(minutes(6));
    for _ in 0..3 {
        assert_eq!(rig.pool("p").await.expect("no error"), Next::After(minutes(1)));
    }
    assert_eq!(rig.sandboxes()[0].name(), name);
    let note = "1/1 sandboxes are unschedulable past the 5m0s readiness grace period; holding them instead of replacing (replacements would be equally unschedulable)";
    assert_eq!(rig.events(), [("WarmPoolNotProgressing", "Reconciling", note.to_owned())]);
    assert_eq!(rig.stored_pool("p").status.expect("status").replicas, Some(1), "it counts");
    rig.ready(&name);
    assert_eq!(rig.pool("p").await.expect("no error"), Next::Idle);
    assert_eq!(rig.events(), [("WarmPoolProgressing", "Reconciling", "Warm pool is progressing again".to_owned())]);
}

/// a Pod that was scheduled, or none, is no reason to hold.
#[tokio::test]
async fn x_212_other_stuck_members_are_replaced() {
    for (status, reason) in [("True", ""), ("False", "SchedulerError")] {
        let (rig, name) = pool(PoolSettings::default()).await;
        pod(&rig, &name, status, reason);
        rig.clock.advance(minutes(6));
        rig.fill("p").await;
        assert!(!rig.sandboxes().iter().any(|sandbox| sandbox.name() == name), "{status} {reason}");
    }
    let (rig, name) = pool(PoolSettings::default()).await;
    pod(&rig, &name, "False", "Unschedulable");
    rig.model.edit(Kind::Pod, &key(&name), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    rig.clock.advance(minutes(6));
    rig.fill("p").await;
    assert!(!rig.sandboxes().iter().any(|sandbox| sandbox.name() == name), "a Pod on its way out holds nothing");
}

/// the next deadline, a little late; nothing when all are Ready.
#[tokio::test]
async fn x_213_the_next_deadline_is_met() {
    let (rig, name) = pool(PoolSettings::default()).await;
    rig.clock.advance(minutes(1));
    let Next::After(delay) = rig.pool("p").await.expect("no error") else { panic!("a deadline") };
    let earliest = minutes(4) + Duration::from_secs(2);
    assert!(delay >= earliest && delay <= earliest.mul_f64(1.5), "{delay:?}");
    rig.ready(&name);
    assert_eq!(rig.pool("p").await.expect("no error"), Next::Idle);
}

#[tokio::test]
async fn x_214_grace_and_recheck_are_settings() {
    let settings = PoolSettings {
        readiness_grace: minutes(10),
        unschedulable_recheck: Duration::from_secs(30),
        ..PoolSettings::default()
    };
    let (rig, name) = pool(settings).await;
    pod(&rig, &name, "False", "Unschedulable");
    rig.clock.advance(minutes(9));
    rig.pool("p").await.expect("no error");
    assert_eq!(rig.events(), []);
    rig.clock.advance(minutes(1));
    assert_eq!(rig.pool("p").await.expect("no error"), Next::After(Duration::from_secs(30)));
    let defaults = PoolSettings::default();
    assert_eq!((defaults.readiness_grace, defaults.unschedulable_recheck), (minutes(5), minutes(1)));
}
