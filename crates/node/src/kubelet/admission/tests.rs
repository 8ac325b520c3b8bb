//! Tests of what is refused, what is warned about, and that no field of Kubernetes is ignored silently.

use super::*;
use serde_json::{Value, json};

fn read(spec: Value) -> Review {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
    review(&pod, &Allowed { host_paths: vec!["/srv/data".into()], ..Allowed::default() })
}

fn container(security: Value) -> Value {
    json!({"containers": [{"name": "a", "securityContext": security}]})
}

#[test]
fn fields_that_weaken_isolation_are_refused_by_name() {
    let volume = |path: &str| json!({"containers": [], "volumes": [{"name": "v", "hostPath": {"path": path}}]});
    for (spec, word) in [
        (json!({"containers": [], "hostNetwork": true}), "hostNetwork"),
        (json!({"containers": [], "hostPID": true}), "hostPID"),
        (json!({"containers": [], "hostIPC": true}), "hostIPC"),
        (json!({"containers": [], "hostUsers": true}), "hostUsers"),
        (container(json!({"privileged": true})), "privileged"),
        (container(json!({"procMount": "Unmasked"})), "procMount"),
        (container(json!({"seccompProfile": {"type": "Unconfined"}})), "Unconfined"),
        (json!({"containers": [], "securityContext": {"seccompProfile": {"type": "Unconfined"}}}), "Unconfined"),
        (container(json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "x"}})), "Localhost"),
        (container(json!({"capabilities": {"add": ["SYS_ADMIN"]}})), "SYS_ADMIN"),
        (container(json!({"capabilities": {"add": ["ALL"]}})), "ALL"),
        (
            json!({"containers": [], "securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
            "kernel.msgmax",
        ),
        (volume("/etc"), "hostPath /etc"),
        (volume("/srv/data/../../etc"), "hostPath"),
        (volume("/srv/database"), "hostPath"),
        (volume("srv/data"), "hostPath"),
    ] {
        let review = read(spec.clone());
        let refusal = review.refusal.unwrap_or_else(|| panic!("not refused: {spec}"));
        assert_eq!(refusal.reason, "PodRefused");
        assert!(refusal.message.contains(word), "{} lacks {word}", refusal.message);
    }
}

#[test]
fn every_reason_is_in_one_message() {
    let message = read(json!({"hostPID": true, "hostIPC": true, "containers": []})).refusal.unwrap().message;
    assert_eq!(message, "this node refuses hostPID: true; hostIPC: true");
}

#[test]
fn ordinary_and_hardened_pods_pass_without_a_warning() {
    for spec in [
        json!({"containers": [{"name": "a", "image": "x"}]}),
        json!({"hostNetwork": false, "hostUsers": false, "os": {"name": "linux"},
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "fsGroup": 2000,
                "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "a", "securityContext": {"allowPrivilegeEscalation": false,
                "privileged": false, "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}}]}),
        json!({"containers": [], "volumes": [{"name": "v", "hostPath": {"path": "/srv/data/sub"}}]}),
    ] {
        assert_eq!(read(spec.clone()), Review::default(), "{spec}");
    }
}

#[test]
fn fields_without_effect_are_named() {
    for (spec, word) in [
        (json!({"containers": [], "affinity": {}}), "affinity"),
        (json!({"containers": [{"name": "a", "ports": [{"containerPort": 1, "hostPort": 2}]}]}), "hostPort"),
        (json!({"containers": [{"name": "a", "volumeDevices": [{"name": "x", "devicePath": "/d"}]}]}), "volumeDevices"),
        (container(json!({"allowPrivilegeEscalation": true})), "allowPrivilegeEscalation"),
        (container(json!({"seLinuxOptions": {}})), "seLinuxOptions"),
        (
            json!({"containers": [{"name": "a", "volumeMounts": [
                {"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}]}]}),
            "mountPropagation",
        ),
    ] {
        let review = read(spec);
        assert_eq!(review.refusal, None);
        let [(reason, message)] = &review.warnings[..] else { panic!("{:?}", review.warnings) };
        assert_eq!(reason, "UnsupportedField");
        assert!(message.contains(word), "{message} lacks {word}");
    }
}

/// How a field is treated: honoured by the node, handled by the control plane before the Pod is bound, or reported
/// (refused or warned about) for the given example value.
enum Treatment {
    Honoured,
    ControlPlane,
    Reported(Value),
}

use Treatment::{ControlPlane, Honoured, Reported};

fn honoured(names: &[&'static str]) -> Vec<(&'static str, Treatment)> {
    names.iter().map(|name| (*name, Honoured)).collect()
}

/// Every field of a Pod that Kubernetes has, by type.
fn treatments() -> Vec<(&'static str, Vec<(&'static str, Treatment)>)> {
    let mut pod = honoured(&[
        "activeDeadlineSeconds",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "hostAliases",
        "hostname",
        "hostnameOverride",
        "imagePullSecrets",
        "initContainers",
        "nodeName",
        "nodeSelector",
        "overhead",
        "readinessGates",
        "resources",
        "restartPolicy",
        "runtimeClassName",
        "schedulerName",
        "schedulingGates",
        "securityContext",
        "serviceAccountName",
        "shareProcessNamespace",
        "subdomain",
        "terminationGracePeriodSeconds",
        "volumes",
    ]);
    pod.extend([
        ("automountServiceAccountToken", ControlPlane),
        ("serviceAccount", ControlPlane),
        ("tolerations", ControlPlane),
        ("affinity", Reported(json!({}))),
        ("topologySpreadConstraints", Reported(json!([{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "x"}]))),
        ("ephemeralContainers", Reported(json!([{"name": "e"}]))),
        ("resourceClaims", Reported(json!([{"name": "r"}]))),
        ("setHostnameAsFQDN", Reported(json!(true))),
        ("priorityClassName", Reported(json!("high"))),
        ("priority", Reported(json!(5))),
        ("preemptionPolicy", Reported(json!("Never"))),
        ("schedulingGroup", Reported(json!({}))),
        ("hostNetwork", Reported(json!(true))),
        ("hostPID", Reported(json!(true))),
        ("hostIPC", Reported(json!(true))),
        ("hostUsers", Reported(json!(true))),
        ("os", Reported(json!({"name": "windows"}))),
    ]);
    let mut container = honoured(&[
        "args",
        "command",
        "env",
        "envFrom",
        "image",
        "imagePullPolicy",
        "lifecycle",
        "livenessProbe",
        "name",
        "readinessProbe",
        "resources",
        "securityContext",
        "startupProbe",
        "stdin",
        "stdinOnce",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "tty",
        "volumeMounts",
        "workingDir",
    ]);
    container.extend([
        ("ports", Reported(json!([{"containerPort": 1, "hostPort": 2}]))),
        ("resizePolicy", Reported(json!([{"resourceName": "cpu", "restartPolicy": "x"}]))),
        ("restartPolicy", Reported(json!("Never"))),
        ("restartPolicyRules", Reported(json!([{"action": "Restart"}]))),
        ("volumeDevices", Reported(json!([{"name": "x", "devicePath": "/d"}]))),
    ]);
    let mut security = honoured(&["readOnlyRootFilesystem", "runAsGroup", "runAsNonRoot", "runAsUser"]);
    security.extend([
        ("allowPrivilegeEscalation", Reported(json!(true))),
        ("appArmorProfile", Reported(json!({"type": "x"}))),
        ("capabilities", Reported(json!({"add": ["SYS_ADMIN"]}))),
        ("privileged", Reported(json!(true))),
        ("procMount", Reported(json!("Unmasked"))),
        ("seLinuxOptions", Reported(json!({}))),
        ("seccompProfile", Reported(json!({"type": "Unconfined"}))),
        ("windowsOptions", Reported(json!({}))),
    ]);
    let mut pod_security = honoured(&["fsGroup", "runAsGroup", "runAsNonRoot", "runAsUser", "supplementalGroups"]);
    pod_security.extend([
        ("appArmorProfile", Reported(json!({"type": "x"}))),
        ("fsGroupChangePolicy", Reported(json!("Always"))),
        ("seLinuxChangePolicy", Reported(json!("Recursive"))),
        ("seLinuxOptions", Reported(json!({}))),
        ("seccompProfile", Reported(json!({"type": "Unconfined"}))),
        ("supplementalGroupsPolicy", Reported(json!("Strict"))),
        ("sysctls", Reported(json!([{"name": "kernel.msgmax", "value": "1"}]))),
        ("windowsOptions", Reported(json!({}))),
    ]);
    let mut mount = honoured(&["mountPath", "name", "readOnly", "recursiveReadOnly", "subPath", "subPathExpr"]);
    mount.push(("mountPropagation", Reported(json!("Bidirectional"))));
    vec![
        ("PodSpec", pod),
        ("Container", container),
        ("SecurityContext", security),
        ("PodSecurityContext", pod_security),
        ("VolumeMount", mount),
    ]
}

/// A Pod in which one field of one type has this value.
fn with_field(kind: &str, field: &str, value: &Value) -> Value {
    let mut container = json!({"name": "a"});
    let mut spec = json!({});
    match kind {
        "PodSpec" => spec[field] = value.clone(),
        "Container" => container[field] = value.clone(),
        "SecurityContext" => container["securityContext"] = json!({ field: value }),
        "PodSecurityContext" => spec["securityContext"] = json!({ field: value }),
        _ => {
            container["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
            container["volumeMounts"][0][field] = value.clone();
        }
    }
    spec["containers"] = json!([container]);
    spec
}

#[test]
fn no_field_of_kubernetes_is_ignored_silently() {
    let schemas: Value = serde_json::from_str(include_str!("../../../../api/data/kubernetes.json")).unwrap();
    for (kind, treatments) in treatments() {
        let published: Vec<&str> =
            schemas[kind]["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        for name in &published {
            assert!(
                treatments.iter().any(|(known, _)| known == name),
                "{kind}.{name} is new: decide how it is treated"
            );
        }
        for (name, treatment) in &treatments {
            assert!(published.contains(name), "{kind}.{name} does not exist");
            let Reported(value) = treatment else { continue };
            let review = read(with_field(kind, name, value));
            let refused = review.refusal.map(|failure| failure.message);
            let messages: Vec<String> =
                review.warnings.into_iter().map(|(_, message)| message).chain(refused).collect();
            let word = match *name {
                "ports" => "hostPort",
                "capabilities" => "capability",
                "sysctls" => "sysctl",
                other => other,
            };
            assert!(messages.iter().any(|message| message.contains(word)), "{kind}.{name}: {messages:?}");
        }
    }
}

#[test]
fn defaults_of_an_api_server_cause_no_warning() {
    let spec = json!({"containers": [{"name": "a", "image": "x", "imagePullPolicy": "Always", "resources": {},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
        "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority", "priority": 0,
        "restartPolicy": "Always", "schedulerName": "default-scheduler", "securityContext": {}, "serviceAccount": "default",
        "serviceAccountName": "default", "terminationGracePeriodSeconds": 30, "tolerations": [
            {"effect": "NoExecute", "key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}]});
    assert_eq!(read(spec), Review::default());
}
