//! What Pods are given and what outlives them.

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::bench::{Bench, is_root, plain, shell};

async fn make<K>(bench: &Bench, object: Value) -> K
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(bench.client.clone(), "default");
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn configuration_arrives_as_variables_and_files() {
    if !is_root() {
        return;
    }
    let bench = Bench::open().await;
    make::<ConfigMap>(&bench, json!({"metadata": {"name": "c"}, "data": {"key": "from map"}})).await;
    make::<Secret>(&bench, json!({"metadata": {"name": "s"}, "data": {"pass": "aHVzaA=="}})).await;
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
    bench.create("p", metadata, spec).await;
    bench.until_ready("p").await;
    let shown = bench.output("p", "main", &["sh", "-c", "echo $A $B $C $S $N"]).await;
    assert_eq!(shown, "literal literal! from map hush p\n");
    assert_eq!(
        bench.output("p", "main", &["cat", "/etc/map/key", "/etc/secret/pass", "/etc/about/labels"]).await,
        "from maphushapp=\"x\""
    );
    let full = bench.exec("p", "main", &["sh", "-c", "head -c 2000000 /dev/zero > /memory/x"]).await;
    assert_ne!(full.code, 0, "memory volumes hold their size");
    let write = bench.exec("p", "main", &["sh", "-c", "echo x > /etc/map/key"]).await;
    assert_ne!(write.code, 0, "configuration is read-only");
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_keeps_its_data_from_pod_to_pod() {
    if !is_root() {
        return;
    }
    let bench = Bench::open().await;
    make::<PersistentVolumeClaim>(
        &bench,
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
    bench.create("writer", plain(), spec("echo kept > /data/file")).await;
    bench.until_phase("writer", "Succeeded").await;
    bench.delete("writer").await;
    bench.create("reader", plain(), spec("grep kept /data/file")).await;
    bench.until_phase("reader", "Succeeded").await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writable_layer_goes_to_the_owners_next_pod_and_to_nobody_else() {
    if !is_root() {
        return;
    }
    let bench = Bench::open().await;
    let owner: ConfigMap = make(&bench, json!({"metadata": {"name": "owner"}})).await;
    let mut owned = plain();
    owned["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
        "uid": owner.metadata.uid, "controller": true}]);
    let spec = json!({"containers": [shell("sleep 1000")], "terminationGracePeriodSeconds": 0});
    bench.create("p", owned.clone(), spec.clone()).await;
    bench.until_ready("p").await;
    bench.output("p", "main", &["sh", "-c", "echo mine > /home/user/file"]).await;
    bench.delete("p").await;
    bench.create("p", owned, spec.clone()).await;
    bench.until_ready("p").await;
    assert_eq!(bench.output("p", "main", &["cat", "/home/user/file"]).await, "mine\n");
    bench.create("q", plain(), spec).await;
    bench.until_ready("q").await;
    assert_ne!(bench.exec("q", "main", &["cat", "/home/user/file"]).await.code, 0);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_finds_its_pods_as_they_were() {
    if !is_root() {
        return;
    }
    let bench = Bench::open().await;
    let spec = |script: &str| json!({"containers": [shell(script)], "terminationGracePeriodSeconds": 0});
    bench.create("stays", plain(), spec("echo $$ > /home/user/pid; sleep 1000")).await;
    bench.create("ends", plain(), json!({"restartPolicy": "Never", "containers": [shell("sleep 0.4; exit 6")]})).await;
    let before = bench.until_ready("stays").await;
    bench.until_phase("ends", "Running").await;
    let bench = bench.restart().await;
    let ended = crate::bench::terminated(&bench.until_phase("ends", "Failed").await);
    assert_eq!(ended.exit_code, 6);
    let after = bench.until_ready("stays").await;
    let id = |pod: &k8s_openapi::api::core::v1::Pod| {
        pod.status.clone().unwrap().container_statuses.unwrap()[0].container_id.clone()
    };
    assert_eq!(id(&before), id(&after), "the same process");
    assert_eq!(bench.output("stays", "main", &["echo", "here"]).await, "here\n");
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_stopped_with_the_node_start_again_with_their_files() {
    if !is_root() {
        return;
    }
    let bench = Bench::open().await;
    let spec =
        json!({"restartPolicy": "Never", "containers": [shell("sleep 1000")], "terminationGracePeriodSeconds": 0});
    bench.create("p", plain(), spec).await;
    bench.until_ready("p").await;
    bench.output("p", "main", &["sh", "-c", "echo mine > /home/user/file"]).await;
    bench.node.stop_all().await.unwrap();
    let bench = bench.restart().await;
    bench
        .until("p", "started again", |p| {
            let mut statuses = p.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
            statuses.any(|c| c.restart_count == 1 && c.ready)
        })
        .await;
    assert_eq!(bench.output("p", "main", &["cat", "/home/user/file"]).await, "mine\n");
    bench.close().await;
}
