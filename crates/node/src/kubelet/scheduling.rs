//! Scheduling in embedded mode: decides whether a Pod without a node is bound to this one. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

/// The scheduling decision for a Pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// Do nothing: the Pod has a node, is being deleted, has a scheduling gate, or names another scheduler.
    Leave,
    Bind,
    /// The Pod does not match this node; the message goes into its PodScheduled condition.
    Unschedulable(String),
}

/// Decides about one Pod. `labels` are those of this node.
pub fn decide(pod: &Pod, labels: &BTreeMap<String, String>) -> Decision {
    let Some(spec) = &pod.spec else { return Decision::Leave };
    let bound = spec.node_name.as_ref().is_some_and(|n| !n.is_empty());
    let gated = spec.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty());
    let other = spec.scheduler_name.as_deref().is_some_and(|s| !s.is_empty() && s != "default-scheduler");
    if bound || gated || other || pod.metadata.deletion_timestamp.is_some() {
        return Decision::Leave;
    }
    let missing: Vec<String> = spec
        .node_selector
        .iter()
        .flatten()
        .filter(|(key, value)| labels.get(*key) != Some(value))
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if missing.is_empty() {
        return Decision::Bind;
    }
    let message = format!(
        "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector ({}).",
        missing.join(", ")
    );
    Decision::Unschedulable(message)
}

/// Whether a new Pod, given as JSON, is bound to this node: the same decision as [`decide`] without deserialising the
/// Pod.
pub fn is_to_bind(pod: &Value, labels: &BTreeMap<String, String>) -> bool {
    let spec = &pod["spec"];
    let text = |field: &str| spec[field].as_str().unwrap_or_default();
    let gated = spec["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty());
    let selector = spec["nodeSelector"].as_object();
    let fits = selector.into_iter().flatten().all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str());
    text("nodeName").is_empty() && matches!(text("schedulerName"), "" | "default-scheduler") && !gated && fits
}

/// The binding of a Pod to this node; the uid in it keeps a newer Pod of the same name unbound.
pub fn binding(pod: &Pod, node_name: &str) -> Binding {
    Binding {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            uid: pod.metadata.uid.clone(),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node_name.to_owned()),
            ..ObjectReference::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn decided(spec: Value) -> Decision {
        let pod = json!({"metadata": {"name": "p"}, "spec": spec});
        let labels = BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]);
        let decision = decide(&serde_json::from_value(pod.clone()).unwrap(), &labels);
        assert_eq!(is_to_bind(&pod, &labels), decision == Decision::Bind, "{pod}");
        decision
    }

    #[test]
    fn pods_that_fit_are_bound_and_the_others_left_or_explained() {
        assert_eq!(decided(json!({"containers": []})), Decision::Bind);
        assert_eq!(decided(json!({"containers": [], "nodeSelector": {"kubernetes.io/os": "linux"}})), Decision::Bind);
        assert_eq!(decided(json!({"containers": [], "schedulerName": "default-scheduler"})), Decision::Bind);
        assert_eq!(decided(json!({"containers": [], "nodeName": "n"})), Decision::Leave);
        assert_eq!(decided(json!({"containers": [], "schedulingGates": [{"name": "g"}]})), Decision::Leave);
        assert_eq!(decided(json!({"containers": [], "schedulerName": "mine"})), Decision::Leave);
        let Decision::Unschedulable(message) = decided(json!({"containers": [], "nodeSelector": {"gpu": "yes"}}))
        else {
            panic!("bound")
        };
        assert!(message.contains("gpu=yes"), "{message}");
    }
}
