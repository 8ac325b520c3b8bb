//! The downward API: values of Pod fields for environment variables and files. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use thiserror::Error;

/// Addresses, which are known only once the Pod's sandbox exists.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Addresses {
    pub pod_ips: Vec<String>,
    pub host_ips: Vec<String>,
}

/// Why a field path has no value.
#[derive(Debug, Error, Eq, PartialEq)]
#[error("field path {0:?} is not supported by the downward API")]
pub struct FieldPathError(pub String);

/// The value of a `fieldRef`. A missing label or annotation is the empty string.
pub fn field(pod: &Pod, path: &str, addresses: &Addresses) -> Result<String, FieldPathError> {
    let meta = &pod.metadata;
    let spec = pod.spec.as_ref();
    let text = |value: Option<&String>| value.cloned().unwrap_or_default();
    if let Some(key) = subscript(path, "metadata.labels") {
        return Ok(text(meta.labels.as_ref().and_then(|m| m.get(key))));
    }
    if let Some(key) = subscript(path, "metadata.annotations") {
        return Ok(text(meta.annotations.as_ref().and_then(|m| m.get(key))));
    }
    Ok(match path {
        "metadata.name" => text(meta.name.as_ref()),
        "metadata.namespace" => text(meta.namespace.as_ref()),
        "metadata.uid" => text(meta.uid.as_ref()),
        "metadata.labels" => lines(meta.labels.as_ref()),
        "metadata.annotations" => lines(meta.annotations.as_ref()),
        "spec.nodeName" => text(spec.and_then(|s| s.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|s| s.service_account_name.as_ref())),
        "status.podIP" => addresses.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => addresses.pod_ips.join(","),
        "status.hostIP" => addresses.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => addresses.host_ips.join(","),
        _ => return Err(FieldPathError(path.to_owned())),
    })
}

/// The key of a subscript: `metadata.labels['key']` gives `key`.
fn subscript<'a>(path: &'a str, base: &str) -> Option<&'a str> {
    path.strip_prefix(base)?.strip_prefix("['")?.strip_suffix("']")
}

/// A whole map as Kubernetes writes it to a file: `key="escaped value"`, one per line, sorted.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    map.into_iter().flatten().map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_documented_path_has_its_value() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"a": "1", "b": "two \"x\""},
                         "annotations": {"k/x": "v"}},
            "spec": {"nodeName": "node", "serviceAccountName": "sa", "containers": []}}))
        .unwrap();
        let at = Addresses { pod_ips: vec!["10.0.0.1".into(), "fd00::1".into()], host_ips: vec!["192.0.2.1".into()] };
        for (path, want) in [
            ("metadata.name", "p"),
            ("metadata.namespace", "n"),
            ("metadata.uid", "u"),
            ("metadata.labels['a']", "1"),
            ("metadata.labels['none']", ""),
            ("metadata.annotations['k/x']", "v"),
            ("metadata.labels", "a=\"1\"\nb=\"two \\\"x\\\"\""),
            ("spec.nodeName", "node"),
            ("spec.serviceAccountName", "sa"),
            ("status.podIP", "10.0.0.1"),
            ("status.podIPs", "10.0.0.1,fd00::1"),
            ("status.hostIP", "192.0.2.1"),
        ] {
            assert_eq!(field(&pod, path, &at).as_deref(), Ok(want), "{path}");
        }
        assert_eq!(field(&pod, "spec.containers", &at), Err(FieldPathError("spec.containers".into())));
    }
}
