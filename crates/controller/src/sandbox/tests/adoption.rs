//! Which Pods a Sandbox takes, keeps and refuses.

use super::*;

const ADOPTABLE: &str = "agents.x-k8s.io/adoptable";

/// A Sandbox whose template carries metadata.
fn labelled() -> Value {
    with(
        json!({ "spec": { "podTemplate": { "metadata": { "labels": { "team": "a" }, "annotations": { "note": "n" } } } } }),
    )
}

/// S-038, S-039, S-100, S-101, S-102: an invited or tracked Pod is taken in one patch, spec untouched.
#[tokio::test]
async fn s_038_s_039_s_100_to_s_102_adoption_is_one_patch() {
    let matching = json!({ TRACKING: HASH, "team": "a" });
    for (labels, invited) in
        [(json!({ ADOPTABLE: "true" }), true), (json!({ TRACKING: HASH }), false), (matching, false)]
    {
        let mut bench = Bench::new();
        let mut pod = unowned_pod(NAME, labels);
        crate::model::merge(&mut pod, &running());
        bench.model.create(Kind::Pod, pod);
        bench.create(labelled());
        bench.pass().await.expect("passes");
        let patches = bench.model.take_writes().into_iter().filter(|request| request.kind == Kind::Pod).count();
        assert_eq!(patches, 1);
        let (pod, sandbox) = (bench.pod(), bench.sandbox());
        assert!(is_owned(&pod.metadata, &sandbox));
        assert_eq!(label_of(&pod, TRACKING).as_deref(), Some(HASH));
        assert_eq!(label_of(&pod, "team").as_deref(), Some("a"));
        assert_eq!(annotation_of(&pod, "note").as_deref(), Some("n"));
        assert_eq!(annotation_of(&pod, "agents.x-k8s.io/propagated-labels").as_deref(), Some("team"));
        assert_eq!(annotation_of(&pod, "agents.x-k8s.io/propagated-annotations").as_deref(), Some("note"));
        assert_eq!(label_of(&pod, ADOPTABLE).is_some(), invited, "the invitation stays");
        assert_eq!(bench.model.get(Kind::Pod, &key()).expect("there")["spec"]["containers"][0]["image"], "users-own");
        assert_eq!(sandbox.annotation(POD_NAME), Some(NAME));
        let status = bench.status();
        assert_eq!(status.pod_ips, Some(vec!["10.0.0.5".to_owned(), "fd00::5".to_owned()]));
        assert_eq!(status.node_name.as_deref(), Some("node-1"));
        assert_eq!(bench.ready(), words("True", "DependenciesReady", "Pod is Ready"));
    }
}

/// S-040: a Pod that is ready already makes the Sandbox ready at once.
#[tokio::test]
async fn s_040_ready_at_once() {
    let mut bench = Bench::new();
    let mut pod = unowned_pod(NAME, json!({ TRACKING: HASH }));
    crate::model::merge(&mut pod, &running());
    bench.model.create(Kind::Pod, pod);
    bench.create(minimal());
    bench.pass().await.expect("passes");
    assert_eq!(bench.ready(), words("True", "DependenciesReady", "Pod is Ready"));
}

/// S-103: neither invited nor tracked.
#[tokio::test]
async fn s_103_a_stranger_is_refused() {
    let mut bench = Bench::new();
    bench.model.create(Kind::Pod, unowned_pod(NAME, json!({ ADOPTABLE: "yes" })));
    bench.create(with(json!({ "metadata": { "annotations": { POD_NAME: NAME } } })));
    bench.pass().await.expect_err("refused");
    let text = "Error seen: cannot adopt unowned pod \"my-sandbox\": missing required pool authorization label (\"agents.x-k8s.io/adoptable\") or sandbox tracking label (\"agents.x-k8s.io/sandbox-name-hash\")";
    assert_eq!(bench.ready(), words("False", "ReconcilerError", text));
    assert!(bench.pod().metadata.owner_references.is_empty());
    assert_eq!(bench.sandbox().annotation(POD_NAME), Some(NAME));
}

/// S-104: the annotation chooses the Pod to adopt.
#[tokio::test]
async fn s_104_the_annotated_pod_is_adopted() {
    let mut bench = Bench::new();
    bench.model.create(Kind::Pod, unowned_pod("prepared", json!({ ADOPTABLE: "true" })));
    bench.create(with(json!({ "metadata": { "annotations": { POD_NAME: "prepared" } } })));
    bench.settle().await;
    let pod = bench.pod_named("prepared").expect("there");
    assert!(is_owned(&pod.metadata, &bench.sandbox()));
    assert_eq!(annotation_of(&pod, "agents.x-k8s.io/propagated-labels"), None);
    assert_eq!(bench.count(Kind::Pod), 1);
    assert_eq!(bench.sandbox().annotation(POD_NAME), Some("prepared"));
}

/// S-105, S-106: somebody else's Pod is an error and stays as it is; an annotation that points there goes.
#[tokio::test]
async fn s_105_s_106_a_foreign_pod_is_an_error() {
    for (name, annotations) in [(NAME, json!({})), ("theirs", json!({ POD_NAME: "theirs" }))] {
        let mut bench = Bench::new();
        let mut pod = unowned_pod(name, json!({ ADOPTABLE: "true" }));
        pod["metadata"]["ownerReferences"] = foreign_owner();
        bench.model.create(Kind::Pod, pod);
        bench.create(with(json!({ "metadata": { "annotations": annotations } })));
        bench.pass().await.expect_err("refused");
        let text = format!(
            "Error seen: pod \"{name}\" is owned by ReplicaSet/other (UID: other-uid), not by sandbox \"my-sandbox\""
        );
        assert_eq!(bench.ready(), words("False", "ReconcilerError", &text));
        assert_eq!(bench.sandbox().annotation(POD_NAME), None);
        let pod = bench.pod_named(name).expect("there");
        assert_eq!(&*pod.metadata.resource_version, "1", "untouched");
    }
}

/// S-107, S-108: the Pod we own beats whatever the annotation says.
#[tokio::test]
async fn s_107_s_108_owner_beats_annotation() {
    for with_adoptable in [false, true] {
        let mut bench = Bench::new();
        bench.create(with(json!({ "metadata": { "annotations": { POD_NAME: "named" } } })));
        let uid = bench.sandbox().uid().to_owned();
        let mut pod = unowned_pod("ours", json!({ TRACKING: HASH }));
        pod["metadata"]["ownerReferences"] = json!([bench.sandbox().controller_reference()]);
        bench.model.create(Kind::Pod, pod);
        if with_adoptable {
            bench.model.create(Kind::Pod, unowned_pod("named", json!({ ADOPTABLE: "true" })));
        }
        bench.settle().await;
        assert_eq!(bench.sandbox().annotation(POD_NAME), Some("ours"));
        assert!(bench.pod_named(NAME).is_none());
        if with_adoptable {
            assert!(bench.pod_named("named").expect("there").metadata.owner_references.is_empty());
        }
        assert_eq!(bench.sandbox().uid(), uid);
    }
}

fn two_owned_pods(bench: &Bench) {
    for name in ["one", "two"] {
        let mut pod = unowned_pod(name, json!({ TRACKING: HASH }));
        pod["metadata"]["ownerReferences"] = json!([bench.sandbox().controller_reference()]);
        bench.model.create(Kind::Pod, pod);
    }
}

/// S-109, S-110: two Pods of ours: touch neither, say so once.
#[tokio::test]
async fn s_109_s_110_two_pods_are_left_alone() {
    let mut bench = Bench::new();
    bench.create(with(json!({ "spec": { "service": true } })));
    two_owned_pods(&bench);
    assert_eq!(bench.pass().await.expect("not an error"), Next::Idle);
    let text = "multiple Pods (2) are controlled by this Sandbox; refusing to choose or create a Pod";
    assert_eq!(bench.ready(), words("False", "MultiplePods", text));
    assert_eq!((bench.status().pod_ips, bench.status().node_name), (None, None));
    assert_eq!((bench.count(Kind::Pod), bench.count(Kind::Service)), (2, 0));
    let event = bench.events.try_recv().expect("said");
    assert_eq!(
        (event.reason, event.action, event.note.as_str(), event.severity),
        ("MultiplePods", "Reconciling", text, Severity::Warning)
    );
    bench.pass().await.expect("passes");
    assert!(bench.events.try_recv().is_err(), "said only once");
    assert!(bench.model.writes().iter().all(is_status));
}

/// S-116: also while suspended.
#[tokio::test]
async fn s_116_two_pods_while_suspended() {
    let mut bench = Bench::new();
    bench.create(with(json!({ "spec": { "operatingMode": "Suspended" } })));
    two_owned_pods(&bench);
    bench.pass().await.expect("not an error");
    assert_eq!(bench.count(Kind::Pod), 2);
    assert_eq!(bench.condition(ConditionType::Suspended).expect("there").1, "PodStateUnknown");
}

/// S-111, S-113: only the controller's uid counts; labels and earlier incarnations do not.
#[tokio::test]
async fn s_111_s_113_ownership_is_the_uid() {
    let mut bench = Bench::new();
    bench.create(minimal());
    let earlier = json!([{ "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": NAME, "uid": "earlier", "controller": true }]);
    for (name, owners) in [("old", earlier), ("stray", json!([]))] {
        let mut pod = unowned_pod(name, json!({ TRACKING: HASH }));
        pod["metadata"]["ownerReferences"] = owners;
        bench.model.create(Kind::Pod, pod);
    }
    bench.settle().await;
    assert!(is_owned(&bench.pod().metadata, &bench.sandbox()));
    assert_eq!(bench.sandbox().annotation(POD_NAME), Some(NAME));
    assert_eq!(bench.ready().1, "DependenciesNotReady");
}

/// S-112: a terminating Pod is still the Pod.
#[tokio::test]
async fn s_112_no_replacement_while_the_pod_terminates() {
    let mut bench = Bench::new();
    bench.create(minimal());
    let mut pod = unowned_pod("leaving", json!({ TRACKING: HASH }));
    pod["metadata"]["ownerReferences"] = json!([bench.sandbox().controller_reference()]);
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    bench.model.create(Kind::Pod, pod);
    bench.settle().await;
    assert_eq!(bench.count(Kind::Pod), 1);
    assert_eq!(bench.sandbox().annotation(POD_NAME), Some("leaving"));
}

/// S-114: which name is tracked.
#[test]
fn s_114_tracked_name() {
    let named = |annotations: Value| -> Sandbox {
        serde_json::from_value(with(json!({ "metadata": { "annotations": annotations } }))).expect("valid")
    };
    for (annotations, tracked) in [
        (Value::Null, NAME),
        (json!({ "x": "y" }), NAME),
        (json!({ POD_NAME: "" }), NAME),
        (json!({ POD_NAME: "p" }), "p"),
    ] {
        assert_eq!(tracked_name(&named(annotations)), tracked);
    }
}

/// S-115: a Pod the cache did not know is judged by the same rules.
#[tokio::test]
async fn s_115_already_exists_is_looked_at() {
    let mut bench = Bench::new();
    bench.create(minimal());
    bench.sync();
    bench.model.create(Kind::Pod, unowned_pod(NAME, json!({ TRACKING: HASH })));
    bench.reconciler.reconcile(&key()).await.expect("adopts");
    assert!(is_owned(&bench.pod().metadata, &bench.sandbox()));

    let mut bench = Bench::new();
    bench.create(minimal());
    bench.sync();
    bench.model.create(Kind::Pod, unowned_pod(NAME, json!({})));
    bench.reconciler.reconcile(&key()).await.expect_err("refuses");
    assert!(bench.ready().2.contains("cannot adopt unowned pod"));
}

/// An annotation that names a missing Pod is replaced by the Pod that is made.
#[tokio::test]
async fn a_dangling_annotation_is_corrected() {
    let mut bench = Bench::new();
    bench.create(with(json!({ "metadata": { "annotations": { POD_NAME: "vanished" } } })));
    bench.settle().await;
    assert_eq!(bench.sandbox().annotation(POD_NAME), Some(NAME));
    assert!(bench.pod_named(NAME).is_some());
}

/// A stale plan fails harmlessly: the Pod that took the name since is not deleted.
#[tokio::test]
async fn a_newer_pod_of_the_same_name_survives_a_stale_delete() {
    let mut bench = Bench::new();
    bench.create(minimal());
    bench.settle().await;
    bench.model.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": "Suspended" } }));
    bench.sync();
    bench.model.remove(Kind::Pod, &key());
    bench.model.create(Kind::Pod, unowned_pod(NAME, json!({})));
    bench.reconciler.reconcile(&key()).await.expect("not an error");
    assert!(bench.pod_named(NAME).is_some(), "somebody else's Pod survives");
    assert_eq!(bench.condition(ConditionType::Suspended).expect("there").1, "PodNotOwned");
}
