//! The router as clients of a cluster expect to find it: a Service and a running Pod in every namespace.
//!
//! SDKs open their tunnel with `kubectl port-forward svc/sandbox-router-svc`; the namespace depends on the SDK's
//! version. The Pod is a placeholder: no node runs it, and a port-forward to it ends in the router of this process.

use crate::{EngineError, ready_made::create_if_absent};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tracing::warn;

pub(crate) const POD: &str = "sandbox-router";
pub(crate) const SERVICE: &str = "sandbox-router-svc";
/// The port that clients forward to, and the Pod's only one.
pub(crate) const PORT: u16 = 8080;
/// Namespace in which SDKs from 0.5 on look for the router.
const SYSTEM_NAMESPACE: &str = "agent-sandbox-system";
/// Name of a node that does not exist, so that no scheduler binds the Pod and no node runs it.
const NODE: &str = "agent-sandbox-router";
/// The Pod's address, from the range for documentation (RFC 5737): nothing is ever sent to it.
const ADDRESS: &str = "192.0.2.1";

/// True for the Pod and the Service that this module keeps in every namespace. There is one of each per namespace, and
/// no node runs the Pod, so that nothing is gained by creating one of the same name.
pub(crate) fn is_placeholder(plural: &str, object: &Value) -> bool {
    let named = |name: &str| object["metadata"]["name"] == name;
    match plural {
        "pods" => named(POD) && object["spec"]["nodeName"] == NODE,
        "services" => named(SERVICE) && matches!(object["spec"]["type"].as_str(), None | Some("ClusterIP")),
        _ => false,
    }
}

/// Creates the objects in every namespace, new ones included, and again when a user deletes them, until dropped.
pub(crate) async fn maintain(client: Client) {
    tokio::join!(follow_namespaces(&client), restore::<Pod>(&client, POD), restore::<Service>(&client, SERVICE));
}

/// Creates the objects again in a namespace whose object of this name was deleted.
async fn restore<K>(client: &Client, name: &str)
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut events = watcher(Api::<K>::all(client.clone()), only).default_backoff().boxed();
    loop {
        let namespace = match events.try_next().await {
            Ok(Some(watcher::Event::Delete(object))) => object.namespace().unwrap_or_default(),
            Ok(Some(_)) => continue,
            Ok(None) => return,
            Err(error) => {
                warn!(%error, "Lost the watch on the router's objects");
                continue;
            }
        };
        if let Err(error) = ensure_in_active(client, &namespace).await {
            warn!(%namespace, %error, "Cannot create the router's Service and Pod again");
        }
    }
}

/// Creates the objects unless the namespace is being deleted.
async fn ensure_in_active(client: &Client, name: &str) -> Result<(), kube::Error> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    match namespaces.get_opt(name).await? {
        Some(namespace) if namespace.metadata.deletion_timestamp.is_none() => ensure(client, name).await,
        _ => Ok(()),
    }
}

async fn follow_namespaces(client: &Client) {
    let api: Api<Namespace> = Api::all(client.clone());
    let mut namespaces = watcher(api, watcher::Config::default()).default_backoff().applied_objects().boxed();
    loop {
        match namespaces.try_next().await {
            Ok(Some(namespace)) => {
                let name = namespace.name_any();
                let done = match namespace.metadata.deletion_timestamp {
                    None => ensure(client, &name).await,
                    Some(_) => remove_pod(client, &name).await,
                };
                if let Err(error) = done {
                    warn!(namespace = %name, %error, "Cannot maintain the router's Service and Pod in a namespace");
                }
            }
            Ok(None) => return,
            Err(error) => warn!(%error, "Lost the watch on namespaces"),
        }
    }
}

/// Creates the namespace in which newer SDKs look for the router.
pub(crate) async fn create_system_namespace(client: &Client) -> Result<(), EngineError> {
    let api: Api<Namespace> = Api::all(client.clone());
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(SYSTEM_NAMESPACE.to_owned());
    let created = create_if_absent(&api, namespace).await;
    created.map_err(|source| EngineError::CreateNamespace { name: SYSTEM_NAMESPACE, source })
}

/// Removes the Pod from a namespace that is being deleted: one that an earlier version created has a grace period, which
/// nothing would end.
async fn remove_pod(client: &Client, namespace: &str) -> Result<(), kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    match pods.delete(POD, &DeleteParams::default().grace_period(0)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// Creates the Service and the Pod, and sets the Pod's status to running and ready.
async fn ensure(client: &Client, namespace: &str) -> Result<(), kube::Error> {
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
            // No kubelet would ever confirm the end of this Pod: its deletion takes effect at once.
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "router", "image": "agent-sandbox", "ports": [{"name": "http", "containerPort": PORT}]}],
        },
    });
    create_if_absent(&services, from_json(service)?).await?;
    create_if_absent(&pods, from_json(pod)?).await?;
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

fn from_json<K: DeserializeOwned>(object: Value) -> Result<K, kube::Error> {
    serde_json::from_value(object).map_err(kube::Error::SerdeError)
}
