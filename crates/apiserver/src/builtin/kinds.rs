//! Defaults and validation of the smaller kinds: namespaces, config maps, secrets, events, workloads, RBAC, leases,
//! classes.

use base64::{DecodeError, Engine as _};
use serde_json::{Value, json};

use super::{default_to, items, names, pod, pod_defaults, text};
use crate::status::{FieldError, Path};

pub(super) fn namespace_defaults(object: &mut Value) {
    let name = text(&object["metadata"], "name").to_owned();
    default_to(&mut object["metadata"], "labels", json!({}));
    object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name.into();
}

/// Adds the finalizer that keeps a namespace until it is empty.
pub(super) fn admit_namespace(object: &mut Value) {
    let deleting = object["metadata"].get("deletionTimestamp").is_some();
    if !deleting {
        default_to(object, "spec", json!({}));
        default_to(&mut object["spec"], "finalizers", json!(["kubernetes"]));
    }
}

/// Sets the fields of events that Kubernetes always writes, with the names of the respective group.
pub(super) fn admit_event(object: &mut Value, modern: bool) {
    let (source, first, last) = match modern {
        true => ("deprecatedSource", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"),
        false => ("source", "firstTimestamp", "lastTimestamp"),
    };
    default_to(object, source, json!({}));
    for time in [first, last, "eventTime"] {
        default_to(object, time, Value::Null);
    }
}

/// Checks the fields that `events.k8s.io` requires.
/// An Event is about an object of its own namespace; Events about cluster objects are in `default`.
pub(super) fn validate_core_event(object: &Value, errors: &mut Vec<FieldError>) {
    let (own, about) = (text(&object["metadata"], "namespace"), &object["involvedObject"]["namespace"]);
    if let Some(namespace) = about.as_str().filter(|namespace| !namespace.is_empty() && *namespace != own) {
        errors.push(FieldError::invalid_str("involvedObject.namespace", namespace, "does not match event.namespace"));
    }
}

pub(super) fn validate_event(object: &Value, errors: &mut Vec<FieldError>) {
    for field in ["eventTime", "reportingController", "reportingInstance", "action", "reason"] {
        if text(object, field).is_empty() {
            errors.push(FieldError::required(field, ""));
        }
    }
    if !matches!(text(object, "type"), "Normal" | "Warning") {
        errors.push(FieldError::invalid("type", &object["type"], "must be Normal or Warning"));
    }
}

/// Defaults of a Secret. `stringData` is write-only: its values are moved to `data`, base64-encoded.
pub(super) fn secret_defaults(object: &mut Value) {
    default_to(object, "type", "Opaque");
    let plain = object.as_object_mut().and_then(|o| o.remove("stringData"));
    let Some(Value::Object(plain)) = plain else { return };
    default_to(object, "data", json!({}));
    for (key, value) in plain {
        let encoded = base64::engine::general_purpose::STANDARD.encode(value.as_str().unwrap_or_default());
        object["data"][key] = encoded.into();
    }
}

pub(super) fn workload_defaults(plural: &str, object: &mut Value) {
    let spec = &mut object["spec"];
    if !spec.is_object() {
        return;
    }
    if plural != "daemonsets" {
        default_to(spec, "replicas", 1);
    }
    match plural {
        "deployments" => {
            let rolling =
                json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "25%", "maxSurge": "25%" } });
            default_to(spec, "strategy", rolling);
            default_to(spec, "revisionHistoryLimit", 10);
            default_to(spec, "progressDeadlineSeconds", 600);
        }
        "statefulsets" => {
            default_to(spec, "podManagementPolicy", "OrderedReady");
            default_to(spec, "revisionHistoryLimit", 10);
        }
        _ => {}
    }
    if let Some(template) = spec.get_mut("template").and_then(|t| t.get_mut("spec")) {
        pod_defaults::template_spec(template);
    }
}

pub(super) fn validate_workload(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let path = Path::Root.child("spec");
    if spec["selector"].as_object().is_none_or(serde_json::Map::is_empty) {
        errors.push(FieldError::required(path.child("selector"), ""));
    }
    if let Some(count) = spec.get("replicas").filter(|r| r.as_i64().is_some_and(|n| n < 0)) {
        errors.push(FieldError::invalid(path.child("replicas"), count, "must be greater than or equal to 0"));
    }
    let template = path.child("template");
    let labels = &spec["template"]["metadata"]["labels"];
    let selected =
        spec["selector"]["matchLabels"].as_object().into_iter().flatten().all(|(k, v)| labels.get(k) == Some(v));
    if !selected {
        let metadata = template.child("metadata");
        errors.push(FieldError::invalid(
            metadata.child("labels"),
            labels,
            "`selector` does not match template `labels`",
        ));
    }
    pod::validate_spec(&spec["template"]["spec"], &template.child("spec"), errors);
}

/// Validates the keys of config maps and secrets, which become file names.
pub(super) fn validate_keys(object: &Value, errors: &mut Vec<FieldError>) {
    let duplicates =
        object["data"].as_object().into_iter().flatten().filter(|(key, _)| object["binaryData"].get(key).is_some());
    for (key, _) in duplicates {
        let why = "duplicate of key present in binaryData";
        errors.push(FieldError::invalid_str(Path::Root.child("data").key(key), key, why));
    }
    for field in ["data", "binaryData"] {
        let path = Path::Root.child(field);
        for key in object[field].as_object().into_iter().flat_map(serde_json::Map::keys) {
            let legal = !key.is_empty()
                && key.len() <= 253
                && !key.starts_with("..")
                && key != "."
                && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
            if !legal {
                errors.push(FieldError::invalid_str(
                    path.key(key),
                    key,
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
                ));
            }
        }
    }
}

/// Offset at which the first invalid base64 value is invalid. Kubernetes cannot decode such an object.
pub(super) fn invalid_base64_offset(object: &Value) -> Option<usize> {
    let field = if object["kind"] == "Secret" { "data" } else { "binaryData" };
    object[field].as_object().into_iter().flat_map(serde_json::Map::values).find_map(|value| {
        let text = value.as_str()?;
        match base64::engine::general_purpose::STANDARD.decode(text).err()? {
            DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol { offset: at, .. } => Some(at),
            DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => Some(text.len()),
        }
    })
}

pub(super) fn validate_immutable_data(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    if old["kind"] == "Secret" && old["type"] != new["type"] {
        errors.push(FieldError::invalid("type", &new["type"], "field is immutable"));
    }
    if old["immutable"] != true {
        return;
    }
    if new["immutable"] != true {
        errors.push(FieldError::forbidden("immutable", "field is immutable when `immutable` is set"));
    }
    for field in ["data", "binaryData"] {
        if old.get(field) != new.get(field) {
            errors.push(FieldError::forbidden(field, "field is immutable when `immutable` is set"));
        }
    }
}

pub(super) fn immutable(old: &Value, new: &Value, field: &str, errors: &mut Vec<FieldError>) {
    if old.get(field) != new.get(field) {
        errors.push(FieldError::invalid(field, &new[field], "field is immutable"));
    }
}

pub(super) fn validate_runtime_class(object: &Value, errors: &mut Vec<FieldError>) {
    let handler = text(object, "handler");
    for why in names::dns1123_label(handler) {
        errors.push(FieldError::invalid_str("handler", handler, why));
    }
}

pub(super) fn validate_storage_class(object: &Value, errors: &mut Vec<FieldError>) {
    if text(object, "provisioner").is_empty() {
        errors.push(FieldError::required("provisioner", ""));
    }
    if !matches!(text(object, "volumeBindingMode"), "Immediate" | "WaitForFirstConsumer") {
        errors.push(FieldError::not_supported(
            "volumeBindingMode",
            &object["volumeBindingMode"],
            &["Immediate", "WaitForFirstConsumer"],
        ));
    }
}

pub(super) fn validate_rbac(kind: &str, object: &Value, errors: &mut Vec<FieldError>) {
    if kind.ends_with("Binding") {
        let role = &object["roleRef"];
        if text(role, "name").is_empty() {
            errors.push(FieldError::required("roleRef.name", ""));
        }
        if !matches!(text(role, "kind"), "Role" | "ClusterRole") {
            errors.push(FieldError::not_supported("roleRef.kind", &role["kind"], &["ClusterRole", "Role"]));
        }
        let path = Path::Root.child("subjects");
        for (i, subject) in items(object, "subjects").enumerate() {
            if text(subject, "name").is_empty() {
                errors.push(FieldError::required(path.index(i).child("name"), ""));
            }
        }
        return;
    }
    let path = Path::Root.child("rules");
    for (i, rule) in items(object, "rules").enumerate() {
        if items(rule, "verbs").next().is_none() {
            errors.push(FieldError::required(path.index(i).child("verbs"), "verbs must contain at least one value"));
        }
    }
}

pub(super) fn validate_lease(object: &Value, errors: &mut Vec<FieldError>) {
    if let Some(seconds) = object["spec"].get("leaseDurationSeconds").filter(|s| s.as_i64().is_some_and(|n| n <= 0)) {
        errors.push(FieldError::invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"));
    }
}
