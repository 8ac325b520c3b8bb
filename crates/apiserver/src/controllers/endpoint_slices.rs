//! EndpointSlices of Services that have a selector.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    server::Core,
    status::ApiError,
    store::{Change, CommitError, Draft, Expect, ObjectKey, Write},
    verbs::now,
};

mod service_index;

pub(super) use service_index::ServiceIndex;
pub(crate) use service_index::cluster_ip;

/// Maximum number of endpoints in a slice, as in Kubernetes.
const MAX_ENDPOINTS: usize = 1000;

type Selector = Vec<(String, String)>;

fn selector_of(service: &Value) -> Selector {
    service["spec"]["selector"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_owned()))
        .collect()
}

/// Brings the EndpointSlice of one Service up to date.
pub(super) async fn reconcile(core: &Arc<Core>, key: &ObjectKey) -> Result<(), ApiError> {
    let Some(service) = core.store.get(&"/services".into(), key) else { return Ok(()) };
    let value = service.parse();
    let selector = selector_of(&value);
    if selector.is_empty() || service.facts.deleting {
        return Ok(());
    }
    let all = core.store.collection(&"/pods".into());
    let pods: Vec<Value> = core
        .controllers
        .services
        .pods(key, &all)
        .into_iter()
        .filter_map(|name| all.get(&ObjectKey::new(&key.namespace, &name)))
        .take(MAX_ENDPOINTS)
        .map(|pod| pod.parse())
        .collect();
    let slice = plan(&value, &pods);
    store_slice(core, &slice).await
}

/// The slice that a Service should have.
fn plan(service: &Value, pods: &[Value]) -> Value {
    let name = service["metadata"]["name"].as_str().unwrap_or_default();
    let uid = service["metadata"]["uid"].as_str().unwrap_or_default();
    let suffix: String = uid.chars().filter(char::is_ascii_alphanumeric).take(5).collect();
    let headless = service["spec"]["clusterIP"] == "None";
    let mut labels = json!({
        "kubernetes.io/service-name": name,
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    });
    if headless {
        labels["service.kubernetes.io/headless"] = "".into();
    }
    let publish_unready = service["spec"]["publishNotReadyAddresses"] == true;
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{name}-{suffix}"),
            "namespace": service["metadata"]["namespace"],
            "labels": labels,
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": name, "uid": uid,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "addressType": "IPv4",
        "endpoints": pods.iter().filter_map(|pod| endpoint(pod, publish_unready)).collect::<Vec<_>>(),
        "ports": ports(service, pods.first()),
    })
}

fn endpoint(pod: &Value, publish_unready: bool) -> Option<Value> {
    let address = pod["status"]["podIP"].as_str().filter(|ip| !ip.is_empty())?;
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    if matches!(phase, "Succeeded" | "Failed") {
        return None;
    }
    let condition = |name: &str| {
        pod["status"]["conditions"].as_array().into_iter().flatten().any(|c| c["type"] == name && c["status"] == "True")
    };
    let ready = condition("Ready");
    let terminating = pod["metadata"].get("deletionTimestamp").is_some();
    let mut out = json!({
        "addresses": [address],
        "conditions": { "ready": publish_unready || (ready && !terminating), "serving": ready, "terminating": terminating },
        "targetRef": {
            "kind": "Pod",
            "namespace": pod["metadata"]["namespace"],
            "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
        },
    });
    if let Some(node) = pod["spec"].get("nodeName") {
        out["nodeName"] = node.clone();
    }
    Some(out)
}

/// The ports of the slice; a named target port is looked up in the Pod.
fn ports(service: &Value, pod: Option<&Value>) -> Vec<Value> {
    let named = |name: &str| {
        pod.into_iter()
            .flat_map(|p| p["spec"]["containers"].as_array().into_iter().flatten())
            .flat_map(|c| c["ports"].as_array().into_iter().flatten())
            .find(|p| p["name"] == name)
            .map(|p| p["containerPort"].clone())
    };
    service["spec"]["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|port| {
            let number = match &port["targetPort"] {
                Value::String(name) => named(name)?,
                Value::Number(n) => Value::Number(n.clone()),
                _ => port["port"].clone(),
            };
            Some(json!({
                "name": port["name"].as_str().unwrap_or_default(),
                "port": number,
                "protocol": port["protocol"].as_str().unwrap_or("TCP"),
            }))
        })
        .collect()
}

async fn store_slice(core: &Arc<Core>, wanted: &Value) -> Result<(), ApiError> {
    let registry = core.registry.snapshot();
    let Some(resource) = registry.resource("discovery.k8s.io", "endpointslices") else { return Ok(()) };
    let text = |key: &str| wanted["metadata"][key].as_str().unwrap_or_default();
    let key = ObjectKey::new(text("namespace"), text("name"));
    loop {
        let current = core.store.latest(&resource.storage, &key);
        let mut object = wanted.clone();
        let expect = match &current {
            None => {
                object["metadata"]["uid"] = uuid::Uuid::new_v4().to_string().into();
                object["metadata"]["creationTimestamp"] = now().into();
                object["metadata"]["generation"] = 1.into();
                Expect::Absent
            }
            Some(stored) => {
                let old = stored.parse();
                let same = ["endpoints", "ports", "addressType"].iter().all(|k| old[*k] == wanted[*k]);
                if same && old["metadata"]["labels"] == wanted["metadata"]["labels"] {
                    return Ok(());
                }
                for field in ["uid", "creationTimestamp"] {
                    object["metadata"][field] = old["metadata"][field].clone();
                }
                object["metadata"]["generation"] = (old["metadata"]["generation"].as_i64().unwrap_or(0) + 1).into();
                Expect::Version(stored.version)
            }
        };
        let write = Write {
            storage: resource.storage.clone(),
            key: key.clone(),
            expect,
            change: Change::Put(Draft::new(resource, &object)),
            durable: true,
        };
        match core.store.commit(write).await {
            Ok(_) => return Ok(()),
            Err(CommitError::Changed(_) | CommitError::Exists | CommitError::Missing) => {}
            Err(error) => return Err(core.storage_error(&error)),
        }
    }
}
