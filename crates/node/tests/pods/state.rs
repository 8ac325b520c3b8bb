//! Tests of configuration given to Pods, and of data and Pods that survive.

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::fixture::{Fixture, is_root, plain, shell};

async fn create<K>(fixture: &Fixture, object: Value) -> K
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(fixture.client.clone(), "default");
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn configuration_arrives_as_variables_and_files() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    create::<ConfigMap>(&fixture, json!({"metadata": {"name": "c"}, "data": {"key": "from map"}})).await;
    create::<Secret>(&fixture, json!({"metadata": {"name": "s"}, "data": {"pass": "aHVzaA=="}})).await;
    let mut container = shell("sleep 1000");
    container["env"] = json!([
        {"name": "A", "value": "literal"},
        {"name": "B", "value": "$(A)!"},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "key"}}},
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "pass"}}},
        {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    container["volumeMounts"] = json!([
        {"name": "map", "mountPath": "/etc/map"}, {"name": "secret", "mountPath": "/etc/secret"},
        {"name": "about", "mountPath": "/etc/about"}, {"name": "memory", "mountPath": "/memory"}]);
    let spec = json!({"containers": [container], "terminationGracePeriodSeconds": 1, "volumes": [
        {"name": "map", "configMap": {"name": "c"}},
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "about", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]});
    let mut metadata = plain();
    metadata["labels"] = json!({"app": "x"});
    fixture.create("p", metadata, spec).await;
    fixture.until_ready("p").await;
    let shown = fixture.output("p", "main", &["sh", "-c", "echo $A $B $C $S $N"]).await;
    assert_eq!(shown, "literal literal! from map hush p\n");
    assert_eq!(
        fixture.output("p", "main", &["cat", "/etc/map/key", "/etc/secret/pass", "/etc/about/labels"]).await,
        "from maphushapp=\"x\""
    );
    let full = fixture.exec("p", "main", &["sh", "-c", "head -c 2000000 /dev/zero > /memory/x"]).await;
    assert_ne!(full.code, 0, "memory volumes enforce their size");
    let write = fixture.exec("p", "main", &["sh", "-c", "echo x > /etc/map/key"]).await;
    assert_ne!(write.code, 0, "configuration is read-only");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_keeps_its_data_from_pod_to_pod() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    create::<PersistentVolumeClaim>(
        &fixture,
        json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "64Mi"}}}}),
    )
    .await;
    let spec = |script: &str| {
        let mut container = shell(script);
        container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
        json!({"restartPolicy": "Never", "containers": [container], "securityContext": {"fsGroup": 1000},
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]})
    };
    fixture.create("writer", plain(), spec("echo kept > /data/file")).await;
    fixture.until_phase("writer", "Succeeded").await;
    fixture.delete("writer").await;
    fixture.create("reader", plain(), spec("grep kept /data/file")).await;
    fixture.until_phase("reader", "Succeeded").await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writable_layer_goes_only_to_the_next_pod_of_its_owner() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    let owner: ConfigMap = create(&fixture, json!({"metadata": {"name": "owner"}})).await;
    let mut owned = plain();
    owned["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
        "uid": owner.metadata.uid, "controller": true}]);
    let spec = json!({"containers": [shell("sleep 1000")], "terminationGracePeriodSeconds": 0});
    fixture.create("p", owned.clone(), spec.clone()).await;
    fixture.until_ready("p").await;
    fixture.output("p", "main", &["sh", "-c", "echo mine > /home/user/file"]).await;
    fixture.delete("p").await;
    fixture.create("p", owned, spec.clone()).await;
    fixture.until_ready("p").await;
    assert_eq!(fixture.output("p", "main", &["cat", "/home/user/file"]).await, "mine\n");
    fixture.create("q", plain(), spec).await;
    fixture.until_ready("q").await;
    assert_ne!(fixture.exec("q", "main", &["cat", "/home/user/file"]).await.code, 0);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_recovers_its_pods() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    let spec = |script: &str| json!({"containers": [shell(script)], "terminationGracePeriodSeconds": 0});
    fixture.create("stays", plain(), spec("echo $$ > /home/user/pid; sleep 1000")).await;
    fixture
        .create("ends", plain(), json!({"restartPolicy": "Never", "containers": [shell("sleep 0.4; exit 6")]}))
        .await;
    let before = fixture.until_ready("stays").await;
    fixture.until_phase("ends", "Running").await;
    let fixture = fixture.restart().await;
    let ended = crate::fixture::terminated(&fixture.until_phase("ends", "Failed").await);
    assert_eq!(ended.exit_code, 6);
    let after = fixture.until_ready("stays").await;
    let id = |pod: &k8s_openapi::api::core::v1::Pod| {
        pod.status.clone().unwrap().container_statuses.unwrap()[0].container_id.clone()
    };
    assert_eq!(id(&before), id(&after), "the same process");
    assert_eq!(fixture.output("stays", "main", &["echo", "here"]).await, "here\n");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_stopped_with_the_node_start_again_with_their_files() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    let spec =
        json!({"restartPolicy": "Never", "containers": [shell("sleep 1000")], "terminationGracePeriodSeconds": 0});
    fixture.create("p", plain(), spec).await;
    fixture.until_ready("p").await;
    fixture.output("p", "main", &["sh", "-c", "echo mine > /home/user/file"]).await;
    fixture.node.stop_all().await.unwrap();
    let fixture = fixture.restart().await;
    fixture
        .until("p", "started again", |p| {
            let mut statuses = p.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
            statuses.any(|c| c.restart_count == 1 && c.ready)
        })
        .await;
    assert_eq!(fixture.output("p", "main", &["cat", "/home/user/file"]).await, "mine\n");
    fixture.close().await;
}
