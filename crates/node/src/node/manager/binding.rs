//! The writes of the scheduler's share: a binding, or the reason why there is none.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tracing::{debug, warn};

use super::Done;
use crate::pods::recorder::Severity;
use crate::pods::shared::Shared;
use crate::schedule;

pub(super) async fn bind(shared: Arc<Shared>, mut pod: Pod) -> Done {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let name = pod.metadata.name.clone().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(shared.client.clone(), &namespace);
    let node_name = shared.settings.node_name.clone();
    let binding = schedule::binding(&pod, &node_name);
    let bound: Result<kube::core::Status, kube::Error> =
        api.create_subresource("binding", &name, &PostParams::default(), &binding).await;
    match bound {
        Ok(_) => {
            if let Some(spec) = &mut pod.spec {
                spec.node_name = Some(node_name);
            }
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
            debug!(name, message = status.message, "A Pod was bound or deleted by someone else");
            return Done::Nothing;
        }
        Err(error) => {
            warn!(%error, name, "Could not bind a Pod");
            return Done::Nothing;
        }
    }
    Done::Bound(Box::new(pod))
}

/// Says why a Pod has no node, unless it was said before.
pub(super) async fn explain(shared: Arc<Shared>, pod: Pod, message: String) -> Done {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    if conditions.clone().any(|c| c.type_ == "PodScheduled" && c.message.as_deref() == Some(&message)) {
        return Done::Nothing;
    }
    let api: Api<Pod> = Api::namespaced(shared.client.clone(), pod.metadata.namespace.as_deref().unwrap_or("default"));
    let others: Vec<_> = conditions.filter(|c| c.type_ != "PodScheduled").cloned().collect();
    let mut all =
        vec![json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        "lastTransitionTime": k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now())})];
    all.extend(others.iter().map(|c| serde_json::to_value(c).unwrap_or_default()));
    let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"phase": "Pending", "conditions": all}});
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    if let Err(error) = api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        debug!(%error, name, "Could not say why a Pod has no node");
    }
    shared.recorder.pod(&pod, Severity::Warning, "FailedScheduling", message);
    Done::Nothing
}
