//! Defaults of Pods and of Pod templates.

use agent_sandbox_api::quantity::Quantity;
use serde_json::{Value, json};

use super::{default_to, items_mut, text};

/// Sets the status of a new Pod.
pub(super) fn init_status(object: &mut Value) {
    let class = qos_class(&object["spec"]);
    object["status"] = json!({ "phase": "Pending", "qosClass": class });
}

pub(super) fn pod(object: &mut Value) {
    template_spec(&mut object["spec"]);
}

/// Sets fields that the server decides and no client owns: service account, priority, tolerations.
pub(super) fn admit(object: &mut Value) {
    let spec = &mut object["spec"];
    if !spec.is_object() {
        return;
    }
    default_to(spec, "serviceAccountName", text(spec, "serviceAccount").to_owned());
    if text(spec, "serviceAccountName").is_empty() {
        spec["serviceAccountName"] = "default".into();
    }
    spec["serviceAccount"] = spec["serviceAccountName"].clone();
    default_to(spec, "priority", 0);
    default_to(spec, "preemptionPolicy", "PreemptLowerPriority");
    tolerate_unready_nodes(spec);
    for condition in items_mut(&mut object["status"], "conditions").filter(|c| c.is_object()) {
        // Kubernetes always writes these fields, as null if they are not set.
        default_to(condition, "lastProbeTime", Value::Null);
        default_to(condition, "lastTransitionTime", Value::Null);
    }
}

/// Defaults of the spec of a Pod or of a Pod template.
pub(super) fn template_spec(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    default_to(spec, "restartPolicy", "Always");
    default_to(spec, "dnsPolicy", "ClusterFirst");
    default_to(spec, "securityContext", json!({}));
    default_to(spec, "schedulerName", "default-scheduler");
    default_to(spec, "terminationGracePeriodSeconds", 30);
    default_to(spec, "enableServiceLinks", true);
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        items_mut(spec, list).for_each(container);
    }
    items_mut(spec, "volumes").for_each(volume);
}

/// Adds the default tolerations, with which Kubernetes keeps Pods for five minutes on a node that is not ready.
fn tolerate_unready_nodes(spec: &mut Value) {
    default_to(spec, "tolerations", json!([]));
    let Some(list) = spec["tolerations"].as_array_mut() else { return };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covered = list.iter().any(|t| {
            let key_matches = t["key"] == key || (text(t, "key").is_empty() && t["operator"] == "Exists");
            key_matches && matches!(text(t, "effect"), "" | "NoExecute")
        });
        if !covered {
            list.push(json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 }));
        }
    }
}

fn container(container: &mut Value) {
    if !container.is_object() {
        return;
    }
    let policy = if is_latest(text(container, "image")) { "Always" } else { "IfNotPresent" };
    default_to(container, "imagePullPolicy", policy);
    default_to(container, "terminationMessagePath", "/dev/termination-log");
    default_to(container, "terminationMessagePolicy", "File");
    default_to(container, "resources", json!({}));
    items_mut(container, "ports").for_each(|port| default_to(port, "protocol", "TCP"));
    for env in items_mut(container, "env") {
        if let Some(field) = env.get_mut("valueFrom").and_then(|v| v.get_mut("fieldRef")) {
            default_to(field, "apiVersion", "v1");
        }
    }
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(key).filter(|p| p.is_object()) {
            self::probe(probe);
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(get) =
            container.get_mut("lifecycle").and_then(|l| l.get_mut(hook)).and_then(|h| h.get_mut("httpGet"))
        {
            http_get(get);
        }
    }
    requests_from_limits(&mut container["resources"]);
}

fn is_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let last = image.rsplit('/').next().unwrap_or(image);
    last.rsplit_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn probe(probe: &mut Value) {
    default_to(probe, "timeoutSeconds", 1);
    default_to(probe, "periodSeconds", 10);
    default_to(probe, "successThreshold", 1);
    default_to(probe, "failureThreshold", 3);
    if let Some(get) = probe.get_mut("httpGet") {
        http_get(get);
    }
    if let Some(grpc) = probe.get_mut("grpc") {
        default_to(grpc, "service", "");
    }
}

fn http_get(get: &mut Value) {
    default_to(get, "path", "/");
    default_to(get, "scheme", "HTTP");
}

fn requests_from_limits(resources: &mut Value) {
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    default_to(resources, "requests", json!({}));
    for (name, amount) in limits {
        default_to(&mut resources["requests"], &name, amount);
    }
}

fn volume(volume: &mut Value) {
    let Some(members) = volume.as_object() else { return };
    if members.keys().all(|k| k == "name") {
        volume["emptyDir"] = json!({});
    }
    for source in ["configMap", "secret", "downwardAPI", "projected"] {
        if let Some(source) = volume.get_mut(source).filter(|s| s.is_object()) {
            default_to(source, "defaultMode", 420);
        }
    }
    if let Some(path) = volume.get_mut("hostPath").filter(|p| p.is_object()) {
        default_to(path, "type", "");
    }
    if let Some(projected) = volume.get_mut("projected") {
        for source in items_mut(projected, "sources") {
            if let Some(token) = source.get_mut("serviceAccountToken") {
                default_to(token, "expirationSeconds", 3600);
            }
        }
    }
}

/// `Guaranteed` if every container's limits equal its requests, `BestEffort` if there are none, otherwise `Burstable`.
fn qos_class(spec: &Value) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    for container in super::items(spec, "containers").chain(super::items(spec, "initContainers")) {
        for name in ["cpu", "memory"] {
            let amount =
                |kind: &str| Quantity::of_json(&container["resources"][kind][name]).filter(|q| *q > Quantity::ZERO);
            let (limit, request) = (amount("limits"), amount("requests"));
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && limit == request;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
