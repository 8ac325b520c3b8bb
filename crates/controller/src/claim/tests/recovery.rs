//! Adoption under failures: conflicts, lost responses, crashes, other leaders.

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{
    keys::{annotations, labels},
    owners,
};

use super::*;
use crate::{
    api_client::{ApiError, Request, Verb},
    cache::Kind,
    claim::ClaimSettings,
    pool::PoolSettings,
    reconcile::ErrorClass,
    testing::fake_api::Fault,
};

fn is_a(request: &Request) -> bool {
    request.kind == Kind::Sandbox && matches!(request.verb, Verb::Patch { .. })
}

fn is_b(request: &Request) -> bool {
    request.kind == Kind::Claim && matches!(request.verb, Verb::Patch { .. })
}

fn is_c(request: &Request) -> bool {
    request.kind == Kind::Claim && matches!(request.verb, Verb::PatchStatus { .. })
}

fn conflict() -> Fault {
    Fault::Refuse(ApiError::Conflict { message: "secret server text".into() })
}

fn controlled(fixture: &Fixture, claim: &str) -> Vec<String> {
    let uid = fixture.stored_claim(claim).uid().to_owned();
    let mine = |sandbox: &crate::cache::Sandbox| {
        owners::controller_of(&sandbox.metadata).is_some_and(|owner| owner.uid == uid)
    };
    fixture.sandboxes().iter().filter(|sandbox| mine(sandbox)).map(|sandbox| sandbox.name().to_owned()).collect()
}

/// A second controller that starts now.
fn restarted(fixture: &Fixture) -> Fixture {
    let pools = PoolSettings { status_interval: Duration::ZERO, ..PoolSettings::default() };
    Fixture::on(Arc::clone(&fixture.api), fixture.clock.clone(), ClaimSettings::default(), pools)
}

/// the claim was edited between the watch and B.
#[tokio::test]
async fn x_130_a_conflict_on_the_claim_is_met_in_the_same_pass() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    fixture.api.edit(Kind::Claim, &key("c"), json!({"metadata": {"labels": {"edited": "yes"}}}));
    fixture.claims_pass("c").await.expect("no error");
    assert_eq!(fixture.ready_of("c").0, "True");
    assert_eq!(fixture.stored_claim("c").label("edited"), Some("yes"));
}

/// the Sandbox changed between the watch and A; the next candidate is never touched.
#[tokio::test]
async fn x_131_a_conflict_on_the_sandbox_is_met_with_the_same_candidate() {
    let fixture = Fixture::new();
    fixture.warm_pool(2).await;
    let members = fixture.sandboxes();
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    for member in &members {
        fixture.api.edit(Kind::Sandbox, &key(member.name()), json!({"metadata": {"labels": {"edited": "yes"}}}));
    }
    fixture.writes();
    fixture.claims_pass("c").await.expect("no error");
    let name = fixture.bound("c").expect("bound");
    let touched: Vec<String> =
        fixture.writes().iter().filter(|request| is_a(request)).map(|request| request.key.name.to_string()).collect();
    assert_eq!(touched, [name.clone(), name], "one failed and one good patch");
}

#[tokio::test]
async fn x_132_both_conflicts_in_one_pass() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    fixture.api.fail(is_a, conflict());
    fixture.api.fail(is_b, conflict());
    fixture.api.fail(is_c, conflict());
    fixture.claims_pass("c").await.expect("no error");
    assert_eq!(fixture.ready_of("c").0, "True");
    assert_eq!(controlled(&fixture, "c").len(), 1);
}

/// a crash after B: the next leader finishes with the same Sandbox, even while it has no address.
#[tokio::test]
async fn x_133_a_recorded_assignment_is_finished() {
    for networked in [true, false] {
        let fixture = Fixture::new();
        fixture.warm_pool(3).await;
        let chosen = fixture.sandboxes()[2].name().to_owned();
        if !networked {
            fixture.report(&chosen, "False", "DependenciesNotReady", None);
        }
        fixture.claim_with(
            "c",
            json!({"annotations": {annotations::SANDBOX_NAME: chosen}}),
            json!({"warmPoolRef": {"name": "p"}}),
        );
        fixture.claim("c").await.expect("no error");
        assert_eq!(fixture.bound("c"), Some(chosen.clone()));
        assert_eq!(controlled(&fixture, "c"), [chosen]);
    }
}

/// A crash after A, before B: the owner reference alone assigns the Sandbox.
#[tokio::test]
async fn a_crash_between_the_lock_and_the_record_is_repaired() {
    let fixture = Fixture::new();
    fixture.warm_pool(2).await;
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    fixture.api.fail(is_b, Fault::Refuse(ApiError::Forbidden { message: "no".into() }));
    fixture.claims_pass("c").await.expect_err("refused");
    let taken = controlled(&fixture, "c");
    assert_eq!(taken.len(), 1);
    assert_eq!(fixture.stored_claim("c").annotation(annotations::SANDBOX_NAME), None);

    let next = restarted(&fixture);
    next.claim("c").await.expect("no error");
    assert_eq!(next.bound("c").as_ref(), taken.first());
    assert_eq!(
        next.stored_claim("c").annotation(annotations::SANDBOX_NAME),
        Some(taken[0].as_str()),
        "the record is made good"
    );
    assert_eq!(controlled(&next, "c"), taken, "nothing else was taken");
}

/// passes from a cache that still shows the pool as owner.
#[tokio::test]
async fn x_134_a_lagging_cache_does_no_harm() {
    let fixture = Fixture::new();
    fixture.warm_pool(2).await;
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    let before = (fixture.stored_claim("c"), fixture.sandboxes());

    // Another controller's cache ends before the adoption.
    let lagging = restarted(&fixture);
    let history = 1 + 1 + 2 + 2 + 1 + 2;
    lagging.deliver_some_events(history);
    for _ in 0..3 {
        let _ = lagging.claims_pass("c").await;
    }
    assert_eq!((fixture.stored_claim("c").status, fixture.sandboxes()), (before.0.status, before.1));
    lagging.claim("c").await.expect("no error");
    assert_eq!(controlled(&fixture, "c").len(), 1);
}

/// X-135 as amended: a candidate that is gone is replaced in the same pass.
#[tokio::test]
async fn x_135_a_lost_candidate_is_replaced_in_the_same_pass() {
    let fixture = Fixture::new();
    fixture.warm_pool(3).await;
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    let oldest = fixture.sandboxes()[0].name().to_owned();
    fixture.api.remove(Kind::Sandbox, &key(&oldest));
    fixture.claims_pass("c").await.expect("no error");
    let name = fixture.bound("c").expect("bound");
    assert_ne!(name, oldest);
    assert_eq!(fixture.stored_claim("c").annotation(annotations::SANDBOX_NAME), Some(name.as_str()));
    assert_eq!(fixture.ready_of("c").0, "True");
}

/// X-135 as amended: a candidate that is no longer available is never written again, whatever the reason.
#[tokio::test]
async fn x_135_a_candidate_that_is_no_longer_offered_is_replaced() {
    let other_pool = json!([{
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "q", "uid": "q-uid", "controller": true,
    }]);
    for (what, change) in [
        ("another claim's", json!({"metadata": {"labels": {labels::CLAIM_UID: "somebody"}}})),
        ("on its way out", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
        ("without the pool's label", json!({"metadata": {"labels": {labels::WARM_POOL_SANDBOX: null}}})),
        ("another pool's", json!({"metadata": {"ownerReferences": other_pool}})),
        ("nobody's", json!({"metadata": {"ownerReferences": []}})),
        ("suspended", json!({"spec": {"operatingMode": "Suspended"}})),
    ] {
        let fixture = Fixture::new();
        fixture.warm_pool(2).await;
        fixture.claim_on("c", "p");
        fixture.deliver_events();
        let first = fixture.sandboxes()[0].name().to_owned();
        fixture.api.edit(Kind::Sandbox, &key(&first), change);
        fixture.writes();
        fixture.claims_pass("c").await.expect("no error");
        let bound = fixture.bound("c").expect("bound");
        assert_ne!(bound, first, "{what}");
        let touched: Vec<String> = fixture
            .writes()
            .iter()
            .filter(|request| is_a(request))
            .map(|request| request.key.name.to_string())
            .collect();
        assert_eq!(touched, [first, bound], "{what}: one refused patch, then the next candidate");
    }
}

/// a recorded Sandbox that is gone, in either form of the record.
#[tokio::test]
async fn x_135_a_recorded_sandbox_that_is_gone_is_dropped() {
    for field in ["annotations", "labels"] {
        let fixture = Fixture::new();
        fixture.warm_pool(1).await;
        fixture.claim_with(
            "c",
            json!({field: {annotations::SANDBOX_NAME: "gone"}}),
            json!({"warmPoolRef": {"name": "p"}}),
        );
        fixture.claim("c").await.expect("no error");
        let name = fixture.bound("c").expect("bound");
        let claim = fixture.stored_claim("c");
        assert_eq!(claim.annotation(annotations::SANDBOX_NAME), Some(name.as_str()));
        assert_eq!(claim.label(labels::LEGACY_SANDBOX_NAME), None);
    }
}

/// All candidates are lost: this is reported, and the next pass starts cold.
#[tokio::test]
async fn when_all_candidates_are_lost_the_claim_says_so_and_starts_cold() {
    let fixture = Fixture::new();
    fixture.warm_pool(2).await;
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    for member in fixture.sandboxes() {
        fixture.api.remove(Kind::Sandbox, &key(member.name()));
    }
    fixture.claims_pass("c").await.expect_err("tried again");
    let (_, reason, message) = fixture.ready_of("c");
    assert_eq!(reason, "AdoptionConflict");
    assert_eq!(message, "adoption write conflict: no candidate is left; the next pass retries from a converged view");
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.bound("c").as_deref(), Some("c"));
    assert_eq!(
        fixture.stored_claim("c").annotation(annotations::SANDBOX_NAME),
        None,
        "the record of the lost one is gone"
    );
}

/// endless conflicts.
#[tokio::test]
async fn x_136_endless_conflicts_are_reported_without_server_texts() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    for _ in 0..6 {
        fixture.api.fail(is_a, conflict());
    }
    let error = fixture.claims_pass("c").await.expect_err("tried again");
    assert_eq!(error.class, ErrorClass::Transient);
    let (_, reason, message) = fixture.ready_of("c");
    assert_eq!(reason, "AdoptionConflict");
    assert!(message.contains("(conflicting concurrent write)") && !message.contains("secret"), "{message}");
    assert!(fixture.stored_claim("c").annotation(annotations::SANDBOX_NAME).is_some(), "the record stays");
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.ready_of("c").0, "True");
}

/// the record of a lost Sandbox cannot be removed now; a later pass does.
#[tokio::test]
async fn x_137_a_record_that_cannot_be_removed_is_removed_later() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 0);
    fixture.claim_with(
        "c",
        json!({"annotations": {annotations::SANDBOX_NAME: "gone"}}),
        json!({"warmPoolRef": {"name": "p"}}),
    );
    fixture.deliver_events();
    fixture.api.fail(is_b, Fault::Refuse(ApiError::Forbidden { message: "no".into() }));
    fixture.claims_pass("c").await.expect_err("tried again");
    assert_eq!(fixture.stored_claim("c").annotation(annotations::SANDBOX_NAME), Some("gone"));
    fixture.claim("c").await.expect("no error");
    assert_eq!(controlled(&fixture, "c"), ["c"]);
    let recorded = fixture.stored_claim("c").annotation(annotations::SANDBOX_NAME).map(str::to_owned);
    assert_ne!(recorded.as_deref(), Some("gone"));
}

/// a process that no longer leads stops without a status write.
#[tokio::test]
async fn x_138_losing_leadership_is_no_conflict() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    for _ in 0..2 {
        fixture.api.fail(|_| true, Fault::Refuse(ApiError::NotLeader));
    }
    fixture.writes();
    let error = fixture.claims_pass("c").await.expect_err("stopped");
    assert_eq!(error.class, ErrorClass::NotLeader);
    assert_eq!(fixture.writes().len(), 2, "A and B, no status");
    assert!(fixture.stored_claim("c").status.is_none());
}

/// a recorded Sandbox that serves another claim, in either version of its reference.
#[tokio::test]
async fn x_139_another_claims_sandbox_is_left_alone() {
    for version in ["v1beta1", "v1alpha1"] {
        let fixture = Fixture::new();
        fixture.template("t", json!({}));
        fixture.pool_of("p", "t", 0);
        let owner = json!({"apiVersion": format!("extensions.agents.x-k8s.io/{version}"), "kind": "SandboxClaim", "name": "x", "uid": "x", "controller": true});
        fixture.api.create(
            Kind::Sandbox,
            json!({"metadata": {"name": "s", "namespace": "ns", "ownerReferences": [owner]}, "spec": {}}),
        );
        let before = fixture.sandbox("s");
        fixture.claim_with(
            "c",
            json!({"annotations": {annotations::SANDBOX_NAME: "s"}}),
            json!({"warmPoolRef": {"name": "p"}}),
        );
        fixture.claim("c").await.expect("no error");
        assert_eq!(fixture.sandbox("s"), before);
        assert_eq!(fixture.bound("c").as_deref(), Some("c"));
        assert_eq!(fixture.stored_claim("c").annotation(annotations::SANDBOX_NAME), None);
    }
}

/// the old form of the record is migrated.
#[tokio::test]
async fn x_022_x_140_the_legacy_label_becomes_the_annotation() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    let name = fixture.bound("c").expect("bound");
    let legacy = json!({"metadata": {"annotations": {annotations::SANDBOX_NAME: null}, "labels": {labels::LEGACY_SANDBOX_NAME: name}}});
    fixture.api.edit(Kind::Claim, &key("c"), legacy);
    fixture.claim("c").await.expect("no error");
    let claim = fixture.stored_claim("c");
    assert_eq!(claim.annotation(annotations::SANDBOX_NAME), Some(name.as_str()));
    assert_eq!(claim.label(labels::LEGACY_SANDBOX_NAME), None);
    assert_eq!(fixture.bound("c"), Some(name));
}

/// a published Sandbox is kept, and its launch type is completed, never changed.
#[tokio::test]
async fn x_141_x_142_a_bound_claim_takes_nothing_else() {
    for (stored, expected) in [(json!(null), "warm"), (json!("cold"), "cold")] {
        let fixture = Fixture::new();
        fixture.warm_pool(2).await;
        fixture.claim_on("c", "p");
        fixture.claim("c").await.expect("no error");
        let name = fixture.bound("c").expect("bound");
        fixture.api.edit(Kind::Sandbox, &key(&name), json!({"metadata": {"labels": {labels::LAUNCH_TYPE: stored}}}));
        fixture.claim("c").await.expect("no error");
        assert_eq!(fixture.sandbox(&name).label(labels::LAUNCH_TYPE), Some(expected));
        assert_eq!(controlled(&fixture, "c"), [name]);
    }
}

#[tokio::test]
async fn x_143_errors_do_not_unbind() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    let name = fixture.bound("c").expect("bound");
    fixture.api.edit(Kind::Claim, &key("c"), json!({"spec": {"additionalPodMetadata": {"annotations": {"a": "b"}}}}));
    fixture.api.fail(is_a, Fault::Refuse(ApiError::Unknown { message: "reset".into() }));
    fixture.claim("c").await.expect_err("tried again");
    assert_eq!(fixture.bound("c").as_deref(), Some(name.as_str()));
    assert_eq!(fixture.ready_of("c").1, "ReconcilerError");
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.ready_of("c").0, "True");
}

/// Lost responses: the identical request is repeated, and its effect is found.
#[tokio::test]
async fn requests_without_a_response_are_repeated() {
    for lost in [is_a as fn(&Request) -> bool, is_b, is_c] {
        let fixture = Fixture::new();
        fixture.warm_pool(2).await;
        fixture.claim_on("c", "p");
        fixture.deliver_events();
        fixture.api.fail(lost, Fault::LoseResponse);
        fixture.claims_pass("c").await.expect("no error");
        assert_eq!(fixture.ready_of("c").0, "True");
        assert_eq!(controlled(&fixture, "c"), [fixture.bound("c").expect("bound")]);
    }
}

/// An API without a response for long: the reservation stays, and the same candidate is tried first.
#[tokio::test]
async fn a_missing_response_keeps_the_reservation() {
    let fixture = Fixture::new();
    fixture.warm_pool(2).await;
    fixture.claim_on("c", "p");
    fixture.claim_on("d", "p");
    fixture.deliver_events();
    let silence = || Fault::Refuse(ApiError::Unknown { message: "timeout".into() });
    for _ in 0..10 {
        fixture.api.fail(is_a, silence());
    }
    fixture.claims_pass("c").await.expect_err("no answer");
    assert_eq!(fixture.ready_of("c").2, "Error seen: the API server did not answer properly");
    let reserved = fixture.stored_claim("c").annotation(annotations::SANDBOX_NAME).expect("recorded").to_owned();
    fixture.claims_pass("d").await.expect("no error");
    assert_ne!(fixture.bound("d"), Some(reserved.clone()), "no other claim gets it meanwhile");
    fixture.claims_pass("c").await.expect("no error");
    assert_eq!(fixture.bound("c"), Some(reserved));
}

/// The claim is deleted while it is being served: no status is written, and its Sandbox is left to the garbage
/// collector.
#[tokio::test]
async fn a_claim_that_goes_is_not_published() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    fixture.api.remove(Kind::Claim, &key("c"));
    fixture.claim_on("c", "p");
    fixture.writes();
    fixture.claims_pass("c").await.expect("no error");
    // The new claim of that name does not inherit the old one's Sandbox, but gets its own.
    let new = fixture.stored_claim("c");
    let served = fixture
        .sandboxes()
        .into_iter()
        .filter(|sandbox| owners::controller_of(&sandbox.metadata).is_some_and(|owner| owner.uid == new.uid()))
        .count();
    assert!(served <= 1);
    fixture.api.collect_garbage();
    fixture.claim("c").await.expect("no error");
    assert_eq!(controlled(&fixture, "c").len(), 1);
    assert_eq!(fixture.bound("c"), controlled(&fixture, "c").pop());
}

/// A deposed leader's late lock: the claim controls two, and every pass repairs that.
#[tokio::test]
async fn a_claim_that_controls_two_keeps_the_published_one() {
    for published in [true, false] {
        let fixture = Fixture::new();
        fixture.warm_pool(2).await;
        fixture.claim_on("c", "p");
        fixture.claim("c").await.expect("no error");
        let kept = fixture.bound("c").expect("bound");
        let extra = fixture.sandboxes().into_iter().find(|sandbox| sandbox.name() != kept).expect("one more");
        let claim = fixture.stored_claim("c");
        let adopt = crate::claim::metadata::adopt(&extra, &claim, None, None);
        let crate::api_client::Verb::Patch { body, .. } = adopt.verb else { panic!("a patch") };
        fixture.api.edit(Kind::Sandbox, &key(extra.name()), body);
        if !published {
            fixture.api.edit(Kind::Claim, &key("c"), json!({"status": null}));
        }
        assert_eq!(controlled(&fixture, "c").len(), 2);
        fixture.claim("c").await.expect("no error");
        assert_eq!(controlled(&fixture, "c").join(","), kept);
        assert_eq!(fixture.bound("c"), Some(kept));
    }
}

/// Another leader assigned another Sandbox to the claim: the own candidate is released.
#[tokio::test]
async fn another_leaders_assignment_is_respected() {
    let fixture = Fixture::new();
    fixture.warm_pool(2).await;
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    let other = fixture.sandboxes()[1].name().to_owned();
    fixture.api.edit(Kind::Claim, &key("c"), json!({"metadata": {"annotations": {annotations::SANDBOX_NAME: other}}}));
    fixture.claims_pass("c").await.expect("no error");
    assert_eq!(fixture.bound("c"), Some(other.clone()));
    assert_eq!(controlled(&fixture, "c").join(","), other);
    let returned =
        fixture.sandboxes().iter().any(|sandbox| sandbox.name() != other && sandbox.label(labels::CLAIM_UID).is_some());
    assert!(!returned, "a Sandbox that had a claim never returns to a pool");
}

/// A claim that is deleted while its adoption has no response releases its candidate.
#[tokio::test]
async fn a_reservation_goes_with_its_claim() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    for _ in 0..10 {
        fixture.api.fail(is_a, Fault::Refuse(ApiError::Unknown { message: "timeout".into() }));
    }
    fixture.claims_pass("c").await.expect_err("no answer");
    fixture.api.remove(Kind::Claim, &key("c"));
    fixture.claim("c").await.expect("no error");
    fixture.claim_on("d", "p");
    fixture.claim("d").await.expect("no error");
    assert_ne!(fixture.bound("d").as_deref(), Some("d"), "the candidate is there for others");
}
