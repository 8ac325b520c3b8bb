//! What no waiting can mend ends the SDK's wait with its reason, and what was made is deleted again.

#![expect(clippy::unwrap_used, reason = "a test fails at the first error")]

#[path = "scenarios/engine.rs"]
mod engine;

use agent_sandbox_api::v1beta1::{Sandbox, SandboxClaim, SandboxTemplate};
use agent_sandbox_client::{self as sdk, ClaimRequest, ClientError, ContainerOptions, SandboxClient, Source};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::time::{Duration, Instant};

/// Timeout of the waits.
const LIMIT: Duration = Duration::from_secs(170);
/// Time within which every failure must be known: less than the limit, and more than a slow machine needs.
const AT_ONCE: Duration = Duration::from_secs(60);

fn image(name: &str) -> ContainerOptions {
    ContainerOptions { image: name.to_owned(), ..ContainerOptions::default() }
}

/// The error of a creation that cannot succeed.
async fn fails(client: &SandboxClient, namespace: &str, name: &str, container: &ContainerOptions) -> ClientError {
    let started = Instant::now();
    let created = client.create(namespace, name, container, None, LIMIT).await;
    assert!(started.elapsed() < AT_ONCE, "it waited");
    sdk::wait_for_cleanup(AT_ONCE).await;
    let sandboxes: Api<Sandbox> = Api::namespaced(client.cluster().client.clone(), namespace);
    let left = sandboxes.get_opt(name).await.unwrap();
    assert!(left.is_none_or(|sandbox| sandbox.metadata.deletion_timestamp.is_some()), "{name} is deleted again");
    created.err().expect("no such sandbox can start")
}

#[tokio::test(flavor = "multi_thread")]
async fn permanent_failures_end_a_wait_at_once() {
    let Some(engine) = engine::start().await else { return };
    let client = engine.client().await;
    let kube = client.cluster().client.clone();

    let error = fails(&client, "default", "no-image", &image("127.0.0.1:9/missing:v1")).await;
    assert!(matches!(&error, ClientError::CannotStart { reason, .. } if reason.contains("missing")), "{error}");

    let unknown = ContainerOptions { runtime_class: Some("no-such-runtime".to_owned()), ..image("host") };
    let error = fails(&client, "default", "no-runtime", &unknown).await;
    assert!(error.to_string().contains("no-such-runtime"), "{error}");

    let command = ["sh", "-c", "echo why >&2; exit 3"].map(str::to_owned).to_vec();
    let crashing = ContainerOptions { command, ..image("host") };
    let error = fails(&client, "default", "crash", &crashing).await;
    assert!(error.to_string().contains("its command ended with exit code 3"), "{error}");

    // A spec that the namespace's rules refuse.
    let namespaces: Api<Namespace> = Api::all(kube.clone());
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    let strict = serde_json::from_value(json!({"metadata": {"name": "strict", "labels": labels}})).unwrap();
    namespaces.create(&PostParams::default(), &strict).await.unwrap();
    let error = fails(&client, "strict", "refused", &image("host")).await;
    assert!(error.to_string().contains("violates PodSecurity"), "{error}");

    // A claim fails with its sandbox, also one that was made by another client.
    let templates: Api<SandboxTemplate> = Api::namespaced(kube.clone(), "default");
    let broken = sdk::template("broken", &image("127.0.0.1:9/missing:v1"));
    templates.create(&PostParams::default(), &broken).await.unwrap();
    let wanted =
        ClaimRequest { ready_timeout: LIMIT, ..ClaimRequest::new(Source::Template("broken".to_owned()), "default") };
    let started = Instant::now();
    let error = client.claim(&wanted).await.err().unwrap();
    assert!(started.elapsed() < AT_ONCE && error.to_string().contains("missing"), "{error}");
    let named = ClaimRequest { name: Some("kept".to_owned()), ..wanted };
    let claim: SandboxClaim = sdk::create_claim(&kube, &named).await.unwrap();
    let error = sdk::claim_ready(&kube, "default", &claim.name_any(), LIMIT).await.unwrap_err();
    assert!(started.elapsed() < AT_ONCE && error.to_string().contains("missing"), "{error}");

    // A sandbox that worked, and is resumed with an image that is gone.
    let sandbox = client.create("default", "box", &image("host"), None, LIMIT).await.unwrap();
    sandbox.suspend(LIMIT).await.unwrap();
    let sandboxes: Api<Sandbox> = Api::namespaced(kube, "default");
    let gone = json!([{"name": "sandbox", "image": "127.0.0.1:9/missing:v1"}]);
    let patch = Patch::Merge(json!({"spec": {"podTemplate": {"spec": {"containers": gone}}}}));
    sandboxes.patch("box", &PatchParams::default(), &patch).await.unwrap();
    let started = Instant::now();
    let error = sandbox.resume(LIMIT).await.unwrap_err();
    assert!(started.elapsed() < AT_ONCE && error.to_string().contains("missing"), "{error}");
    let found = sandboxes.get("box").await.unwrap();
    let error = sdk::running_pod(&client.cluster().client, &found).await.unwrap_err();
    assert!(error.to_string().contains("missing"), "a command says why there is no Pod: {error}");
    engine.stop().await;
}
