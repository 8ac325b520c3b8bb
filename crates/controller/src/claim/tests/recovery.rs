//! Adoption when things go wrong: conflicts, lost answers, crashes, other leaders.

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{
    keys::{annotations, labels},
    owners,
};

use super::*;
use crate::{
    claim::ClaimSettings,
    model::Fault,
    object::Kind,
    pool::PoolSettings,
    ports::ApiError,
    reconcile::ErrorClass,
    request::{Request, Verb},
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

fn controlled(rig: &Rig, claim: &str) -> Vec<String> {
    let uid = rig.stored_claim(claim).uid().to_owned();
    let mine = |sandbox: &crate::object::Sandbox| {
        owners::controller_of(&sandbox.metadata).is_some_and(|owner| owner.uid == uid)
    };
    rig.sandboxes().iter().filter(|sandbox| mine(sandbox)).map(|sandbox| sandbox.name().to_owned()).collect()
}

/// A second controller that starts now.
fn restarted(rig: &Rig) -> Rig {
    let pools = PoolSettings { status_interval: Duration::ZERO, ..PoolSettings::default() };
    Rig::on(Arc::clone(&rig.model), rig.clock.clone(), ClaimSettings::default(), pools)
}

/// the claim was edited between the watch and B.
#[tokio::test]
async fn x_130_a_conflict_on_the_claim_is_met_in_the_same_pass() {
    let rig = Rig::new();
    rig.warm_pool(1).await;
    rig.claim_on("c", "p");
    rig.pump();
    rig.model.edit(Kind::Claim, &key("c"), json!({"metadata": {"labels": {"edited": "yes"}}}));
    rig.claims_pass("c").await.expect("no error");
    assert_eq!(rig.ready_of("c").0, "True");
    assert_eq!(rig.stored_claim("c").label("edited"), Some("yes"));
}

/// the Sandbox changed between the watch and A; the next candidate is never touched.
#[tokio::test]
async fn x_131_a_conflict_on_the_sandbox_is_met_with_the_same_candidate() {
    let rig = Rig::new();
    rig.warm_pool(2).await;
    let members = rig.sandboxes();
    rig.claim_on("c", "p");
    rig.pump();
    for member in &members {
        rig.model.edit(Kind::Sandbox, &key(member.name()), json!({"metadata": {"labels": {"edited": "yes"}}}));
    }
    rig.writes();
    rig.claims_pass("c").await.expect("no error");
    let name = rig.bound("c").expect("bound");
    let touched: Vec<String> =
        rig.writes().iter().filter(|request| is_a(request)).map(|request| request.key.name.to_string()).collect();
    assert_eq!(touched, [name.clone(), name], "one failed and one good patch");
}

#[tokio::test]
async fn x_132_both_conflicts_in_one_pass() {
    let rig = Rig::new();
    rig.warm_pool(1).await;
    rig.claim_on("c", "p");
    rig.pump();
    rig.model.fail(is_a, conflict());
    rig.model.fail(is_b, conflict());
    rig.model.fail(is_c, conflict());
    rig.claims_pass("c").await.expect("no error");
    assert_eq!(rig.ready_of("c").0, "True");
    assert_eq!(controlled(&rig, "c").len(), 1);
}

/// a crash after B: the next leader finishes with the same Sandbox, even while it has no address.
#[tokio::test]
async fn x_133_a_recorded_assignment_is_finished() {
    for networked in [true, false] {
        let rig = Rig::new();
        rig.warm_pool(3).await;
        let chosen = rig.sandboxes()[2].name().to_owned();
        if !networked {
            rig.report(&chosen, "False", "DependenciesNotReady", None);
        }
        rig.claim_with(
            "c",
            json!({"annotations": {annotations::SANDBOX_NAME: chosen}}),
            json!({"warmPoolRef": {"name": "p"}}),
        );
        rig.claim("c").await.expect("no error");
        assert_eq!(rig.bound("c"), Some(chosen.clone()));
        assert_eq!(controlled(&rig, "c"), [chosen]);
    }
}

/// A crash after A, before B: ownership alone tells whose the Sandbox is.
#[tokio::test]
async fn a_crash_between_the_lock_and_the_record_is_repaired() {
    let rig = Rig::new();
    rig.warm_pool(2).await;
    rig.claim_on("c", "p");
    rig.pump();
    rig.model.fail(is_b, Fault::Refuse(ApiError::Forbidden { message: "no".into() }));
    rig.claims_pass("c").await.expect_err("refused");
    let taken = controlled(&rig, "c");
    assert_eq!(taken.len(), 1);
    assert_eq!(rig.stored_claim("c").annotation(annotations::SANDBOX_NAME), None);

    let next = restarted(&rig);
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
    let rig = Rig::new();
    rig.warm_pool(2).await;
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    let before = (rig.stored_claim("c"), rig.sandboxes());

    // Another controller's cache ends before the adoption.
    let lagging = restarted(&rig);
    let history = 1 + 1 + 2 + 2 + 1 + 2;
    lagging.pump_some(history);
    for _ in 0..3 {
        let _ = lagging.claims_pass("c").await;
    }
    assert_eq!((rig.stored_claim("c").status, rig.sandboxes()), (before.0.status, before.1));
    lagging.claim("c").await.expect("no error");
    assert_eq!(controlled(&rig, "c").len(), 1);
}

/// X-135 as amended: a candidate that is gone is replaced in the same pass.
#[tokio::test]
async fn x_135_a_lost_candidate_is_replaced_in_the_same_pass() {
    let rig = Rig::new();
    rig.warm_pool(3).await;
    rig.claim_on("c", "p");
    rig.pump();
    let oldest = rig.sandboxes()[0].name().to_owned();
    rig.model.remove(Kind::Sandbox, &key(&oldest));
    rig.claims_pass("c").await.expect("no error");
    let name = rig.bound("c").expect("bound");
    assert_ne!(name, oldest);
    assert_eq!(rig.stored_claim("c").annotation(annotations::SANDBOX_NAME), Some(name.as_str()));
    assert_eq!(rig.ready_of("c").0, "True");
}

/// X-135 as amended: a candidate that can no longer be had is never touched again, whatever took it away.
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
        let rig = Rig::new();
        rig.warm_pool(2).await;
        rig.claim_on("c", "p");
        rig.pump();
        let first = rig.sandboxes()[0].name().to_owned();
        rig.model.edit(Kind::Sandbox, &key(&first), change);
        rig.writes();
        rig.claims_pass("c").await.expect("no error");
        let bound = rig.bound("c").expect("bound");
        assert_ne!(bound, first, "{what}");
        let touched: Vec<String> =
            rig.writes().iter().filter(|request| is_a(request)).map(|request| request.key.name.to_string()).collect();
        assert_eq!(touched, [first, bound], "{what}: one refused patch, then the next candidate");
    }
}

/// a recorded Sandbox that is gone, in either form of the record.
#[tokio::test]
async fn x_135_a_recorded_sandbox_that_is_gone_is_dropped() {
    for field in ["annotations", "labels"] {
        let rig = Rig::new();
        rig.warm_pool(1).await;
        rig.claim_with("c", json!({field: {annotations::SANDBOX_NAME: "gone"}}), json!({"warmPoolRef": {"name": "p"}}));
        rig.claim("c").await.expect("no error");
        let name = rig.bound("c").expect("bound");
        let claim = rig.stored_claim("c");
        assert_eq!(claim.annotation(annotations::SANDBOX_NAME), Some(name.as_str()));
        assert_eq!(claim.label(labels::LEGACY_SANDBOX_NAME), None);
    }
}

/// All candidates are lost: said, and the next pass helps itself.
#[tokio::test]
async fn when_all_candidates_are_lost_the_claim_says_so_and_starts_cold() {
    let rig = Rig::new();
    rig.warm_pool(2).await;
    rig.claim_on("c", "p");
    rig.pump();
    for member in rig.sandboxes() {
        rig.model.remove(Kind::Sandbox, &key(member.name()));
    }
    rig.claims_pass("c").await.expect_err("tried again");
    let (_, reason, message) = rig.ready_of("c");
    assert_eq!(reason, "AdoptionConflict");
    assert_eq!(message, "adoption write conflict: no candidate is left; the next pass retries from a converged view");
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.bound("c").as_deref(), Some("c"));
    assert_eq!(rig.stored_claim("c").annotation(annotations::SANDBOX_NAME), None, "the record of the lost one is gone");
}

/// conflicts without end.
#[tokio::test]
async fn x_136_conflicts_without_end_are_said_without_server_texts() {
    let rig = Rig::new();
    rig.warm_pool(1).await;
    rig.claim_on("c", "p");
    rig.pump();
    for _ in 0..6 {
        rig.model.fail(is_a, conflict());
    }
    let error = rig.claims_pass("c").await.expect_err("tried again");
    assert_eq!(error.class, ErrorClass::Transient);
    let (_, reason, message) = rig.ready_of("c");
    assert_eq!(reason, "AdoptionConflict");
    assert!(message.contains("(conflicting concurrent write)") && !message.contains("secret"), "{message}");
    assert!(rig.stored_claim("c").annotation(annotations::SANDBOX_NAME).is_some(), "the record stays");
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.ready_of("c").0, "True");
}

/// the record of a lost Sandbox cannot be removed now; a later pass does.
#[tokio::test]
async fn x_137_a_record_that_cannot_be_removed_is_removed_later() {
    let rig = Rig::new();
    rig.template("t", json!({}));
    rig.pool_of("p", "t", 0);
    rig.claim_with(
        "c",
        json!({"annotations": {annotations::SANDBOX_NAME: "gone"}}),
        json!({"warmPoolRef": {"name": "p"}}),
    );
    rig.pump();
    rig.model.fail(is_b, Fault::Refuse(ApiError::Forbidden { message: "no".into() }));
    rig.claims_pass("c").await.expect_err("tried again");
    assert_eq!(rig.stored_claim("c").annotation(annotations::SANDBOX_NAME), Some("gone"));
    rig.claim("c").await.expect("no error");
    assert_eq!(controlled(&rig, "c"), ["c"]);
    let recorded = rig.stored_claim("c").annotation(annotations::SANDBOX_NAME).map(str::to_owned);
    assert_ne!(recorded.as_deref(), Some("gone"));
}

/// a process that no longer leads stops, and says nothing.
#[tokio::test]
async fn x_138_losing_leadership_is_no_conflict() {
    let rig = Rig::new();
    rig.warm_pool(1).await;
    rig.claim_on("c", "p");
    rig.pump();
    for _ in 0..2 {
        rig.model.fail(|_| true, Fault::Refuse(ApiError::NotLeader));
    }
    rig.writes();
    let error = rig.claims_pass("c").await.expect_err("stopped");
    assert_eq!(error.class, ErrorClass::NotLeader);
    assert_eq!(rig.writes().len(), 2, "A and B, no status");
    assert!(rig.stored_claim("c").status.is_none());
}

/// a recorded Sandbox that serves another claim, in either version of its reference.
#[tokio::test]
async fn x_139_somebody_elses_sandbox_is_left_alone() {
    for version in ["v1beta1", "v1alpha1"] {
        let rig = Rig::new();
        rig.template("t", json!({}));
        rig.pool_of("p", "t", 0);
        let owner = json!({"apiVersion": format!("extensions.agents.x-k8s.io/{version}"), "kind": "SandboxClaim", "name": "x", "uid": "x", "controller": true});
        rig.model.create(
            Kind::Sandbox,
            json!({"metadata": {"name": "s", "namespace": "ns", "ownerReferences": [owner]}, "spec": {}}),
        );
        let before = rig.sandbox("s");
        rig.claim_with(
            "c",
            json!({"annotations": {annotations::SANDBOX_NAME: "s"}}),
            json!({"warmPoolRef": {"name": "p"}}),
        );
        rig.claim("c").await.expect("no error");
        assert_eq!(rig.sandbox("s"), before);
        assert_eq!(rig.bound("c").as_deref(), Some("c"));
        assert_eq!(rig.stored_claim("c").annotation(annotations::SANDBOX_NAME), None);
    }
}

/// the old form of the record is migrated.
#[tokio::test]
async fn x_022_x_140_the_legacy_label_becomes_the_annotation() {
    let rig = Rig::new();
    rig.warm_pool(1).await;
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    let name = rig.bound("c").expect("bound");
    let legacy = json!({"metadata": {"annotations": {annotations::SANDBOX_NAME: null}, "labels": {labels::LEGACY_SANDBOX_NAME: name}}});
    rig.model.edit(Kind::Claim, &key("c"), legacy);
    rig.claim("c").await.expect("no error");
    let claim = rig.stored_claim("c");
    assert_eq!(claim.annotation(annotations::SANDBOX_NAME), Some(name.as_str()));
    assert_eq!(claim.label(labels::LEGACY_SANDBOX_NAME), None);
    assert_eq!(rig.bound("c"), Some(name));
}

/// a published Sandbox is kept, and its launch type is completed, never changed.
#[tokio::test]
async fn x_141_x_142_a_bound_claim_takes_nothing_else() {
    for (stored, expected) in [(json!(null), "warm"), (json!("cold"), "cold")] {
        let rig = Rig::new();
        rig.warm_pool(2).await;
        rig.claim_on("c", "p");
        rig.claim("c").await.expect("no error");
        let name = rig.bound("c").expect("bound");
        rig.model.edit(Kind::Sandbox, &key(&name), json!({"metadata": {"labels": {labels::LAUNCH_TYPE: stored}}}));
        rig.claim("c").await.expect("no error");
        assert_eq!(rig.sandbox(&name).label(labels::LAUNCH_TYPE), Some(expected));
        assert_eq!(controlled(&rig, "c"), [name]);
    }
}

#[tokio::test]
async fn x_143_errors_do_not_unbind() {
    let rig = Rig::new();
    rig.warm_pool(1).await;
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    let name = rig.bound("c").expect("bound");
    rig.model.edit(Kind::Claim, &key("c"), json!({"spec": {"additionalPodMetadata": {"annotations": {"a": "b"}}}}));
    rig.model.fail(is_a, Fault::Refuse(ApiError::Unknown { message: "reset".into() }));
    rig.claim("c").await.expect_err("tried again");
    assert_eq!(rig.bound("c").as_deref(), Some(name.as_str()));
    assert_eq!(rig.ready_of("c").1, "ReconcilerError");
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.ready_of("c").0, "True");
}

/// Answers that are lost: the identical request is repeated, and what it did is found.
#[tokio::test]
async fn lost_answers_are_asked_for_again() {
    for lost in [is_a as fn(&Request) -> bool, is_b, is_c] {
        let rig = Rig::new();
        rig.warm_pool(2).await;
        rig.claim_on("c", "p");
        rig.pump();
        rig.model.fail(lost, Fault::LoseAnswer);
        rig.claims_pass("c").await.expect("no error");
        assert_eq!(rig.ready_of("c").0, "True");
        assert_eq!(controlled(&rig, "c"), [rig.bound("c").expect("bound")]);
    }
}

/// An API that does not answer for long: the reservation stays, and the same candidate is tried first.
#[tokio::test]
async fn silence_keeps_the_reservation() {
    let rig = Rig::new();
    rig.warm_pool(2).await;
    rig.claim_on("c", "p");
    rig.claim_on("d", "p");
    rig.pump();
    let silence = || Fault::Refuse(ApiError::Unknown { message: "timeout".into() });
    for _ in 0..10 {
        rig.model.fail(is_a, silence());
    }
    rig.claims_pass("c").await.expect_err("no answer");
    assert_eq!(rig.ready_of("c").2, "Error seen: the API server did not answer properly");
    let reserved = rig.stored_claim("c").annotation(annotations::SANDBOX_NAME).expect("recorded").to_owned();
    rig.claims_pass("d").await.expect("no error");
    assert_ne!(rig.bound("d"), Some(reserved.clone()), "nobody else gets it meanwhile");
    rig.claims_pass("c").await.expect("no error");
    assert_eq!(rig.bound("c"), Some(reserved));
}

/// The claim goes while it is being served: no status is written, and its Sandbox is left to the collector.
#[tokio::test]
async fn a_claim_that_goes_is_not_published() {
    let rig = Rig::new();
    rig.warm_pool(1).await;
    rig.claim_on("c", "p");
    rig.pump();
    rig.model.remove(Kind::Claim, &key("c"));
    rig.claim_on("c", "p");
    rig.writes();
    rig.claims_pass("c").await.expect("no error");
    // The new claim of that name is not the old one's heir, but gets its own.
    let new = rig.stored_claim("c");
    let served = rig
        .sandboxes()
        .into_iter()
        .filter(|sandbox| owners::controller_of(&sandbox.metadata).is_some_and(|owner| owner.uid == new.uid()))
        .count();
    assert!(served <= 1);
    rig.model.collect_garbage();
    rig.claim("c").await.expect("no error");
    assert_eq!(controlled(&rig, "c").len(), 1);
    assert_eq!(rig.bound("c"), controlled(&rig, "c").pop());
}

/// A deposed leader's late lock: the claim controls two, and every pass repairs that.
#[tokio::test]
async fn a_claim_that_controls_two_keeps_the_published_one() {
    for published in [true, false] {
        let rig = Rig::new();
        rig.warm_pool(2).await;
        rig.claim_on("c", "p");
        rig.claim("c").await.expect("no error");
        let kept = rig.bound("c").expect("bound");
        let extra = rig.sandboxes().into_iter().find(|sandbox| sandbox.name() != kept).expect("one more");
        let claim = rig.stored_claim("c");
        let adopt = crate::claim::metadata::adopt(&extra, &claim, None, None);
        let crate::request::Verb::Patch { body, .. } = adopt.verb else { panic!("a patch") };
        rig.model.edit(Kind::Sandbox, &key(extra.name()), body);
        if !published {
            rig.model.edit(Kind::Claim, &key("c"), json!({"status": null}));
        }
        assert_eq!(controlled(&rig, "c").len(), 2);
        rig.claim("c").await.expect("no error");
        assert_eq!(controlled(&rig, "c").join(","), kept);
        assert_eq!(rig.bound("c"), Some(kept));
    }
}

/// Another leader assigned the claim elsewhere: ours is given up.
#[tokio::test]
async fn another_leaders_assignment_is_respected() {
    let rig = Rig::new();
    rig.warm_pool(2).await;
    rig.claim_on("c", "p");
    rig.pump();
    let other = rig.sandboxes()[1].name().to_owned();
    rig.model.edit(Kind::Claim, &key("c"), json!({"metadata": {"annotations": {annotations::SANDBOX_NAME: other}}}));
    rig.claims_pass("c").await.expect("no error");
    assert_eq!(rig.bound("c"), Some(other.clone()));
    assert_eq!(controlled(&rig, "c").join(","), other);
    let returned =
        rig.sandboxes().iter().any(|sandbox| sandbox.name() != other && sandbox.label(labels::CLAIM_UID).is_some());
    assert!(!returned, "a Sandbox that had a claim never returns to a pool");
}

/// A claim that goes while its adoption is unanswered gives its candidate back.
#[tokio::test]
async fn a_reservation_goes_with_its_claim() {
    let rig = Rig::new();
    rig.warm_pool(1).await;
    rig.claim_on("c", "p");
    rig.pump();
    for _ in 0..10 {
        rig.model.fail(is_a, Fault::Refuse(ApiError::Unknown { message: "timeout".into() }));
    }
    rig.claims_pass("c").await.expect_err("no answer");
    rig.model.remove(Kind::Claim, &key("c"));
    rig.claim("c").await.expect("no error");
    rig.claim_on("d", "p");
    rig.claim("d").await.expect("no error");
    assert_ne!(rig.bound("d").as_deref(), Some("d"), "the candidate is there for others");
}
