//! A small raw client for tests: requests as text, responses as JSON.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

use std::time::{Duration, Instant};

use agent_sandbox_apiserver::{ApiServer, Config, UserInfo};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

pub struct Api {
    pub server: ApiServer,
}

pub struct TestResponse {
    pub code: u16,
    pub body: Value,
    pub warnings: Vec<String>,
}

impl TestResponse {
    #[track_caller]
    pub fn ok(self) -> Value {
        assert!((200..300).contains(&self.code), "{}: {}", self.code, self.body);
        self.body
    }

    #[track_caller]
    pub fn failed(self, code: u16, reason: &str) -> String {
        assert_eq!((self.code, self.body["reason"].as_str().unwrap_or_default()), (code, reason), "{}", self.body);
        self.body["message"].as_str().unwrap_or_default().to_owned()
    }
}

pub const MERGE: &str = "application/merge-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";

impl Api {
    pub async fn new() -> Self {
        Self { server: ApiServer::open(Config::default()).await.expect("an empty server opens") }
    }

    pub async fn send(&self, method: &str, path: &str, content_type: &str, body: impl Into<Bytes>) -> TestResponse {
        let mut request = http::Request::builder().method(method).uri(path).header("user-agent", "test/1");
        if !content_type.is_empty() {
            request = request.header("content-type", content_type);
        }
        let request = request.body(Full::new(body.into())).expect("valid by construction");
        let response = self.server.handle(&UserInfo::administrator(), request).await;
        let code = response.status().as_u16();
        let warnings = response
            .headers()
            .get_all("warning")
            .iter()
            .map(|v| v.to_str().expect("valid by construction").to_owned())
            .collect();
        let bytes = response.into_body().collect().await.expect("valid by construction").to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        TestResponse { code, body, warnings }
    }

    pub async fn get(&self, path: &str) -> TestResponse {
        self.send("GET", path, "", "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> TestResponse {
        self.send("POST", path, "application/json", body.to_string()).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> TestResponse {
        self.send("PUT", path, "application/json", body.to_string()).await
    }

    pub async fn patch(&self, path: &str, kind: &str, body: &Value) -> TestResponse {
        self.send("PATCH", path, kind, body.to_string()).await
    }

    pub async fn delete(&self, path: &str, options: &Value) -> TestResponse {
        self.send("DELETE", path, "application/json", options.to_string()).await
    }

    /// Waits until an object does not exist.
    pub async fn wait_until_deleted(&self, path: &str) {
        self.until(path, |response| response.code == 404).await;
    }

    pub async fn until(&self, path: &str, done: impl Fn(&TestResponse) -> bool) -> TestResponse {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let response = self.get(path).await;
            if done(&response) {
                return response;
            }
            assert!(Instant::now() < deadline, "{path} stays {}: {}", response.code, response.body);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub const CONFIGS: &str = "/api/v1/namespaces/default/configmaps";
pub const PODS: &str = "/api/v1/namespaces/default/pods";

pub fn config(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

/// A ConfigMap with owner references.
pub fn owned(name: &str, owners: &[(&Value, bool)]) -> Value {
    let mut object = config(name);
    object["metadata"]["ownerReferences"] = owners
        .iter()
        .map(|(owner, blocks)| {
            json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks})
        })
        .collect();
    object
}

pub fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}})
}

/// A CRD with a schema for `spec`.
pub fn crd(plural: &str, kind: &str, spec: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec,
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}]}})
}

pub const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
