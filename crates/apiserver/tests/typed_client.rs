//! A typed client against the in-process API: the verbs, end to end.

use std::time::Duration;

use agent_sandbox_apiserver::{ApiServer, Config};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
    },
};
use serde_json::json;

async fn server() -> ApiServer {
    ApiServer::open(Config::default()).await.expect("an empty server opens")
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"app": value}}, "data": {"k": value}}))
        .expect("a config map")
}

#[tokio::test]
async fn all_verbs_work_on_an_object() {
    let server = server().await;
    let api: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    let created = api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
    assert!(created.metadata.uid.is_some() && created.metadata.resource_version.is_some());
    let again = api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap_err();
    let kube::Error::Api(status) = again else { panic!("{again}") };
    assert_eq!((status.code, status.reason.as_str()), (409, "AlreadyExists"));
    assert_eq!(status.message, "configmaps \"a\" already exists");

    let mut stale = created.clone();
    stale.metadata.resource_version = Some("1".into());
    let kube::Error::Api(status) = api.replace("a", &PostParams::default(), &stale).await.unwrap_err() else {
        panic!("not an API error")
    };
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));

    let patched =
        api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "2", "n": "3"}}))).await.unwrap();
    assert_eq!(patched.data.unwrap()["n"], "3");
    let list = api.list(&ListParams::default().labels("app=1")).await.unwrap();
    assert_eq!(list.items.len(), 1);
    assert_eq!(api.list(&ListParams::default().labels("app=2")).await.unwrap().items.len(), 0);
    api.delete("a", &DeleteParams::default()).await.unwrap();
    let kube::Error::Api(status) = api.get("a").await.unwrap_err() else { panic!("not an API error") };
    assert_eq!((status.code, status.message.as_str()), (404, "configmaps \"a\" not found"));
}

#[tokio::test]
async fn a_watch_sees_the_changes_after_its_version() {
    let server = server().await;
    let api: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    let first = api.create(&PostParams::default(), &config_map("w", "1")).await.unwrap();
    api.patch("w", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "2"}}))).await.unwrap();
    let version = first.metadata.resource_version.unwrap();
    for params in [WatchParams::default(), WatchParams::default().fields("metadata.name=w")] {
        let mut events = api.watch(&params, &version).await.unwrap().boxed();
        let event = tokio::time::timeout(Duration::from_secs(5), events.next()).await.unwrap().unwrap().unwrap();
        assert!(matches!(event, WatchEvent::Modified(_)), "{event:?}");
        api.patch("w", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": version}}))).await.unwrap();
        let event = tokio::time::timeout(Duration::from_secs(5), events.next()).await.unwrap().unwrap().unwrap();
        assert!(matches!(event, WatchEvent::Modified(_)), "{event:?}");
        api.patch("w", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "9"}}))).await.unwrap();
    }
}

#[tokio::test]
async fn a_crd_makes_its_kind_available() {
    let server = server().await;
    let client = server.client();
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    });
    let kind = |group: &str, version: &str, kind: &str, plural: &str| ApiResource {
        group: group.into(),
        version: version.into(),
        api_version: format!("{group}/{version}"),
        kind: kind.into(),
        plural: plural.into(),
    };
    let crds: Api<DynamicObject> = Api::all_with(
        client.clone(),
        &kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"),
    );
    crds.create(&PostParams::default(), &serde_json::from_value(crd).unwrap()).await.unwrap();
    let things: Api<DynamicObject> =
        Api::namespaced_with(client, "default", &kind("example.com", "v1", "Thing", "things"));
    let thing =
        json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"generateName": "t-"}, "spec": {"x": 1}});
    let made = things.create(&PostParams::default(), &serde_json::from_value(thing).unwrap()).await.unwrap();
    let name = made.metadata.name.unwrap();
    assert!(name.starts_with("t-") && name.len() == 7, "{name}");
    assert_eq!(things.get(&name).await.unwrap().data["spec"]["x"], 1);
}

#[tokio::test]
async fn the_error_for_a_missing_namespace_names_it() {
    let server = server().await;
    let api: Api<ConfigMap> = Api::namespaced(server.client(), "nowhere");
    let kube::Error::Api(status) = api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap_err() else {
        panic!("not an API error")
    };
    assert_eq!((status.code, status.message.as_str()), (404, "namespaces \"nowhere\" not found"));
    let spaces: Api<Namespace> = Api::all(server.client());
    let space = serde_json::from_value(json!({"metadata": {"name": "nowhere"}})).unwrap();
    spaces.create(&PostParams::default(), &space).await.unwrap();
    api.create(&PostParams::default(), &config_map("a", "1")).await.unwrap();
}
