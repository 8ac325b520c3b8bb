//! As many writes as the difference asks for, no more; and when to look again.

use super::*;
use crate::{
    claim::ClaimSettings,
    object::Kind,
    pool::{Pacing, PacingSettings, PoolSettings},
    reconcile::Next,
    request::{Request, Verb},
};

fn creates(writes: &[Request]) -> usize {
    writes.iter().filter(|request| matches!(request.verb, Verb::Create { .. })).count()
}

fn deletes(writes: &[Request]) -> usize {
    writes.iter().filter(|request| matches!(request.verb, Verb::Delete { .. })).count()
}

/// A loss is made good one for one, and an excess is removed one for one, in one pass that looks again at once.
#[tokio::test]
async fn exactly_the_difference_is_written() {
    let rig = Rig::new();
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 5);
    rig.fill("p").await;
    rig.model.remove(Kind::Sandbox, &key(rig.sandboxes()[0].name()));
    rig.writes();
    assert_eq!(rig.pool("p").await.expect("no error"), Next::After(Duration::ZERO));
    let writes = rig.writes();
    assert_eq!((creates(&writes), deletes(&writes)), (1, 0));
    rig.model.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": 3}}));
    assert_eq!(rig.pool("p").await.expect("no error"), Next::After(Duration::ZERO));
    let writes = rig.writes();
    assert_eq!((creates(&writes), deletes(&writes)), (0, 2));
    assert_eq!(rig.sandboxes().len(), 3);
}

/// a member is looked at when its time is over, not before.
#[tokio::test]
async fn x_210_a_pool_looks_again_when_a_members_time_is_over() {
    let grace = Duration::from_secs(300);
    let settings = PoolSettings { status_interval: Duration::ZERO, readiness_grace: grace, ..PoolSettings::default() };
    let rig = Rig::with(ClaimSettings::default(), settings);
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 1);
    rig.fill("p").await;
    let Next::After(wait) = rig.pool("p").await.expect("no error") else { panic!("a deadline is set") };
    assert!(wait > grace, "{wait:?}");
}

/// a Pod that is on its way out says nothing about the scheduler any more.
#[tokio::test]
async fn x_211_the_word_of_a_dying_pod_does_not_count() {
    let rig = Rig::new();
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 1);
    rig.fill("p").await;
    let name = rig.sandboxes().remove(0).name().to_owned();
    let owner = json!([{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name, "uid": rig.sandbox(&name).uid(), "controller": true}]);
    let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    rig.model.create(Kind::Pod, json!({
        "metadata": {"name": name, "namespace": "ns", "ownerReferences": owner, "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": "Pending", "conditions": conditions},
    }));
    rig.clock.advance(Duration::from_secs(600));
    rig.pool("p").await.expect("no error");
    assert!(rig.model.get(Kind::Sandbox, &key(&name)).is_none(), "not held for the scheduler: replaced");
}

fn at(seconds: f64) -> jiff::Timestamp {
    jiff::Timestamp::UNIX_EPOCH + Duration::from_secs_f64(seconds)
}

/// members that were made count from then on; a pool that is full again owes no pause.
#[test]
fn x_215_the_pause_follows_real_losses() {
    let settings = PacingSettings { replenish_delay: Duration::from_secs(10), max_refill_rate: 0.0 };
    let mut pacing = Pacing::default();
    assert_eq!(pacing.observe(0, 3, at(0.0), &settings), None, "the first fill does not wait");
    pacing.created(3);
    assert_eq!(pacing.observe(2, 3, at(1.0), &settings), Some(Duration::from_secs(10)), "one of the three went");
    assert_eq!(pacing.observe(3, 3, at(2.0), &settings), None, "full again");
    assert_eq!(pacing.observe(3, 4, at(3.0), &settings), None, "a wish for more is no loss");
}

/// Half a token is worth half the wait.
#[test]
fn what_is_in_the_bucket_shortens_the_wait() {
    let settings = PacingSettings { replenish_delay: Duration::ZERO, max_refill_rate: 2.0 };
    let mut pacing = Pacing::default();
    assert_eq!(pacing.take(2, at(0.0), &settings), (2, None));
    assert_eq!(pacing.take(1, at(0.25), &settings), (0, Some(Duration::from_millis(250))));
}
