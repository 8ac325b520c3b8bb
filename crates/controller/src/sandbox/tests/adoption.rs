//! Which Pods a Sandbox adopts, keeps and refuses.

use super::*;

const ADOPTABLE: &str = "agents.x-k8s.io/adoptable";

/// A Sandbox whose template carries metadata.
fn labelled() -> Value {
    with(
        json!({ "spec": { "podTemplate": { "metadata": { "labels": { "team": "a" }, "annotations": { "note": "n" } } } } }),
    )
}

/// S-038, S-039, S-100, S-101, S-102: a Pod with the adoption or tracking label is adopted in one patch, its spec
/// unchanged.
#[tokio::test]
async fn s_038_s_039_s_100_to_s_102_adoption_is_one_patch() {
    let matching = json!({ TRACKING: HASH, "team": "a" });
    for (labels, invited) in
        [(json!({ ADOPTABLE: "true" }), true), (json!({ TRACKING: HASH }), false), (matching, false)]
    {
        let mut fixture = SandboxFixture::new();
        let mut pod = unowned_pod(NAME, labels);
        crate::testing::fake_api::merge(&mut pod, &running());
        fixture.api.create(Kind::Pod, pod);
        fixture.create(labelled());
        fixture.pass().await.expect("passes");
        let patches = fixture.api.take_writes().into_iter().filter(|request| request.kind == Kind::Pod).count();
        assert_eq!(patches, 1);
        let (pod, sandbox) = (fixture.pod(), fixture.sandbox());
        assert!(is_owned(&pod.metadata, &sandbox));
        assert_eq!(label_of(&pod, TRACKING).as_deref(), Some(HASH));
        assert_eq!(label_of(&pod, "team").as_deref(), Some("a"));
        assert_eq!(annotation_of(&pod, "note").as_deref(), Some("n"));
        assert_eq!(annotation_of(&pod, "agents.x-k8s.io/propagated-labels").as_deref(), Some("team"));
        assert_eq!(annotation_of(&pod, "agents.x-k8s.io/propagated-annotations").as_deref(), Some("note"));
        assert_eq!(label_of(&pod, ADOPTABLE).is_some(), invited, "the invitation stays");
        assert_eq!(fixture.api.get(Kind::Pod, &key()).expect("there")["spec"]["containers"][0]["image"], "users-own");
        assert_eq!(sandbox.annotation(POD_NAME), Some(NAME));
        let status = fixture.status();
        assert_eq!(status.pod_ips, Some(vec!["10.0.0.5".to_owned(), "fd00::5".to_owned()]));
        assert_eq!(status.node_name.as_deref(), Some("node-1"));
        assert_eq!(fixture.ready(), words("True", "DependenciesReady", "Pod is Ready"));
    }
}

/// S-040: a Pod that is ready already makes the Sandbox ready at once.
#[tokio::test]
async fn s_040_ready_at_once() {
    let mut fixture = SandboxFixture::new();
    let mut pod = unowned_pod(NAME, json!({ TRACKING: HASH }));
    crate::testing::fake_api::merge(&mut pod, &running());
    fixture.api.create(Kind::Pod, pod);
    fixture.create(minimal());
    fixture.pass().await.expect("passes");
    assert_eq!(fixture.ready(), words("True", "DependenciesReady", "Pod is Ready"));
}

/// S-103: neither the adoption nor the tracking label.
#[tokio::test]
async fn s_103_an_unrelated_pod_is_refused() {
    let mut fixture = SandboxFixture::new();
    fixture.api.create(Kind::Pod, unowned_pod(NAME, json!({ ADOPTABLE: "yes" })));
    fixture.create(with(json!({ "metadata": { "annotations": { POD_NAME: NAME } } })));
    fixture.pass().await.expect_err("refused");
    let text = "Error seen: cannot adopt unowned pod \"my-sandbox\": missing required pool authorization label (\"agents.x-k8s.io/adoptable\") or sandbox tracking label (\"agents.x-k8s.io/sandbox-name-hash\")";
    assert_eq!(fixture.ready(), words("False", "ReconcilerError", text));
    assert!(fixture.pod().metadata.owner_references.is_empty());
    assert_eq!(fixture.sandbox().annotation(POD_NAME), Some(NAME));
}

/// S-104: the annotation chooses the Pod to adopt.
#[tokio::test]
async fn s_104_the_annotated_pod_is_adopted() {
    let mut fixture = SandboxFixture::new();
    fixture.api.create(Kind::Pod, unowned_pod("prepared", json!({ ADOPTABLE: "true" })));
    fixture.create(with(json!({ "metadata": { "annotations": { POD_NAME: "prepared" } } })));
    fixture.converge().await;
    let pod = fixture.pod_named("prepared").expect("there");
    assert!(is_owned(&pod.metadata, &fixture.sandbox()));
    assert_eq!(annotation_of(&pod, "agents.x-k8s.io/propagated-labels"), None);
    assert_eq!(fixture.count(Kind::Pod), 1);
    assert_eq!(fixture.sandbox().annotation(POD_NAME), Some("prepared"));
}

/// S-105, S-106: a foreign Pod is an error and stays unchanged; an annotation that names it is removed.
#[tokio::test]
async fn s_105_s_106_a_foreign_pod_is_an_error() {
    for (name, annotations) in [(NAME, json!({})), ("theirs", json!({ POD_NAME: "theirs" }))] {
        let mut fixture = SandboxFixture::new();
        let mut pod = unowned_pod(name, json!({ ADOPTABLE: "true" }));
        pod["metadata"]["ownerReferences"] = foreign_owner();
        fixture.api.create(Kind::Pod, pod);
        fixture.create(with(json!({ "metadata": { "annotations": annotations } })));
        fixture.pass().await.expect_err("refused");
        let text = format!(
            "Error seen: pod \"{name}\" is owned by ReplicaSet/other (UID: other-uid), not by sandbox \"my-sandbox\""
        );
        assert_eq!(fixture.ready(), words("False", "ReconcilerError", &text));
        assert_eq!(fixture.sandbox().annotation(POD_NAME), None);
        let pod = fixture.pod_named(name).expect("there");
        assert_eq!(&*pod.metadata.resource_version, "1", "untouched");
    }
}

/// S-107, S-108: the owned Pod takes precedence over the annotation.
#[tokio::test]
async fn s_107_s_108_owner_beats_annotation() {
    for with_adoptable in [false, true] {
        let mut fixture = SandboxFixture::new();
        fixture.create(with(json!({ "metadata": { "annotations": { POD_NAME: "named" } } })));
        let uid = fixture.sandbox().uid().to_owned();
        let mut pod = unowned_pod("ours", json!({ TRACKING: HASH }));
        pod["metadata"]["ownerReferences"] = json!([fixture.sandbox().controller_reference()]);
        fixture.api.create(Kind::Pod, pod);
        if with_adoptable {
            fixture.api.create(Kind::Pod, unowned_pod("named", json!({ ADOPTABLE: "true" })));
        }
        fixture.converge().await;
        assert_eq!(fixture.sandbox().annotation(POD_NAME), Some("ours"));
        assert!(fixture.pod_named(NAME).is_none());
        if with_adoptable {
            assert!(fixture.pod_named("named").expect("there").metadata.owner_references.is_empty());
        }
        assert_eq!(fixture.sandbox().uid(), uid);
    }
}

fn two_owned_pods(fixture: &SandboxFixture) {
    for name in ["one", "two"] {
        let mut pod = unowned_pod(name, json!({ TRACKING: HASH }));
        pod["metadata"]["ownerReferences"] = json!([fixture.sandbox().controller_reference()]);
        fixture.api.create(Kind::Pod, pod);
    }
}

/// S-109, S-110: with two owned Pods neither is changed, and one event is emitted.
#[tokio::test]
async fn s_109_s_110_two_pods_are_left_alone() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "spec": { "service": true } })));
    two_owned_pods(&fixture);
    assert_eq!(fixture.pass().await.expect("not an error"), Next::Idle);
    let text = "multiple Pods (2) are controlled by this Sandbox; refusing to choose or create a Pod";
    assert_eq!(fixture.ready(), words("False", "MultiplePods", text));
    assert_eq!((fixture.status().pod_ips, fixture.status().node_name), (None, None));
    assert_eq!((fixture.count(Kind::Pod), fixture.count(Kind::Service)), (2, 0));
    let event = fixture.events.try_recv().expect("said");
    assert_eq!(
        (event.reason, event.action, event.note.as_str(), event.severity),
        ("MultiplePods", "Reconciling", text, Severity::Warning)
    );
    fixture.pass().await.expect("passes");
    assert!(fixture.events.try_recv().is_err(), "said only once");
    assert!(fixture.api.writes().iter().all(is_status));
}

/// S-116: also while suspended.
#[tokio::test]
async fn s_116_two_pods_while_suspended() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "spec": { "operatingMode": "Suspended" } })));
    two_owned_pods(&fixture);
    fixture.pass().await.expect("not an error");
    assert_eq!(fixture.count(Kind::Pod), 2);
    assert_eq!(fixture.condition(ConditionType::Suspended).expect("there").1, "PodStateUnknown");
}

/// S-111, S-113: only the controller's uid counts; labels and earlier incarnations do not.
#[tokio::test]
async fn s_111_s_113_ownership_is_the_uid() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    let earlier = json!([{ "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": NAME, "uid": "earlier", "controller": true }]);
    for (name, owners) in [("old", earlier), ("stray", json!([]))] {
        let mut pod = unowned_pod(name, json!({ TRACKING: HASH }));
        pod["metadata"]["ownerReferences"] = owners;
        fixture.api.create(Kind::Pod, pod);
    }
    fixture.converge().await;
    assert!(is_owned(&fixture.pod().metadata, &fixture.sandbox()));
    assert_eq!(fixture.sandbox().annotation(POD_NAME), Some(NAME));
    assert_eq!(fixture.ready().1, "DependenciesNotReady");
}

/// S-112: a terminating Pod is still the Pod.
#[tokio::test]
async fn s_112_no_replacement_while_the_pod_terminates() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    let mut pod = unowned_pod("leaving", json!({ TRACKING: HASH }));
    pod["metadata"]["ownerReferences"] = json!([fixture.sandbox().controller_reference()]);
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    fixture.api.create(Kind::Pod, pod);
    fixture.converge().await;
    assert_eq!(fixture.count(Kind::Pod), 1);
    assert_eq!(fixture.sandbox().annotation(POD_NAME), Some("leaving"));
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

/// S-115: a Pod that the cache did not contain is handled by the same rules.
#[tokio::test]
async fn s_115_already_exists_is_looked_at() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.sync();
    fixture.api.create(Kind::Pod, unowned_pod(NAME, json!({ TRACKING: HASH })));
    fixture.reconciler.reconcile(&key()).await.expect("adopts");
    assert!(is_owned(&fixture.pod().metadata, &fixture.sandbox()));

    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.sync();
    fixture.api.create(Kind::Pod, unowned_pod(NAME, json!({})));
    fixture.reconciler.reconcile(&key()).await.expect_err("refuses");
    assert!(fixture.ready().2.contains("cannot adopt unowned pod"));
}

/// An annotation that names a missing Pod is replaced by the Pod that is made.
#[tokio::test]
async fn a_dangling_annotation_is_corrected() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "metadata": { "annotations": { POD_NAME: "vanished" } } })));
    fixture.converge().await;
    assert_eq!(fixture.sandbox().annotation(POD_NAME), Some(NAME));
    assert!(fixture.pod_named(NAME).is_some());
}

/// A stale plan fails harmlessly: the Pod that took the name since is not deleted.
#[tokio::test]
async fn a_newer_pod_of_the_same_name_survives_a_stale_delete() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": "Suspended" } }));
    fixture.sync();
    fixture.api.remove(Kind::Pod, &key());
    fixture.api.create(Kind::Pod, unowned_pod(NAME, json!({})));
    fixture.reconciler.reconcile(&key()).await.expect("not an error");
    assert!(fixture.pod_named(NAME).is_some(), "the foreign Pod survives");
    assert_eq!(fixture.condition(ConditionType::Suspended).expect("there").1, "PodNotOwned");
}
