//! The reference: the writes of a warm claim, of its deletion and of the refill, sent without any decision by the same
//! number of clients, with no controller that watches, decides or caches. The simulated kubelet binds, starts and ends
//! Pods here too, and the garbage collector removes what a deleted claim leaves.

use std::time::{Duration, Instant};

use kube::{Client, client::Body};
use serde_json::{Value, json};

use crate::{NAMESPACE, newest_version, open, pod_spec, say};

/// Number of sandbox life cycles that run concurrently.
const IN_FLIGHT: usize = 64;
const LENGTH: Duration = Duration::from_secs(6);

const CORE: &str = "/apis/agents.x-k8s.io/v1beta1";
const EXTENSIONS: &str = "/apis/extensions.agents.x-k8s.io/v1beta1";

/// Writes per second of all clients.
pub(crate) async fn writes_per_second() -> f64 {
    let mut bench = open().await;
    bench.start_kubelet();
    let client = bench.cluster.client();
    let before = newest_version(&client).await;
    let start = Instant::now();
    let lives = (0..IN_FLIGHT).map(|number| {
        let client = client.clone();
        async move {
            let mut done = 0_u32;
            while start.elapsed() < LENGTH {
                live(&client, &format!("r{number}-{done}")).await;
                done += 1;
            }
            done
        }
    });
    let done: u32 = futures::future::join_all(lives).await.into_iter().sum();
    let writes = newest_version(&client).await - before;
    let rate = writes / start.elapsed().as_secs_f64();
    say(
        &format!("the writes of a claim, replayed with {IN_FLIGHT} in flight"),
        format!("{rate:.0} writes/s, {:.1} for each", writes / f64::from(done)),
    );
    rate
}

/// One Sandbox from its creation to the deletion of the claim that took it.
async fn live(client: &Client, name: &str) {
    let sandboxes = format!("{CORE}/namespaces/{NAMESPACE}/sandboxes");
    let claims = format!("{EXTENSIONS}/namespaces/{NAMESPACE}/sandboxclaims");
    let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let labels = json!({
        "agents.x-k8s.io/created-by": "controller", "agents.x-k8s.io/launch-type": "warm",
        "agents.x-k8s.io/sandbox-pod-template-hash": "c1fbb8f8", "agents.x-k8s.io/sandbox-template-hash": "5c6a6c4b",
        "agents.x-k8s.io/sandbox-template-ref-hash": "f10c3da3",
    });
    let template = json!({ "metadata": { "labels": labels }, "spec": pod_spec() });
    let sandbox = post(
        client,
        &sandboxes,
        json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": { "name": name, "labels": labels, "annotations": { "agents.x-k8s.io/pod-name": name } },
            "spec": { "podTemplate": template, "operatingMode": "Running" },
        }),
    )
    .await;
    let owner = reference("agents.x-k8s.io/v1beta1", "Sandbox", name, &sandbox);
    post(client, &pods, json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "labels": { "agents.x-k8s.io/sandbox-name-hash": "6318a8a3" }, "ownerReferences": [owner] },
        "spec": pod_spec(),
    }))
    .await;
    let (sandbox_path, claim_path) = (format!("{sandboxes}/{name}"), format!("{claims}/{name}"));
    let (sandbox_status, claim_status) = (format!("{sandbox_path}/status"), format!("{claim_path}/status"));
    patch(client, &sandbox_status, json!({ "status": { "conditions": conditions("False") } })).await;
    patch(
        client,
        &sandbox_status,
        json!({ "status": { "conditions": conditions("True"), "podIPs": ["10.0.0.1"], "nodeName": "node-1" } }),
    )
    .await;
    let claim = post(
        client,
        &claims,
        json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": { "name": name }, "spec": { "warmPoolRef": { "name": "p" } },
        }),
    )
    .await;
    let owner = reference("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim", name, &claim);
    let taken = json!({
        "metadata": { "ownerReferences": [owner], "labels": { "agents.x-k8s.io/claim-uid": claim["metadata"]["uid"] } },
        "spec": { "podTemplate": { "metadata": { "labels": { "agents.x-k8s.io/claim-uid": claim["metadata"]["uid"] } } } },
    });
    let assigned = json!({ "metadata": { "annotations": { "agents.x-k8s.io/sandbox-name": name } } });
    tokio::join!(patch(client, &sandbox_path, taken), patch(client, &claim_path, assigned));
    let served =
        json!({ "status": { "conditions": conditions("True"), "sandbox": { "name": name, "podIPs": ["10.0.0.1"] } } });
    patch(client, &claim_status, served).await;
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": format!("{name}.1") },
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "bench", "reportingInstance": "bench",
        "action": "Adoption", "reason": "SandboxAdopted", "note": "Adopted warm pool Sandbox", "type": "Normal",
        "regarding": { "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "name": name, "namespace": NAMESPACE },
    });
    let pod = json!({ "metadata": { "labels": { "agents.x-k8s.io/claim-uid": claim["metadata"]["uid"] } } });
    let (pod_path, events) =
        (format!("{pods}/{name}"), format!("/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"));
    tokio::join!(
        patch(client, &pod_path, pod),
        post(client, &events, event),
        patch(
            client,
            &sandbox_status,
            json!({ "status": { "selector": "agents.x-k8s.io/sandbox-name-hash=6318a8a3" } })
        ),
    );
    send(client, http::Method::DELETE, &claim_path, "application/json", &json!({ "propagationPolicy": "Background" }))
        .await;
}

fn reference(api_version: &str, kind: &str, name: &str, owner: &Value) -> Value {
    json!({
        "apiVersion": api_version, "kind": kind, "name": name, "uid": owner["metadata"]["uid"], "controller": true,
        "blockOwnerDeletion": true,
    })
}

fn conditions(ready: &str) -> Value {
    let condition = |type_: &str, status: &str| {
        json!({
            "type": type_, "status": status, "reason": "DependenciesReady", "message": "Pod is Ready", "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    json!([condition("Suspended", "False"), condition("PodScheduled", "True"), condition("Ready", ready)])
}

async fn post(client: &Client, path: &str, body: Value) -> Value {
    send(client, http::Method::POST, path, "application/json", &body).await
}

async fn patch(client: &Client, path: &str, body: Value) -> Value {
    send(client, http::Method::PATCH, path, "application/merge-patch+json", &body).await
}

async fn send(client: &Client, method: http::Method, path: &str, content_type: &str, body: &Value) -> Value {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content_type)
        .body(Body::from(body.to_string().into_bytes()))
        .expect("a request");
    let response = client.send(request).await.expect("an answer");
    let status = response.status();
    let bytes = http_body_util::BodyExt::collect(response.into_body()).await.expect("a body").to_bytes();
    assert!(status.is_success(), "{path}: {status}: {}", String::from_utf8_lossy(&bytes));
    serde_json::from_slice(&bytes).expect("JSON")
}
