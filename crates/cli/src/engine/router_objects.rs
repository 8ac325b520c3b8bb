//! The router as clients of a cluster expect to find it: a Service and a running Pod in every namespace.
//!
//! SDKs open their tunnel with `kubectl port-forward svc/sandbox-router-svc`, each version in a namespace of its own choice. The Pod is a
//! name only: no node runs it, and a port-forward to it ends in the router of this process.

use super::install::create_if_absent;
use anyhow::Result;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;
use tracing::warn;

pub(crate) const POD: &str = "sandbox-router";
pub(crate) const SERVICE: &str = "sandbox-router-svc";
/// The port that clients forward to; the Pod has no other.
pub(crate) const PORT: u16 = 8080;
/// Where SDKs from 0.5 on look for the router.
const SYSTEM: &str = "agent-sandbox-system";
/// Not a real node, so that no scheduler and no node takes the Pod up.
const NODE: &str = "agent-sandbox-router";
/// An address of the documentation range: nothing is ever sent to it.
const ADDRESS: &str = "192.0.2.1";

/// Keeps the objects in every namespace, new ones included, until dropped.
pub(crate) async fn keep(client: Client) {
    let api: Api<Namespace> = Api::all(client.clone());
    let mut namespaces = watcher(api, watcher::Config::default()).default_backoff().applied_objects().boxed();
    loop {
        match namespaces.try_next().await {
            Ok(Some(namespace)) if namespace.metadata.deletion_timestamp.is_none() => {
                let name = namespace.name_any();
                if let Err(error) = put(&client, &name).await {
                    warn!(namespace = %name, %error, "Cannot show the router in a namespace");
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => warn!(%error, "Lost the watch on namespaces"),
        }
    }
}

/// The namespace in which newer SDKs look.
pub(crate) async fn create_system_namespace(client: &Client) -> Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = json!({"metadata": {"name": SYSTEM}});
    create_if_absent(&api, serde_json::from_value(namespace)?).await
}

async fn put(client: &Client, namespace: &str) -> Result<()> {
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let labels = json!({"app": POD});
    let service = json!({
        "metadata": {"name": SERVICE, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": PORT}]},
    });
    let pod = json!({
        "metadata": {"name": POD, "labels": labels},
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "router", "image": "agent-sandbox", "ports": [{"name": "http", "containerPort": PORT}]}],
        },
    });
    create_if_absent(&services, serde_json::from_value(service)?).await?;
    create_if_absent(&pods, serde_json::from_value(pod)?).await?;
    let stored = pods.get(POD).await?;
    let ready = stored.status.as_ref().and_then(|status| status.pod_ip.as_deref()) == Some(ADDRESS);
    if ready {
        return Ok(());
    }
    let now = jiff::Timestamp::now().to_string();
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"]
        .map(|name| json!({"type": name, "status": "True", "lastTransitionTime": now}));
    let status = json!({
        "status": {
            "phase": "Running", "podIP": ADDRESS, "podIPs": [{"ip": ADDRESS}], "startTime": now,
            "conditions": conditions,
            "containerStatuses": [{
                "name": "router", "image": "agent-sandbox", "imageID": "", "ready": true, "started": true, "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }],
        },
    });
    pods.patch_status(POD, &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok(())
}
