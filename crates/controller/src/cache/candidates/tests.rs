//! Which warm Sandbox a claim gets, and reservations.

use serde_json::{Value, json};

use super::*;

fn key(name: &str) -> Key {
    Key::new("n", name)
}

/// A Ready member of pool `p` on node `node-a`, with changes merged in.
fn member(name: &str, change: Value) -> Sandbox {
    let mut sandbox = json!({
        "metadata": {
            "name": name, "namespace": "n", "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": { labels::WARM_POOL_SANDBOX: "h", labels::TEMPLATE_REF_HASH: "t" },
            "ownerReferences": [{ "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "p", "uid": "pool", "controller": true }],
        },
        "spec": { "podTemplate": { "spec": {} } },
        "status": { "podIPs": ["10.0.0.1"], "nodeName": "node-a", "conditions": [ready("True", "DependenciesReady")] },
    });
    crate::testing::fake_api::merge(&mut sandbox, &change);
    serde_json::from_value(sandbox).expect("valid")
}

fn ready(status: &str, reason: &str) -> Value {
    json!({ "type": "Ready", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1 })
}

fn candidates_of(members: &[Sandbox]) -> Candidates {
    let mut candidates = Candidates::default();
    for member in members {
        candidates.update(&key(member.name()), Some(member), false);
    }
    candidates
}

fn names_in_order(candidates: &mut Candidates) -> Vec<String> {
    std::iter::from_fn(|| candidates.reserve(&["pool"], "claim", |_| true))
        .map(|pick| pick.key.name.to_string())
        .collect()
}

fn created(at: &str) -> Value {
    json!({ "metadata": { "creationTimestamp": at } })
}

#[test]
fn ready_ones_come_before_networked_ones_and_older_before_younger() {
    let mut candidates = candidates_of(&[
        member(
            "networked",
            json!({ "status": { "conditions": [ready("False", "DependenciesNotReady")] }, "metadata": { "creationTimestamp": "2020-01-01T00:00:00Z" } }),
        ),
        member("young", created("2026-01-03T00:00:00Z")),
        member("old", created("2026-01-02T00:00:00Z")),
    ]);
    assert_eq!(candidates.available(&["pool"]), 3);
    assert_eq!(names_in_order(&mut candidates), ["old", "young", "networked"]);
    assert_eq!(candidates.available(&["pool"]), 0);
}

#[test]
fn the_fullest_node_gives_first_and_an_unknown_node_last() {
    let on = |node: Value| json!({ "status": { "nodeName": node } });
    let mut candidates = candidates_of(&[
        member("b1", on(json!("node-b"))),
        member("a1", on(json!("node-a"))),
        member("a2", on(json!("node-a"))),
        member("nowhere-1", on(Value::Null)),
        member("nowhere-2", on(Value::Null)),
        member("nowhere-3", on(Value::Null)),
    ]);
    let order = names_in_order(&mut candidates);
    // node-a has two; then both have one, and the name decides.
    assert_eq!(order, ["a1", "a2", "b1", "nowhere-1", "nowhere-2", "nowhere-3"]);
}

#[test]
fn a_reservation_hides_from_others_until_it_is_released() {
    let mut candidates = candidates_of(&[member("a", json!({}))]);
    let pick = candidates.reserve(&["pool"], "first", |_| true).expect("one");
    assert_eq!(pick, Reserved { key: key("a"), uid: "uid-a".into(), grade: Grade::Ready });
    assert_eq!(candidates.reserved_by("uid-a"), Some("first"));
    assert_eq!(candidates.reserve(&["pool"], "second", |_| true), None);
    // Further changes of the Sandbox do not release it.
    candidates.update(&key("a"), Some(&member("a", json!({ "status": { "nodeName": "node-b" } }))), false);
    assert_eq!(candidates.reserve(&["pool"], "second", |_| true), None);
    candidates.release(&key("a"), "uid-a");
    assert_eq!(candidates.reserved_by("uid-a"), None);
    assert!(candidates.reserve(&["pool"], "second", |_| true).is_some());
    candidates.release(&key("a"), "uid-of-somebody-else");
    assert_eq!(candidates.reserved_by("uid-a"), Some("second"));
}

#[test]
fn a_reservation_ends_with_the_candidate() {
    let mut candidates = candidates_of(&[member("a", json!({}))]);
    candidates.reserve(&["pool"], "first", |_| true).expect("one");
    candidates.update(&key("a"), None, false);
    assert_eq!(candidates.reserved_by("uid-a"), None);
    let reborn = member("a", json!({ "metadata": { "uid": "second-life" } }));
    candidates.update(&key("a"), Some(&reborn), false);
    let pick = candidates.reserve(&["pool"], "next", |_| true).expect("the new one is free");
    assert_eq!(&*pick.uid, "second-life");
    // Replaced without a deletion in between.
    candidates.update(&key("a"), Some(&member("a", json!({}))), false);
    assert_eq!((candidates.reserved_by("second-life"), candidates.available(&["pool"])), (None, 1));
}

#[test]
fn hold_reserves_a_specific_member_unless_it_is_reserved() {
    let mut candidates = candidates_of(&[member("a", json!({})), member("b", json!({}))]);
    candidates.hold(&key("a"), "uid-a", "mine");
    assert_eq!(candidates.reserved_by("uid-a"), Some("mine"));
    candidates.hold(&key("a"), "uid-a", "thief");
    assert_eq!(candidates.reserved_by("uid-a"), Some("mine"));
    candidates.hold(&key("b"), "uid-of-an-earlier-b", "mine");
    assert_eq!(candidates.available(&["pool"]), 1);
    assert_eq!(names_in_order(&mut candidates), ["b"]);
}

#[test]
fn what_the_claim_refuses_and_other_pools_are_passed_over() {
    let other = json!({ "metadata": { "ownerReferences": [{ "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "q", "uid": "other", "controller": true }] } });
    let mut candidates = candidates_of(&[member("a", json!({})), member("b", json!({})), member("c", other)]);
    let pick = candidates.reserve(&["pool"], "claim", |key| &*key.name != "a").expect("b");
    assert_eq!(&*pick.key.name, "b");
    assert_eq!((candidates.available(&["pool"]), candidates.available(&["pool", "other"])), (1, 2));
    let pick = candidates.reserve(&["other"], "claim", |_| true).expect("c");
    assert_eq!(&*pick.key.name, "c");
    assert_eq!(candidates.reserve(&["nobody's"], "claim", |_| true), None);
}

#[test]
fn one_without_an_address_is_counted_and_never_handed_out() {
    let no_address = json!({ "status": { "podIPs": null } });
    let stale = json!({ "metadata": { "generation": 2 } });
    let no_status = json!({ "status": null });
    let mut candidates =
        candidates_of(&[member("a", no_address), member("b", stale), member("c", no_status), member("d", json!({}))]);
    assert_eq!((candidates.pending(&["pool"]), candidates.available(&["pool"])), (3, 1));
    assert_eq!(names_in_order(&mut candidates), ["d"]);
    candidates.hold(&key("a"), "uid-a", "claim");
    assert_eq!(candidates.pending(&["pool"]), 2);
}

/// Sandboxes that must never be handed out.
#[test]
fn unusable_claimed_and_foreign_sandboxes_are_no_candidates() {
    let label = |key: &str, value: Value| json!({ "metadata": { "labels": { key: value } } });
    let finished = json!({ "type": "Finished", "status": "True", "reason": "PodSucceeded", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    for (why, change) in [
        ("no pool label", label(labels::WARM_POOL_SANDBOX, Value::Null)),
        ("no template", label(labels::TEMPLATE_REF_HASH, Value::Null)),
        ("claimed", label(labels::CLAIM_UID, json!("c"))),
        ("no owner", json!({ "metadata": { "ownerReferences": null } })),
        ("deleting", json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })),
        ("suspended", json!({ "spec": { "operatingMode": "Suspended" } })),
        ("finished", json!({ "status": { "conditions": [ready("True", "DependenciesReady"), finished] } })),
        ("expired", json!({ "status": { "conditions": [ready("False", "SandboxExpired")] } })),
        ("resting", json!({ "status": { "conditions": [ready("False", "SandboxSuspended")] } })),
    ] {
        let candidates = candidates_of(&[member("a", change)]);
        assert_eq!((candidates.available(&["pool"]), candidates.pending(&["pool"])), (0, 0), "{why}");
    }
    let mut candidates = Candidates::default();
    candidates.update(&key("a"), Some(&member("a", json!({}))), true);
    assert_eq!(candidates.available(&["pool"]), 0, "its Pod is on its way out");
    candidates.update(&key("a"), Some(&member("a", json!({}))), false);
    assert_eq!(candidates.available(&["pool"]), 1);
    candidates.update(&key("a"), Some(&member("a", label(labels::CLAIM_UID, json!("c")))), false);
    assert!(candidates.by_pool.is_empty() && candidates.known.is_empty(), "nothing is left behind");
}
