//! Corners of a claim's decisions: lagging caches, lost candidates, claims of v1alpha1.

use std::sync::Arc;

use agent_sandbox_api::{keys::annotations, v1beta1::SandboxTemplate};

use super::*;
use crate::{
    model::Fault,
    object::Kind,
    ports::ApiError,
    request::{Request, Verb},
    world::News,
};

fn takes_a_sandbox(request: &Request) -> bool {
    request.kind == Kind::Sandbox && matches!(request.verb, Verb::Patch { .. })
}

/// a published Sandbox that this cache does not show is looked for live before anything else is published.
#[tokio::test]
async fn x_120_a_lagging_cache_does_not_publish_a_second_sandbox() {
    let rig = Rig::new();
    rig.warm_pool(2).await;
    rig.claim_on("c", "p");
    rig.claim("c").await.expect("no error");
    let published = rig.bound("c").expect("bound");
    // Another controller, which has seen the claim but not what became of the Sandbox.
    let late = Rig::on(Arc::clone(&rig.model), rig.clock.clone(), Default::default(), Default::default());
    late.store.learn(News::Event(rig.stored_pool("p")));
    late.store.learn(News::Event(rig.model.typed::<SandboxTemplate>(&key("t")).expect("there")));
    late.store.learn(News::Event(rig.stored_claim("c")));
    for other in rig.sandboxes().into_iter().filter(|sandbox| sandbox.name() != published) {
        late.store.learn(News::Event(other));
    }
    rig.writes();
    let _ = late.claims_pass("c").await;
    assert_eq!(rig.bound("c"), Some(published), "still the same");
    assert!(!rig.writes().iter().any(takes_a_sandbox), "nothing else was taken");
}

/// a refusal gives the candidate back, so that other claims can have it.
#[tokio::test]
async fn x_135_a_refused_candidate_is_free_again() {
    let rig = Rig::new();
    rig.warm_pool(1).await;
    let member = rig.sandboxes().remove(0);
    rig.model.fail(takes_a_sandbox, Fault::Refuse(ApiError::Forbidden { message: "denied".into() }));
    rig.claim_on("c", "p");
    let _ = rig.claim("c").await;
    assert_eq!(rig.bound("c"), None);
    assert_eq!(rig.store.read().candidates.reserved_by(member.uid()), None);
    rig.claim_on("d", "p");
    rig.claim("d").await.expect("no error");
    assert_eq!(rig.bound("d").as_deref(), Some(member.name()));
}

/// A pass that loses candidate after candidate to others ends, and says so, before it has tried the whole pool.
#[tokio::test]
async fn a_pass_gives_up_after_five_lost_candidates() {
    let rig = Rig::new();
    rig.warm_pool(9).await;
    rig.claim_on("c", "p");
    rig.pump();
    let other = json!([{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "name": "other", "uid": "other", "controller": true}]);
    for member in rig.sandboxes() {
        rig.model.edit(Kind::Sandbox, &key(member.name()), json!({"metadata": {"ownerReferences": other}}));
    }
    rig.writes();
    let error = rig.claims_pass("c").await.expect_err("lost them");
    assert!(error.message.contains("5 candidates were lost"), "{}", error.message);
    assert_eq!(rig.bound("c"), None);
}

fn v1alpha1_claim(rig: &Rig, name: &str, warmpool: &str) {
    let state = json!({"spec": {"warmpool": warmpool}}).to_string();
    let pool = agent_sandbox_api::names::shadow_pool("t");
    rig.claim_with(
        name,
        json!({"annotations": {annotations::V1ALPHA1_CLAIM_STATE: state}}),
        json!({"warmPoolRef": {"name": pool}}),
    );
}

/// A claim written through v1alpha1 names only a template: pools of that template serve it, unless it said `none` or they are going.
#[tokio::test]
async fn a_claim_of_a_template_uses_its_pools_unless_told_otherwise() {
    for (policy, deleting, warm) in [("default", false, true), ("none", false, false), ("default", true, false)] {
        let rig = Rig::new();
        rig.warm_pool(1).await;
        if deleting {
            rig.model.edit(Kind::Pool, &key("p"), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        }
        let member = rig.sandboxes().remove(0).name().to_owned();
        v1alpha1_claim(&rig, "c", policy);
        rig.claim("c").await.expect("no error");
        let expected = if warm { member.as_str() } else { "c" };
        let found =
            rig.bound("c").or_else(|| rig.sandboxes().iter().map(|s| s.name().to_owned()).find(|name| name == "c"));
        assert_eq!(found.as_deref(), Some(expected), "{policy} {deleting}");
    }
}

/// The same claim, whose assignment was recorded before the controller died, gets that very Sandbox.
#[tokio::test]
async fn an_assignment_of_a_template_claim_is_finished_from_its_record() {
    let rig = Rig::new();
    rig.warm_pool(2).await;
    let members = rig.sandboxes();
    v1alpha1_claim(&rig, "c", "default");
    rig.model.edit(
        Kind::Claim,
        &key("c"),
        json!({"metadata": {"annotations": {annotations::SANDBOX_NAME: members[1].name()}}}),
    );
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.bound("c").as_deref(), Some(members[1].name()));
}

/// A legacy network policy of the claim's name goes only when the claim owns it.
#[tokio::test]
async fn a_legacy_policy_of_somebody_else_stays() {
    let rig = Rig::new();
    rig.warm_pool(1).await;
    rig.claim_on("c", "p");
    let owner = json!([{"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "name": "c", "uid": "an earlier one", "controller": true}]);
    let name = agent_sandbox_api::names::network_policy("c");
    rig.model.create(
        Kind::NetworkPolicy,
        json!({"metadata": {"name": name, "namespace": "ns", "ownerReferences": owner}, "spec": {"podSelector": {}}}),
    );
    rig.claim("c").await.expect("no error");
    assert!(rig.model.get(Kind::NetworkPolicy, &key(&name)).is_some());
}
