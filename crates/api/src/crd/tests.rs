//! Tests of the CRDs as data: the schema facts of the contract.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

fn crd(kind: &str) -> Value {
    crds().into_iter().find(|crd| crd["spec"]["names"]["kind"] == kind).expect("one of four")
}

fn version<'a>(crd: &'a Value, name: &str) -> &'a Value {
    crd["spec"]["versions"]
        .as_array()
        .expect("versions")
        .iter()
        .find(|version| version["name"] == name)
        .expect("served")
}

fn spec<'a>(crd: &'a Value, version_name: &str) -> &'a Value {
    &version(crd, version_name)["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
}

fn keys(properties: &Value) -> BTreeSet<&str> {
    properties["properties"].as_object().expect("properties").keys().map(String::as_str).collect()
}

#[test]
fn the_pod_schema_admits_every_field_of_kubernetes() {
    let sandbox = crd("Sandbox");
    let expected: BTreeSet<&str> = "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig \
        dnsPolicy enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname \
        hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead preemptionPolicy priority \
        priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName schedulerName \
        schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN \
        shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes"
        .split_whitespace()
        .collect();
    for version in ["v1beta1", "v1alpha1"] {
        let pod = &spec(&sandbox, version)["podTemplate"]["properties"]["spec"];
        assert_eq!(keys(pod), expected);
        assert_eq!(pod["required"], serde_json::json!(["containers"]));
    }
}

#[test]
fn the_volume_schema_admits_every_field_of_kubernetes() {
    let expected: BTreeSet<&str> = "accessModes dataSource dataSourceRef resources selector storageClassName \
        volumeAttributesClassName volumeMode volumeName"
        .split_whitespace()
        .collect();
    for (kind, version) in
        [("Sandbox", "v1beta1"), ("Sandbox", "v1alpha1"), ("SandboxClaim", "v1beta1"), ("SandboxTemplate", "v1beta1")]
    {
        let crd = crd(kind);
        let volumes = &spec(&crd, version)["volumeClaimTemplates"];
        assert_eq!(volumes["x-kubernetes-list-type"], "atomic");
        let claim = &volumes["items"]["properties"]["spec"];
        assert_eq!(keys(claim), expected);
        assert_eq!(claim.get("required"), None);
    }
}

/// Every default in the embedded schemas, as `owner.field = value`.
fn defaults(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    let Value::Object(map) = schema else { return };
    if let Some(default) = map.get("default") {
        let tail: Vec<&str> = path.rsplit('.').take(2).collect();
        found.insert(format!("{}.{} = {default}", tail.get(1).copied().unwrap_or_default(), tail[0]));
    }
    for (key, value) in map {
        match key.as_str() {
            "properties" => value.as_object().into_iter().flatten().for_each(|(name, property)| {
                defaults(property, &format!("{path}.{name}"), found);
            }),
            "items" | "additionalProperties" => defaults(value, path, found),
            _ => {}
        }
    }
}

#[test]
fn defaults_are_those_of_the_contract() {
    let sandbox = crd("Sandbox");
    let mut found = BTreeSet::new();
    defaults(&spec(&sandbox, "v1beta1")["podTemplate"]["properties"]["spec"], "spec", &mut found);
    let not_a_name: BTreeSet<&str> =
        found.iter().map(String::as_str).filter(|default| !default.ends_with(".name = \"\"")).collect();
    let expected: BTreeSet<&str> = [
        "azureDisk.fsType = \"ext4\"",
        "azureDisk.readOnly = false",
        "fileKeyRef.optional = false",
        "grpc.service = \"\"",
        "iscsi.iscsiInterface = \"default\"",
        "ports.protocol = \"TCP\"",
        "rbd.keyring = \"/etc/ceph/keyring\"",
        "rbd.pool = \"rbd\"",
        "rbd.user = \"admin\"",
        "scaleIO.fsType = \"xfs\"",
        "scaleIO.storageMode = \"ThinProvisioned\"",
    ]
    .into();
    assert_eq!(not_a_name, expected);
    for reference in ["configMapKeyRef", "secretKeyRef", "configMapRef", "secretRef", "imagePullSecrets", "configMap"] {
        assert!(found.contains(&format!("{reference}.name = \"\"")), "{reference} in {found:?}");
    }
}

#[test]
fn lists_carry_their_keys() {
    let sandbox = crd("Sandbox");
    let pod = &spec(&sandbox, "v1beta1")["podTemplate"]["properties"]["spec"]["properties"];
    for (list, keys) in [
        ("containers", vec!["name"]),
        ("initContainers", vec!["name"]),
        ("ephemeralContainers", vec!["name"]),
        ("volumes", vec!["name"]),
        ("imagePullSecrets", vec!["name"]),
        ("hostAliases", vec!["ip"]),
        ("topologySpreadConstraints", vec!["topologyKey", "whenUnsatisfiable"]),
        ("schedulingGates", vec!["name"]),
        ("resourceClaims", vec!["name"]),
    ] {
        assert_eq!(pod[list]["x-kubernetes-list-type"], "map", "{list}");
        assert_eq!(pod[list]["x-kubernetes-list-map-keys"], serde_json::json!(keys), "{list}");
    }
    let container = &pod["containers"]["items"]["properties"];
    for (list, keys) in [
        ("ports", vec!["containerPort", "protocol"]),
        ("env", vec!["name"]),
        ("volumeMounts", vec!["mountPath"]),
        ("volumeDevices", vec!["devicePath"]),
    ] {
        assert_eq!(container[list]["x-kubernetes-list-map-keys"], serde_json::json!(keys), "{list}");
    }
    assert_eq!(
        container["resources"]["properties"]["claims"]["x-kubernetes-list-map-keys"],
        serde_json::json!(["name"])
    );
    let quantity = &container["resources"]["properties"]["limits"]["additionalProperties"];
    assert_eq!(quantity["x-kubernetes-int-or-string"], true);
}

/// A structural schema: every node has a type or is int-or-string, and no reference is left.
fn assert_structural(schema: &Value, path: &str) {
    let map = schema.as_object().unwrap_or_else(|| panic!("{path} is no object"));
    assert!(map.contains_key("type") || map.contains_key("x-kubernetes-int-or-string"), "{path}: {schema}");
    assert!(!map.contains_key("$ref"), "{path}");
    for (key, value) in map {
        match key.as_str() {
            "properties" => value.as_object().expect("properties").iter().for_each(|(name, property)| {
                assert_structural(property, &format!("{path}.{name}"));
            }),
            "items" | "additionalProperties" => assert_structural(value, &format!("{path}[]")),
            _ => {}
        }
    }
    if map.get("x-kubernetes-list-type").is_some_and(|type_| type_ == "map") {
        let item = &map["items"];
        for key in map["x-kubernetes-list-map-keys"].as_array().expect("keys") {
            let key = key.as_str().expect("text");
            let required = item["required"].as_array().is_some_and(|required| required.iter().any(|name| name == key));
            assert!(required || item["properties"][key].get("default").is_some(), "{path}: key {key}");
        }
    }
}

#[test]
fn schemas_are_structural() {
    for crd in crds() {
        for version in crd["spec"]["versions"].as_array().expect("versions") {
            assert_structural(&version["schema"]["openAPIV3Schema"], crd["metadata"]["name"].as_str().expect("name"));
        }
    }
}

/// S-006, X-009: deprecated versions warn with the contract's text.
#[test]
fn s_006_x_009_v1alpha1_is_deprecated_with_the_contracts_text() {
    for crd in crds() {
        let (group, kind) =
            (crd["spec"]["group"].as_str().expect("group"), crd["spec"]["names"]["kind"].as_str().expect("kind"));
        let old = version(&crd, "v1alpha1");
        assert_eq!((&old["deprecated"], &old["storage"], &old["served"]), (&true.into(), &false.into(), &true.into()));
        assert_eq!(
            old["deprecationWarning"],
            format!("{group}/v1alpha1 {kind} is deprecated; use {group}/v1beta1 {kind} instead")
        );
        let new = version(&crd, "v1beta1");
        assert_eq!((&new["storage"], &new["served"]), (&true.into(), &true.into()));
        assert_eq!(new.get("deprecated"), None);
    }
}

/// S-007, X-001: printer columns and short names.
#[test]
fn s_007_x_001_columns_and_short_names() {
    let columns = |kind: &str, version_name: &str| -> Vec<String> {
        let crd = crd(kind);
        version(&crd, version_name)["additionalPrinterColumns"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|column| column["name"].as_str().expect("name").to_owned())
            .collect()
    };
    assert_eq!(columns("Sandbox", "v1beta1"), ["Ready", "Reason", "Age"]);
    assert_eq!(columns("SandboxClaim", "v1beta1"), ["Ready", "Sandbox", "Reason", "Age"]);
    assert_eq!(columns("SandboxWarmPool", "v1beta1"), ["Ready", "Desired", "Age"]);
    assert_eq!(columns("SandboxWarmPool", "v1alpha1"), ["Ready", "Desired", "Age"]);
    for (kind, version_name) in [("Sandbox", "v1alpha1"), ("SandboxClaim", "v1alpha1"), ("SandboxTemplate", "v1beta1")]
    {
        assert!(columns(kind, version_name).is_empty());
    }
    for (kind, short) in [
        ("Sandbox", "sandbox"),
        ("SandboxClaim", "sandboxclaim"),
        ("SandboxTemplate", "sandboxtemplate"),
        ("SandboxWarmPool", "swp"),
    ] {
        assert_eq!(crd(kind)["spec"]["names"]["shortNames"], serde_json::json!([short]));
    }
}

#[test]
fn subresources_are_those_of_the_contract() {
    let has = |kind: &str, version_name: &str, name: &str| {
        version(&crd(kind), version_name)["subresources"].get(name).is_some()
    };
    assert!(has("Sandbox", "v1alpha1", "scale") && !has("Sandbox", "v1beta1", "scale"));
    assert!(has("SandboxWarmPool", "v1alpha1", "scale") && has("SandboxWarmPool", "v1beta1", "scale"));
    assert!(!has("SandboxTemplate", "v1beta1", "status") && !has("SandboxClaim", "v1beta1", "scale"));
    for kind in ["Sandbox", "SandboxClaim", "SandboxWarmPool"] {
        assert!(has(kind, "v1alpha1", "status") && has(kind, "v1beta1", "status"));
    }
}
