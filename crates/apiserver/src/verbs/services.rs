//! Addresses of Services: each belongs to one of them.

use serde_json::{Value, json};

use crate::{
    builtin,
    controllers::{SERVICES, own_address},
    registry::Resource,
    server::Core,
    status::{ApiError, FieldError},
    store::{Facts, LatestView, ObjectKey},
};

/// Draws of a free address before one is used untried: it is checked again when the service is stored.
const DRAWS: usize = 64;

/// The address of a service, if it has one of its own.
pub(super) fn address<'a>(resource: &Resource, facts: &'a Facts) -> Option<&'a str> {
    (&*resource.storage == SERVICES).then(|| own_address(facts)).flatten()
}

/// True when a service is to be given an address.
pub(super) fn wants_address(resource: &Resource, object: &Value) -> bool {
    let spec = &object["spec"];
    let given = |value: &Value| value.as_str().is_some_and(|a| !a.is_empty());
    &*resource.storage == SERVICES && !given(&spec["clusterIP"]) && !given(&spec["clusterIPs"][0])
}

/// Replaces the address that defaulting drew by one that is free.
pub(super) fn give_address(core: &Core, object: &mut Value) {
    let spec = &mut object["spec"];
    for _ in 0..DRAWS {
        match spec["clusterIP"].as_str() {
            Some(address) if core.controllers.address_holder(address).is_some() => {
                let other = builtin::cluster_ip();
                spec["clusterIPs"] = json!([other]);
                spec["clusterIP"] = other.into();
            }
            _ => return,
        }
    }
}

/// Refuses an address that another service has.
pub(super) fn claim(core: &Core, latest: &LatestView<'_>, key: &ObjectKey, address: &str) -> Result<(), ApiError> {
    let published = core.controllers.address_holder(address).is_some_and(|holder| holder != *key);
    let queued = latest.any_queued(|storage, object| {
        &**storage == SERVICES && object.key != *key && own_address(&object.facts) == Some(address)
    });
    if !published && !queued {
        return Ok(());
    }
    let why = format!("failed to allocate IP {address}: provided IP is already allocated");
    let error = FieldError::invalid("spec.clusterIPs", &json!([address]), why);
    Err(ApiError::invalid("", "Service", &key.name, &[error]))
}
