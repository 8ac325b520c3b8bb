//! Requests on the wire: preconditions where the API server checks them.

use super::*;
use crate::cache::Pod;

fn pod() -> Pod {
    serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7" } }))
        .expect("valid")
}

fn sandbox() -> crate::cache::Sandbox {
    serde_json::from_value(json!({ "metadata": { "name": "s", "namespace": "n", "uid": "u", "resourceVersion": "7" } }))
        .expect("valid")
}

fn wire(request: &Request) -> (String, String, Value) {
    let (method, path, _, body) = request.to_http();
    (method.to_string(), path, serde_json::from_slice(&body).expect("JSON"))
}

#[test]
fn creates_carry_kind_and_field_manager() {
    let (method, path, body) =
        wire(&Request::create(Kind::Pod, Key::new("n", "p"), json!({ "metadata": { "name": "p" } })));
    assert_eq!((method.as_str(), path.as_str()), ("POST", "/api/v1/namespaces/n/pods?fieldManager=sandbox-controller"));
    assert_eq!(body, json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" } }));
}

#[test]
fn patches_carry_the_uid_and_exact_ones_the_version() {
    let (_, path, body) = wire(&Request::patch(&pod(), json!({ "metadata": { "labels": { "a": "b" } } })));
    assert_eq!(path, "/api/v1/namespaces/n/pods/p");
    assert_eq!(body, json!({ "metadata": { "labels": { "a": "b" }, "uid": "u" } }));
    let (_, _, body) = wire(&Request::patch_exact(&pod(), json!({ "spec": {} })));
    assert_eq!(body, json!({ "metadata": { "uid": "u", "resourceVersion": "7" }, "spec": {} }));
}

/// Every status write carries the version: the uid has no effect on that subresource.
#[test]
fn status_patches_carry_the_version() {
    let (method, path, body) = wire(&Request::patch_status(&sandbox(), json!({ "nodeName": null })));
    assert_eq!(
        (method.as_str(), path.as_str()),
        ("PATCH", "/apis/agents.x-k8s.io/v1beta1/namespaces/n/sandboxes/s/status")
    );
    assert_eq!(body, json!({ "metadata": { "uid": "u", "resourceVersion": "7" }, "status": { "nodeName": null } }));
}

/// Invariant 2: deletes of Sandboxes and claims carry uid and version, all others the uid.
#[test]
fn deletes_carry_preconditions() {
    let (method, _, body) = wire(&Request::delete(&pod(), None));
    assert_eq!((method.as_str(), &body["preconditions"]), ("DELETE", &json!({ "uid": "u" })));
    let (_, _, body) = wire(&Request::delete(&sandbox(), Some(Propagation::Foreground)));
    assert_eq!(body["preconditions"], json!({ "uid": "u", "resourceVersion": "7" }));
    assert_eq!(body["propagationPolicy"], "Foreground");
}

#[test]
fn merge_diff_is_the_shortest_patch() {
    let old = json!({ "a": 1, "b": { "c": 2, "d": 3 }, "list": [1, 2] });
    let new = json!({ "a": 1, "b": { "c": 4 }, "list": [1], "e": {} });
    let patch = merge_diff(&old, &new).expect("differs");
    assert_eq!(patch, json!({ "b": { "c": 4, "d": null }, "list": [1], "e": {} }));
    let mut patched = old.clone();
    crate::testing::fake_api::merge(&mut patched, &patch);
    assert_eq!(patched, new);
    assert_eq!(merge_diff(&new, &new), None);
}
