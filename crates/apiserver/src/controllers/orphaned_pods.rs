//! Removes deleted Pods whose node does not exist: no kubelet will ever confirm their end.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::Task;
use crate::{
    request::{DeleteOptions, Preconditions},
    server::Core,
    status::ApiError,
    store::ObjectKey,
    verbs::delete_object,
};

pub(super) const PODS: &str = "/pods";
pub(super) const NODES: &str = "/nodes";
/// Time after the end of the grace period in which the node may still appear, as after a restart.
const QUARANTINE: SignedDuration = SignedDuration::from_secs(10);

pub(super) async fn reconcile(core: &Arc<Core>, key: &ObjectKey) -> Result<(), ApiError> {
    if let Some(due) = reconcile_at(core, key, Timestamp::now()).await? {
        let wait = Duration::try_from(due.duration_since(Timestamp::now())).unwrap_or_default();
        let (core, task) = (Arc::downgrade(core), Task::OrphanedPod(key.clone()));
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            if let Some(core) = core.upgrade() {
                core.controllers.enqueue(task);
            }
        });
    }
    Ok(())
}

/// Removes a Pod if it is due at the time `now`; returns when it will be, if it has to wait.
async fn reconcile_at(core: &Arc<Core>, key: &ObjectKey, now: Timestamp) -> Result<Option<Timestamp>, ApiError> {
    let registry = core.registry.snapshot();
    let Some(resource) = registry.by_storage(PODS) else { return Ok(None) };
    let Some(pod) = core.store.latest(&resource.storage, key).filter(|pod| pod.facts.deleting) else { return Ok(None) };
    let object = pod.parse();
    let node = object["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() || core.store.latest(&NODES.into(), &ObjectKey::new("", node)).is_some() {
        return Ok(None);
    }
    let ends = object["metadata"]["deletionTimestamp"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
    let due = ends.unwrap_or(now).saturating_add(QUARANTINE).unwrap_or(Timestamp::MAX);
    if now < due {
        return Ok(Some(due));
    }
    let options = DeleteOptions {
        grace_period_seconds: Some(0),
        preconditions: Preconditions { uid: Some(pod.uid().to_owned()), resource_version: None },
        ..DeleteOptions::default()
    };
    delete_object(core, resource, key, &options).await.map(|_| None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{ApiServer, Config};
    use k8s_openapi::api::core::v1::{Node, Pod};
    use kube::api::{Api, DeleteParams, PostParams};

    #[tokio::test]
    async fn a_deleted_pod_without_a_node_is_removed_after_its_grace_period() {
        let server = ApiServer::open(Config::default()).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(server.client(), "default");
        let nodes: Api<Node> = Api::all(server.client());
        let node = json!({"metadata": {"name": "here"}});
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        for (name, node) in [("lost", "gone"), ("kept", "here")] {
            let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}});
            pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
            pods.delete(name, &DeleteParams::default()).await.unwrap();
        }
        let now = Timestamp::now();
        let (lost, kept) = (ObjectKey::new("default", "lost"), ObjectKey::new("default", "kept"));
        let due = reconcile_at(server.core(), &lost, now).await.unwrap().unwrap();
        let seconds = due.duration_since(now).as_secs();
        assert!((35..=41).contains(&seconds), "30 s of grace and the quarantine, not {seconds}");
        assert!(pods.get_opt("lost").await.unwrap().is_some());
        assert_eq!(reconcile_at(server.core(), &lost, due).await.unwrap(), None);
        assert!(pods.get_opt("lost").await.unwrap().is_none());
        assert_eq!(reconcile_at(server.core(), &kept, due).await.unwrap(), None);
        assert!(pods.get_opt("kept").await.unwrap().is_some(), "its node will confirm its end");
    }
}
