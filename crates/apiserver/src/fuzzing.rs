//! Fuzz targets: paths, options, bodies, patches, selectors, tokens and schemas of requests, and whole requests.

#[cfg(test)]
#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/src/request.rs"]
mod input;

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::front::auth::UserInfo;
use crate::front::auth::tokens::TokenSigner;
use crate::limits::Amount;
use crate::patch::managed::Manager;
use crate::patch::{JsonPatch, apply, merge, strategic};
use crate::registry::Registry;
use crate::request::{DeleteOptions, ListOptions, RequestInfo, Verb, WriteOptions};
use crate::schema::Schema;
use crate::selectors::{FieldSelector, LabelSelector};
use crate::server::{ApiServer, Config};
use crate::status::Path;
use crate::table::ResponseFormat;
use crate::table::jsonpath::JsonPath;
use crate::{protobuf, verbs};

/// A function that gets any bytes and panics if they are handled wrongly.
pub type Target = fn(&[u8]);

/// Name and function of each target.
pub const TARGETS: &[(&str, Target)] = &[
    ("api-request", request),
    ("api-server", whole_request),
    ("api-body", verbs::fuzz_body),
    ("api-protobuf", protobuf_body),
    ("json-patch", json_patch),
    ("merge-patch", merge_patch),
    ("strategic-patch", strategic_patch),
    ("server-side-apply", server_side_apply),
    ("label-selector", label_selector),
    ("field-selector", field_selector),
    ("continue-token", verbs::fuzz_continue),
    ("service-account-token", service_account_token),
    ("quantity", quantity),
    ("crd-schema", crd_schema),
    ("json-path", json_path),
];

/// The Pod that patches are applied to.
fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "p", "namespace": "default", "labels": {"app": "a"}, "finalizers": ["f.example/a"],
            "managedFields": [{
                "manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {"f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:image": {}}}}},
            }],
        },
        "spec": {
            "containers": [
                {"name": "a", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}], "env": [{"name": "E", "value": "v"}]},
                {"name": "b", "image": "i", "args": ["x", "y"]},
            ],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "tolerations": [{"key": "k", "operator": "Exists"}],
        },
    })
}

static POD: LazyLock<Schema> = LazyLock::new(|| Schema::of_builtin("io.k8s.api.core.v1.Pod").expect("a built-in kind"));

/// The bytes are a request: everything that is decided from its head, and the options in its body.
fn request(data: &[u8]) {
    let Some(request) = input::request(data) else { return };
    let uri = request.uri();
    let _ = RequestInfo::parse(request.method(), uri);
    let _ = ListOptions::parse(uri).map(|options| options.version().is_ok());
    for verb in [Verb::Create, Verb::Update, Verb::Patch] {
        let _ = WriteOptions::parse(uri, "agent/1", verb);
    }
    let _ = DeleteOptions::parse(uri, request.body());
    let _ = ResponseFormat::negotiate(request.headers());
}

/// A server in memory, replaced now and then because it keeps what requests create.
struct Served {
    runtime: tokio::runtime::Runtime,
    server: ApiServer,
    requests: usize,
}

impl Served {
    const REQUESTS: usize = 2_000;

    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let server = runtime.block_on(async {
            let server = ApiServer::open(Config::default()).await.expect("a server in memory");
            let core = "/api/v1/namespaces/default";
            let claims = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}});
            let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "5", "requests.cpu": "9"}}});
            let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "default": {"cpu": "1"}}]}});
            let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions".to_owned();
            let mut objects: Vec<(String, Value)> =
                agent_sandbox_api::crd::crds().into_iter().map(|crd| (crds.clone(), crd)).collect();
            objects.extend([
                (format!("{core}/limitranges"), range),
                (format!("{core}/resourcequotas"), quota),
                (format!("{core}/configmaps"), claims),
                (format!("{core}/pods"), pod()),
            ]);
            for (path, object) in objects {
                let request = Request::post(path).header("content-type", "application/json");
                let body = Full::new(Bytes::from(object.to_string()));
                let response = server.handle(&UserInfo::administrator(), request.body(body).expect("a request")).await;
                assert!(response.status().is_success(), "{object} is not accepted: {}", response.status());
            }
            server
        });
        Self { runtime, server, requests: 0 }
    }
}

/// The bytes are a request of an administrator. The server must answer it, and not with its own failure.
fn whole_request(data: &[u8]) {
    static SERVED: Mutex<Option<Served>> = Mutex::new(None);
    let Some(request) = input::request(data) else { return };
    let mut place = SERVED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut served = place.take().filter(|served| served.requests < Served::REQUESTS).unwrap_or_else(Served::start);
    served.requests += 1;
    let request = request.map(|body| Full::new(Bytes::from(body)));
    served.runtime.block_on(async {
        let response = served.server.handle(&UserInfo::administrator(), request).await;
        let failed = response.status() == http::StatusCode::INTERNAL_SERVER_ERROR;
        // A watch goes on; one frame of it is enough.
        let mut body = response.into_body();
        let first = tokio::time::timeout(Duration::from_millis(1), body.frame()).await;
        let first = first.ok().flatten().and_then(Result::ok).and_then(|frame| frame.into_data().ok());
        // Kubernetes answers a watch from a version that is not a number with 500 and without a reason; so does this
        // server.
        let text = String::from_utf8_lossy(first.as_deref().unwrap_or_default()).into_owned();
        assert!(!failed || !text.contains("InternalError"), "{text}");
    });
    *place = Some(served);
}

fn protobuf_body(data: &[u8]) {
    let _ = protobuf::decode(data);
}

fn json_patch(data: &[u8]) {
    let Ok(patch) = JsonPatch::parse(data) else { return };
    if let Ok(patched) = patch.apply(pod()) {
        serde_json::from_str::<Value>(&patched.to_string()).expect("a patched object can be read again");
    }
}

fn merge_patch(data: &[u8]) {
    let Ok(patch) = serde_json::from_slice::<Value>(data) else { return };
    let Ok(patched) = merge(pod(), &patch) else { return };
    assert_eq!(merge(patched.clone(), &patch).ok(), Some(patched), "a merge patch changes nothing the second time");
}

fn strategic_patch(data: &[u8]) {
    let Ok(patch) = serde_json::from_slice::<Value>(data) else { return };
    for schema in [Some(&*POD), None] {
        let _ = strategic(pod(), &patch, schema);
    }
}

fn server_side_apply(data: &[u8]) {
    let Ok(applied) = serde_json::from_slice::<Value>(data) else { return };
    if !applied.is_object() {
        return;
    }
    let manager = Manager {
        name: "fuzz".to_owned(),
        operation: "Apply",
        api_version: "v1".to_owned(),
        subresource: String::new(),
    };
    for schema in [Some(&*POD), None] {
        let Ok(once) = apply(pod(), &applied, &manager, true, schema) else { continue };
        let mut twice = apply(once.clone(), &applied, &manager, false, schema).expect("what was applied is owned");
        let mut once = once;
        for object in [&mut once, &mut twice] {
            if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("managedFields");
            }
        }
        assert_eq!(once, twice, "applying the same again changes nothing");
    }
}

fn label_selector(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(selector) = LabelSelector::parse(text) {
        let _ = (selector.is_empty(), selector.matches(|key| (key == "app").then_some("a")));
    }
}

fn field_selector(data: &[u8]) {
    static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::default);
    let Ok(text) = std::str::from_utf8(data) else { return };
    let snapshot = REGISTRY.snapshot();
    for plural in ["pods", "events"] {
        let resource = snapshot.resource("", plural).expect("a built-in resource");
        if let Ok(selector) = FieldSelector::parse(resource, text) {
            let _ = (selector.name(), selector.namespace());
        }
    }
}

/// The bytes are a token, then the payload of a valid one.
fn service_account_token(data: &[u8]) {
    let signer = TokenSigner::new(&[7; 32]);
    if let Ok(text) = std::str::from_utf8(data) {
        assert!(signer.verify(text, Timestamp::UNIX_EPOCH).is_err(), "a forged token was accepted");
    }
    if let Ok(claims) = signer.verify(&signer.seal(data), Timestamp::UNIX_EPOCH) {
        assert!(claims.expires > 0 && claims.not_before <= 0);
    }
}

fn quantity(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let number = serde_json::from_str::<Value>(text).ok().filter(Value::is_number);
    for value in [Some(Value::from(text)), number].into_iter().flatten() {
        let Some(amount) = Amount::of_json(&value) else { continue };
        let _ =
            (amount + amount, amount - Amount::ONE, amount.rounded_up(), amount.ratio(Amount::ONE), amount.as_f64());
        let shown = amount.to_string();
        let again = Amount::of_json(&Value::from(shown.as_str()));
        assert_eq!(again, Some(amount), "{text:?} is shown as {shown:?}");
    }
}

/// The bytes are a document with a schema and an object.
fn crd_schema(data: &[u8]) {
    let Ok(mut document) = serde_json::from_slice::<Value>(data) else { return };
    let mut object = document.get_mut("object").map(Value::take).unwrap_or_default();
    let Some(raw) = document.get("schema") else { return };
    let Ok(schema) = Schema::compile(raw, &Path::Root) else { return };
    let _ = schema.prune(&mut object);
    schema.apply_defaults(&mut object);
    let _ = schema.validate(&object, Some(&object));
}

fn json_path(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(path) = JsonPath::parse(text) {
        let _ = path.find(&pod()).len();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpora_pass() {
        super::corpus::replay(super::TARGETS);
    }
}
