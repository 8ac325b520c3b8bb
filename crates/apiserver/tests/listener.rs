//! The network listener with plain HTTP requests: errors, and the formats of responses.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests fail the test")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use kube::config::Kubeconfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use support::{Cluster, running_pod};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Timeout for each step of a test.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A cluster, and an HTTPS client with the administrator's token.
struct HttpsClient {
    cluster: Cluster,
    tls: TlsConnector,
    token: String,
}

impl HttpsClient {
    async fn start() -> Self {
        let cluster = Cluster::start().await;
        let kubeconfig = Kubeconfig::from_yaml(cluster.listener.kubeconfig()).unwrap();
        let authority = kubeconfig.clusters[0].cluster.as_ref().unwrap().certificate_authority_data.clone().unwrap();
        let pem = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, authority).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let token = token_of(&kubeconfig);
        Self { cluster, tls: TlsConnector::from(Arc::new(config)), token }
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.cluster.listener.address()).await.unwrap();
        self.tls.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Response<Bytes> {
        let connection = TokioIo::new(self.connect().await);
        let (mut sender, driver) = hyper::client::conn::http1::handshake(connection).await.unwrap();
        let driver = tokio::spawn(driver);
        let response = timeout(TIMEOUT, sender.send_request(request)).await.expect("a response in time").unwrap();
        let (parts, body) = response.into_parts();
        let body = timeout(TIMEOUT, body.collect()).await.expect("a body in time").unwrap().to_bytes();
        drop(sender);
        driver.abort();
        Response::from_parts(parts, body)
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("authorization", format!("Bearer {}", self.token))
    }

    async fn get(&self, path: &str, accept: &str) -> (StatusCode, Value) {
        let request = self.request(Method::GET, path).header("accept", accept).body(Full::default()).unwrap();
        let response = self.send(request).await;
        (response.status(), serde_json::from_slice(response.body()).unwrap_or(Value::Null))
    }

    async fn post(&self, path: &str, content_type: &str, body: impl Into<Bytes>) -> (StatusCode, Value) {
        let request =
            self.request(Method::POST, path).header("content-type", content_type).body(Full::new(body.into())).unwrap();
        let response = self.send(request).await;
        (response.status(), serde_json::from_slice(response.body()).unwrap_or(Value::Null))
    }
}

fn token_of(kubeconfig: &Kubeconfig) -> String {
    let user = kubeconfig.auth_infos[0].auth_info.as_ref().unwrap();
    let text = serde_json::to_value(user).unwrap();
    text["token"].as_str().unwrap().to_owned()
}

fn is_status((code, body): &(StatusCode, Value), expected_code: u16, reason: &str) {
    assert_eq!(code.as_u16(), expected_code, "{body}");
    assert_eq!(body["kind"], "Status");
    assert_eq!(body["reason"], reason, "{body}");
    assert_eq!(body["code"], expected_code);
    assert!(!body["message"].as_str().unwrap().is_empty());
}

#[tokio::test]
async fn every_error_is_a_status() {
    let mut client = HttpsClient::start().await;
    is_status(&client.get("/api/v1/unicorns", "*/*").await, 404, "NotFound");
    for path in ["/apis/none/v1/things", "/elsewhere"] {
        let request = client.request(Method::GET, path).body(Full::default()).unwrap();
        let response = client.send(request).await;
        assert_eq!((response.status().as_u16(), &response.body()[..]), (404, &b"404 page not found\n"[..]), "{path}");
    }
    is_status(&client.get("/api/v1/namespaces/default/pods/none", "*/*").await, 404, "NotFound");
    is_status(&client.get("/api/v1/pods", "application/vnd.kubernetes.protobuf").await, 406, "NotAcceptable");
    is_status(&client.get("/api/v1/pods?includeObject=Everything", "*/*").await, 400, "BadRequest");
    is_status(&client.get("/api/v1/pods?labelSelector=a+in+b", "*/*").await, 400, "BadRequest");
    let maps = "/api/v1/namespaces/default/configmaps";
    is_status(&client.post(maps, "application/json", "{broken").await, 400, "BadRequest");
    is_status(&client.post(maps, "application/xml", "<a/>").await, 415, "UnsupportedMediaType");
    is_status(&client.post(maps, "application/json", vec![b' '; 3 << 20 | 1]).await, 413, "RequestEntityTooLarge");
    is_status(
        &client.post("/api/v1/namespaces/default/pods/p/exec?command=ls&stdout=1", "", "").await,
        404,
        "NotFound",
    );
    client.token = "wrong".into();
    is_status(&client.get("/api/v1/pods", "*/*").await, 401, "Unauthorized");
    is_status(&client.get("/version", "*/*").await, 401, "Unauthorized");
    let anonymous = Request::builder().uri("/api/v1/pods").header("host", "localhost").body(Full::default()).unwrap();
    let refused = client.send(anonymous).await;
    assert_eq!(refused.status(), 403, "without credentials the user is anonymous");
    assert!(String::from_utf8_lossy(refused.body()).contains("User \\\"system:anonymous\\\" cannot list resource"));
    assert_eq!(client.get("/healthz", "*/*").await.0, 200, "health checks need no token");
}

#[tokio::test]
async fn streams_need_an_upgrade_and_a_protocol_in_common() {
    let client = HttpsClient::start().await;
    let made = client
        .post("/api/v1/namespaces/default/pods", "application/json", running_pod("p", &["a", "b"]).to_string())
        .await;
    assert_eq!(made.0, 201, "{}", made.1);
    let exec = "/api/v1/namespaces/default/pods/p/exec?command=ls&stdout=1";
    is_status(&client.get(exec, "*/*").await, 400, "BadRequest");
    is_status(&client.get(&format!("{exec}&container=a"), "*/*").await, 400, "BadRequest");
    let upgrade = |protocol: &str| {
        let builder = client.request(Method::GET, &format!("{exec}&container=a"));
        builder
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", protocol)
            .body(Full::default())
            .unwrap()
    };
    let refused = client.send(upgrade("v99.channel.k8s.io")).await;
    assert_eq!(refused.status(), 400);
    assert!(String::from_utf8_lossy(refused.body()).contains("v99.channel.k8s.io"));
    let logs = "/api/v1/namespaces/default/pods/p/log";
    is_status(&client.get(&format!("{logs}?container=a&tailLines=-1"), "*/*").await, 422, "Invalid");
    let many = client.get(logs, "*/*").await;
    is_status(&many, 400, "BadRequest");
    assert!(many.1["message"].as_str().unwrap().contains("choose one of: [a b]"));
}

#[tokio::test]
async fn objects_are_served_as_tables_and_as_metadata() {
    let client = HttpsClient::start().await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1"}});
    client.post("/api/v1/namespaces/default/configmaps", "application/json", map.to_string()).await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
    let path = "/api/v1/namespaces/default/configmaps/m";
    let (_, one) = client.get(path, table).await;
    assert_eq!((&one["kind"], &one["rows"][0]["cells"][1]), (&json!("Table"), &json!(1)));
    assert_eq!(one["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let (_, whole) = client.get(&format!("{path}?includeObject=Object"), table).await;
    assert_eq!(whole["rows"][0]["object"]["data"]["a"], "1");
    let (_, none) = client.get(&format!("{path}?includeObject=None"), table).await;
    assert_eq!(none["rows"][0]["object"], Value::Null);
    let bare = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let (_, metadata) = client.get(path, bare).await;
    assert_eq!(metadata["kind"], "PartialObjectMetadata");
    assert!(metadata.get("data").is_none());
    let watch = "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dm";
    let request = client.request(Method::GET, watch).header("accept", table).body(Full::default()).unwrap();
    let response = client.send(request).await;
    let first: Value = serde_json::from_slice(response.body().split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!((&first["type"], &first["object"]["kind"]), (&json!("ADDED"), &json!("Table")));
    assert_eq!(first["object"]["columnDefinitions"][0]["name"], "Name");
}

#[tokio::test]
async fn documents_have_etags_and_are_not_sent_again() {
    let client = HttpsClient::start().await;
    for path in ["/apis", "/openapi/v3", "/openapi/v3/api/v1"] {
        let request = || client.request(Method::GET, path);
        let first = client.send(request().body(Full::default()).unwrap()).await;
        let tag = first.headers()["etag"].clone();
        let again = client.send(request().header("if-none-match", tag).body(Full::default()).unwrap()).await;
        assert_eq!((again.status().as_u16(), again.body().len()), (304, 0), "{path}");
    }
    let protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    assert_eq!(client.get("/openapi/v2", protobuf).await.0, 404);
    assert_eq!(client.get("/openapi/v2", "application/json").await.1["swagger"], "2.0");
}

/// A user may not grant permissions that the user does not have, with any verb.
#[tokio::test]
async fn roles_cannot_be_used_for_privilege_escalation() {
    let mut client = HttpsClient::start().await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let boss = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "boss"}, "rules": [
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["create", "get", "list", "update", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
    assert_eq!(client.post(&format!("{rbac}/roles"), "application/json", boss.to_string()).await.0, 201);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "ann"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "boss"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "default"}]});
    assert_eq!(client.post(&format!("{rbac}/rolebindings"), "application/json", binding.to_string()).await.0, 201);
    let (code, minted) =
        client.post("/api/v1/namespaces/default/serviceaccounts/default/token", "application/json", "{}").await;
    assert_eq!(code, 201, "{minted}");
    client.token = minted["status"]["token"].as_str().unwrap().to_owned();
    let mut escalation = binding.clone();
    escalation["metadata"]["name"] = "climb".into();
    escalation["roleRef"] =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"});
    is_status(
        &client.post(&format!("{rbac}/rolebindings"), "application/json", escalation.to_string()).await,
        403,
        "Forbidden",
    );
    let patch = json!({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
    let request = client
        .request(Method::PATCH, &format!("{rbac}/roles/boss"))
        .header("content-type", "application/merge-patch+json")
        .body(Full::new(patch.to_string().into()))
        .unwrap();
    assert_eq!(client.send(request).await.status(), 403);
    let mut lesser = boss.clone();
    lesser["metadata"]["name"] = "lesser".into();
    lesser["rules"] = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    assert_eq!(client.post(&format!("{rbac}/roles"), "application/json", lesser.to_string()).await.0, 201);
}

/// D-223: bytes that are not valid WebSocket frames, SPDY frames or TLS end only their own connection.
#[tokio::test]
async fn invalid_bytes_end_only_their_own_connection() {
    let client = HttpsClient::start().await;
    client.post("/api/v1/namespaces/default/pods", "application/json", running_pod("p", &["a"]).to_string()).await;
    let mut plain = TcpStream::connect(client.cluster.listener.address()).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut response = Vec::new();
    timeout(TIMEOUT, plain.read_to_end(&mut response)).await.expect("closed in time").ok();
    for (headers, invalid) in [
        ("Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n", vec![0xffu8; 4096]),
        (
            "Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n",
            vec![0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff],
        ),
        (
            "Upgrade: websocket\r\nSec-WebSocket-Key: a\r\nSec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io\r\n",
            vec![0xff; 4096],
        ),
        (
            "Upgrade: websocket\r\nSec-WebSocket-Key: a\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n",
            vec![0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ),
    ] {
        let mut connection = client.connect().await;
        let method = if headers.contains("SPDY/3.1\r\nX") { "POST" } else { "GET" };
        let request = format!(
            "{method} /api/v1/namespaces/default/pods/p/portforward?ports=80 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nConnection: Upgrade\r\n{headers}\r\n",
            client.token
        );
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 12];
        timeout(TIMEOUT, connection.read_exact(&mut head)).await.expect("a response in time").unwrap();
        assert_eq!(&head, b"HTTP/1.1 101", "{headers}");
        connection.write_all(&invalid).await.unwrap();
        let mut rest = Vec::new();
        timeout(TIMEOUT, connection.read_to_end(&mut rest)).await.expect("closed in time").ok();
    }
    assert_eq!(client.get("/api/v1/namespaces/default/pods", "*/*").await.0, 200);
}

/// A local user who opens connections and sends nothing must not keep others from the API.
#[tokio::test]
async fn requests_are_answered_at_once_during_a_flood_of_idle_connections() {
    let client = HttpsClient::start().await;
    let used = client.connect().await;
    let (mut sender, driver) = hyper::client::conn::http1::handshake(TokioIo::new(used)).await.unwrap();
    let driver = tokio::spawn(driver);
    let request = || client.request(Method::GET, "/version").body(Full::default()).unwrap();
    let version = |response: Response<hyper::body::Incoming>| response.into_body().collect();
    version(sender.send_request(request()).await.unwrap()).await.unwrap();

    let mut idle = Vec::new();
    for _ in 0..1500 {
        idle.push(TcpStream::connect(client.cluster.listener.address()).await.unwrap());
        if idle.len() % 300 == 0 {
            let response = timeout(Duration::from_secs(1), client.send(request())).await.expect("a response at once");
            assert_eq!(response.status(), 200);
        }
    }
    let again = timeout(Duration::from_secs(1), sender.send_request(request())).await.expect("a response at once");
    assert_eq!(again.expect("an authenticated connection stays open").status(), 200);
    let mut byte = [0; 1];
    let closed = timeout(TIMEOUT, idle[0].read(&mut byte)).await.expect("the oldest idle connection is closed");
    assert!(matches!(closed, Ok(0) | Err(_)));
    driver.abort();
}

/// A page of another name or origin is refused before anything is looked up, whatever anonymous users may do: the
/// version is for everyone.
#[tokio::test]
async fn a_web_page_gets_nothing_without_a_token() {
    let client = HttpsClient::start().await;
    let configs = "/api/v1/namespaces/default/configmaps";
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"from-a-page"}}"#;
    let rebound = [("host", "evil.example"), ("origin", "https://evil.example")];
    let foreign = [("host", "localhost"), ("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")];
    let image = [("host", "localhost"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")];
    for (method, path, kind) in [
        (Method::GET, "/version", ""),
        (Method::GET, "/api/v1/namespaces/default/pods", ""),
        (Method::GET, "/openapi/v3", ""),
        (Method::GET, "/metrics", ""),
        (Method::POST, configs, "text/plain"),
        (Method::POST, configs, "application/json"),
    ] {
        for (headers, code) in [(&rebound[..], 421), (&foreign, 403), (&image, 403)] {
            let mut page = Request::builder().method(&method).uri(path).header("content-type", kind);
            for (name, value) in headers {
                page = page.header(*name, *value);
            }
            let page = page.header("cookie", format!("token={}", client.token));
            let response = client.send(page.body(Full::from(object)).unwrap()).await;
            assert_eq!(response.status().as_u16(), code, "{method} {path} {headers:?}");
            let body = String::from_utf8_lossy(response.body());
            assert!(body.contains("evil.example") || body.contains("web pages of other sites"), "{body}");
            assert!(response.headers().get("access-control-allow-origin").is_none(), "{method} {path}");
        }
    }
    let health = Request::get("/healthz").header("host", "evil.example").body(Full::default()).unwrap();
    assert_eq!(client.send(health).await.body().as_ref(), b"ok");
    assert_eq!(client.get(&format!("{configs}/from-a-page"), "*/*").await.0, 404);
}

/// Clients other than browsers call the API by many names, and one with a token by any: a proxy, a tunnel.
#[tokio::test]
async fn clients_that_are_no_pages_may_call_the_api_by_any_of_its_names() {
    let client = HttpsClient::start().await;
    let version = |host: &str| Request::get("/version").header("host", host);
    for host in ["127.0.0.1:6443", "[::1]:6443", "10.1.2.3", "kubernetes", "kubernetes.default.svc", "build.lan.test"] {
        let response = client.send(version(host).body(Full::default()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::OK, "{host}");
    }
    let own = version("localhost:6443").header("origin", "https://localhost:6443");
    assert_eq!(client.send(own.body(Full::default()).unwrap()).await.status(), StatusCode::OK);
    let bearer = format!("Bearer {}", client.token);
    let tunnelled = version("api.example.com").header("origin", "https://app.example").header("authorization", bearer);
    assert_eq!(client.send(tunnelled.body(Full::default()).unwrap()).await.status(), StatusCode::OK);
}
