//! The objects of the benchmark.

use kube::{
    Api, Client,
    api::DynamicObject,
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "default";
pub(crate) const POOL: &str = "pool";
const TEMPLATE: &str = "template";
const CORE: &str = "agents.x-k8s.io";
const EXTENSIONS: &str = "extensions.agents.x-k8s.io";

pub(crate) fn resource(kind: &str) -> ApiResource {
    let (group, version) = match kind {
        "Pod" => ("", "v1"),
        "Sandbox" => (CORE, "v1beta1"),
        "CustomResourceDefinition" => ("apiextensions.k8s.io", "v1"),
        _ => (EXTENSIONS, "v1beta1"),
    };
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

pub(crate) fn api(client: &Client, kind: &str) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), NAMESPACE, &resource(kind))
}

fn object(kind: &str, name: &str, spec: Value) -> DynamicObject {
    let resource = resource(kind);
    let mut object = DynamicObject::new(name, &resource);
    object.data = json!({ "spec": spec });
    object
}

fn pod_template() -> Value {
    json!({ "spec": { "containers": [{ "name": "main", "image": "image" }] } })
}

pub(crate) fn template() -> DynamicObject {
    object("SandboxTemplate", TEMPLATE, json!({ "podTemplate": pod_template() }))
}

pub(crate) fn pool(replicas: usize) -> DynamicObject {
    object("SandboxWarmPool", POOL, json!({ "replicas": replicas, "sandboxTemplateRef": { "name": TEMPLATE } }))
}

pub(crate) fn claim(name: &str) -> DynamicObject {
    object("SandboxClaim", name, json!({ "warmPoolRef": { "name": POOL } }))
}

pub(crate) fn sandbox(name: &str) -> DynamicObject {
    object("Sandbox", name, json!({ "podTemplate": pod_template() }))
}

pub(crate) fn is_ready(object: &DynamicObject) -> bool {
    object.data["status"]["conditions"]
        .as_array()
        .is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}
