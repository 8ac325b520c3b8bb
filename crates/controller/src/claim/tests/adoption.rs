//! Claims that are served from a pool.

use std::time::Duration;

use agent_sandbox_api::{
    keys::{annotations, labels},
    owners,
};

use super::*;
use crate::{
    api_client::Verb,
    cache::Kind,
    reconcile::{Next, Reconciler},
};

/// three writes, and the claim is Ready in the same pass.
#[tokio::test]
async fn x_100_x_112_x_115_a_warm_claim_costs_three_writes() {
    let fixture = Fixture::new();
    fixture.warm_pool(3).await;
    let members = fixture.sandboxes();
    fixture.claim_on("c", "p");
    fixture.events();
    fixture.writes();
    fixture.claim("c").await.expect("no error");

    let writes = fixture.writes();
    let kinds: Vec<_> =
        writes.iter().map(|request| (request.kind, matches!(request.verb, Verb::PatchStatus { .. }))).collect();
    assert_eq!(kinds.len(), 3, "{kinds:?}");
    assert_eq!(kinds[2], (Kind::Claim, true), "status last");

    let name = fixture.bound("c").expect("bound");
    assert!(members.iter().any(|member| member.name() == name));
    assert_eq!(fixture.ready_of("c").0, "True");
    let claim = fixture.stored_claim("c");
    assert_eq!(claim.annotation(annotations::SANDBOX_NAME), Some(name.as_str()));
    assert!(claim.annotation(annotations::CLAIM_FIRST_READY_AT).is_some());
    assert!(claim.annotation(annotations::CONTROLLER_FIRST_OBSERVED_AT).is_some());

    let sandbox = fixture.sandbox(&name);
    for gone in [labels::WARM_POOL_SANDBOX, labels::TEMPLATE_HASH, labels::POD_TEMPLATE_HASH] {
        assert_eq!(sandbox.label(gone), None, "{gone}");
    }
    assert_eq!(sandbox.label(labels::LAUNCH_TYPE), Some("warm"));
    assert_eq!(sandbox.label(labels::CLAIM_UID), Some(claim.uid()));
    assert!(sandbox.label(labels::TEMPLATE_REF_HASH).is_some());
    assert_eq!(sandbox.annotation(annotations::POD_NAME), Some(name.as_str()));
    assert_eq!(sandbox.metadata.owner_references.len(), 1);
    assert_eq!(owners::owning_claim(&sandbox.metadata).expect("owned").uid, claim.uid());
    let pod = sandbox.spec.pod_template.metadata();
    assert_eq!(pod.labels.expect("labels").keys().collect::<Vec<_>>(), [labels::CLAIM_UID, labels::TEMPLATE_REF_HASH]);
    assert_eq!(pod.annotations, None, "the pool's safe-to-evict is gone");
    assert_eq!(fixture.events(), [("SandboxAdopted", "Adoption", format!("Adopted warm pool Sandbox \"{name}\""))]);
    fixture.deliver_events();
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.writes(), [], "a settled claim writes nothing");
}

/// Creates claims and passes over them in turn.
async fn claims(fixture: &Fixture, names: &[&str]) {
    for name in names {
        fixture.claim_on(name, "p");
    }
    for name in names {
        fixture.claim(name).await.expect("no error");
    }
}

/// A pool `p` of `t` whose members were made one second apart, oldest first.
async fn aged_pool(fixture: &Fixture, number: usize) -> Vec<String> {
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 0);
    let mut names = Vec::new();
    for replicas in 1..=number {
        fixture.api.edit(Kind::Pool, &key("p"), json!({"spec": {"replicas": replicas}}));
        fixture.fill("p").await;
        let new =
            fixture.sandboxes().into_iter().map(|sandbox| sandbox.name().to_owned()).find(|name| !names.contains(name));
        names.push(new.expect("one more"));
        fixture.clock.advance(Duration::from_secs(1));
    }
    names
}

#[tokio::test]
async fn x_100_the_oldest_candidate_is_first() {
    let fixture = Fixture::new();
    let members = aged_pool(&fixture, 3).await;
    fixture.all_ready();
    claims(&fixture, &["c", "d", "e"]).await;
    let bound: Vec<String> = ["c", "d", "e"].map(|claim| fixture.bound(claim).expect("bound")).into();
    assert_eq!(bound, members);
}

/// Ready before networked, networked before none at all.
#[tokio::test]
async fn x_101_x_102_x_111_readiness_comes_before_age() {
    let fixture = Fixture::new();
    let members = aged_pool(&fixture, 4).await;
    fixture.networked(&members[1]);
    fixture.networked(&members[2]);
    fixture.ready(&members[3]);
    claims(&fixture, &["c", "d", "e"]).await;
    assert_eq!(fixture.bound("c").as_deref(), Some(members[3].as_str()), "Ready, though youngest");
    assert_eq!(fixture.ready_of("c").0, "True");
    assert_eq!(fixture.bound("d").as_deref(), Some(members[1].as_str()), "networked, not the one without an address");
    assert_eq!(fixture.ready_of("d").1, "DependenciesNotReady");
    assert_eq!(fixture.bound("e").as_deref(), Some(members[2].as_str()));
    assert_eq!(fixture.stored_claim("d").annotation(annotations::CLAIM_FIRST_READY_AT), None, "not Ready yet");
}

/// the fullest node first; what was passed over stays in order.
#[tokio::test]
async fn x_103_x_104_the_fullest_node_is_first() {
    let fixture = Fixture::new();
    let members = aged_pool(&fixture, 3).await;
    fixture.all_ready();
    for (member, node) in members.iter().zip(["a", "b", "b"]) {
        fixture.api.edit(Kind::Sandbox, &key(member), json!({"status": {"nodeName": node}}));
    }
    claims(&fixture, &["c", "d", "e"]).await;
    let bound: Vec<String> = ["c", "d", "e"].map(|claim| fixture.bound(claim).expect("bound")).into();
    assert_eq!(bound, [members[1].clone(), members[0].clone(), members[2].clone()]);
}

/// only Sandboxes that the pool offers are adopted.
#[tokio::test]
async fn x_105_x_106_only_the_pools_own_are_taken() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    let member = fixture.sandboxes().remove(0);
    let member_as_stored = fixture.api.get(Kind::Sandbox, &key(member.name())).expect("there");
    for change in [
        json!({}),
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"metadata": {"ownerReferences": []}}),
        json!({"metadata": {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "p", "uid": "u", "controller": true}]}}),
        json!({"metadata": {"labels": {labels::WARM_POOL_SANDBOX: null}}}),
        json!({"metadata": {"labels": {labels::TEMPLATE_REF_HASH: null}}}),
        json!({"metadata": {"labels": {labels::CLAIM_UID: "somebody"}}}),
        json!({"spec": {"operatingMode": "Suspended"}}),
        json!({"status": {"conditions": [fixture.condition("Finished", "True", "PodFailed", 1), fixture.condition("Ready", "False", "PodFailed", 1)]}}),
        json!({"status": {"conditions": [fixture.condition("Ready", "False", "SandboxExpired", 1)]}}),
    ] {
        let fixture = Fixture::new();
        fixture.template("t", json!({}));
        fixture.pool_of("p", "t", 0);
        let mut sandbox = member_as_stored.clone();
        sandbox["metadata"]["ownerReferences"][0]["uid"] = fixture.stored_pool("p").uid().into();
        fixture.api.create(Kind::Sandbox, sandbox);
        fixture.api.edit(Kind::Sandbox, &key(member.name()), change.clone());
        claims(&fixture, &["c"]).await;
        let expected = if change == json!({}) { member.name() } else { "c" };
        assert_eq!(fixture.bound("c").as_deref(), Some(expected), "{change}");
    }

    // equal hashes in another namespace.
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    fixture.api.create(
        Kind::Template,
        json!({"metadata": {"name": "t", "namespace": "other"}, "spec": {"podTemplate": {"spec": {}}}}),
    );
    fixture.api.create(Kind::Pool, json!({"metadata": {"name": "p", "namespace": "other"}, "spec": {"sandboxTemplateRef": {"name": "t"}, "replicas": 0}}));
    let elsewhere = fixture.api.create(
        Kind::Claim,
        json!({"metadata": {"name": "c", "namespace": "other"}, "spec": {"warmPoolRef": {"name": "p"}}}),
    );
    fixture.deliver_events();
    fixture.claims.reconcile(&elsewhere).await.expect("no error");
    assert!(fixture.api.get(Kind::Sandbox, &elsewhere).is_some(), "cold, in its own namespace");
}

/// A pool that was deleted and created again under its name does not offer the old pool's members.
#[tokio::test]
async fn members_of_an_earlier_pool_of_the_name_are_not_taken() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    fixture.api.remove(Kind::Pool, &key("p"));
    fixture.pool_of("p", "t", 0);
    claims(&fixture, &["c"]).await;
    assert_eq!(fixture.bound("c").as_deref(), Some("c"));
}

#[tokio::test]
async fn x_107_a_reference_to_another_pools_sandbox_is_dropped() {
    for legacy in [false, true] {
        let fixture = Fixture::new();
        fixture.warm_pool(1).await;
        let foreign = fixture.sandboxes().remove(0);
        fixture.pool_of("q", "t", 0);
        let record = json!({annotations::SANDBOX_NAME: foreign.name()});
        let metadata = if legacy { json!({"labels": record}) } else { json!({"annotations": record}) };
        fixture.claim_with("c", metadata, json!({"warmPoolRef": {"name": "q"}}));
        fixture.claim("c").await.expect("no error");
        assert_eq!(fixture.bound("c").as_deref(), Some("c"));
        let claim = fixture.stored_claim("c");
        assert_eq!(
            (claim.annotation(annotations::SANDBOX_NAME), claim.label(labels::LEGACY_SANDBOX_NAME)),
            (None, None)
        );
        assert_eq!(fixture.sandbox(foreign.name()), foreign, "untouched");
    }
}

/// a short wait for an address, without a status write.
#[tokio::test]
async fn x_108_x_109_a_claim_waits_for_an_address() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 1);
    fixture.fill("p").await;
    let member = fixture.sandboxes().remove(0).name().to_owned();
    fixture.claim_on("c", "p");
    fixture.writes();
    assert_eq!(fixture.claim("c").await.expect("no error"), Next::After(Duration::from_millis(500)));
    assert_eq!(fixture.writes(), [], "no status, no Sandbox");
    fixture.clock.advance(Duration::from_millis(1_700));
    assert_eq!(fixture.claim("c").await.expect("no error"), Next::After(Duration::from_millis(300)));

    while !fixture.store.queues.claim.is_idle() {
        fixture.store.queues.claim.next().await.expect("open");
    }
    fixture.ready(&member);
    fixture.deliver_events();
    let woken = tokio::time::timeout(Duration::from_secs(5), fixture.store.queues.claim.next()).await;
    assert_eq!(woken.expect("woken by the address").expect("open").key, key("c"));
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.bound("c"), Some(member));
}

#[tokio::test]
async fn x_110_the_wait_ends_in_a_cold_start() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 1);
    fixture.fill("p").await;
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    fixture.clock.advance(Duration::from_secs(2));
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.bound("c").as_deref(), Some("c"));

    // A claim that is first seen long after it was made does not wait again.
    fixture.claim_on("d", "p");
    fixture.clock.advance(Duration::from_secs(5));
    fixture.claim("d").await.expect("no error");
    assert_eq!(fixture.bound("d").as_deref(), Some("d"));
}

/// stale `pod-name` is put right, other annotations stay.
#[tokio::test]
async fn x_112_annotations_of_the_sandbox_are_kept() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    let name = fixture.sandboxes().remove(0).name().to_owned();
    fixture.api.edit(
        Kind::Sandbox,
        &key(&name),
        json!({"metadata": {"annotations": {annotations::POD_NAME: "stale", "mine": "kept"}}}),
    );
    fixture.ready(&name);
    let trace = json!({"annotations": {annotations::TRACE_CONTEXT: "{}"}});
    fixture.claim_with("c", trace, json!({"warmPoolRef": {"name": "p"}}));
    fixture.claim("c").await.expect("no error");
    let sandbox = fixture.sandbox(&name);
    assert_eq!(sandbox.annotation(annotations::POD_NAME), Some(name.as_str()));
    assert_eq!(sandbox.annotation("mine"), Some("kept"));
    assert_eq!(sandbox.annotation(annotations::TRACE_CONTEXT), Some("{}"));
}

/// which Pods may be evicted after adoption.
#[tokio::test]
async fn x_113_eviction_follows_template_and_claim() {
    async fn after(template: Option<&str>, claim: Option<&str>, unreadable: bool) -> Option<String> {
        let fixture = Fixture::new();
        let annotation = |value: Option<&str>| {
            value.map_or(json!({}), |value| json!({"annotations": {annotations::SAFE_TO_EVICT: value}}))
        };
        fixture.template("t", json!({"podTemplate": {"metadata": annotation(template)}}));
        fixture.pool_of("p", "t", 1);
        fixture.fill("p").await;
        fixture.all_ready();
        if unreadable {
            fixture.api.remove(Kind::Template, &key("t"));
        }
        fixture.claim_with(
            "c",
            json!({}),
            json!({"warmPoolRef": {"name": "p"}, "additionalPodMetadata": annotation(claim)}),
        );
        fixture.claim("c").await.expect("no error");
        let sandbox = fixture.sandbox(&fixture.bound("c").expect("bound"));
        sandbox.spec.pod_template.metadata().annotations.and_then(|map| map.get(annotations::SAFE_TO_EVICT).cloned())
    }
    for unreadable in [false, true] {
        assert_eq!(after(None, None, unreadable).await, None, "the pool's own is gone");
        assert_eq!(after(Some("false"), None, unreadable).await.as_deref(), Some("false"));
        assert_eq!(after(None, Some("true"), unreadable).await.as_deref(), Some("true"));
    }
}

#[tokio::test]
async fn x_114_created_by_is_the_claims() {
    for (label, expected) in [(Some("go-client"), Some("go-client")), (None, None), (Some("curl"), Some("curl"))] {
        let fixture = Fixture::new();
        fixture.warm_pool(1).await;
        let metadata = label.map_or(json!({}), |label| json!({"labels": {labels::CREATED_BY: label}}));
        fixture.claim_with("c", metadata, json!({"warmPoolRef": {"name": "p"}}));
        fixture.claim("c").await.expect("no error");
        let sandbox = fixture.sandbox(&fixture.bound("c").expect("bound"));
        assert_eq!(sandbox.label(labels::CREATED_BY), expected);
        let pod = sandbox.spec.pod_template.metadata().labels.expect("labels");
        assert_eq!(pod.get(labels::CREATED_BY).map(String::as_str), expected);
    }
}

/// stale members under both strategies.
#[tokio::test]
async fn x_116_x_117_x_118_stale_members_are_taken_only_on_replenish() {
    for (strategy, change, warm) in [
        (Some("Recreate"), Some(json!({"containers": [{"name": "main", "image": "new"}]})), false),
        (Some("Recreate"), None, true),
        (Some("OnReplenish"), Some(json!({"containers": [{"name": "main", "image": "new"}]})), true),
        (None, Some(json!({"containers": [{"name": "main", "image": "new"}]})), true),
    ] {
        let fixture = Fixture::new();
        fixture.template("t", json!({}));
        let mut spec = json!({"sandboxTemplateRef": {"name": "t"}, "replicas": 1});
        if let Some(strategy) = strategy {
            spec["updateStrategy"] = json!({"type": strategy});
        }
        fixture.pool_with("p", spec);
        fixture.fill("p").await;
        fixture.all_ready();
        if let Some(change) = &change {
            fixture.api.edit(Kind::Template, &key("t"), json!({"spec": {"podTemplate": {"spec": change}}}));
        } else {
            let name = fixture.sandboxes().remove(0).name().to_owned();
            fixture.api.edit(
                Kind::Sandbox,
                &key(&name),
                json!({"metadata": {"labels": {labels::TEMPLATE_HASH: null}}}),
            );
        }
        fixture.claim_on("c", "p");
        fixture.claim("c").await.expect("no error");
        assert_eq!(fixture.bound("c").as_deref() != Some("c"), warm, "{strategy:?} {change:?}");
    }
}

/// without the template, staleness cannot be checked: the member is neither adopted nor lost.
#[tokio::test]
async fn x_119_an_unreadable_template_keeps_members_waiting() {
    let fixture = Fixture::new();
    fixture.template("t", json!({}));
    fixture.pool_with(
        "p",
        json!({"sandboxTemplateRef": {"name": "t"}, "replicas": 1, "updateStrategy": {"type": "Recreate"}}),
    );
    fixture.fill("p").await;
    fixture.all_ready();
    let member = fixture.sandboxes().remove(0).name().to_owned();
    fixture.api.remove(Kind::Template, &key("t"));
    fixture.claim_on("c", "p");
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.ready_of("c").1, "TemplateNotFound");
    fixture.template("t", json!({}));
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.bound("c"), Some(member));
}

#[tokio::test]
async fn x_120_two_candidates_for_three_claims() {
    let fixture = Fixture::new();
    fixture.warm_pool(2).await;
    for name in ["c", "d", "e"] {
        fixture.claim_on(name, "p");
    }
    fixture.deliver_events();
    let passes = ["c", "d", "e"].map(|name| fixture.claims_pass(name));
    for outcome in futures::future::join_all(passes).await {
        outcome.expect("no error");
    }
    let mut bound: Vec<String> = ["c", "d", "e"].map(|claim| fixture.bound(claim).expect("bound")).into();
    bound.sort();
    bound.dedup();
    assert_eq!(bound.len(), 3);
    assert_eq!(bound.iter().filter(|name| !["c", "d", "e"].contains(&name.as_str())).count(), 2, "two warm, one cold");
}

/// the Sandbox loses its Pod, and the claim follows.
#[tokio::test]
async fn x_126_a_claim_follows_its_sandbox() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    claims(&fixture, &["c"]).await;
    let name = fixture.bound("c").expect("bound");
    fixture.report(&name, "False", "DependenciesNotReady", None);
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.ready_of("c").1, "DependenciesNotReady");
    assert_eq!(fixture.stored_claim("c").status.expect("status").sandbox.expect("bound").pod_ips, None);
}

/// a member that an old controller created is adopted like any other.
#[tokio::test]
async fn x_023_members_of_old_controllers_are_taken() {
    let fixture = Fixture::new();
    fixture.warm_pool(1).await;
    let name = fixture.sandboxes().remove(0).name().to_owned();
    let mut reference = json!(fixture.sandbox(&name).metadata.owner_references[0]);
    reference["apiVersion"] = "extensions.agents.x-k8s.io/v1alpha1".into();
    fixture.api.edit(Kind::Sandbox, &key(&name), json!({"metadata": {"ownerReferences": [reference]}}));
    claims(&fixture, &["c"]).await;
    assert_eq!(fixture.bound("c"), Some(name));
}
