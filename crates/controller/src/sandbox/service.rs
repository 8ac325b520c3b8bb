//! The headless Service of a Sandbox: its ports, and what to do about an existing one.

use std::collections::{BTreeMap, BTreeSet};

use agent_sandbox_api::{
    keys::labels,
    names,
    owners::{self, Ownership},
};
use serde_json::{Map, Value, json};

use super::{
    adoption::{self, Child},
    plan::Step,
    pod::owner_references,
};
use crate::{
    api_client::Request,
    cache::{Cached, Kind, Sandbox, Service, ServicePort},
};

/// The decision for the Service.
#[derive(Clone, Debug, PartialEq)]
pub enum ServicePlan {
    /// No Service is wanted and the Sandbox owns none.
    None,
    /// It exists and is up to date.
    Keep,
    /// Create, adopt or repair it.
    Write(Step),
    /// It is owned by the Sandbox and no longer wanted.
    Delete(Step),
    /// The Service cannot be created or adopted; the error goes into the Ready condition.
    Refuse(String),
    /// Not examined: the Service fields of the status stay.
    Skip,
}

pub(super) fn plan_service(sandbox: &Sandbox, service: Option<&Service>) -> ServicePlan {
    let wanted = sandbox.spec.service;
    let Some(service) = service else {
        return match wanted {
            Some(true) => ServicePlan::Write(Step::new(create(sandbox), "")),
            _ => ServicePlan::None,
        };
    };
    match (owners::ownership(&service.metadata, sandbox.uid()), wanted) {
        (Ownership::Owned, Some(false)) => {
            ServicePlan::Delete(Step::new(Request::delete(service, None), "failed to delete service: "))
        }
        (_, Some(false)) | (Ownership::Unowned, None) => ServicePlan::None,
        (Ownership::Foreign, _) => ServicePlan::Refuse(adoption::foreign_owner_error(Child::Service, service, sandbox)),
        (Ownership::Owned, wanted) => repair(sandbox, service, wanted == Some(true)),
        (Ownership::Unowned, Some(true)) => adopt(sandbox, service),
    }
}

fn create(sandbox: &Sandbox) -> Request {
    let hash = names::name_hash(sandbox.name());
    let mut spec = json!({ "clusterIP": "None", "selector": { labels::SANDBOX_NAME_HASH: hash } });
    let ports = service_ports(&sandbox.spec.pod_template.spec);
    if !ports.is_empty() {
        spec["ports"] = json!(ports);
    }
    let key = crate::cache::Key::new(sandbox.namespace(), sandbox.name());
    Request::create(
        Kind::Service,
        key,
        json!({
            "metadata": {
                "name": sandbox.name(),
                "namespace": sandbox.namespace(),
                "labels": { labels::SANDBOX_NAME_HASH: hash },
                "ownerReferences": [sandbox.controller_reference()],
            },
            "spec": spec,
        }),
    )
}

/// Restores label and selector of an owned Service always, its ports only when the user asked for the Service.
fn repair(sandbox: &Sandbox, service: &Service, with_ports: bool) -> ServicePlan {
    if let Some(ip) = service.spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") {
        return ServicePlan::Refuse(format!(
            "service \"{}\" is not headless: ClusterIP is \"{ip}\" (expected \"None\", field is immutable)",
            sandbox.name()
        ));
    }
    let patch = service_patch(sandbox, service, with_ports);
    if patch.is_empty() {
        return ServicePlan::Keep;
    }
    ServicePlan::Write(Step::new(Request::patch(service, Value::Object(patch)), "failed to patch owned service: "))
}

fn adopt(sandbox: &Sandbox, service: &Service) -> ServicePlan {
    if let Err(refusal) = adoption::check_adoptable(Child::Service, service, sandbox) {
        return ServicePlan::Refuse(refusal);
    }
    let ip = service.spec.cluster_ip.as_deref().unwrap_or_default();
    // Only an ExternalName Service has no cluster IP at all once stored.
    let external = service.spec.type_.as_deref() == Some("ExternalName");
    if external || !(ip.is_empty() || ip == "None") {
        return ServicePlan::Refuse(format!(
            "cannot adopt service \"{}\": ClusterIP is \"{ip}\" (expected \"None\", field is immutable)",
            sandbox.name()
        ));
    }
    let mut patch = service_patch(sandbox, service, true);
    let metadata = patch.entry("metadata").or_insert_with(|| json!({}));
    metadata["ownerReferences"] = json!(owner_references(sandbox, &service.metadata));
    ServicePlan::Write(Step::new(
        Request::patch_exact(service, Value::Object(patch)),
        "failed to update service with owner reference: ",
    ))
}

/// The merge patch for label, selector and (if requested) ports; empty when nothing differs.
fn service_patch(sandbox: &Sandbox, service: &Service, with_ports: bool) -> Map<String, Value> {
    let hash = names::name_hash(sandbox.name());
    let mut patch = Map::new();
    if service.label(labels::SANDBOX_NAME_HASH) != Some(&hash) {
        patch.insert("metadata".into(), json!({ "labels": { labels::SANDBOX_NAME_HASH: hash } }));
    }
    let mut spec = Map::new();
    let selector = BTreeMap::from([(labels::SANDBOX_NAME_HASH.to_owned(), hash.clone())]);
    if service.spec.selector != selector {
        let mut change: Map<String, Value> = service
            .spec
            .selector
            .keys()
            .filter(|key| !selector.contains_key(*key))
            .map(|key| (key.clone(), Value::Null))
            .collect();
        change.insert(labels::SANDBOX_NAME_HASH.into(), hash.into());
        spec.insert("selector".into(), Value::Object(change));
    }
    if with_ports {
        let ports = service_ports(&sandbox.spec.pod_template.spec);
        if ports != service.spec.ports {
            spec.insert("ports".into(), if ports.is_empty() { Value::Null } else { json!(ports) });
        }
    }
    if !spec.is_empty() {
        patch.insert("spec".into(), Value::Object(spec));
    }
    patch
}

/// The ports of a Pod spec as a Service publishes them: containers, then sidecars, each pair of port and protocol once,
/// ordered, with unique names.
pub fn service_ports(pod_spec: &Value) -> Vec<ServicePort> {
    let list = |key: &str| pod_spec.get(key).and_then(Value::as_array).into_iter().flatten();
    let is_sidecar = |container: &&Value| container.get("restartPolicy").and_then(Value::as_str) == Some("Always");
    let mut names: BTreeMap<(i32, String), Option<String>> = BTreeMap::new();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for container in list("containers").chain(list("initContainers").filter(is_sidecar)) {
        for port in container.get("ports").and_then(Value::as_array).into_iter().flatten() {
            let Some(number) = port
                .get("containerPort")
                .and_then(Value::as_i64)
                .and_then(|port| i32::try_from(port).ok())
                .filter(|port| *port != 0)
            else {
                continue;
            };
            let protocol =
                port.get("protocol").and_then(Value::as_str).filter(|protocol| !protocol.is_empty()).unwrap_or("TCP");
            let name = names.entry((number, protocol.to_owned())).or_default();
            if let (None, Some(wish)) =
                (&name, port.get("name").and_then(Value::as_str).filter(|wish| !wish.is_empty()))
                && taken.insert(wish.to_owned())
            {
                *name = Some(wish.to_owned());
            }
        }
    }
    names
        .into_iter()
        .map(|((port, protocol), name)| {
            let name = name.unwrap_or_else(|| free_name(&mut taken, &format!("p-{port}-{}", protocol.to_lowercase())));
            ServicePort { name, protocol, port, target_port: port.into() }
        })
        .collect()
}

fn free_name(taken: &mut BTreeSet<String>, wish: &str) -> String {
    let mut name = wish.to_owned();
    let mut attempt = 2;
    while !taken.insert(name.clone()) {
        name = format!("{wish}-{attempt}");
        attempt += 1;
    }
    name
}
