//! Certificates, the CRDs' bundle, and the listener as an API server uses it.

use std::{fs, sync::Arc};

use agent_sandbox_testkit::Cluster;
use http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{certificates::provider, *};

fn names() -> ServiceNames {
    ServiceNames { name: "hook".into(), namespace: "default".into(), cluster_domain: "cluster.local".into() }
}

fn managed(directory: &std::path::Path) -> WebhookConfig {
    WebhookConfig {
        address: ([127, 0, 0, 1], 0).into(),
        service: names(),
        directory: directory.to_owned(),
        source: CertificateSource::Managed,
    }
}

fn now() -> Timestamp {
    Timestamp::now()
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// A certificate is valid for its names and most of its year, and for nothing else.
#[test]
fn certificates_are_checked_by_chain_names_and_time() {
    let bundle = Bundle::generate(&names(), now()).expect("made");
    assert!(bundle.is_good(&names(), now()));
    assert!(!bundle.is_good(&names(), now() + YEAR - Duration::from_secs(50 * 24 * 3600)), "too little is left");
    assert!(!bundle.is_good(&names(), now() - Duration::from_secs(7200)), "not yet valid");
    assert!(!bundle.is_good(&ServiceNames { namespace: "other".into(), ..names() }, now()), "made for another Service");
    let other = Bundle::generate(&names(), now()).expect("made");
    assert!(!Bundle { ca: other.ca.clone(), ..bundle.clone() }.is_good(&names(), now()), "not of this CA");
    let both = other.clone().trusting_also(&bundle.ca);
    assert!(both.is_good(&names(), now()));
    assert!(Bundle { ca: both.ca.clone(), ..bundle }.is_good(&names(), now()), "the old one stays trusted");
    let thrice = Bundle::generate(&names(), now()).expect("made").trusting_also(&both.ca);
    assert_eq!(CertificateDer::pem_slice_iter(&thrice.ca).count(), 2, "the bundle does not grow for ever");
}

async fn secret(client: &Client) -> Option<Secret> {
    Api::namespaced(client.clone(), "default").get_opt(SECRET_NAME).await.expect("reads")
}

/// S-210, S-211: the first replica creates the Secret, the others use it; both write the files.
#[tokio::test]
async fn s_210_s_211_the_secret_is_made_once() {
    let cluster = Cluster::start().await.expect("a cluster");
    let (one, two) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let first = managed::ensure(&cluster.client(), &managed(&one.path().join("deep/er")), now()).await.expect("made");
    let second = managed::ensure(&cluster.client(), &managed(two.path()), now()).await.expect("taken");
    assert_eq!(first, second);
    assert_eq!(fs::read(two.path().join("tls.crt")).expect("written"), first.certificate);
    assert_eq!(fs::read(one.path().join("deep/er/tls.key")).expect("written"), first.key);
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(two.path().join("tls.key")).expect("there").permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    let data = secret(&cluster.client()).await.expect("there").data.expect("data");
    assert_eq!(data.keys().map(String::as_str).collect::<Vec<_>>(), ["ca.crt", "tls.crt", "tls.key"]);
    let names = names().dns_names();
    assert_eq!(names, ["hook", "hook.default", "hook.default.svc", "hook.default.svc.cluster.local"]);
    assert!(first.is_good(&super::tests::names(), now()), "all four names are on it");
}

/// S-212: a Secret without PEM data is an error with a searchable message.
#[tokio::test]
async fn s_212_a_broken_secret_is_refused() {
    let cluster = Cluster::start().await.expect("a cluster");
    let broken: Secret = serde_json::from_value(json!({
        "metadata": { "name": SECRET_NAME }, "stringData": {}, "data": { "ca.crt": "bm8=", "tls.crt": "bm8=", "tls.key": "bm8=" },
    }))
    .expect("valid");
    Api::<Secret>::namespaced(cluster.client(), "default")
        .create(&PostParams::default(), &broken)
        .await
        .expect("created");
    let folder = tempfile::tempdir().expect("a folder");
    let error = managed::ensure(&cluster.client(), &managed(folder.path()), now()).await.expect_err("refused");
    assert!(error.to_string().contains("has invalid certificate data"), "{error}");
}

fn crds(client: &Client) -> Api<DynamicObject> {
    let definition =
        ApiResource::from_gvk(&GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
    Api::all_with(client.clone(), &definition)
}

/// S-213: CRDs that convert by webhook get the Service and the CA; others, and missing ones, are left alone.
#[tokio::test]
async fn s_213_crds_are_patched() {
    let cluster = Cluster::start().await.expect("a cluster");
    let folder = tempfile::tempdir().expect("a folder");
    let crds = crds(&cluster.client());
    let none = Patch::Merge(json!({ "spec": { "conversion": { "strategy": "None", "webhook": null } } }));
    crds.patch("sandboxtemplates.extensions.agents.x-k8s.io", &PatchParams::default(), &none).await.expect("patched");
    crds.delete("sandboxwarmpools.extensions.agents.x-k8s.io", &Default::default()).await.expect("deleted");
    let config = managed(folder.path());
    let bundle = managed::ensure(&cluster.client(), &config, now()).await.expect("made");
    managed::publish(&cluster.client(), &config, &bundle).await.expect("published");
    let conversion = |crd: &DynamicObject| crd.data["spec"]["conversion"].clone();
    let sandboxes = crds.get("sandboxes.agents.x-k8s.io").await.expect("there");
    let client_config = &conversion(&sandboxes)["webhook"]["clientConfig"];
    assert_eq!(
        (&client_config["service"]["name"], &client_config["service"]["path"]),
        (&json!("hook"), &json!("/convert"))
    );
    assert_eq!(client_config["service"]["namespace"], "default");
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &bundle.ca);
    assert_eq!(client_config["caBundle"], encoded);
    let untouched = crds.get("sandboxtemplates.extensions.agents.x-k8s.io").await.expect("there");
    assert_eq!(conversion(&untouched)["strategy"], "None");
    let before = sandboxes.metadata.resource_version;
    managed::publish(&cluster.client(), &config, &bundle).await.expect("published");
    assert_eq!(
        crds.get("sandboxes.agents.x-k8s.io").await.expect("there").metadata.resource_version,
        before,
        "no second write"
    );
}

/// A certificate that nears its end is replaced; the bundle trusts both for a while, whichever replica rotates.
#[tokio::test]
async fn certificates_rotate_before_they_expire() {
    let cluster = Cluster::start().await.expect("a cluster");
    let folder = tempfile::tempdir().expect("a folder");
    let config = managed(folder.path());
    let old = managed::ensure(&cluster.client(), &config, now()).await.expect("made");
    let later = now() + YEAR - Duration::from_secs(30 * 24 * 3600);
    let fresh = managed::ensure(&cluster.client(), &config, later).await.expect("rotated");
    assert_ne!(fresh.certificate, old.certificate);
    assert!(fresh.is_good(&names(), later));
    assert!(Bundle { ca: fresh.ca.clone(), ..old }.certified_key().is_ok());
    let again = managed::ensure(&cluster.client(), &config, later).await.expect("kept");
    assert_eq!(again, fresh);
    assert_eq!(fs::read(folder.path().join("tls.crt")).expect("written"), fresh.certificate);
}

/// S-214: which files are used when another component maintains them.
#[test]
fn s_214_external_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    let bundle = Bundle::generate(&names(), now()).expect("made");
    let write = |name: &str, content: &[u8]| fs::write(path.join(name), content).expect("written");
    let chosen = |certificate: &str, key: &str| choose_files(path, certificate, key);
    assert!(chosen("tls.crt", "tls.key").is_err(), "nothing there");
    write("cert.pem", &[bundle.certificate.clone(), bundle.key.clone()].concat());
    let combined = chosen("tls.crt", "tls.key").expect("falls back");
    assert_eq!((combined.certificate.clone(), combined.key.clone()), (path.join("cert.pem"), path.join("cert.pem")));
    assert!(combined.read().expect("reads").certified_key().is_ok(), "a combined file is a key pair");
    assert_eq!(chosen("cert.pem", "cert.pem").expect("named explicitly"), combined);
    assert!(chosen("mine.crt", "mine.key").is_err(), "no fallback for names of the user's own");
    write("tls.crt", &bundle.certificate);
    assert!(chosen("tls.crt", "tls.key").is_err(), "no fallback when one of the pair is there");
    write("tls.key", &bundle.key);
    assert_eq!(chosen("tls.crt", "tls.key").expect("the pair").key, path.join("tls.key"));
    write("mine.crt", &bundle.certificate);
    fs::create_dir(path.join("mine.key")).expect("made");
    assert!(chosen("mine.crt", "mine.key").is_err(), "a directory is no key");
}

fn sandbox(version: &str, name: &str) -> Value {
    json!({
        "apiVersion": format!("agents.x-k8s.io/{version}"), "kind": "Sandbox",
        "metadata": { "name": name, "namespace": "n", "uid": name }, "spec": { "podTemplate": { "spec": { "containers": [] } }, "replicas": 0 },
    })
}

fn ask(objects: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": { "uid": "u-1", "desiredAPIVersion": "agents.x-k8s.io/v1beta1", "objects": objects },
    })
}

/// S-023: garbage is 400; an unconvertible object fails the batch; order and uid are kept.
#[test]
fn s_023_reviews() {
    assert_eq!(review(b"not json").0, StatusCode::BAD_REQUEST);
    assert_eq!(review(b"{\"kind\":\"ConversionReview\"}").0, StatusCode::BAD_REQUEST);
    let (status, response) =
        review(ask(json!([sandbox("v1alpha1", "a"), sandbox("v1alpha1", "b")])).to_string().as_bytes());
    assert_eq!((status, &response["response"]["result"]["status"]), (StatusCode::OK, &json!("Success")));
    assert_eq!(
        (&response["response"]["uid"], &response["kind"], response.get("request")),
        (&json!("u-1"), &json!("ConversionReview"), None)
    );
    let names: Vec<_> = response["response"]["convertedObjects"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|object| object["metadata"]["name"].clone())
        .collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(response["response"]["convertedObjects"][0]["spec"]["operatingMode"], "Suspended");
    let mixed = ask(json!([sandbox("v1alpha1", "a"), { "apiVersion": "v1", "kind": "Pod", "metadata": {} }]));
    let (status, response) = review(mixed.to_string().as_bytes());
    assert_eq!((status, &response["response"]["result"]["status"]), (StatusCode::OK, &json!("Failure")));
    assert!(!response["response"]["result"]["message"].as_str().unwrap_or_default().is_empty());
}

/// The listener speaks TLS with the managed certificate under the Service's name, and a replaced certificate serves new
/// connections.
#[tokio::test]
async fn the_listener_serves_and_follows_rotation() {
    let cluster = Cluster::start().await.expect("a cluster");
    let folder = tempfile::tempdir().expect("a folder");
    let stop = CancellationToken::new();
    let metrics = Arc::new(Metrics::default());
    let webhook =
        Webhook::start(cluster.client(), managed(folder.path()), metrics.clone(), stop.clone()).await.expect("listens");
    let ca = secret(&cluster.client()).await.expect("there").data.expect("data")["ca.crt"].0.clone();
    let body = ask(json!([sandbox("v1alpha1", "a")])).to_string();
    let response = post(webhook.address, &ca, &body).await;
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    assert!(response.contains("\"status\":\"Success\""), "{response}");
    assert!(
        metrics.render().contains("controller_runtime_webhook_requests_total{webhook=\"/convert\",code=\"200\"} 1")
    );
    stop.cancel();
}

async fn post(address: std::net::SocketAddr, ca: &[u8], body: &str) -> String {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(ca).map(|der| der.expect("PEM")));
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(address).await.expect("connects");
    let name = ServerName::try_from("hook.default.svc").expect("a name");
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.expect("trusted");
    let request = format!(
        "POST /convert HTTP/1.1\r\nhost: hook\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    String::from_utf8_lossy(&response).into_owned()
}
