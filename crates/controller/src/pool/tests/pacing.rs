//! How fast a pool refills.

use super::*;
use crate::{
    claim::ClaimSettings,
    clock::Clock,
    model::Fault,
    object::Kind,
    pool::{LULL, Pacing, PacingSettings, PoolSettings},
    ports::ApiError,
    reconcile::Next,
};

fn paced(pacing: PacingSettings) -> Rig {
    Rig::with(
        ClaimSettings::default(),
        PoolSettings { pacing, status_interval: Duration::ZERO, ..PoolSettings::default() },
    )
}

fn seconds(number: f64) -> Duration {
    Duration::from_secs_f64(number)
}

/// a pause after a loss, armed again by each further one; the first fill does not wait.
#[tokio::test]
async fn x_215_x_219_a_loss_arms_the_pause() {
    let rig = paced(PacingSettings { replenish_delay: seconds(5.0), max_refill_rate: 100.0 });
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 3);
    rig.fill("p").await;
    assert_eq!(rig.sandboxes().len(), 3, "the first fill");
    rig.all_ready();
    rig.fill("p").await;

    for claim in ["c", "d"] {
        rig.claim_on(claim, "p");
        rig.claim(claim).await.expect("no error");
        assert_eq!(rig.pool("p").await.expect("no error"), Next::After(seconds(5.0)), "armed anew");
        let members = rig.stored_pool("p").status.expect("status").replicas;
        assert_eq!(members, Some(if claim == "c" { 2 } else { 1 }), "the status is truthful");
        rig.clock.advance(seconds(2.0));
        assert_eq!(rig.pool("p").await.expect("no error"), Next::After(seconds(3.0)), "the rest");
    }
    rig.clock.advance(seconds(3.0));
    rig.writes();
    rig.fill("p").await;
    assert_eq!(rig.sandboxes().len(), 2 + 3);

    // Growing is not delayed.
    rig.model.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": 4}}));
    rig.fill("p").await;
    assert_eq!(rig.sandboxes().len(), 2 + 4);
}

#[tokio::test]
async fn x_215_without_a_pause_refill_is_immediate() {
    let rig = paced(PacingSettings::default());
    rig.warm_pool(1).await;
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    rig.fill("p").await;
    assert_eq!(rig.sandboxes().len(), 2);
}

/// what is stuck goes, pause or not.
#[tokio::test]
async fn x_216_stuck_members_go_during_a_pause() {
    let rig = paced(PacingSettings { replenish_delay: seconds(3600.0), max_refill_rate: 0.0 });
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 2);
    rig.fill("p").await;
    let name = rig.sandboxes().remove(0).name().to_owned();
    rig.ready(&name);
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    rig.clock.advance(seconds(400.0));
    rig.pool("p").await.expect("no error");
    assert_eq!(rig.sandboxes().len(), 1, "only the claimed one is left");
    assert!(matches!(rig.pool("p").await.expect("no error"), Next::After(_)));
}

/// a bucket of one second's worth.
#[test]
fn x_217_the_rate_is_a_bucket() {
    let start = crate::model::FakeClock::new().now();
    let at =
        |after: f64| start.checked_add(jiff::SignedDuration::from_millis((after * 1000.0) as i64)).expect("in range");
    let settings = |rate| PacingSettings { max_refill_rate: rate, ..PacingSettings::default() };

    let mut pacing = Pacing::default();
    assert_eq!(pacing.take(5, at(0.0), &settings(2.0)), (2, None));
    assert_eq!(pacing.take(3, at(0.0), &settings(2.0)), (0, Some(seconds(0.5))));
    assert_eq!(pacing.take(3, at(0.5), &settings(2.0)), (1, None));
    assert_eq!(pacing.take(2, at(100.0), &settings(2.0)), (2, None));
    assert_eq!(pacing.take(9, at(200.0), &settings(2.0)), (2, None), "idling banks no more than a second's worth");

    let mut pacing = Pacing::default();
    assert_eq!(pacing.take(2, at(0.0), &settings(0.5)), (1, None));
    assert_eq!(pacing.take(1, at(0.0), &settings(0.5)), (0, Some(seconds(2.0))));

    let mut pacing = Pacing::default();
    assert_eq!(pacing.take(300, at(0.0), &settings(1e18)), (300, None), "no overflow");
    assert_eq!(pacing.take(7, at(0.0), &settings(0.0)), (7, None), "no limit");
}

/// a create that is never answered is asked for again before new ones are.
#[tokio::test]
async fn x_218_unanswered_creates_do_not_multiply() {
    let rig = paced(PacingSettings { max_refill_rate: 5.0, ..PacingSettings::default() });
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 4);
    for _ in 0..3 {
        rig.model.fail(|request| request.uid().is_none(), Fault::Refuse(ApiError::Unknown { message: "reset".into() }));
    }
    rig.pool("p").await.expect_err("no answer");
    rig.clock.advance(seconds(1.0));
    rig.fill("p").await;
    assert_eq!(rig.sandboxes().len(), 4);
}

/// A pool that has plenty leaves the machine to claims, until they pause, and for a second at most; one that runs low does not.
#[tokio::test]
async fn refill_gives_way_to_claims_while_there_is_plenty() {
    for (lost, waits) in [(2, true), (3, false)] {
        let rig = Rig::patient();
        rig.warm_pool(4).await;
        rig.store.queues.claim.add(key("somebody"));
        for member in rig.sandboxes().iter().take(lost) {
            rig.model.remove(Kind::Sandbox, &key(member.name()));
        }
        let mut next = rig.pool("p").await.expect("no error");
        assert_eq!(rig.sandboxes().len() == 4 - lost, waits, "{lost} lost");
        for _ in 0..if waits { 9 } else { 0 } {
            assert!(matches!(next, Next::After(soon) if soon <= LULL && !soon.is_zero()), "{next:?}");
            rig.clock.advance(LULL);
            next = rig.pool("p").await.expect("no error");
            assert_eq!(rig.sandboxes().len(), 4 - lost, "somebody still waits");
        }
        rig.clock.advance(LULL);
        rig.pool("p").await.expect("no error");
        assert_eq!(rig.sandboxes().len(), 4, "{lost} lost");
    }
}

#[tokio::test]
async fn refill_begins_when_claims_pause() {
    let rig = Rig::patient();
    rig.warm_pool(4).await;
    rig.pool("p").await.expect("no error");
    rig.model.remove(Kind::Sandbox, &key(rig.sandboxes()[0].name()));
    assert!(matches!(rig.pool("p").await.expect("no error"), Next::After(soon) if soon <= LULL));
    assert_eq!(rig.sandboxes().len(), 3, "another may follow at once");
    rig.clock.advance(LULL);
    rig.pool("p").await.expect("no error");
    assert_eq!(rig.sandboxes().len(), 4);
}
