//! Validation of Pods and of their updates.

use std::collections::HashSet;

use agent_sandbox_api::quantity::Quantity;
use serde_json::{Value, json};

use super::{items, metadata, names, text};
use crate::status::{FieldError, Path};

const VOLUME_SOURCES: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "glusterfs",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "persistentVolumeClaim",
    "photonPersistentDisk",
    "portworxVolume",
    "projected",
    "quobyte",
    "rbd",
    "scaleIO",
    "secret",
    "storageos",
    "vsphereVolume",
];

/// Validates a Pod; `path` is that of its spec.
pub(super) fn validate(object: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    validate_spec(&object["spec"], path, errors);
}

pub(super) fn validate_spec(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let volumes = validate_volumes(spec, &path.child("volumes"), errors);
    if items(spec, "containers").next().is_none() {
        errors.push(FieldError::required(path.child("containers"), ""));
    }
    let mut seen = HashSet::new();
    for list in ["containers", "initContainers"] {
        let list_path = path.child(list);
        for (i, container) in items(spec, list).enumerate() {
            let at = list_path.index(i);
            validate_container(container, &volumes, &at, errors);
            let name = text(container, "name");
            if !name.is_empty() && !seen.insert(name) {
                errors.push(FieldError::duplicate(at.child("name"), &name.into()));
            }
        }
    }
    one_of(spec, "restartPolicy", &["Always", "OnFailure", "Never"], path, errors);
    one_of(spec, "dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"], path, errors);
    if let Some(seconds) = spec["terminationGracePeriodSeconds"].as_i64().filter(|s| *s < 0) {
        errors.push(FieldError::invalid(
            path.child("terminationGracePeriodSeconds"),
            &seconds.into(),
            "must be greater than or equal to 0",
        ));
    }
    if let Some(seconds) = spec["activeDeadlineSeconds"].as_i64().filter(|s| *s < 1) {
        errors.push(FieldError::invalid(
            path.child("activeDeadlineSeconds"),
            &seconds.into(),
            "must be between 1 and 2147483647, inclusive",
        ));
    }
    metadata::labels(&spec["nodeSelector"], &path.child("nodeSelector"), errors);
    for key in ["hostname", "subdomain"] {
        check(spec, key, names::dns1123_label, path, errors);
    }
    for key in ["serviceAccountName", "runtimeClassName", "nodeName", "priorityClassName"] {
        check(spec, key, names::dns1123_subdomain, path, errors);
    }
}

fn check(object: &Value, key: &str, rule: fn(&str) -> Vec<String>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let value = text(object, key);
    if value.is_empty() {
        return;
    }
    for why in rule(value) {
        errors.push(FieldError::invalid_str(path.child(key), value, why));
    }
}

fn one_of(object: &Value, key: &str, allowed: &[&str], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let value = text(object, key);
    if !value.is_empty() && !allowed.contains(&value) {
        errors.push(FieldError::not_supported(path.child(key), &value.into(), allowed));
    }
}

fn validate_volumes<'a>(spec: &'a Value, path: &Path<'_>, errors: &mut Vec<FieldError>) -> HashSet<&'a str> {
    let mut seen = HashSet::new();
    for (i, volume) in items(spec, "volumes").enumerate() {
        let at = path.index(i);
        let name = text(volume, "name");
        if name.is_empty() {
            errors.push(FieldError::required(at.child("name"), ""));
        } else {
            check(volume, "name", names::dns1123_label, &at, errors);
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(at.child("name"), &name.into()));
            }
        }
        let mut sources = VOLUME_SOURCES.iter().filter(|s| volume.get(**s).is_some_and(|v| !v.is_null()));
        if let Some(extra) = sources.nth(1) {
            errors.push(FieldError::forbidden(at.child(extra), "may not specify more than 1 volume type"));
        }
        if let Some(claim) = volume.get("persistentVolumeClaim")
            && text(claim, "claimName").is_empty()
        {
            let source = at.child("persistentVolumeClaim");
            errors.push(FieldError::required(source.child("claimName"), ""));
        }
    }
    seen
}

fn validate_container(container: &Value, volumes: &HashSet<&str>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let name = text(container, "name");
    if name.is_empty() {
        errors.push(FieldError::required(path.child("name"), ""));
    } else {
        check(container, "name", names::dns1123_label, path, errors);
    }
    let image = text(container, "image");
    if image.is_empty() {
        errors.push(FieldError::required(path.child("image"), ""));
    } else if image.trim() != image {
        errors.push(FieldError::invalid_str(
            path.child("image"),
            image,
            "must not have leading or trailing whitespace",
        ));
    }
    one_of(container, "imagePullPolicy", &["Always", "IfNotPresent", "Never"], path, errors);
    one_of(container, "terminationMessagePolicy", &["File", "FallbackToLogsOnError"], path, errors);
    ports(container, &path.child("ports"), errors);
    env(container, &path.child("env"), errors);
    mounts(container, volumes, &path.child("volumeMounts"), errors);
    resources(&container["resources"], &path.child("resources"), errors);
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get(key).filter(|p| p.is_object()) {
            self::probe(probe, &path.child(key), errors);
        }
    }
}

fn port_in_range(value: &Value) -> bool {
    value.as_i64().is_some_and(|n| (1..=65535).contains(&n))
}

const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";

fn ports(container: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for (i, port) in items(container, "ports").enumerate() {
        let at = path.index(i);
        match port.get("containerPort") {
            None => errors.push(FieldError::required(at.child("containerPort"), "")),
            Some(number) if !port_in_range(number) => {
                errors.push(FieldError::invalid(at.child("containerPort"), number, PORT_RANGE));
            }
            Some(_) => {}
        }
        if let Some(number) = port.get("hostPort").filter(|n| n.as_i64() != Some(0) && !port_in_range(n)) {
            errors.push(FieldError::invalid(at.child("hostPort"), number, PORT_RANGE));
        }
        one_of(port, "protocol", &["SCTP", "TCP", "UDP"], &at, errors);
        let name = text(port, "name");
        if !name.is_empty() {
            for why in port_name(name) {
                errors.push(FieldError::invalid_str(at.child("name"), name, why));
            }
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(at.child("name"), &name.into()));
            }
        }
    }
}

/// Port names: at most 15 characters, lower case, at least one letter.
pub(super) fn port_name(name: &str) -> Vec<String> {
    let mut out = Vec::new();
    if name.len() > 15 {
        out.push("must be no more than 15 characters".into());
    }
    if !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') {
        out.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !name.contains(|c: char| c.is_ascii_lowercase()) {
        out.push("must contain at least one letter (a-z)".into());
    }
    if name.starts_with('-') || name.ends_with('-') || name.contains("--") {
        out.push("must not begin or end with a hyphen, nor contain consecutive hyphens".into());
    }
    out
}

fn env(container: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (i, variable) in items(container, "env").enumerate() {
        let at = path.index(i);
        let name = text(variable, "name");
        if name.is_empty() {
            errors.push(FieldError::required(at.child("name"), ""));
        } else if name.contains('=') || name.chars().any(|c| c.is_control()) {
            errors.push(FieldError::invalid_str(
                at.child("name"),
                name,
                "a valid environment variable name must consist only of printable ASCII characters other than '='",
            ));
        }
        let given = variable.get("valueFrom").and_then(Value::as_object);
        if let Some(source) = given {
            let count = source.values().filter(|v| !v.is_null()).count();
            if count != 1 {
                let why = if count == 0 {
                    "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
                } else {
                    "may not have more than one field specified at a time"
                };
                errors.push(FieldError::invalid_str(at.child("valueFrom"), "", why));
            }
            if !text(variable, "value").is_empty() {
                errors.push(FieldError::invalid_str(
                    at.child("valueFrom"),
                    "",
                    "may not be specified when `value` is not empty",
                ));
            }
        }
    }
}

fn mounts(container: &Value, volumes: &HashSet<&str>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut seen = HashSet::new();
    for (i, mount) in items(container, "volumeMounts").enumerate() {
        let at = path.index(i);
        let name = text(mount, "name");
        if name.is_empty() {
            errors.push(FieldError::required(at.child("name"), ""));
        } else if !volumes.contains(name) {
            errors.push(FieldError::not_found(at.child("name"), &name.into()));
        }
        let target = text(mount, "mountPath");
        if target.is_empty() {
            errors.push(FieldError::required(at.child("mountPath"), ""));
        } else if !seen.insert(target) {
            errors.push(FieldError::invalid_str(at.child("mountPath"), target, "must be unique"));
        }
        let sub = text(mount, "subPath");
        if sub.starts_with('/') {
            errors.push(FieldError::invalid_str(at.child("subPath"), sub, "must be a relative path"));
        }
        if sub.split('/').any(|part| part == "..") {
            errors.push(FieldError::invalid_str(at.child("subPath"), sub, "must not contain '..'"));
        }
    }
}

pub(super) fn resources(resources: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for kind in ["limits", "requests"] {
        let at = path.child(kind);
        for (name, amount) in resources[kind].as_object().into_iter().flatten() {
            match Quantity::of_json(amount) {
                None => errors.push(FieldError::invalid(
                    at.key(name),
                    amount,
                    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
                )),
                Some(value) if value < Quantity::ZERO => {
                    errors.push(FieldError::invalid(at.key(name), amount, "must be greater than or equal to 0"));
                }
                Some(_) => {}
            }
        }
    }
    let requests = path.child("requests");
    for (name, amount) in resources["requests"].as_object().into_iter().flatten() {
        let Some(limit) = resources["limits"].get(name) else { continue };
        if let (Some(request), Some(bound)) = (Quantity::of_json(amount), Quantity::of_json(limit))
            && request > bound
        {
            let limit = limit.as_str().map_or_else(|| limit.to_string(), str::to_owned);
            let amount = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
            errors.push(FieldError::invalid_str(
                requests,
                &amount,
                format!("must be less than or equal to {name} limit of {limit}"),
            ));
        }
    }
}

fn probe(probe: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let handlers: Vec<&str> = ["exec", "httpGet", "tcpSocket", "grpc"]
        .into_iter()
        .filter(|h| probe.get(*h).is_some_and(Value::is_object))
        .collect();
    match handlers.as_slice() {
        [] => errors.push(FieldError::required(path, "must specify a handler type")),
        [_] => {}
        [_, extra, ..] => {
            errors.push(FieldError::forbidden(path.child(extra), "may not specify more than 1 handler type"));
        }
    }
    for key in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        if let Some(value) = probe.get(key).filter(|v| v.as_i64().is_some_and(|n| n < 0)) {
            errors.push(FieldError::invalid(path.child(key), value, "must be greater than or equal to 0"));
        }
    }
}

const IMMUTABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(super) fn validate_update(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    let count = |pod: &Value, list: &str| items(&pod["spec"], list).count();
    for list in ["containers", "initContainers"] {
        if count(old, list) != count(new, list) {
            let path = Path::Root.child("spec");
            errors.push(FieldError::forbidden(path.child(list), "pod updates may not add or remove containers"));
            return;
        }
    }
    if immutable_fields(&old["spec"]) != immutable_fields(&new["spec"]) {
        errors.push(FieldError::forbidden("spec", IMMUTABLE));
    }
    let tolerations = |pod: &Value| items(&pod["spec"], "tolerations").cloned().collect::<Vec<_>>();
    let after = tolerations(new);
    if tolerations(old).iter().any(|t| !after.contains(t)) {
        errors.push(FieldError::forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
}

/// The part of the spec that an update may not change.
fn immutable_fields(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for list in ["containers", "initContainers"] {
        for container in super::items_mut(&mut spec, list) {
            container["image"] = json!(null);
        }
    }
    if let Some(members) = spec.as_object_mut() {
        for key in ["activeDeadlineSeconds", "tolerations", "ephemeralContainers", "schedulingGates"] {
            members.remove(key);
        }
    }
    spec
}
