//! Writes scheduling decisions in embedded mode: a binding, or the reason why a Pod cannot be scheduled.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tracing::{debug, warn};

use super::TaskResult;
use crate::kubelet::context::NodeContext;
use crate::kubelet::events::Severity;
use crate::kubelet::scheduling;

pub(super) async fn bind(node: Arc<NodeContext>, mut pod: Pod) -> TaskResult {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let name = pod.metadata.name.clone().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(node.client.clone(), &namespace);
    let node_name = node.settings.node_name.clone();
    let binding = scheduling::binding(&pod, &node_name);
    let bound: Result<kube::core::Status, kube::Error> =
        api.create_subresource("binding", &name, &PostParams::default(), &binding).await;
    match bound {
        Ok(_) => {
            if let Some(spec) = &mut pod.spec {
                spec.node_name = Some(node_name);
            }
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            debug!(name, message = status.message, "A Pod was already bound or deleted");
            return TaskResult::Nothing;
        }
        Err(error) => {
            warn!(%error, name, "Could not bind a Pod");
            return TaskResult::Nothing;
        }
    }
    TaskResult::Bound(Box::new(pod))
}

/// Reports why a Pod cannot be scheduled, as condition and event, unless the condition already says so.
pub(super) async fn report_unschedulable(node: Arc<NodeContext>, pod: Pod, message: String) -> TaskResult {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    if conditions.clone().any(|c| c.type_ == "PodScheduled" && c.message.as_deref() == Some(&message)) {
        return TaskResult::Nothing;
    }
    let api: Api<Pod> = Api::namespaced(node.client.clone(), pod.metadata.namespace.as_deref().unwrap_or("default"));
    let others: Vec<_> = conditions.filter(|c| c.type_ != "PodScheduled").cloned().collect();
    let mut all =
        vec![json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        "lastTransitionTime": k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now())})];
    all.extend(others.iter().map(|c| serde_json::to_value(c).unwrap_or_default()));
    let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"phase": "Pending", "conditions": all}});
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    if let Err(error) = api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        debug!(%error, name, "Could not report why a Pod is unschedulable");
    }
    node.recorder.pod(&pod, Severity::Warning, "FailedScheduling", message);
    TaskResult::Nothing
}
