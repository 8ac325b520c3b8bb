//! The product's four kinds, loaded as data like any other CRD: schemas, defaults, rules, versions, subresources.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests fail the test")]

mod support;

use agent_sandbox_api::crd::crds;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};
use support::Cluster;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

const BETA: &str = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
const ALPHA: &str = "/apis/agents.x-k8s.io/v1alpha1/namespaces/default/sandboxes";

fn extension(version: &str, plural: &str) -> String {
    format!("/apis/extensions.agents.x-k8s.io/{version}/namespaces/default/{plural}")
}

/// A response with headers and body.
#[derive(Debug)]
struct TestResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Value,
}

impl TestResponse {
    /// The object; panics if the request failed.
    #[track_caller]
    fn object(self) -> Value {
        assert!(self.status.is_success(), "{self:#?}");
        self.body
    }

    /// The error message; panics if the request was not refused as invalid.
    #[track_caller]
    fn refusal(self) -> String {
        assert_eq!(self.status, StatusCode::UNPROCESSABLE_ENTITY, "{self:#?}");
        self.body["message"].as_str().unwrap().to_owned()
    }

    fn warnings(&self) -> Vec<&str> {
        self.headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect()
    }
}

struct Api {
    cluster: Cluster,
}

impl Api {
    /// A server with the four CRDs, created by the request that `kubectl apply` sends.
    async fn start() -> Self {
        let api = Self { cluster: Cluster::start().await };
        for crd in crds() {
            api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd).await.object();
        }
        api
    }

    async fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) -> TestResponse {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let response =
            self.cluster.server.client().send(request.body(Body::from(body.into_bytes())).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        TestResponse {
            status: parts.status,
            headers: parts.headers,
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        }
    }

    async fn get(&self, path: &str) -> Value {
        self.call("GET", path, &[], None).await.object()
    }

    async fn post(&self, path: &str, body: &Value) -> TestResponse {
        self.call("POST", path, &[("content-type", JSON)], Some(body)).await
    }

    async fn put(&self, path: &str, body: &Value) -> TestResponse {
        self.call("PUT", path, &[("content-type", JSON)], Some(body)).await
    }

    async fn patch(&self, path: &str, body: &Value) -> TestResponse {
        self.call("PATCH", path, &[("content-type", MERGE)], Some(body)).await
    }

    /// Column names of a list.
    async fn columns(&self, path: &str) -> Vec<String> {
        let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
        let table = self.call("GET", path, &accept, None).await.object();
        table["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|column| column["name"].as_str().unwrap().to_owned())
            .collect()
    }
}

fn pod() -> Value {
    json!({ "spec": { "containers": [{ "name": "main", "image": "host", "ports": [{ "containerPort": 80 }] }] } })
}

fn sandbox(version: &str, name: &str, spec: Value) -> Value {
    let mut whole = json!({ "podTemplate": pod() });
    for (field, value) in spec.as_object().into_iter().flatten() {
        whole[field] = value.clone();
    }
    json!({ "apiVersion": format!("agents.x-k8s.io/{version}"), "kind": "Sandbox", "metadata": { "name": name }, "spec": whole })
}

fn object(version: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({ "apiVersion": format!("extensions.agents.x-k8s.io/{version}"), "kind": kind, "metadata": { "name": name }, "spec": spec })
}

fn volume(size: &str) -> Value {
    json!({ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } } } })
}

/// S-001, S-002, S-003, X-008: claim templates never change, through either version.
#[tokio::test]
async fn s_001_s_002_s_003_x_008_volume_claim_templates_are_immutable() {
    let api = Api::start().await;
    let with = json!({ "volumeClaimTemplates": [volume("1Gi")] });
    for (version, path) in [("v1beta1", BETA), ("v1alpha1", ALPHA)] {
        let (full, empty) = (format!("full-{version}"), format!("empty-{version}"));
        let stored = api.post(path, &sandbox(version, &full, with.clone())).await.object();
        api.post(path, &sandbox(version, &empty, json!({}))).await.object();
        let change = |templates: Value| json!({ "spec": { "volumeClaimTemplates": templates } });
        for (name, templates) in [
            (&full, json!([volume("1Gi"), volume("1Gi")])),
            (&full, json!([volume("1024Mi")])),
            (&full, Value::Null),
            (&empty, json!([volume("1Gi")])),
            (&empty, json!([])),
        ] {
            let message = api.patch(&format!("{path}/{name}"), &change(templates.clone())).await.refusal();
            assert!(message.contains("volumeClaimTemplates is immutable"), "{version} {templates}: {message}");
        }
        let mut other = stored;
        other["spec"]["service"] = true.into();
        api.put(&format!("{path}/{full}"), &other).await.object();
    }
}

#[tokio::test]
async fn s_004_defaults_of_a_sandbox() {
    let api = Api::start().await;
    let stored = api.post(BETA, &sandbox("v1beta1", "s", json!({}))).await.object();
    assert_eq!(
        (&stored["spec"]["operatingMode"], &stored["spec"]["shutdownPolicy"]),
        (&json!("Running"), &json!("Retain"))
    );
    assert_eq!(stored["spec"].get("service"), None);
    let port = &stored["spec"]["podTemplate"]["spec"]["containers"][0]["ports"][0];
    assert_eq!(
        port,
        &json!({ "containerPort": 80, "protocol": "TCP" }),
        "nested defaults come from Kubernetes' own schema"
    );
    let old = api.get(&format!("{ALPHA}/s")).await;
    assert_eq!((&old["spec"]["replicas"], old["spec"].get("operatingMode")), (&json!(1), None));
    let stored = api.post(ALPHA, &sandbox("v1alpha1", "old", json!({}))).await.object();
    assert_eq!(stored["spec"]["replicas"], 1, "the default of v1alpha1");
}

#[tokio::test]
async fn s_005_what_the_schema_refuses() {
    let api = Api::start().await;
    for (version, path, spec, field) in [
        ("v1beta1", BETA, json!({ "operatingMode": "Paused" }), "spec.operatingMode"),
        ("v1beta1", BETA, json!({ "shutdownPolicy": "Keep" }), "spec.shutdownPolicy"),
        ("v1alpha1", ALPHA, json!({ "replicas": 2 }), "spec.replicas"),
        ("v1alpha1", ALPHA, json!({ "replicas": -1 }), "spec.replicas"),
        ("v1beta1", BETA, json!({ "podTemplate": { "spec": {} } }), "spec.podTemplate.spec.containers"),
        ("v1beta1", BETA, json!({ "podTemplate": {} }), "spec.podTemplate.spec"),
        ("v1beta1", BETA, json!({ "shutdownTime": "tomorrow" }), "spec.shutdownTime"),
        ("v1beta1", BETA, json!({ "service": "yes" }), "spec.service"),
    ] {
        let message = api.post(path, &sandbox(version, "bad", spec.clone())).await.refusal();
        assert!(message.contains(field), "{spec}: {message}");
    }
    // Duplicates in a list with keys are refused before any controller sees them.
    let twice = json!([{ "containerPort": 80 }, { "containerPort": 80, "protocol": "TCP" }]);
    let pod = json!({ "spec": { "containers": [{ "name": "main", "ports": twice }] } });
    let message = api.post(BETA, &sandbox("v1beta1", "bad", json!({ "podTemplate": pod }))).await.refusal();
    assert!(message.contains("ports"), "{message}");
    assert_eq!(api.get(BETA).await["items"], json!([]), "nothing is stored");
}

/// S-006, X-009: responses in v1alpha1 have a deprecation warning, those in v1beta1 do not.
#[tokio::test]
async fn s_006_x_009_v1alpha1_warns() {
    let api = Api::start().await;
    for (group, plural, kind) in [
        ("agents.x-k8s.io", "sandboxes", "Sandbox"),
        ("extensions.agents.x-k8s.io", "sandboxclaims", "SandboxClaim"),
        ("extensions.agents.x-k8s.io", "sandboxtemplates", "SandboxTemplate"),
        ("extensions.agents.x-k8s.io", "sandboxwarmpools", "SandboxWarmPool"),
    ] {
        let path = |version: &str| format!("/apis/{group}/{version}/namespaces/default/{plural}");
        let old = api.call("GET", &path("v1alpha1"), &[], None).await;
        let text = format!("299 - \"{group}/v1alpha1 {kind} is deprecated; use {group}/v1beta1 {kind} instead\"");
        assert_eq!(old.warnings(), [text.as_str()]);
        assert!(api.call("GET", &path("v1beta1"), &[], None).await.warnings().is_empty());
    }
}

/// S-007, X-001: what `kubectl get` shows.
#[tokio::test]
async fn s_007_x_001_columns() {
    let api = Api::start().await;
    assert_eq!(api.columns(BETA).await, ["Name", "Ready", "Reason", "Age"]);
    assert_eq!(api.columns(ALPHA).await, ["Name", "Age"]);
    assert_eq!(
        api.columns(&extension("v1beta1", "sandboxclaims")).await,
        ["Name", "Ready", "Sandbox", "Reason", "Age"]
    );
    assert_eq!(api.columns(&extension("v1beta1", "sandboxtemplates")).await, ["Name", "Age"]);
    for version in ["v1beta1", "v1alpha1"] {
        assert_eq!(api.columns(&extension(version, "sandboxwarmpools")).await, ["Name", "Ready", "Desired", "Age"]);
    }
    let resources = api.get("/apis/extensions.agents.x-k8s.io/v1beta1").await;
    let short = |plural: &str| {
        let all = resources["resources"].as_array().unwrap();
        all.iter().find(|resource| resource["name"] == plural).unwrap()["shortNames"].clone()
    };
    assert_eq!(short("sandboxwarmpools"), json!(["swp"]));
    assert_eq!(short("sandboxclaims"), json!(["sandboxclaim"]));
    assert_eq!(short("sandboxtemplates"), json!(["sandboxtemplate"]));
}

/// S-010 to S-017, S-019: one object, two versions, through the server.
#[tokio::test]
async fn s_010_s_017_s_019_a_sandbox_reads_and_writes_in_both_versions() {
    let api = Api::start().await;
    for (replicas, mode) in [(0, "Suspended"), (1, "Running")] {
        let name = format!("old-{replicas}");
        api.post(ALPHA, &sandbox("v1alpha1", &name, json!({ "replicas": replicas }))).await.object();
        let stored = api.get(&format!("{BETA}/{name}")).await;
        assert_eq!((&stored["spec"]["operatingMode"], stored["spec"].get("replicas")), (&json!(mode), None));
        let old = api.get(&format!("{ALPHA}/{name}")).await;
        assert_eq!((&old["spec"]["replicas"], old["spec"].get("operatingMode")), (&json!(replicas), None));
        assert_eq!(old["metadata"].get("annotations"), None, "S-015: the state is not for v1alpha1 clients");
        assert_eq!(old["status"]["replicas"], replicas);

        let other = if mode == "Running" { "Suspended" } else { "Running" };
        api.patch(&format!("{BETA}/{name}"), &json!({ "spec": { "operatingMode": other } })).await.object();
        let old = api.get(&format!("{ALPHA}/{name}")).await;
        assert_eq!(old["spec"]["replicas"], 1 - replicas, "S-017: the mode wins");
        api.patch(&format!("{ALPHA}/{name}"), &json!({ "spec": { "replicas": replicas } })).await.object();
        assert_eq!(api.get(&format!("{BETA}/{name}")).await["spec"]["operatingMode"], mode);
    }
}

#[tokio::test]
async fn s_018_the_node_is_dropped_by_a_write_through_v1alpha1() {
    let api = Api::start().await;
    api.post(BETA, &sandbox("v1beta1", "s", json!({}))).await.object();
    let status = json!({ "status": { "nodeName": "node", "podIPs": ["10.0.0.1"] } });
    api.patch(&format!("{BETA}/s/status"), &status).await.object();
    assert_eq!(api.get(&format!("{ALPHA}/s")).await["status"].get("nodeName"), None);
    api.patch(&format!("{ALPHA}/s"), &json!({ "metadata": { "labels": { "edited": "yes" } } })).await.object();
    let stored = api.get(&format!("{BETA}/s")).await;
    assert_eq!(stored["status"].get("nodeName"), None);
    assert_eq!(stored["status"]["podIPs"], json!(["10.0.0.1"]));
}

/// S-021: the marker of a storage rewrite; a dry run leaves none.
#[tokio::test]
async fn s_021_a_storage_rewrite_is_marked_and_a_dry_run_is_not() {
    let api = Api::start().await;
    api.post(ALPHA, &sandbox("v1alpha1", "s", json!({ "replicas": 0 }))).await.object();
    let key = "agents.x-k8s.io/storage-migrated-at";
    let mark = json!({ "metadata": { "annotations": { key: "2026-01-01T00:00:00Z" } } });
    api.patch(&format!("{BETA}/s?dryRun=All"), &mark).await.object();
    assert_eq!(api.get(&format!("{BETA}/s")).await["metadata"]["annotations"].get(key), None);
    api.patch(&format!("{BETA}/s"), &mark).await.object();
    for path in [BETA, ALPHA] {
        assert_eq!(api.get(&format!("{path}/s")).await["metadata"]["annotations"][key], "2026-01-01T00:00:00Z");
    }
    assert_eq!(api.get(&format!("{BETA}/s")).await["spec"]["operatingMode"], "Suspended");
}

#[tokio::test]
async fn s_024_scaling_through_v1alpha1_suspends_and_resumes() {
    let api = Api::start().await;
    api.post(BETA, &sandbox("v1beta1", "s", json!({}))).await.object();
    assert_eq!(api.call("GET", &format!("{BETA}/s/scale"), &[], None).await.status, StatusCode::NOT_FOUND);
    for (replicas, mode) in [(0, "Suspended"), (1, "Running")] {
        let scaled =
            api.patch(&format!("{ALPHA}/s/scale"), &json!({ "spec": { "replicas": replicas } })).await.object();
        assert_eq!((&scaled["kind"], &scaled["spec"]["replicas"]), (&json!("Scale"), &json!(replicas)));
        assert_eq!(api.get(&format!("{BETA}/s")).await["spec"]["operatingMode"], mode);
    }
}

#[tokio::test]
async fn x_002_pools_scale() {
    let api = Api::start().await;
    let pools = extension("v1beta1", "sandboxwarmpools");
    let pool = object("v1beta1", "SandboxWarmPool", "p", json!({ "sandboxTemplateRef": { "name": "t" } }));
    api.post(&pools, &pool).await.object();
    let status = json!({ "status": { "replicas": 2, "readyReplicas": 1, "selector": "a=b" } });
    api.patch(&format!("{pools}/p/status"), &status).await.object();
    let scale = api.get(&format!("{pools}/p/scale")).await;
    assert_eq!(scale["status"], json!({ "replicas": 2, "selector": "a=b" }));
    api.patch(&format!("{pools}/p/scale"), &json!({ "spec": { "replicas": 3 } })).await.object();
    assert_eq!(api.get(&format!("{pools}/p")).await["spec"]["replicas"], 3);
}

/// defaults of a pool, and what is refused.
#[tokio::test]
async fn x_003_x_005_defaults_of_a_pool() {
    let api = Api::start().await;
    let (beta, alpha) = (extension("v1beta1", "sandboxwarmpools"), extension("v1alpha1", "sandboxwarmpools"));
    let spec = |extra: Value| {
        let mut spec = json!({ "sandboxTemplateRef": { "name": "t" } });
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spec
    };
    let stored = api
        .post(&beta, &object("v1beta1", "SandboxWarmPool", "p", spec(json!({ "updateStrategy": {} }))))
        .await
        .object();
    assert_eq!(
        (&stored["spec"]["replicas"], &stored["spec"]["updateStrategy"]["type"]),
        (&json!(1), &json!("OnReplenish"))
    );
    let plain = api.post(&beta, &object("v1beta1", "SandboxWarmPool", "q", spec(json!({})))).await.object();
    assert_eq!(plain["spec"].get("updateStrategy"), None);
    for bad in
        [json!({ "updateStrategy": { "type": "Foo" } }), json!({ "replicas": -1 }), json!({ "sandboxTemplateRef": {} })]
    {
        api.post(&beta, &object("v1beta1", "SandboxWarmPool", "bad", spec(bad))).await.refusal();
    }
    let message = api.post(&alpha, &object("v1alpha1", "SandboxWarmPool", "bad", spec(json!({})))).await.refusal();
    assert!(message.contains("spec.replicas"), "required in v1alpha1: {message}");
}

#[tokio::test]
async fn x_006_defaults_of_a_claim() {
    let api = Api::start().await;
    let claims = extension("v1beta1", "sandboxclaims");
    let claim = |name: &str, extra: Value| {
        let mut spec = json!({ "warmPoolRef": { "name": "p" } });
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        object("v1beta1", "SandboxClaim", name, spec)
    };
    let stored = api.post(&claims, &claim("c", json!({ "lifecycle": {} }))).await.object();
    assert_eq!(stored["spec"]["lifecycle"]["shutdownPolicy"], "Retain");
    let plain = api.post(&claims, &claim("d", json!({}))).await.object();
    assert_eq!(plain["spec"].get("lifecycle"), None);
    for bad in [
        json!({ "lifecycle": { "ttlSecondsAfterFinished": -1 } }),
        json!({ "lifecycle": { "shutdownPolicy": "Maybe" } }),
        json!({ "env": [{ "name": "A" }] }),
        json!({ "warmPoolRef": {} }),
    ] {
        api.post(&claims, &claim("bad", bad)).await.refusal();
    }
}

#[tokio::test]
async fn x_007_defaults_of_a_template() {
    let api = Api::start().await;
    let templates = extension("v1beta1", "sandboxtemplates");
    let stored = api
        .post(&templates, &object("v1beta1", "SandboxTemplate", "t", json!({ "podTemplate": pod() })))
        .await
        .object();
    for (field, value) in [
        ("networkPolicyManagement", "Managed"),
        ("envVarsInjectionPolicy", "Disallowed"),
        ("volumeClaimTemplatesPolicy", "Disallowed"),
    ] {
        assert_eq!(stored["spec"][field], value, "{field}");
    }
    let rules = json!({ "podTemplate": pod(), "networkPolicy": { "ingress": [{ "ports": [{ "port": "http" }, { "port": 80 }] }], "egress": [] } });
    let stored = api.post(&templates, &object("v1beta1", "SandboxTemplate", "u", rules.clone())).await.object();
    assert_eq!(stored["spec"]["networkPolicy"], rules["networkPolicy"], "rules are kept word for word");
}

/// claims of both versions through the server.
#[tokio::test]
async fn x_010_x_013_x_015_x_016_x_021_a_claim_reads_and_writes_in_both_versions() {
    let api = Api::start().await;
    let (beta, alpha) = (extension("v1beta1", "sandboxclaims"), extension("v1alpha1", "sandboxclaims"));
    let old = |name: &str, warmpool: Option<&str>| {
        let mut spec = json!({ "sandboxTemplateRef": { "name": "t" } });
        if let Some(warmpool) = warmpool {
            spec["warmpool"] = warmpool.into();
        }
        object("v1alpha1", "SandboxClaim", name, spec)
    };
    for (name, warmpool, pool, shown) in [
        ("plain", None, "shadow-pool-t", "default"),
        ("none", Some("none"), "shadow-pool-t", "none"),
        ("named", Some("my-pool"), "my-pool", "my-pool"),
    ] {
        let response = api.post(&alpha, &old(name, warmpool)).await.object();
        let view = api.get(&format!("{alpha}/{name}")).await;
        for object in [&response, &view] {
            assert_eq!(object["spec"], json!({ "sandboxTemplateRef": { "name": "t" }, "warmpool": shown }));
            assert_eq!(object["metadata"].get("annotations"), None);
        }
        assert_eq!(api.get(&format!("{beta}/{name}")).await["spec"]["warmPoolRef"]["name"], pool);
    }
    // bound to a warm Sandbox, and touched.
    api.patch(&format!("{beta}/plain/status"), &json!({ "status": { "sandbox": { "name": "my-pool-abcde" } } }))
        .await
        .object();
    api.patch(&format!("{alpha}/plain"), &json!({ "metadata": { "labels": { "touched": "yes" } } })).await.object();
    let view = api.get(&format!("{alpha}/plain")).await;
    assert_eq!(
        (&view["spec"]["warmpool"], &view["status"]["sandbox"]["name"]),
        (&json!("default"), &json!("my-pool-abcde"))
    );
    //
    api.patch(&format!("{beta}/none"), &json!({ "spec": { "warmPoolRef": { "name": "new-pool" } } })).await.object();
    let view = api.get(&format!("{alpha}/none")).await;
    assert_eq!(view["spec"], json!({ "sandboxTemplateRef": { "name": "t" }, "warmpool": "new-pool" }));
    //
    api.post(&beta, &object("v1beta1", "SandboxClaim", "native", json!({ "warmPoolRef": { "name": "p" } })))
        .await
        .object();
    assert_eq!(
        api.get(&format!("{alpha}/native")).await["spec"],
        json!({ "sandboxTemplateRef": { "name": "p" }, "warmpool": "p" })
    );
}

/// the policy for claims' volumes through v1alpha1.
#[tokio::test]
async fn x_017_x_018_x_019_the_volume_policy_survives_v1alpha1() {
    let api = Api::start().await;
    let (beta, alpha) = (extension("v1beta1", "sandboxtemplates"), extension("v1alpha1", "sandboxtemplates"));
    let spec = json!({ "podTemplate": pod(), "volumeClaimTemplatesPolicy": "Allowed" });
    api.post(&beta, &object("v1beta1", "SandboxTemplate", "t", spec)).await.object();
    let key = "api.agents.x-k8s.io/v1beta1-volume-claim-templates-policy";
    assert_eq!(api.get(&format!("{alpha}/t")).await["metadata"]["annotations"][key], "Allowed");
    api.patch(&format!("{alpha}/t"), &json!({ "metadata": { "labels": { "touched": "yes" } } })).await.object();
    assert_eq!(api.get(&format!("{beta}/t")).await["spec"]["volumeClaimTemplatesPolicy"], "Allowed");
    let bad = api.patch(&format!("{alpha}/t"), &json!({ "metadata": { "annotations": { key: "Sometimes" } } })).await;
    assert!(!bad.status.is_success(), "X-019: {bad:#?}");
    assert!(
        bad.body["message"]
            .as_str()
            .unwrap()
            .contains("invalid VolumeClaimTemplatesPolicy annotation value: \"Sometimes\""),
        "{bad:#?}"
    );
    assert_eq!(api.get(&format!("{beta}/t")).await["spec"]["volumeClaimTemplatesPolicy"], "Allowed");
}

#[tokio::test]
async fn x_020_pools_read_in_both_versions() {
    let api = Api::start().await;
    let (beta, alpha) = (extension("v1beta1", "sandboxwarmpools"), extension("v1alpha1", "sandboxwarmpools"));
    let spec = json!({ "replicas": 3, "sandboxTemplateRef": { "name": "t" } });
    api.post(&alpha, &object("v1alpha1", "SandboxWarmPool", "p", spec.clone())).await.object();
    assert_eq!(api.get(&format!("{beta}/p")).await["spec"], spec);
    let status = json!({ "replicas": 3, "readyReplicas": 2, "selector": "a=b", "observedGeneration": 1 });
    api.patch(&format!("{beta}/p/status"), &json!({ "status": status })).await.object();
    let view = api.get(&format!("{alpha}/p")).await;
    assert_eq!(view["spec"], spec);
    assert_eq!(view["status"], json!({ "replicas": 3, "readyReplicas": 2, "selector": "a=b" }));
}

/// A malformed state annotation, written through v1beta1, does not break lists of v1alpha1.
#[tokio::test]
async fn malformed_states_break_no_list() {
    let api = Api::start().await;
    for (name, state) in [("one", "{"), ("two", "[]"), ("three", "{\"spec\":{\"replicas\":\"many\"}}")] {
        let mut object = sandbox("v1beta1", name, json!({}));
        object["metadata"]["annotations"] = json!({ "api.agents.x-k8s.io/v1alpha1-sandbox-state": state });
        api.post(BETA, &object).await.object();
    }
    let list = api.get(ALPHA).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 3);
    for item in list["items"].as_array().unwrap() {
        assert_eq!(item["spec"]["replicas"], 1);
    }
}

/// Unknown fields are pruned, or refused with strict field validation; all fields of a Pod spec are kept.
#[tokio::test]
async fn unknown_fields_are_pruned_or_refused() {
    let api = Api::start().await;
    let object = sandbox("v1beta1", "s", json!({ "typo": 1 }));
    let strict = api.post(&format!("{BETA}?fieldValidation=Strict"), &object).await;
    assert_eq!(strict.status, StatusCode::BAD_REQUEST, "{strict:#?}");
    assert!(strict.body["message"].as_str().unwrap().contains("typo"), "{strict:#?}");
    let stored = api.post(BETA, &object).await.object();
    assert_eq!(stored["spec"].get("typo"), None);
    let pod = json!({ "spec": { "containers": [{ "name": "m", "resources": { "limits": { "cpu": 1, "memory": "1Gi" } } }], "hostUsers": false, "schedulingGroup": { "podGroupName": "g" } } });
    let stored = api.post(BETA, &sandbox("v1beta1", "t", json!({ "podTemplate": pod.clone() }))).await.object();
    assert_eq!(stored["spec"]["podTemplate"], pod);
}
