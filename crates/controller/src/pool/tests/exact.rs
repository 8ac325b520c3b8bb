//! Exactly the necessary number of writes, and the time of the next pass.

use super::*;
use crate::{
    api_client::{Request, Verb},
    cache::Kind,
    claim::ClaimSettings,
    pool::{Pacing, PacingSettings, PoolSettings},
    reconcile::Next,
};

fn creates(writes: &[Request]) -> usize {
    writes.iter().filter(|request| matches!(request.verb, Verb::Create { .. })).count()
}

fn deletes(writes: &[Request]) -> usize {
    writes.iter().filter(|request| matches!(request.verb, Verb::Delete { .. })).count()
}

/// Each lost member is replaced, and each surplus one deleted, in one pass that requests another pass at once.
#[tokio::test]
async fn exactly_the_difference_is_written() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 5);
    fixture.fill("p").await;
    fixture.api.remove(Kind::Sandbox, &key(fixture.sandboxes()[0].name()));
    fixture.writes();
    assert_eq!(fixture.pool("p").await.expect("no error"), Next::After(Duration::ZERO));
    let writes = fixture.writes();
    assert_eq!((creates(&writes), deletes(&writes)), (1, 0));
    fixture.api.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": 3}}));
    assert_eq!(fixture.pool("p").await.expect("no error"), Next::After(Duration::ZERO));
    let writes = fixture.writes();
    assert_eq!((creates(&writes), deletes(&writes)), (0, 2));
    assert_eq!(fixture.sandboxes().len(), 3);
}

/// the next pass is due when a member's grace period ends, not before.
#[tokio::test]
async fn x_210_a_pool_looks_again_when_a_members_time_is_over() {
    let grace = Duration::from_secs(300);
    let settings = PoolSettings { status_interval: Duration::ZERO, readiness_grace: grace, ..PoolSettings::default() };
    let fixture = Fixture::with(ClaimSettings::default(), settings);
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 1);
    fixture.fill("p").await;
    let Next::After(wait) = fixture.pool("p").await.expect("no error") else { panic!("a deadline is set") };
    assert!(wait > grace, "{wait:?}");
}

/// a terminating Pod does not count as unschedulable.
#[tokio::test]
async fn x_211_a_terminating_pod_is_not_unschedulable() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 1);
    fixture.fill("p").await;
    let name = fixture.sandboxes().remove(0).name().to_owned();
    let owner = json!([{"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name, "uid": fixture.sandbox(&name).uid(), "controller": true}]);
    let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    fixture.api.create(Kind::Pod, json!({
        "metadata": {"name": name, "namespace": "ns", "ownerReferences": owner, "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"phase": "Pending", "conditions": conditions},
    }));
    fixture.clock.advance(Duration::from_secs(600));
    fixture.pool("p").await.expect("no error");
    assert!(fixture.api.get(Kind::Sandbox, &key(&name)).is_none(), "not held for the scheduler: replaced");
}

fn at(seconds: f64) -> jiff::Timestamp {
    jiff::Timestamp::UNIX_EPOCH + Duration::from_secs_f64(seconds)
}

/// created members count from then on; a pool that is full again has no pause.
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
