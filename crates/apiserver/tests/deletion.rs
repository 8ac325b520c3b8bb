//! Deletion: preconditions, finalizers, grace periods, garbage collection, namespaces.

mod raw;

use raw::{Api, CONFIGS, CRDS, MERGE, PODS, config, crd, owned, pod};
use serde_json::{Value, json};

#[tokio::test]
async fn preconditions_protect_the_object() {
    let api = Api::new().await;
    let made = api.post(CONFIGS, &config("a")).await.ok();
    let path = format!("{CONFIGS}/a");
    let message = api.delete(&path, &json!({"preconditions": {"uid": "other"}})).await.failed(409, "Conflict");
    let uid = made["metadata"]["uid"].as_str().unwrap();
    assert_eq!(
        message,
        format!(
            "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (other) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        )
    );
    api.delete(&path, &json!({"preconditions": {"resourceVersion": "1"}})).await.failed(409, "Conflict");
    let version = made["metadata"]["resourceVersion"].clone();
    let status = api.delete(&path, &json!({"preconditions": {"uid": uid, "resourceVersion": version}})).await.ok();
    assert_eq!((&status["status"], &status["details"]["uid"]), (&json!("Success"), &json!(uid)));
    assert_eq!(api.delete(&path, &json!({})).await.failed(404, "NotFound"), "configmaps \"a\" not found");
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_removed() {
    let api = Api::new().await;
    let mut object = config("held");
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(CONFIGS, &object).await.ok();
    let path = format!("{CONFIGS}/held");
    let marked = api.delete(&path, &json!({})).await.ok();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let message = api
        .patch(&path, MERGE, &json!({"metadata": {"finalizers": ["example.com/hold", "example.com/new"]}}))
        .await
        .failed(422, "Invalid");
    assert!(message.contains("no new finalizers can be added if the object is being deleted"), "{message}");
    api.patch(&path, MERGE, &json!({"metadata": {"finalizers": null}})).await.ok();
    api.get(&path).await.failed(404, "NotFound");
}

#[tokio::test]
async fn a_running_pod_is_removed_when_its_node_confirms() {
    let api = Api::new().await;
    api.post(PODS, &pod("p")).await.ok();
    let path = format!("{PODS}/p");
    api.post(&format!("{path}/binding"), &json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}})).await.ok();
    let bound = api.get(&path).await.ok();
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(
        (&bound["status"]["conditions"][0]["type"], &bound["status"]["conditions"][0]["status"]),
        (&json!("PodScheduled"), &json!("True"))
    );
    let again = api.post(&format!("{path}/binding"), &json!({"target": {"name": "n2"}})).await.failed(409, "Conflict");
    assert!(again.contains("already assigned to node \"n1\""), "{again}");
    let marked = api.delete(&path, &json!({})).await.ok();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    let shorter = api.delete(&path, &json!({"gracePeriodSeconds": 5})).await.ok();
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    let longer = api.delete(&path, &json!({"gracePeriodSeconds": 60})).await.ok();
    assert_eq!(longer["metadata"]["deletionGracePeriodSeconds"], 5, "a grace period only shrinks");
    api.delete(&path, &json!({"gracePeriodSeconds": 0})).await.ok();
    api.get(&path).await.failed(404, "NotFound");
}

#[tokio::test]
async fn an_unscheduled_pod_is_removed_at_once() {
    let api = Api::new().await;
    api.post(PODS, &pod("p")).await.ok();
    assert_eq!(api.delete(&format!("{PODS}/p"), &json!({})).await.ok()["kind"], "Pod");
    api.get(&format!("{PODS}/p")).await.failed(404, "NotFound");
}

#[tokio::test]
async fn dependents_are_deleted_after_their_owner_in_the_background() {
    let api = Api::new().await;
    let owner = api.post(CONFIGS, &config("owner")).await.ok();
    let other = api.post(CONFIGS, &config("other")).await.ok();
    let child = api.post(CONFIGS, &owned("child", &[(&owner, false)])).await.ok();
    api.post(CONFIGS, &owned("grandchild", &[(&child, false)])).await.ok();
    api.post(CONFIGS, &owned("shared", &[(&owner, false), (&other, false)])).await.ok();
    api.delete(&format!("{CONFIGS}/owner"), &json!({"propagationPolicy": "Background"})).await.ok();
    api.wait_until_deleted(&format!("{CONFIGS}/child")).await;
    api.wait_until_deleted(&format!("{CONFIGS}/grandchild")).await;
    let shared = api
        .until(&format!("{CONFIGS}/shared"), |a| {
            a.body["metadata"]["ownerReferences"].as_array().is_some_and(|o| o.len() == 1)
        })
        .await;
    assert_eq!(shared.body["metadata"]["ownerReferences"][0]["name"], "other");
}

#[tokio::test]
async fn a_missing_or_replaced_owner_is_no_owner() {
    let api = Api::new().await;
    let mut ghost = config("ghost");
    ghost["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    api.post(CONFIGS, &owned("orphan", &[(&ghost, false)])).await.ok();
    api.wait_until_deleted(&format!("{CONFIGS}/orphan")).await;
    let first = api.post(CONFIGS, &config("twin")).await.ok();
    api.delete(&format!("{CONFIGS}/twin"), &json!({})).await.ok();
    api.post(CONFIGS, &config("twin")).await.ok();
    api.post(CONFIGS, &owned("mistaken", &[(&first, false)])).await.ok();
    api.wait_until_deleted(&format!("{CONFIGS}/mistaken")).await;
    api.get(&format!("{CONFIGS}/twin")).await.ok();
}

#[tokio::test]
async fn foreground_deletion_waits_for_blocking_dependents() {
    let api = Api::new().await;
    let owner = api.post(CONFIGS, &config("owner")).await.ok();
    let mut held = owned("held", &[(&owner, true)]);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(CONFIGS, &held).await.ok();
    let marked = api.delete(&format!("{CONFIGS}/owner"), &json!({"propagationPolicy": "Foreground"})).await.ok();
    assert_eq!(marked["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    api.until(&format!("{CONFIGS}/held"), |a| a.body["metadata"]["deletionTimestamp"].is_string()).await;
    // A dependent that is added while the owner waits blocks the deletion too, and is deleted.
    api.post(CONFIGS, &owned("late", &[(&owner, true)])).await.ok();
    api.wait_until_deleted(&format!("{CONFIGS}/late")).await;
    api.get(&format!("{CONFIGS}/owner")).await.ok();
    api.patch(&format!("{CONFIGS}/held"), MERGE, &json!({"metadata": {"finalizers": null}})).await.ok();
    api.wait_until_deleted(&format!("{CONFIGS}/held")).await;
    api.wait_until_deleted(&format!("{CONFIGS}/owner")).await;
}

/// As in Kubernetes, an owner in another namespace is no owner: a reference to its uid, or one that names another object,
/// does not hold it.
#[tokio::test]
async fn only_a_dependent_of_the_same_namespace_blocks_a_foreground_deletion() {
    let api = Api::new().await;
    api.post("/api/v1/namespaces", &json!({"metadata": {"name": "team"}})).await.ok();
    let foreign = "/api/v1/namespaces/team/configmaps";
    let owner = api.post(CONFIGS, &config("owner")).await.ok();
    let cluster = api.post("/api/v1/nodes", &json!({"metadata": {"name": "machine"}})).await.ok();
    let held = |name: &str, owner: &Value| {
        let mut object = owned(name, &[(owner, true)]);
        object["metadata"]["finalizers"] = json!(["example.com/hold"]);
        object
    };
    api.post(foreign, &held("held", &owner)).await.ok();
    let mut renamed = owner.clone();
    renamed["metadata"]["name"] = json!("another");
    api.post(CONFIGS, &held("mistaken", &renamed)).await.ok();
    api.post(foreign, &held("of-machine", &cluster)).await.ok();
    let foreground = json!({"propagationPolicy": "Foreground"});
    api.delete(&format!("{CONFIGS}/owner"), &foreground).await.ok();
    api.wait_until_deleted(&format!("{CONFIGS}/owner")).await;
    // An owner without a namespace has dependents in all of them.
    api.delete("/api/v1/nodes/machine", &foreground).await.ok();
    let dependent = format!("{foreign}/of-machine");
    api.until(&dependent, |a| a.body["metadata"]["deletionTimestamp"].is_string()).await;
    api.get("/api/v1/nodes/machine").await.ok();
    api.patch(&dependent, MERGE, &json!({"metadata": {"finalizers": null}})).await.ok();
    api.wait_until_deleted("/api/v1/nodes/machine").await;
}

#[tokio::test]
async fn a_foreground_deletion_ends_when_the_last_reference_is_removed() {
    let api = Api::new().await;
    let owner = api.post(CONFIGS, &config("owner")).await.ok();
    let mut held = owned("held", &[(&owner, true)]);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(CONFIGS, &held).await.ok();
    api.delete(&format!("{CONFIGS}/owner"), &json!({"propagationPolicy": "Foreground"})).await.ok();
    let held = format!("{CONFIGS}/held");
    api.until(&held, |a| a.body["metadata"]["deletionTimestamp"].is_string()).await;
    api.patch(&held, MERGE, &json!({"metadata": {"ownerReferences": null}})).await.ok();
    api.wait_until_deleted(&format!("{CONFIGS}/owner")).await;
    api.get(&held).await.ok();
}

#[tokio::test]
async fn orphaning_removes_only_the_reference_to_the_deleted_owner() {
    let api = Api::new().await;
    let owner = api.post(CONFIGS, &config("owner")).await.ok();
    let other = api.post(CONFIGS, &config("other")).await.ok();
    let before = api.post(CONFIGS, &owned("child", &[(&owner, true), (&other, false)])).await.ok();
    api.delete(&format!("{CONFIGS}/owner"), &json!({"propagationPolicy": "Orphan"})).await.ok();
    api.wait_until_deleted(&format!("{CONFIGS}/owner")).await;
    let mut after = api.get(&format!("{CONFIGS}/child")).await.ok();
    assert_eq!(after["metadata"]["ownerReferences"], json!([before["metadata"]["ownerReferences"][1]]));
    let owners = &after["metadata"]["managedFields"][0]["fieldsV1"]["f:metadata"]["f:ownerReferences"];
    let reference = |owner: &Value| format!("k:{{\"uid\":{}}}", owner["metadata"]["uid"]);
    assert_eq!(*owners, json!({".": {}, reference(&other): {}}), "the removed reference has no field manager");
    after["metadata"]["ownerReferences"] = before["metadata"]["ownerReferences"].clone();
    after["metadata"]["managedFields"] = before["metadata"]["managedFields"].clone();
    after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
    assert_eq!(after, before);
}

#[tokio::test]
async fn a_deleted_namespace_is_emptied_and_refuses_new_content() {
    let api = Api::new().await;
    api.post("/api/v1/namespaces", &json!({"metadata": {"name": "team"}})).await.ok();
    api.until("/api/v1/namespaces/team/serviceaccounts/default", |a| a.code == 200).await;
    let mut held = config("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post("/api/v1/namespaces/team/configmaps", &held).await.ok();
    api.post("/api/v1/namespaces/team/configmaps", &config("free")).await.ok();
    let marked = api.delete("/api/v1/namespaces/team", &json!({})).await.ok();
    assert_eq!(marked["status"]["phase"], "Terminating");
    api.wait_until_deleted("/api/v1/namespaces/team/configmaps/free").await;
    let message = api.post("/api/v1/namespaces/team/configmaps", &config("new")).await.failed(403, "Forbidden");
    assert_eq!(
        message,
        "configmaps \"new\" is forbidden: unable to create new content in namespace team because it is being terminated"
    );
    api.get("/api/v1/namespaces/team").await.ok();
    api.patch("/api/v1/namespaces/team/configmaps/held", MERGE, &json!({"metadata": {"finalizers": null}})).await.ok();
    api.wait_until_deleted("/api/v1/namespaces/team").await;
}

#[tokio::test]
async fn deleting_a_crd_deletes_its_objects() {
    let api = Api::new().await;
    api.post(CRDS, &crd("things", "Thing", json!({"type": "object"}))).await.ok();
    let things = "/apis/example.com/v1/namespaces/default/things";
    api.post(things, &json!({"metadata": {"name": "t"}})).await.ok();
    api.delete(&format!("{CRDS}/things.example.com"), &json!({})).await.ok();
    api.wait_until_deleted(&format!("{CRDS}/things.example.com")).await;
    api.until(things, |a| a.code == 404).await;
    api.post(CRDS, &crd("things", "Thing", json!({"type": "object"}))).await.ok();
    assert_eq!(api.get(things).await.ok()["items"], json!([]));
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let api = Api::new().await;
    for name in ["a", "b", "c"] {
        let mut object = config(name);
        object["metadata"]["labels"] = json!({"keep": if name == "c" { "yes" } else { "no" }});
        api.post(CONFIGS, &object).await.ok();
    }
    let deleted = api.delete(&format!("{CONFIGS}?labelSelector=keep%3Dno"), &json!({})).await.ok();
    assert_eq!(deleted["items"].as_array().unwrap().len(), 2);
    let left = api.get(CONFIGS).await.ok();
    assert_eq!(left["items"][0]["metadata"]["name"], "c");
    assert_eq!((left["items"].as_array().unwrap().len(), &left["kind"]), (1, &json!("ConfigMapList")));
}

#[tokio::test]
async fn services_with_selectors_get_endpoint_slices() {
    let api = Api::new().await;
    api.post("/api/v1/namespaces/default/services", &json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "p"}, "ports": [{"port": 80, "targetPort": 8080}]}})).await.ok();
    api.post(PODS, &pod("p")).await.ok();
    let status = json!({"status": {"phase": "Running", "podIP": "10.1.2.3", "conditions": [{"type": "Ready", "status": "True"}]}});
    api.patch(&format!("{PODS}/p/status"), MERGE, &status).await.ok();
    let slices =
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name%3Dweb";
    let got = api.until(slices, |a| a.body["items"][0]["endpoints"][0]["conditions"]["ready"] == true).await;
    let slice = &got.body["items"][0];
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["10.1.2.3"]));
    assert_eq!(slice["endpoints"][0]["targetRef"]["name"], "p");
    assert_eq!(slice["ports"][0]["port"], 8080);
    api.delete(&format!("{PODS}/p"), &json!({})).await.ok();
    api.until(slices, |a| a.body["items"][0]["endpoints"] == json!([])).await;
    api.delete("/api/v1/namespaces/default/services/web", &json!({})).await.ok();
    api.until(slices, |a| a.body["items"] == json!([])).await;
}
