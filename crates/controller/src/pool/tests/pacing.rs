//! How fast a pool refills.

use super::*;
use crate::{
    api_client::ApiError,
    cache::Kind,
    claim::ClaimSettings,
    clock::Clock,
    pool::{Pacing, PacingSettings, PoolSettings, claim_yield::CLAIM_PAUSE},
    reconcile::Next,
    testing::fake_api::Fault,
};

fn paced(pacing: PacingSettings) -> Fixture {
    Fixture::with(
        ClaimSettings::default(),
        PoolSettings { pacing, status_interval: Duration::ZERO, ..PoolSettings::default() },
    )
}

fn seconds(number: f64) -> Duration {
    Duration::from_secs_f64(number)
}

/// a pause after a loss, restarted by each further one; the first fill does not wait.
#[tokio::test]
async fn x_215_x_219_a_loss_arms_the_pause() {
    let fixture = paced(PacingSettings { replenish_delay: seconds(5.0), max_refill_rate: 100.0 });
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 3);
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes().len(), 3, "the first fill");
    fixture.all_ready();
    fixture.fill("p").await;

    for claim in ["c", "d"] {
        fixture.claim_on(claim, "p");
        fixture.claim(claim).await.expect("no error");
        assert_eq!(fixture.pool("p").await.expect("no error"), Next::After(seconds(5.0)), "armed anew");
        let members = fixture.stored_pool("p").status.expect("status").replicas;
        assert_eq!(members, Some(if claim == "c" { 2 } else { 1 }), "the status is truthful");
        fixture.clock.advance(seconds(2.0));
        assert_eq!(fixture.pool("p").await.expect("no error"), Next::After(seconds(3.0)), "the rest");
    }
    fixture.clock.advance(seconds(3.0));
    fixture.writes();
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes().len(), 2 + 3);

    // Growing is not delayed.
    fixture.api.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": 4}}));
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes().len(), 2 + 4);
}

#[tokio::test]
async fn x_215_without_a_pause_refill_is_immediate() {
    let fixture = paced(PacingSettings::default());
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes().len(), 2);
}

/// stuck members are deleted, also during a pause.
#[tokio::test]
async fn x_216_stuck_members_go_during_a_pause() {
    let fixture = paced(PacingSettings { replenish_delay: seconds(3600.0), max_refill_rate: 0.0 });
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 2);
    fixture.fill("p").await;
    let name = fixture.sandboxes().remove(0).name().to_owned();
    fixture.ready(&name);
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    fixture.clock.advance(seconds(400.0));
    fixture.pool("p").await.expect("no error");
    assert_eq!(fixture.sandboxes().len(), 1, "only the claimed one is left");
    assert!(matches!(fixture.pool("p").await.expect("no error"), Next::After(_)));
}

/// a bucket of one second's worth.
#[test]
fn x_217_the_rate_is_a_bucket() {
    let start = crate::testing::fake_api::FakeClock::new().now();
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

/// a create without a response is repeated before new ones are sent.
#[tokio::test]
async fn x_218_unanswered_creates_do_not_multiply() {
    let fixture = paced(PacingSettings { max_refill_rate: 5.0, ..PacingSettings::default() });
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 4);
    for _ in 0..3 {
        fixture
            .api
            .fail(|request| request.uid().is_none(), Fault::Refuse(ApiError::Unknown { message: "reset".into() }));
    }
    fixture.pool("p").await.expect_err("no answer");
    fixture.clock.advance(seconds(1.0));
    fixture.fill("p").await;
    assert_eq!(fixture.sandboxes().len(), 4);
}

/// A pool with plenty of members defers its refill while claims are served, until they pause, and for a second at most;
/// one that runs low does not.
#[tokio::test]
async fn refill_yields_to_claims_while_members_are_plenty() {
    for (lost, waits) in [(2, true), (3, false)] {
        let fixture = Fixture::deferring();
        fixture.warm_pool(4).await;
        fixture.store.queues.claim.add(key("somebody"));
        for member in fixture.sandboxes().iter().take(lost) {
            fixture.api.remove(Kind::Sandbox, &key(member.name()));
        }
        let mut next = fixture.pool("p").await.expect("no error");
        assert_eq!(fixture.sandboxes().len() == 4 - lost, waits, "{lost} lost");
        for _ in 0..if waits { 9 } else { 0 } {
            assert!(matches!(next, Next::After(soon) if soon <= CLAIM_PAUSE && !soon.is_zero()), "{next:?}");
            fixture.clock.advance(CLAIM_PAUSE);
            next = fixture.pool("p").await.expect("no error");
            assert_eq!(fixture.sandboxes().len(), 4 - lost, "a claim still waits");
        }
        fixture.clock.advance(CLAIM_PAUSE);
        fixture.pool("p").await.expect("no error");
        assert_eq!(fixture.sandboxes().len(), 4, "{lost} lost");
    }
}

#[tokio::test]
async fn refill_begins_when_claims_pause() {
    let fixture = Fixture::deferring();
    fixture.warm_pool(4).await;
    fixture.pool("p").await.expect("no error");
    fixture.api.remove(Kind::Sandbox, &key(fixture.sandboxes()[0].name()));
    assert!(matches!(fixture.pool("p").await.expect("no error"), Next::After(soon) if soon <= CLAIM_PAUSE));
    assert_eq!(fixture.sandboxes().len(), 3, "another may follow at once");
    fixture.clock.advance(CLAIM_PAUSE);
    fixture.pool("p").await.expect("no error");
    assert_eq!(fixture.sandboxes().len(), 4);
}
