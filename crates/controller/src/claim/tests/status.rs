//! What claims say about themselves, and what wakes them.

use agent_sandbox_api::{conditions::ConditionType, v1beta1::SandboxClaim};
use serde_json::Value;

use super::*;
use crate::{
    object::Kind,
    request::Verb,
    store::Target,
    world::{Change, World},
};

async fn bound(rig: &Rig) -> String {
    rig.warm_pool(1).await;
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    rig.bound("c").expect("bound")
}

#[tokio::test]
async fn x_150_ready_is_about_the_claims_generation() {
    let rig = Rig::new();
    let name = bound(&rig).await;
    rig.model.edit(Kind::Claim, &key("c"), json!({"spec": {"lifecycle": {"shutdownPolicy": "Retain"}}}));
    rig.claim("c").await.expect("no error");
    let claim = rig.stored_claim("c");
    assert_eq!(claim.generation(), 2);
    assert_eq!(claim.condition(ConditionType::Ready).expect("ready").observed_generation, Some(2));
    assert_ne!(rig.sandbox(&name).condition(ConditionType::Ready).expect("ready").observed_generation, Some(3));
}

/// a status from an old view does not land; it is computed again from the present one.
#[tokio::test]
async fn x_151_x_152_a_status_from_an_old_view_does_not_land() {
    let rig = Rig::new();
    let name = bound(&rig).await;
    rig.pump();
    rig.networked(&name);
    rig.model.pump(&rig.store, &mut 0, 0);
    rig.pump();
    // Somebody else changes the claim after our watch.
    rig.model.edit(Kind::Claim, &key("c"), json!({"metadata": {"labels": {"edited": "yes"}}}));
    rig.writes();
    rig.claims_pass("c").await.expect("no error");
    let statuses: Vec<_> =
        rig.writes().into_iter().filter(|request| matches!(request.verb, Verb::PatchStatus { .. })).collect();
    assert_eq!(statuses.len(), 2, "one refused, one that landed");
    for request in &statuses {
        let Verb::PatchStatus { precondition, .. } = &request.verb else { panic!("a status") };
        assert!(precondition.resource_version.is_some(), "X-152");
    }
    assert_eq!(rig.ready_of("c").1, "DependenciesNotReady");
    assert_eq!(rig.bound("c"), Some(name));
}

#[tokio::test]
async fn x_153_an_expired_sandbox_is_said_in_the_claims_words() {
    let rig = Rig::new();
    let name = bound(&rig).await;
    rig.report(&name, "False", "SandboxExpired", None);
    rig.claim("c").await.expect("no error");
    let text = "Underlying Sandbox resource has expired independently of the Claim.";
    assert_eq!(rig.ready_of("c"), ("False".into(), "SandboxExpired".into(), text.into()));
}

/// Whether a change of the bound Sandbox wakes the claim.
fn wakes(rig: &Rig, change: impl FnOnce()) -> bool {
    rig.pump();
    drain(rig);
    change();
    rig.pump();
    !rig.store.queues.claim.is_idle()
}

fn drain(rig: &Rig) {
    use futures::FutureExt;
    while !rig.store.queues.claim.is_idle() {
        rig.store.queues.claim.next().now_or_never().expect("something waits");
    }
}

#[tokio::test]
async fn x_154_only_what_is_mirrored_wakes_a_claim() {
    let rig = Rig::new();
    let name = bound(&rig).await;
    let edit = |change: Value| move |rig: &Rig| rig.model.edit(Kind::Sandbox, &key(&name.clone()), change);
    let ready = json!(rig.sandbox(&name_of(&rig)).condition(ConditionType::Ready));
    let suspended = rig.condition("Suspended", "False", "NotSuspended", 1);
    let finished = rig.condition("Finished", "True", "PodFailed", 1);
    let with = |conditions: Value| json!({"status": {"conditions": conditions}});
    let check = |change: Value, expected: bool| {
        let apply = edit.clone()(change.clone());
        assert_eq!(wakes(&rig, || apply(&rig)), expected, "{change}");
    };
    check(with(json!([ready, suspended])), false);
    check(json!({"status": {"nodeName": "elsewhere"}}), false);
    check(json!({"metadata": {"labels": {"l": "v"}}}), false);
    check(json!({"status": {"podIPs": ["10.0.0.2"]}}), true);
    check(with(json!([ready, suspended, finished])), true);
    let mut other = ready.clone();
    other["message"] = "other".into();
    check(with(json!([other, suspended, finished])), true);
    check(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), true);
}

fn name_of(rig: &Rig) -> String {
    rig.bound("c").expect("bound")
}

#[tokio::test]
async fn x_155_suspension_is_mirrored_and_resumption_too() {
    let rig = Rig::new();
    let name = bound(&rig).await;
    rig.report(&name, "False", "SandboxSuspended", None);
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.ready_of("c").1, "SandboxSuspended");
    let status = rig.stored_claim("c").status.expect("status").sandbox.expect("kept");
    assert_eq!((status.name, status.pod_ips), (Some(name.clone()), None));
    let counted = rig.metrics.render();
    rig.ready(&name);
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.ready_of("c").0, "True");
    assert_eq!(rig.metrics.render(), counted, "counted once");
}

/// whom changes of pools and templates wake.
#[tokio::test]
async fn x_156_x_157_x_195_pools_and_templates_wake_whom_they_concern() {
    fn woken(rig: &Rig, change: impl FnOnce()) -> Vec<(Target, String)> {
        use futures::FutureExt;
        rig.pump();
        let queues = [(Target::Claim, &rig.store.queues.claim), (Target::Pool, &rig.store.queues.pool)];
        let mut taken = Vec::new();
        for round in 0..2 {
            taken.clear();
            for (target, queue) in queues {
                while let Some(Some(work)) = queue.next().now_or_never() {
                    taken.push((target, work.key.name.to_string()));
                }
            }
            if round == 0 {
                continue;
            }
        }
        change();
        rig.pump();
        taken.clear();
        for (target, queue) in queues {
            while let Some(Some(work)) = queue.next().now_or_never() {
                taken.push((target, work.key.name.to_string()));
            }
        }
        taken
    }
    let rig = Rig::new();
    rig.pool_of("p", "t", 0);
    rig.pool_of("q", "u", 0);
    rig.claim_on("unbound", "p");
    rig.claim_on("bound", "p");
    rig.claim_on("other", "q");
    rig.claim_on("deleting", "p");
    rig.model.edit(Kind::Claim, &key("bound"), json!({"status": {"sandbox": {"name": "s"}}}));
    rig.model.edit(Kind::Claim, &key("deleting"), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    let claim = |name: &str| (Target::Claim, name.to_owned());
    let pool = |name: &str| (Target::Pool, name.to_owned());

    let status = woken(&rig, || rig.model.edit(Kind::Pool, &key("p"), json!({"status": {"replicas": 1}})));
    assert_eq!(status, [pool("p")], "status of a pool wakes no claim");
    let spec = woken(&rig, || rig.model.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": 1}})));
    assert_eq!(spec, [claim("unbound"), pool("p")]);
    let created = woken(&rig, || rig.template("t", json!({})));
    assert_eq!(created, [claim("bound"), claim("unbound"), pool("p")], "bound ones too, each once");
    let edited = woken(&rig, || rig.model.edit(Kind::Template, &key("t"), json!({"spec": {"service": true}})));
    assert_eq!(edited, [pool("p")], "X-195: only pools that reference it");
    let removed = woken(&rig, || rig.model.remove(Kind::Template, &key("t")));
    assert_eq!(removed, [pool("p")]);
}

#[tokio::test]
async fn x_158_conditions_are_sorted() {
    let rig = Rig::new();
    let name = bound(&rig).await;
    let finished = rig.condition("Finished", "True", "PodSucceeded", 7);
    rig.model.edit(
        Kind::Sandbox,
        &key(&name),
        json!({"status": {"conditions": [rig.condition("Ready", "False", "PodSucceeded", 1), finished]}}),
    );
    rig.claim("c").await.expect("no error");
    let claim = rig.stored_claim("c");
    assert_eq!(
        claim.conditions().iter().map(|condition| condition.type_.as_str()).collect::<Vec<_>>(),
        ["Finished", "Ready"]
    );
    let mirrored = claim.condition(ConditionType::Finished).expect("mirrored");
    assert_eq!((mirrored.reason.as_str(), mirrored.observed_generation), ("PodSucceeded", Some(7)), "word for word");

    // And goes when the Sandbox no longer says it.
    rig.ready(&name);
    rig.model.edit(
        Kind::Sandbox,
        &key(&name),
        json!({"status": {"conditions": [rig.condition("Ready", "True", "DependenciesReady", 1)]}}),
    );
    rig.claim("c").await.expect("no error");
    assert!(rig.stored_claim("c").condition(ConditionType::Finished).is_none());
}

/// Errors of a pass do not clear what was published.
#[test]
fn refusals_keep_the_binding_and_missing_clears_it() {
    use crate::claim::status::{Finding, status_after};
    use agent_sandbox_api::conditions::ClaimReady;
    let claim: SandboxClaim = serde_json::from_value(json!({
        "metadata": {"name": "c", "generation": 3},
        "spec": {},
        "status": {"sandbox": {"name": "s", "podIPs": ["10.0.0.1"]}},
    }))
    .expect("valid");
    let now = jiff::Timestamp::UNIX_EPOCH;
    let kept = status_after(&claim, Finding::Refused(ClaimReady::ReconcilerError("x".into())), now);
    assert_eq!(kept.sandbox, claim.status.clone().expect("status").sandbox);
    let cleared = status_after(&claim, Finding::Refused(ClaimReady::SandboxMissing), now);
    assert_eq!(cleared.sandbox, None);
}

/// The routes look, and nothing else: an empty world answers every change.
#[test]
fn routes_are_total() {
    let world = World::default();
    let claim: SandboxClaim =
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns"}})).expect("valid");
    let mut wakes = Vec::new();
    let delta = crate::world::Delta { old: None, new: Some(std::sync::Arc::new(claim)) };
    crate::claim::route(&world, &Change::Claim(delta), &mut wakes);
    assert_eq!(wakes.len(), 1);
}
