//! Edge cases of a claim's decisions: lagging caches, lost candidates, claims of v1alpha1.

use std::sync::Arc;

use agent_sandbox_api::{keys::annotations, v1beta1::SandboxTemplate};

use super::*;
use crate::{
    api_client::{ApiError, Request, Verb},
    cache::{CacheUpdate, Kind},
    testing::fake_api::Fault,
};

fn takes_a_sandbox(request: &Request) -> bool {
    request.kind == Kind::Sandbox && matches!(request.verb, Verb::Patch { .. })
}

/// a published Sandbox that this cache does not contain is read live before another one is published.
#[tokio::test]
async fn x_120_a_lagging_cache_does_not_publish_a_second_sandbox() {
    let fixture = Fixture::new();
    fixture.warm_pool(2).await;
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    let published = fixture.bound("c").expect("bound");
    // Another controller, whose cache has the claim but not the adopted Sandbox.
    let late = Fixture::on(Arc::clone(&fixture.api), fixture.clock.clone(), Default::default(), Default::default());
    late.store.apply_update(CacheUpdate::Applied(fixture.stored_pool("p")));
    late.store.apply_update(CacheUpdate::Applied(fixture.api.typed::<SandboxTemplate>(&key("t")).expect("there")));
    late.store.apply_update(CacheUpdate::Applied(fixture.stored_claim("c")));
    for other in fixture.sandboxes().into_iter().filter(|sandbox| sandbox.name() != published) {
        late.store.apply_update(CacheUpdate::Applied(other));
    }
    fixture.writes();
    let _ = late.claims_pass("c").await;
    assert_eq!(fixture.bound("c"), Some(published), "still the same");
    assert!(!fixture.writes().iter().any(takes_a_sandbox), "nothing else was taken");
}

/// a rejected write releases the candidate, so that other claims can get it.
#[tokio::test]
async fn x_135_a_refused_candidate_is_free_again() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    let member = fixture.sandboxes().remove(0);
    fixture.api.fail(takes_a_sandbox, Fault::Refuse(ApiError::Forbidden { message: "denied".into() }));
    fixture.claim_on("c", "p");
    let _ = fixture.claim("c").await;
    assert_eq!(fixture.bound("c"), None);
    assert_eq!(fixture.store.read().candidates.reserved_by(member.uid()), None);
    fixture.claim_on("d", "p");
    fixture.claim("d").await.expect("no error");
    assert_eq!(fixture.bound("d").as_deref(), Some(member.name()));
}

/// A pass that loses candidate after candidate to other claims ends and reports it before it has tried the whole pool.
#[tokio::test]
async fn a_pass_gives_up_after_five_lost_candidates() {
    let fixture = Fixture::new();
    fixture.warm_pool(9).await;
    fixture.claim_on("c", "p");
    fixture.deliver_events();
    let other = json!([{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "name": "other", "uid": "other", "controller": true}]);
    for member in fixture.sandboxes() {
        fixture.api.edit(Kind::Sandbox, &key(member.name()), json!({"metadata": {"ownerReferences": other}}));
    }
    fixture.writes();
    let error = fixture.claims_pass("c").await.expect_err("lost them");
    assert!(error.message.contains("5 candidates were lost"), "{}", error.message);
    assert_eq!(fixture.bound("c"), None);
}

fn v1alpha1_claim(fixture: &Fixture, name: &str, warmpool: &str) {
    let state = json!({"spec": {"warmpool": warmpool}}).to_string();
    let pool = agent_sandbox_api::names::shadow_pool("t");
    fixture.claim_with(
        name,
        json!({"annotations": {annotations::V1ALPHA1_CLAIM_STATE: state}}),
        json!({"warmPoolRef": {"name": pool}}),
    );
}

/// A claim written through v1alpha1 names only a template: pools of that template serve it, unless it said `none` or
/// they are being deleted.
#[tokio::test]
async fn a_claim_of_a_template_uses_its_pools_unless_told_otherwise() {
    for (policy, deleting, warm) in [("default", false, true), ("none", false, false), ("default", true, false)] {
        let fixture = Fixture::new();
        fixture.warm_pool(1).await;
        if deleting {
            fixture.api.edit(Kind::Pool, &key("p"), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        }
        let member = fixture.sandboxes().remove(0).name().to_owned();
        v1alpha1_claim(&fixture, "c", policy);
        fixture.claim("c").await.expect("no error");
        let expected = if warm { member.as_str() } else { "c" };
        let found = fixture
            .bound("c")
            .or_else(|| fixture.sandboxes().iter().map(|s| s.name().to_owned()).find(|name| name == "c"));
        assert_eq!(found.as_deref(), Some(expected), "{policy} {deleting}");
    }
}

/// The same claim, whose assignment was recorded before the controller crashed, gets exactly that Sandbox.
#[tokio::test]
async fn an_assignment_of_a_template_claim_is_finished_from_its_record() {
    let fixture = Fixture::new();
    fixture.warm_pool(2).await;
    let members = fixture.sandboxes();
    v1alpha1_claim(&fixture, "c", "default");
    fixture.api.edit(
        Kind::Claim,
        &key("c"),
        json!({"metadata": {"annotations": {annotations::SANDBOX_NAME: members[1].name()}}}),
    );
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.bound("c").as_deref(), Some(members[1].name()));
}

/// A legacy network policy of the claim's name is deleted only when the claim owns it.
#[tokio::test]
async fn a_legacy_policy_of_another_owner_stays() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    fixture.claim_on("c", "p");
    let owner = json!([{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "name": "c", "uid": "an earlier one", "controller": true}]);
    let name = agent_sandbox_api::names::network_policy("c");
    fixture.api.create(
        Kind::NetworkPolicy,
        json!({"metadata": {"name": name, "namespace": "ns", "ownerReferences": owner}, "spec": {"podSelector": {}}}),
    );
    fixture.claim("c").await.expect("no error");
    assert!(fixture.api.get(Kind::NetworkPolicy, &key(&name)).is_some());
}
