//! The status of claims, and what wakes them.

use agent_sandbox_api::{conditions::ConditionType, v1beta1::SandboxClaim};
use serde_json::Value;

use super::*;
use crate::{
    api_client::Verb,
    cache::{Change, ClusterCache, Kind, ReconcilerKind},
};

async fn bound(fixture: &Fixture) -> String {
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    fixture.bound("c").expect("bound")
}

#[tokio::test]
async fn x_150_ready_is_about_the_claims_generation() {
    let fixture = Fixture::new();
    let name = bound(&fixture).await;
    fixture.api.edit(Kind::Claim, &key("c"), json!({"spec": {"lifecycle": {"shutdownPolicy": "Retain"}}}));
    fixture.claim("c").await.expect("no error");
    let claim = fixture.stored_claim("c");
    assert_eq!(claim.generation(), 2);
    assert_eq!(claim.condition(ConditionType::Ready).expect("ready").observed_generation, Some(2));
    assert_ne!(fixture.sandbox(&name).condition(ConditionType::Ready).expect("ready").observed_generation, Some(3));
}

/// a status computed from a stale claim is rejected, and computed again from the current one.
#[tokio::test]
async fn x_151_x_152_a_status_from_an_old_view_does_not_land() {
    let fixture = Fixture::new();
    let name = bound(&fixture).await;
    fixture.deliver_events();
    fixture.networked(&name);
    fixture.api.deliver_events(&fixture.store, &mut 0, 0);
    fixture.deliver_events();
    // Another client changes the claim after the last watch event.
    fixture.api.edit(Kind::Claim, &key("c"), json!({"metadata": {"labels": {"edited": "yes"}}}));
    fixture.writes();
    fixture.claims_pass("c").await.expect("no error");
    let statuses: Vec<_> =
        fixture.writes().into_iter().filter(|request| matches!(request.verb, Verb::PatchStatus { .. })).collect();
    assert_eq!(statuses.len(), 2, "one refused, one that landed");
    for request in &statuses {
        let Verb::PatchStatus { precondition, .. } = &request.verb else { panic!("a status") };
        assert!(precondition.resource_version.is_some(), "X-152");
    }
    assert_eq!(fixture.ready_of("c").1, "DependenciesNotReady");
    assert_eq!(fixture.bound("c"), Some(name));
}

#[tokio::test]
async fn x_153_an_expired_sandbox_is_said_in_the_claims_words() {
    let fixture = Fixture::new();
    let name = bound(&fixture).await;
    fixture.report(&name, "False", "SandboxExpired", None);
    fixture.claim("c").await.expect("no error");
    let text = "Underlying Sandbox resource has expired independently of the Claim.";
    assert_eq!(fixture.ready_of("c"), ("False".into(), "SandboxExpired".into(), text.into()));
}

/// Whether a change of the bound Sandbox wakes the claim.
fn wakes(fixture: &Fixture, change: impl FnOnce()) -> bool {
    fixture.deliver_events();
    drain(fixture);
    change();
    fixture.deliver_events();
    !fixture.store.queues.claim.is_idle()
}

fn drain(fixture: &Fixture) {
    use futures::FutureExt;
    while !fixture.store.queues.claim.is_idle() {
        fixture.store.queues.claim.next().now_or_never().expect("something waits");
    }
}

#[tokio::test]
async fn x_154_only_what_is_mirrored_wakes_a_claim() {
    let fixture = Fixture::new();
    let name = bound(&fixture).await;
    let edit = |change: Value| move |fixture: &Fixture| fixture.api.edit(Kind::Sandbox, &key(&name.clone()), change);
    let ready = json!(fixture.sandbox(&name_of(&fixture)).condition(ConditionType::Ready));
    let suspended = fixture.condition("Suspended", "False", "NotSuspended", 1);
    let finished = fixture.condition("Finished", "True", "PodFailed", 1);
    let with = |conditions: Value| json!({"status": {"conditions": conditions}});
    let check = |change: Value, expected: bool| {
        let apply = edit.clone()(change.clone());
        assert_eq!(wakes(&fixture, || apply(&fixture)), expected, "{change}");
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

fn name_of(fixture: &Fixture) -> String {
    fixture.bound("c").expect("bound")
}

/// A client that reads only the claim learns the Service's name from it, and that it is gone.
#[tokio::test]
async fn the_name_of_the_service_is_mirrored() {
    let fixture = Fixture::new();
    let name = bound(&fixture).await;
    let mirrored = |fixture: &Fixture| fixture.stored_claim("c").status?.sandbox?.service_fqdn;
    assert_eq!(mirrored(&fixture), None);
    let fqdn = format!("{name}.n.svc.cluster.local");
    fixture.api.edit(Kind::Sandbox, &key(&name), json!({"status": {"serviceFQDN": fqdn}}));
    fixture.claim("c").await.expect("no error");
    assert_eq!(mirrored(&fixture), Some(fqdn));
    fixture.api.edit(Kind::Sandbox, &key(&name), json!({"status": {"serviceFQDN": null}}));
    fixture.claim("c").await.expect("no error");
    assert_eq!(mirrored(&fixture), None);
}

#[tokio::test]
async fn x_155_suspension_is_mirrored_and_resumption_too() {
    let fixture = Fixture::new();
    let name = bound(&fixture).await;
    fixture.report(&name, "False", "SandboxSuspended", None);
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.ready_of("c").1, "SandboxSuspended");
    let status = fixture.stored_claim("c").status.expect("status").sandbox.expect("kept");
    assert_eq!((status.name, status.pod_ips), (Some(name.clone()), None));
    let counted = fixture.metrics.render();
    fixture.ready(&name);
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.ready_of("c").0, "True");
    assert_eq!(fixture.metrics.render(), counted, "counted once");
}

/// which claims are woken by changes of pools and templates.
#[tokio::test]
async fn x_156_x_157_x_195_pools_and_templates_wake_whom_they_concern() {
    fn woken(fixture: &Fixture, change: impl FnOnce()) -> Vec<(ReconcilerKind, String)> {
        use futures::FutureExt;
        fixture.deliver_events();
        let queues =
            [(ReconcilerKind::Claim, &fixture.store.queues.claim), (ReconcilerKind::Pool, &fixture.store.queues.pool)];
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
        fixture.deliver_events();
        taken.clear();
        for (target, queue) in queues {
            while let Some(Some(work)) = queue.next().now_or_never() {
                taken.push((target, work.key.name.to_string()));
            }
        }
        taken
    }
    let fixture = Fixture::new();
    fixture.pool_of("p", "t", 0);
    fixture.pool_of("q", "u", 0);
    fixture.claim_on("unbound", "p");
    fixture.claim_on("bound", "p");
    fixture.claim_on("other", "q");
    fixture.claim_on("deleting", "p");
    fixture.api.edit(Kind::Claim, &key("bound"), json!({"status": {"sandbox": {"name": "s"}}}));
    fixture.api.edit(Kind::Claim, &key("deleting"), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    let claim = |name: &str| (ReconcilerKind::Claim, name.to_owned());
    let pool = |name: &str| (ReconcilerKind::Pool, name.to_owned());

    let status = woken(&fixture, || fixture.api.edit(Kind::Pool, &key("p"), json!({"status": {"replicas": 1}})));
    assert_eq!(status, [pool("p")], "status of a pool wakes no claim");
    let spec = woken(&fixture, || fixture.api.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": 1}})));
    assert_eq!(spec, [claim("unbound"), pool("p")]);
    let created = woken(&fixture, || fixture.template("t", json!({})));
    assert_eq!(created, [claim("bound"), claim("unbound"), pool("p")], "bound ones too, each once");
    let edited = woken(&fixture, || fixture.api.edit(Kind::Template, &key("t"), json!({"spec": {"service": true}})));
    assert_eq!(edited, [pool("p")], "X-195: only pools that reference it");
    let removed = woken(&fixture, || fixture.api.remove(Kind::Template, &key("t")));
    assert_eq!(removed, [pool("p")]);
}

#[tokio::test]
async fn x_158_conditions_are_sorted() {
    let fixture = Fixture::new();
    let name = bound(&fixture).await;
    let finished = fixture.condition("Finished", "True", "PodSucceeded", 7);
    fixture.api.edit(
        Kind::Sandbox,
        &key(&name),
        json!({"status": {"conditions": [fixture.condition("Ready", "False", "PodSucceeded", 1), finished]}}),
    );
    fixture.claim("c").await.expect("no error");
    let claim = fixture.stored_claim("c");
    assert_eq!(
        claim.conditions().iter().map(|condition| condition.type_.as_str()).collect::<Vec<_>>(),
        ["Finished", "Ready"]
    );
    let mirrored = claim.condition(ConditionType::Finished).expect("mirrored");
    assert_eq!((mirrored.reason.as_str(), mirrored.observed_generation), ("PodSucceeded", Some(7)), "word for word");

    // It is removed when the Sandbox no longer has it.
    fixture.ready(&name);
    fixture.api.edit(
        Kind::Sandbox,
        &key(&name),
        json!({"status": {"conditions": [fixture.condition("Ready", "True", "DependenciesReady", 1)]}}),
    );
    fixture.claim("c").await.expect("no error");
    assert!(fixture.stored_claim("c").condition(ConditionType::Finished).is_none());
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

/// The routes handle every change of an empty world.
#[test]
fn routes_are_total() {
    let world = ClusterCache::default();
    let claim: SandboxClaim =
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns"}})).expect("valid");
    let mut items = Vec::new();
    let delta = crate::cache::Delta { old: None, new: Some(std::sync::Arc::new(claim)) };
    crate::claim::route(&world, &Change::Claim(delta), &mut items);
    assert_eq!(items.len(), 1);
}
