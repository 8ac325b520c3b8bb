//! Defaults and validation of Services and NetworkPolicies.

use std::{collections::HashSet, net::IpAddr};

use rand::RngExt as _;
use serde_json::{Value, json};

use super::{default_to, items, items_mut, metadata, pod::port_name, text};
use crate::status::{FieldError, Path};

pub(super) fn service_defaults(object: &mut Value) {
    default_to(object, "spec", json!({}));
    let spec = &mut object["spec"];
    if !spec.is_object() {
        return;
    }
    default_to(spec, "type", "ClusterIP");
    default_to(spec, "sessionAffinity", "None");
    for port in items_mut(spec, "ports") {
        default_to(port, "protocol", "TCP");
        let number = port["port"].clone();
        default_to(port, "targetPort", number);
    }
    if spec["type"] != "ExternalName" {
        default_to(spec, "internalTrafficPolicy", "Cluster");
    }
}

/// Allocates the cluster IP of a Service.
pub(super) fn admit_service(object: &mut Value) {
    let spec = &mut object["spec"];
    if !spec.is_object() || spec["type"] == "ExternalName" {
        return;
    }
    if text(spec, "clusterIP").is_empty() {
        let given = spec["clusterIPs"].get(0).and_then(Value::as_str).unwrap_or_default().to_owned();
        // The embedded engine does not route cluster IPs, but clients expect the field to be set.
        spec["clusterIP"] = if given.is_empty() { cluster_ip() } else { given }.into();
    }
    let address = spec["clusterIP"].clone();
    default_to(spec, "clusterIPs", json!([address]));
    default_to(spec, "ipFamilies", json!(["IPv4"]));
    default_to(spec, "ipFamilyPolicy", "SingleStack");
}

pub(crate) fn cluster_ip() -> String {
    let mut random = rand::rng();
    format!("10.96.{}.{}", random.random_range(1..=254u8), random.random_range(1..=254u8))
}

pub(super) fn validate_service(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let path = Path::Root.child("spec");
    let types = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    if !types.contains(&text(spec, "type")) {
        errors.push(FieldError::not_supported(path.child("type"), &spec["type"], &types));
    }
    let headless = text(spec, "clusterIP") == "None";
    let external = spec["type"] == "ExternalName";
    let count = items(spec, "ports").count();
    if count == 0 && !headless && !external {
        errors.push(FieldError::required(path.child("ports"), ""));
    }
    if external && text(spec, "externalName").is_empty() {
        errors.push(FieldError::required(path.child("externalName"), ""));
    }
    if !matches!(text(spec, "sessionAffinity"), "None" | "ClientIP") {
        errors.push(FieldError::not_supported(
            path.child("sessionAffinity"),
            &spec["sessionAffinity"],
            &["ClientIP", "None"],
        ));
    }
    metadata::labels(&spec["selector"], &path.child("selector"), errors);
    let ports = path.child("ports");
    let mut names = HashSet::new();
    let mut numbers = HashSet::new();
    for (i, port) in items(spec, "ports").enumerate() {
        let at = ports.index(i);
        service_port(port, count > 1, &at, errors);
        let name = text(port, "name");
        if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(at.child("name"), &name.into()));
        }
        if !numbers.insert((port["port"].as_i64(), text(port, "protocol"))) {
            errors.push(FieldError::duplicate(at, port));
        }
    }
}

fn service_port(port: &Value, named: bool, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    const RANGE: &str = "must be between 1 and 65535, inclusive";
    let name = text(port, "name");
    if named && name.is_empty() {
        errors.push(FieldError::required(at.child("name"), ""));
    }
    if !name.is_empty() {
        for why in super::names::dns1123_label(name) {
            errors.push(FieldError::invalid_str(at.child("name"), name, why));
        }
    }
    if !port["port"].as_i64().is_some_and(|n| (1..=65535).contains(&n)) {
        errors.push(FieldError::invalid(at.child("port"), &port["port"], RANGE));
    }
    match &port["targetPort"] {
        Value::Number(n) if !n.as_i64().is_some_and(|n| (1..=65535).contains(&n)) => {
            errors.push(FieldError::invalid(at.child("targetPort"), &port["targetPort"], RANGE));
        }
        Value::String(target) => {
            for why in port_name(target) {
                errors.push(FieldError::invalid_str(at.child("targetPort"), target, why));
            }
        }
        _ => {}
    }
    if !matches!(text(port, "protocol"), "TCP" | "UDP" | "SCTP") {
        errors.push(FieldError::not_supported(at.child("protocol"), &port["protocol"], &["SCTP", "TCP", "UDP"]));
    }
}

pub(super) fn validate_service_update(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    let address = |object: &Value| text(&object["spec"], "clusterIP").to_owned();
    let external = |object: &Value| object["spec"]["type"] == "ExternalName";
    if !external(old) && !external(new) && !address(old).is_empty() && address(old) != address(new) {
        errors.push(FieldError::invalid("spec.clusterIPs[0]", &json!([address(new)]), "may not change once set"));
    }
}

pub(super) fn policy_defaults(object: &mut Value) {
    default_to(object, "spec", json!({}));
    let spec = &mut object["spec"];
    if !spec.is_object() {
        return;
    }
    default_to(spec, "podSelector", json!({}));
    if items(spec, "policyTypes").next().is_none() {
        let egress = spec.get("egress").and_then(Value::as_array).is_some_and(|e| !e.is_empty());
        spec["policyTypes"] = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
    }
    for direction in ["ingress", "egress"] {
        for rule in items_mut(spec, direction) {
            items_mut(rule, "ports").for_each(|port| default_to(port, "protocol", "TCP"));
        }
    }
}

pub(super) fn validate_policy(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let path = Path::Root.child("spec");
    let types = path.child("policyTypes");
    for (i, kind) in items(spec, "policyTypes").enumerate() {
        if !matches!(kind.as_str(), Some("Ingress" | "Egress")) {
            errors.push(FieldError::not_supported(types.index(i), kind, &["Ingress", "Egress"]));
        }
    }
    let selector = path.child("podSelector");
    metadata::labels(&spec["podSelector"]["matchLabels"], &selector.child("matchLabels"), errors);
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        let list = path.child(direction);
        for (i, rule) in items(spec, direction).enumerate() {
            let at = list.index(i);
            let peers_path = at.child(peers);
            for (j, peer) in items(rule, peers).enumerate() {
                validate_peer(peer, &peers_path.index(j), errors);
            }
        }
    }
}

fn validate_peer(peer: &Value, at: &Path<'_>, errors: &mut Vec<FieldError>) {
    let given = |key: &str| peer.get(key).is_some_and(|v| !v.is_null());
    if !given("podSelector") && !given("namespaceSelector") && !given("ipBlock") {
        errors.push(FieldError::required(at, "must specify a peer"));
    }
    if given("ipBlock") && (given("podSelector") || given("namespaceSelector")) {
        errors.push(FieldError::forbidden(at, "may not specify both ipBlock and another peer"));
    }
    if !given("ipBlock") {
        return;
    }
    let block = &peer["ipBlock"];
    let path = at.child("ipBlock");
    let cidr = text(block, "cidr");
    if !is_cidr(cidr) {
        errors.push(FieldError::invalid_str(
            path.child("cidr"),
            cidr,
            "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        ));
    }
    let except = path.child("except");
    for (i, item) in items(block, "except").enumerate() {
        if !item.as_str().is_some_and(is_cidr) {
            errors.push(FieldError::invalid(
                except.index(i),
                item,
                "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            ));
        }
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    match (address.parse::<IpAddr>(), bits.parse::<u8>()) {
        (Ok(IpAddr::V4(_)), Ok(bits)) => bits <= 32,
        (Ok(IpAddr::V6(_)), Ok(bits)) => bits <= 128,
        _ => false,
    }
}
