//! The contents of the index after sequences of events.

use serde_json::json;

use super::pod::{SlimPod, facts};
use super::*;
use crate::sleep::ActivityGuard;

/// A Pod object as the API would send it.
fn object(change: impl FnOnce(&mut serde_json::Value)) -> SlimPod {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "box-pod", "namespace": "team-a", "uid": "pod-1",
            "labels": {"agents.x-k8s.io/sandbox-name-hash": "abc"},
            "ownerReferences": [{
                "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "box", "uid": "u1", "controller": true
            }],
        },
        "spec": {"containers": [{"name": "c", "image": "i"}]},
        "status": {
            "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}, {"ip": "2001:db8::7"}],
            "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}],
        },
    });
    change(&mut pod);
    serde_json::from_value(pod).unwrap()
}

fn index_with(pods: &[SlimPod]) -> PodIndex {
    let index = PodIndex::default();
    index.replace_all(pods.iter().filter_map(facts).collect());
    index
}

fn ip_of(pod: Option<Arc<LivePod>>) -> Option<String> {
    pod.map(|pod| pod.ips[0].to_string())
}

/// D-157
#[test]
fn a_ready_labelled_pod_of_a_sandbox_is_found_by_uid_and_by_name() {
    let index = index_with(&[object(|_| {})]);
    assert_eq!(ip_of(index.by_uid("team-a", "u1")).as_deref(), Some("10.0.0.7"));
    let pod = index.by_name("team-a", "box").unwrap();
    assert!(pod.name_routable && pod.has_ip("2001:db8::7".parse().unwrap()));
    assert!(index.by_name("default", "box").is_none() && index.by_name("team-a", "box-pod").is_none());
    assert!(index.is_synced());
}

/// D-157
#[test]
fn owners_count_in_any_version_of_our_group_and_no_other() {
    let owner = |key: &str, value: serde_json::Value| {
        let key = key.to_owned();
        facts(&object(|pod| pod["metadata"]["ownerReferences"][0][key] = value)).is_some()
    };
    assert!(owner("apiVersion", json!("agents.x-k8s.io/v1alpha1")));
    assert!(!owner("apiVersion", json!("extensions.agents.x-k8s.io/v1beta1")));
    assert!(!owner("apiVersion", json!("evil.agents.x-k8s.io/v1")));
    assert!(!owner("apiVersion", json!("v1")));
    assert!(!owner("kind", json!("Deployment")));
    assert!(!owner("controller", json!(false)));
}

/// D-157, D-158
#[test]
fn pods_that_cannot_serve_are_not_live() {
    let live = |change: &dyn Fn(&mut serde_json::Value)| facts(&object(change)).is_some();
    assert!(live(&|_| {}));
    assert!(!live(&|pod| pod["status"]["conditions"][1]["status"] = json!("False")));
    assert!(!live(&|pod| pod["status"] = json!({})));
    assert!(!live(&|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")));
    assert!(!live(&|pod| pod["metadata"]["labels"] = json!({})));
    assert!(!live(&|pod| {
        pod["status"]["podIP"] = json!("");
        pod["status"]["podIPs"] = json!([]);
    }));
    assert!(!live(&|pod| {
        pod["status"]["podIP"] = json!("169.254.169.254");
        pod["status"]["podIPs"] = json!([{"ip": "::"}, {"ip": "nonsense"}]);
    }));
}

/// D-158
#[test]
fn entries_follow_their_pod() {
    let index = index_with(&[object(|_| {})]);
    let before = index.by_uid("team-a", "u1").unwrap();
    index.apply(facts(&object(|pod| pod["status"]["podIP"] = json!("10.0.0.8"))).unwrap());
    let after = index.by_uid("team-a", "u1").unwrap();
    assert_eq!(after.ips[0].to_string(), "10.0.0.8");
    assert_ne!(before.incarnation, after.incarnation, "connections to the old address are not used again");
    index.apply(facts(&object(|pod| pod["status"]["podIP"] = json!("10.0.0.8"))).unwrap());
    assert_eq!(
        index.by_uid("team-a", "u1").unwrap().incarnation,
        after.incarnation,
        "an unchanged Pod keeps its connections"
    );
    index.remove("team-a", "box-pod");
    assert!(index.by_uid("team-a", "u1").is_none() && index.by_name("team-a", "box").is_none() && index.is_empty());
    assert_eq!(index.known_namespace("team-a"), None);
}

/// D-159
#[test]
fn pool_members_become_reachable_by_name_when_adopted() {
    let pooled = |pod: &mut serde_json::Value| {
        pod["metadata"]["labels"]["agents.x-k8s.io/warm-pool-sandbox"] = json!("hash");
    };
    let index = index_with(&[object(pooled)]);
    assert!(!index.by_name("team-a", "box").unwrap().name_routable);
    assert!(index.by_uid("team-a", "u1").is_some());
    index.apply(facts(&object(|_| {})).unwrap());
    assert!(index.by_name("team-a", "box").unwrap().name_routable);
}

/// D-160
#[test]
fn deleting_an_old_sandbox_of_the_same_name_keeps_the_new_one() {
    let index = index_with(&[object(|_| {})]);
    index.apply(
        facts(&object(|pod| {
            pod["metadata"]["name"] = json!("box-pod-2");
            pod["metadata"]["uid"] = json!("pod-2");
            pod["metadata"]["ownerReferences"][0]["uid"] = json!("u2");
            pod["status"]["podIP"] = json!("10.0.0.9");
        }))
        .unwrap(),
    );
    index.remove("team-a", "box-pod");
    assert!(index.by_uid("team-a", "u1").is_none());
    assert_eq!(ip_of(index.by_name("team-a", "box")).as_deref(), Some("10.0.0.9"));
}

/// D-160: the same when a Pod is recreated under its own name before the old one's deletion is seen.
#[test]
fn a_recreated_pod_of_one_sandbox_replaces_the_old_one() {
    let index = index_with(&[object(|_| {})]);
    let mut second = facts(&object(|_| {})).unwrap();
    second.pod = "box-pod-2".into();
    second.pod_uid = "pod-2".into();
    index.apply(second);
    index.remove("team-a", "box-pod");
    assert_eq!(index.by_uid("team-a", "u1").unwrap().pod_uid.as_ref(), "pod-2");
    assert!(index.by_name("team-a", "box").is_some());
}

/// D-161, D-162
#[test]
fn only_the_pod_that_looked_dead_is_taken_out_of_use() {
    let index = index_with(&[object(|_| {})]);
    let dead = index.by_uid("team-a", "u1").unwrap();
    index.apply(facts(&object(|pod| pod["status"]["podIP"] = json!("10.0.0.8"))).unwrap());
    assert!(!index.mark_unreachable(&dead), "the address has changed meanwhile");
    assert!(index.by_uid("team-a", "u1").is_some());
    let dead = index.by_uid("team-a", "u1").unwrap();
    assert!(index.mark_unreachable(&dead));
    assert!(index.by_uid("team-a", "u1").is_none() && index.by_name("team-a", "box").is_none());
    index.apply(facts(&object(|pod| pod["status"]["podIP"] = json!("10.0.0.8"))).unwrap());
    assert!(index.by_uid("team-a", "u1").is_some(), "an update of the Pod brings it back");
}

#[test]
fn a_new_list_drops_what_it_does_not_contain() {
    let second = |pod: &mut serde_json::Value| {
        pod["metadata"]["name"] = json!("other-pod");
        pod["metadata"]["ownerReferences"][0] = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": "other", "uid": "u2", "controller": true
        });
    };
    let index = index_with(&[object(|_| {}), object(second)]);
    assert_eq!(index.len(), 2);
    index.replace_all(vec![facts(&object(second)).unwrap()]);
    assert!(index.by_uid("team-a", "u1").is_none() && index.by_uid("team-a", "u2").is_some());
}

/// A Pod whose owner reference names the Sandbox of another Pod.
fn impostor(namespace: &str, name: &str, uid: &str) -> PodFacts {
    let mut facts = facts(&object(|_| {})).unwrap();
    facts.namespace = namespace.into();
    facts.pod = "zz-impostor".into();
    facts.pod_uid = "impostor".into();
    facts.sandbox = name.into();
    facts.sandbox_uid = uid.into();
    facts.ips = vec!["10.6.6.6".parse().unwrap()];
    facts
}

/// D-157: an owner reference is not proof: it counts in its own namespace only.
#[test]
fn a_pod_of_another_namespace_cannot_take_a_sandboxs_uid() {
    let index = index_with(&[object(|_| {})]);
    index.apply(impostor("evil", "box", "u1"));
    assert_eq!(ip_of(index.by_uid("team-a", "u1")).as_deref(), Some("10.0.0.7"));
    assert_eq!(ip_of(index.by_name("team-a", "box")).as_deref(), Some("10.0.0.7"));
    assert_eq!(ip_of(index.by_uid("evil", "u1")).as_deref(), Some("10.6.6.6"));
    index.remove("evil", "zz-impostor");
    assert_eq!(ip_of(index.by_name("team-a", "box")).as_deref(), Some("10.0.0.7"), "its removal affects no other Pod");
    assert!(index.knows_uid("u1"));
    index.remove("team-a", "box-pod");
    assert!(!index.knows_uid("u1"));
}

/// D-160: the later Pod waits, whatever its owner reference says, in watches and in lists.
#[test]
fn the_name_and_uid_of_a_live_sandbox_stay_with_its_pod() {
    for (name, uid) in [("box", "u9"), ("box", "u1"), ("else", "u1")] {
        let index = index_with(&[object(|_| {})]);
        index.apply(impostor("team-a", name, uid));
        index.replace_all(vec![impostor("team-a", name, uid), facts(&object(|_| {})).unwrap()]);
        assert_eq!(ip_of(index.by_name("team-a", "box")).as_deref(), Some("10.0.0.7"), "{name} {uid}");
        assert_eq!(ip_of(index.by_uid("team-a", "u1")).as_deref(), Some("10.0.0.7"), "{name} {uid}");
        // An update of the first Pod keeps its position.
        index.apply(facts(&object(|pod| pod["status"]["podIP"] = json!("10.0.0.8"))).unwrap());
        assert_eq!(ip_of(index.by_name("team-a", "box")).as_deref(), Some("10.0.0.8"), "{name} {uid}");
        index.remove("team-a", "box-pod");
        assert_eq!(ip_of(index.by_name("team-a", name)).as_deref(), Some("10.6.6.6"), "{name} {uid}");
        assert_eq!(index.len(), 1);
        index.remove("team-a", "zz-impostor");
        assert!(index.is_empty() && index.known_namespace("team-a").is_none());
    }
}

/// A client that learnt an address before a suspension can still use it, but not while another Pod has the address.
#[test]
fn former_addresses_are_kept_while_no_live_pod_has_them() {
    let index = index_with(&[object(|_| {})]);
    let old = "10.0.0.7".parse().unwrap();
    assert!(!index.was_address_of("team-a", "box", old), "it is the present one");
    index.remove("team-a", "box-pod");
    assert!(index.was_address_of("team-a", "box", old));
    assert!(!index.was_address_of("team-a", "other", old) && !index.was_address_of("evil", "box", old));
    index.apply(
        facts(&object(|pod| {
            pod["metadata"]["uid"] = json!("pod-2");
            pod["status"] = json!({"podIP": "10.0.0.8", "conditions": [{"type": "Ready", "status": "True"}]});
        }))
        .unwrap(),
    );
    assert!(index.was_address_of("team-a", "box", old));
    index.apply(PodFacts { ips: vec![old], ..impostor("team-a", "else", "u7") });
    assert!(!index.was_address_of("team-a", "box", old), "another Pod has it now");
    for last in 20..40 {
        index.apply(facts(&object(|pod| pod["status"]["podIP"] = json!(format!("10.0.0.{last}")))).unwrap());
    }
    assert!(index.was_address_of("team-a", "box", "10.0.0.38".parse().unwrap()));
    assert!(!index.was_address_of("team-a", "box", "10.0.0.20".parse().unwrap()), "not for ever");
}

/// A session with a Pod counts as a use of its Sandbox, whatever the index knows of the Pod when it begins.
#[test]
fn a_session_is_a_use_of_its_sandbox_while_the_index_has_its_pod_and_before() {
    let begin = |index: &PodIndex| match index.used_pod("team-a", "box-pod") {
        UsedPod::Live(pod) => ActivityGuard::begin(&pod.activity),
        UsedPod::Unknown(activity) => ActivityGuard::begin(&activity),
    };
    let is_used = |index: &PodIndex| index.by_uid("team-a", "u1").unwrap().activity.is_open();
    let index = index_with(&[]);
    let (first, second) = (begin(&index), begin(&index));
    index.apply(facts(&object(|_| {})).unwrap());
    drop(first);
    assert!(is_used(&index), "they began before the Pod was known");
    // It is not ready for a moment.
    index.remove("team-a", "box-pod");
    let third = begin(&index);
    drop(second);
    index.apply(facts(&object(|_| {})).unwrap());
    assert!(is_used(&index), "it began while the Pod was not ready");
    drop(third);
    assert!(!is_used(&index));
    assert!(index.mark_unreachable(&index.by_uid("team-a", "u1").unwrap()));
    let fourth = begin(&index);
    index.apply(facts(&object(|_| {})).unwrap());
    assert!(is_used(&index), "it began while the Pod did not answer");
    // A Pod of the same name that belongs to another Sandbox.
    index.remove("team-a", "box-pod");
    let another = |pod: &mut serde_json::Value| pod["metadata"]["ownerReferences"][0]["uid"] = "u2".into();
    index.apply(facts(&object(another)).unwrap());
    assert!(!index.by_uid("team-a", "u2").unwrap().activity.is_open());
    drop(fourth);
}

#[test]
fn ended_sessions_with_unknown_pods_leave_nothing() {
    let index = index_with(&[]);
    for number in 0..1000 {
        drop(index.used_pod("team-a", &format!("pod-{number}")));
    }
    assert!(index.tables.read().parked.len() <= 64, "{}", index.tables.read().parked.len());
}
