//! Allocates the cluster IPs of Services; each belongs to one Service.

use serde_json::{Value, json};

use crate::{
    builtin,
    controllers::{SERVICES, cluster_ip},
    registry::Resource,
    server::Core,
    status::{ApiError, FieldError},
    store::{Facts, LatestView, ObjectKey},
};

/// Attempts to find a free address. The last one is used unchecked: it is checked again when the Service is stored.
const ATTEMPTS: usize = 64;

/// The cluster IP of a Service; `None` for other resources and for headless Services.
pub(super) fn cluster_ip_of<'a>(resource: &Resource, facts: &'a Facts) -> Option<&'a str> {
    (&*resource.storage == SERVICES).then(|| cluster_ip(facts)).flatten()
}

/// True for a Service without a cluster IP.
pub(super) fn needs_cluster_ip(resource: &Resource, object: &Value) -> bool {
    let spec = &object["spec"];
    let given = |value: &Value| value.as_str().is_some_and(|a| !a.is_empty());
    &*resource.storage == SERVICES && !given(&spec["clusterIP"]) && !given(&spec["clusterIPs"][0])
}

/// Replaces the random cluster IP from defaulting by a free one.
pub(super) fn allocate(core: &Core, object: &mut Value) {
    let spec = &mut object["spec"];
    for _ in 0..ATTEMPTS {
        match spec["clusterIP"].as_str() {
            Some(ip) if core.controllers.service_with_ip(ip).is_some() => {
                let other = builtin::cluster_ip();
                spec["clusterIPs"] = json!([other]);
                spec["clusterIP"] = other.into();
            }
            _ => return,
        }
    }
}

/// Fails if another Service has this cluster IP.
pub(super) fn check_free(core: &Core, latest: &LatestView<'_>, key: &ObjectKey, ip: &str) -> Result<(), ApiError> {
    let published = core.controllers.service_with_ip(ip).is_some_and(|service| service != *key);
    let queued = latest.any_queued(|storage, object| {
        &**storage == SERVICES && object.key != *key && cluster_ip(&object.facts) == Some(ip)
    });
    if !published && !queued {
        return Ok(());
    }
    let why = format!("failed to allocate IP {ip}: provided IP is already allocated");
    let error = FieldError::invalid("spec.clusterIPs", &json!([ip]), why);
    Err(ApiError::invalid("", "Service", &key.name, &[error]))
}
