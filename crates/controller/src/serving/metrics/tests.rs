//! The page as Prometheus and dashboards read it.

use serde_json::{Value, json};

use super::*;
use crate::cache::CacheUpdate;

fn store_with(sandboxes: Vec<Value>) -> Arc<Store> {
    let store = Store::new(vec![], false);
    let items =
        sandboxes.into_iter().map(|sandbox| serde_json::from_value(sandbox).expect("valid")).collect::<Vec<_>>();
    store.apply_update::<crate::cache::Sandbox>(CacheUpdate::Listed(items, 10));
    store
}

fn sandbox(name: &str, metadata: Value, ready: Option<(&str, &str)>) -> Value {
    let mut object =
        json!({ "metadata": { "name": name, "namespace": "n", "uid": name, "resourceVersion": "1" }, "spec": {} });
    crate::testing::fake_api::merge(&mut object["metadata"], &metadata);
    if let Some((status, reason)) = ready {
        object["status"] = json!({ "conditions": [{
            "type": "Ready", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] });
    }
    object
}

fn owner(kind: &str, version: &str) -> Value {
    let api_version = format!("extensions.agents.x-k8s.io/{version}");
    json!({ "ownerReferences": [{ "apiVersion": api_version, "kind": kind, "name": "o", "uid": "o", "controller": true }] })
}

/// S-219, X-248: how Sandboxes are described, and that equal descriptions are summed.
#[test]
fn s_219_x_248_agent_sandboxes() {
    let pod_name =
        json!({ "annotations": { "agents.x-k8s.io/pod-name": "p", "agents.x-k8s.io/sandbox-template-ref": "t" } });
    let warm = json!({ "labels": { "agents.x-k8s.io/launch-type": "warm", "agents.x-k8s.io/created-by": "curl" } });
    let store = store_with(vec![
        sandbox("a", json!({}), None),
        sandbox("b", json!({}), None),
        sandbox("c", pod_name, Some(("True", "DependenciesReady"))),
        sandbox("d", warm, Some(("False", "SandboxExpired"))),
        sandbox("e", owner("SandboxClaim", "v1beta1"), None),
        sandbox("f", owner("SandboxClaim", "v1alpha1"), None),
        sandbox("g", owner("SandboxWarmPool", "v1alpha1"), None),
    ]);
    let page = Metrics::with_store(&store).render();
    let line = |ready: &str, expired: &str, launch: &str, template: &str, owned_by: &str, count: u64| {
        format!(
            "agent_sandboxes{{namespace=\"n\",ready_condition=\"{ready}\",expired=\"{expired}\",launch_type=\"{launch}\",sandbox_template=\"{template}\",owned_by=\"{owned_by}\",created_by=\"unknown\"}} {count}"
        )
    };
    for expected in [
        line("false", "false", "cold", "unknown", "None", 2),
        line("true", "false", "cold", "t", "None", 1),
        line("false", "true", "warm", "unknown", "None", 1),
        line("false", "false", "cold", "unknown", "SandboxClaim", 2),
        line("false", "false", "cold", "unknown", "SandboxWarmPool", 1),
    ] {
        assert!(page.contains(&expected), "{expected}\nnot in\n{page}");
    }
}

/// S-220: one line with six labels.
#[test]
fn s_220_build_info() {
    let page = Metrics::default().render();
    let line = page.lines().find(|line| line.starts_with("agent_sandbox_build_info{")).expect("there");
    assert!(line.ends_with("} 1"));
    for key in ["git_version", "git_commit", "build_date", "go_version", "compiler", "platform"] {
        assert!(line.contains(&format!("{key}=\"")), "{key} in {line}");
    }
}

/// a claim's Sandbox is counted under pool and template.
#[test]
fn x_246_claim_creation_total() {
    let metrics = Metrics::default();
    metrics.claim_created(&ClaimCreated {
        namespace: "n".into(),
        sandbox_template: "t".into(),
        launch_type: "warm",
        warmpool_name: "p".into(),
        pod_condition: "ready",
        created_by: "unknown",
    });
    let expected = "agent_sandbox_claim_creation_total{namespace=\"n\",sandbox_template=\"t\",launch_type=\"warm\",warmpool_name=\"p\",pod_condition=\"ready\",created_by=\"unknown\"} 1";
    assert!(metrics.render().contains(expected));
}

/// Only what is known is observed, in whole milliseconds.
#[test]
fn claim_latencies() {
    let metrics = Metrics::default();
    metrics.claim_ready(&ClaimReady {
        namespace: "n".into(),
        launch_type: "cold",
        sandbox_template: "t".into(),
        since_webhook: None,
        since_controller: Some(Duration::from_micros(120_900)),
        since_client: None,
        sandbox_creation: Some(Duration::from_secs(3)),
    });
    let page = metrics.render();
    assert!(page.contains(
        "agent_sandbox_claim_controller_startup_latency_ms_sum{launch_type=\"cold\",sandbox_template=\"t\"} 120.0"
    ));
    assert!(page.contains("agent_sandbox_claim_controller_startup_latency_ms_bucket{le=\"250.0\",launch_type=\"cold\",sandbox_template=\"t\"} 1"));
    assert!(page.contains(
        "agent_sandbox_creation_latency_ms_count{namespace=\"n\",launch_type=\"cold\",sandbox_template=\"t\"} 1"
    ));
    assert!(!page.contains("agent_sandbox_client_claim_startup_latency_ms_count"));
}

/// Every pool has a series for each state, and a member is counted under the template that it was made from.
#[test]
fn warm_pool_sizes() {
    let member = |name: &str, ready: Option<(&str, &str)>| {
        let mut metadata = owner("SandboxWarmPool", "v1beta1");
        metadata["labels"] = json!({ "agents.x-k8s.io/warm-pool-sandbox": "hash" });
        metadata["annotations"] = json!({ "agents.x-k8s.io/sandbox-template-ref": "t" });
        sandbox(name, metadata, ready)
    };
    let mut failed = member("failed", Some(("False", "PodFailed")));
    let finished = json!({
        "type": "Finished", "status": "True", "reason": "PodFailed", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    failed["status"]["conditions"].as_array_mut().expect("a list").push(finished);
    let store = store_with(vec![
        member("ready", Some(("True", "DependenciesReady"))),
        member("new", None),
        failed,
        sandbox("claimed", owner("SandboxClaim", "v1beta1"), Some(("True", "DependenciesReady"))),
    ]);
    let pool = |name: &str| {
        let object = json!({
            "metadata": { "name": name, "namespace": "n", "uid": name, "resourceVersion": "1" },
            "spec": { "sandboxTemplateRef": { "name": "t" } },
        });
        serde_json::from_value(object).expect("valid")
    };
    store.apply_update::<agent_sandbox_api::v1beta1::SandboxWarmPool>(CacheUpdate::Listed(
        vec![pool("o"), pool("empty")],
        10,
    ));
    let page = Metrics::with_store(&store).render();
    for (name, state, count) in [
        ("o", "ready", 1),
        ("o", "pending", 1),
        ("o", "failed", 1),
        ("o", "succeeded", 0),
        ("empty", "ready", 0),
        ("empty", "pending", 0),
    ] {
        let line = format!(
            "agent_sandbox_warmpool_size{{namespace=\"n\",warmpool_name=\"{name}\",sandbox_template=\"t\",sandbox_status=\"{state}\"}} {count}"
        );
        assert!(page.contains(&line), "{line}\nnot in\n{page}");
    }
}
