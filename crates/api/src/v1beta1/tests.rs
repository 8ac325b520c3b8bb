//! Tests of the wire form of the stored version.

use k8s_openapi::{Metadata, Resource};
use serde_json::json;

use super::*;

#[test]
fn a_sandbox_keeps_its_pod_spec_unchanged() {
    let wire = json!({
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {"name": "s", "namespace": "n"},
        "spec": {
            "podTemplate": {"spec": {
                "containers": [{"name": "c", "resources": {"limits": {"cpu": "1000m", "memory": 1024}}}],
                "notYetInvented": true
            }},
            "volumeClaimTemplates": [],
            "service": false,
            "shutdownTime": "2026-01-02T03:04:05Z",
            "shutdownPolicy": "Delete",
            "operatingMode": "Suspended"
        },
        "status": {"podIPs": ["10.0.0.1"], "serviceFQDN": "s.n.svc.cluster.local", "nodeName": "node"}
    });
    let sandbox: Sandbox = serde_json::from_value(wire.clone()).expect("decodes");
    assert_eq!(sandbox.operating_mode(), OperatingMode::Suspended);
    assert_eq!(sandbox.pod_ips(), ["10.0.0.1"]);
    assert_eq!(serde_json::to_value(&sandbox).expect("encodes"), wire);
}

#[test]
fn values_outside_the_schema_decode_as_the_default() {
    let sandbox: Sandbox = serde_json::from_value(
        json!({"spec": {"podTemplate": {"spec": {}}, "operatingMode": "", "shutdownPolicy": "Keep"}}),
    )
    .expect("decodes");
    assert_eq!(sandbox.operating_mode(), OperatingMode::Running);
    assert_eq!(sandbox.spec.shutdown_policy, Some(crate::template::ShutdownPolicy::Retain));
}

#[test]
fn empty_objects_decode_so_that_one_bad_object_never_stops_a_watch() {
    serde_json::from_value::<Sandbox>(json!({})).expect("sandbox");
    serde_json::from_value::<SandboxClaim>(json!({"spec": {}})).expect("claim");
    serde_json::from_value::<SandboxTemplate>(json!({"spec": {"podTemplate": {}}})).expect("template");
    serde_json::from_value::<SandboxWarmPool>(json!({"spec": {}})).expect("pool");
}

/// a pool without replicas wants one member.
#[test]
fn x_004_absent_replicas_mean_one() {
    let pool: SandboxWarmPool =
        serde_json::from_value(json!({"spec": {"sandboxTemplateRef": {"name": "t"}}})).expect("decodes");
    assert_eq!(pool.replicas(), 1);
    assert_eq!(pool.update_strategy(), crate::template::UpdateStrategyType::OnReplenish);
}

#[test]
fn kinds_name_their_endpoints() {
    assert_eq!((Sandbox::API_VERSION, Sandbox::URL_PATH_SEGMENT), ("agents.x-k8s.io/v1beta1", "sandboxes"));
    assert_eq!(SandboxClaim::API_VERSION, "extensions.agents.x-k8s.io/v1beta1");
    assert_eq!(crate::v1alpha1::SandboxClaim::API_VERSION, "extensions.agents.x-k8s.io/v1alpha1");
    let mut claim = SandboxClaim::default();
    claim.metadata_mut().name = Some("c".to_owned());
    assert_eq!(claim.controller_reference().name, "c");
    assert_eq!(claim.controller_reference().api_version, "extensions.agents.x-k8s.io/v1beta1");
}
