//! Tests of the levels and of the labels.

use serde_json::json;

use super::*;

fn policy(labels: Value) -> Policy {
    let (policy, errors) = Policy::parse(&labels);
    assert!(errors.is_empty(), "{errors:?}");
    policy
}

fn enforced(level: &str) -> Policy {
    policy(json!({ "pod-security.kubernetes.io/enforce": level }))
}

fn pod(spec: Value) -> Value {
    let mut spec = spec;
    if spec["containers"].is_null() {
        spec["containers"] = json!([{ "name": "a" }]);
    }
    json!({ "metadata": { "name": "p" }, "spec": spec })
}

/// A Pod that the level `restricted` allows.
fn harmless() -> Value {
    pod(json!({
        "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{
            "name": "a",
            "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
        }],
        "volumes": [{ "name": "v", "emptyDir": {} }],
    }))
}

#[test]
fn a_plain_pod_passes_baseline_and_violates_restricted_in_four_ways() {
    assert_eq!(enforced("baseline").refusal(&pod(json!({}))), None);
    assert_eq!(
        enforced("restricted").refusal(&pod(json!({}))).unwrap(),
        r#"violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "a" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container "a" must set securityContext.capabilities.drop=["ALL"]), runAsNonRoot != true (pod or container "a" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container "a" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#
    );
    assert_eq!(enforced("restricted").refusal(&harmless()), None);
    assert_eq!(Policy::default().refusal(&pod(json!({ "hostPID": true }))), None, "privileged is the default");
}

#[test]
fn baseline_refuses_what_reaches_the_host() {
    let refused = |spec: Value| {
        let refusal = enforced("baseline").refusal(&pod(spec)).unwrap_or_default();
        refusal.strip_prefix("violates PodSecurity \"baseline:latest\": ").map(str::to_owned).unwrap_or_default()
    };
    let with = |context: Value| json!({ "containers": [{ "name": "a", "securityContext": context }] });
    for (spec, message) in [
        (json!({ "hostNetwork": true, "hostIPC": true }), "host namespaces (hostNetwork=true, hostIPC=true)"),
        (json!({ "volumes": [{ "name": "v", "hostPath": {} }] }), "hostPath volumes (volume \"v\")"),
        (
            with(json!({ "privileged": true })),
            "privileged (container \"a\" must not set securityContext.privileged=true)",
        ),
        (
            with(json!({ "capabilities": { "add": ["SYS_ADMIN", "CHOWN", "BPF"] } })),
            r#"non-default capabilities (container "a" must not include "BPF", "SYS_ADMIN" in securityContext.capabilities.add)"#,
        ),
        (
            json!({ "containers": [{ "name": "a", "ports": [{ "hostPort": 80 }, { "hostPort": 443 }] }] }),
            "hostPort (container \"a\" uses hostPorts 443, 80)",
        ),
        (
            json!({ "securityContext": { "seccompProfile": { "type": "Unconfined" } } }),
            r#"seccompProfile (pod must not set securityContext.seccompProfile.type to "Unconfined")"#,
        ),
        (
            json!({ "securityContext": { "sysctls": [{ "name": "kernel.msgmax" }, { "name": "net.ipv4.tcp_rmem" }] } }),
            "forbidden sysctls (kernel.msgmax)",
        ),
        (
            with(json!({ "seLinuxOptions": { "type": "spc_t", "user": "u" } })),
            r#"seLinuxOptions (container "a" set forbidden securityContext.seLinuxOptions: type "spc_t"; user may not be set)"#,
        ),
        (
            with(json!({ "procMount": "Unmasked" })),
            r#"procMount (container "a" must not set securityContext.procMount to "Unmasked")"#,
        ),
        (
            with(json!({ "appArmorProfile": { "type": "Unconfined" } })),
            r#"forbidden AppArmor profile (container "a" must not set AppArmor profile type to "Unconfined")"#,
        ),
        (
            json!({ "containers": [{ "name": "a", "livenessProbe": { "httpGet": { "host": "10.0.0.1" } } }] }),
            r#"probe or lifecycle host (container "a" uses probe or lifecycle host "10.0.0.1")"#,
        ),
        (
            with(json!({ "windowsOptions": { "hostProcess": true } })),
            r#"hostProcess (container "a" must not set securityContext.windowsOptions.hostProcess=true)"#,
        ),
    ] {
        assert_eq!(refused(spec.clone()), message, "{spec}");
    }
    assert_eq!(
        refused(
            json!({ "hostUsers": false, "containers": [{ "name": "a", "securityContext": { "procMount": "Unmasked" } }] })
        ),
        ""
    );
}

#[test]
fn restricted_replaces_some_rules_of_baseline() {
    let refusal = |change: &dyn Fn(&mut Value)| {
        let mut pod = harmless();
        change(&mut pod["spec"]);
        enforced("restricted")
            .refusal(&pod)
            .unwrap_or_default()
            .replace("violates PodSecurity \"restricted:latest\": ", "")
    };
    assert_eq!(
        refusal(&|spec| spec["volumes"][0] = json!({ "name": "v", "hostPath": {} })),
        r#"restricted volume types (volume "v" uses restricted volume type "hostPath")"#
    );
    assert_eq!(
        refusal(&|spec| spec["containers"][0]["securityContext"]["capabilities"]["add"] = json!(["CHOWN"])),
        r#"unrestricted capabilities (container "a" must not include "CHOWN" in securityContext.capabilities.add)"#
    );
    assert_eq!(
        refusal(&|spec| spec["securityContext"]["runAsUser"] = json!(0)),
        "runAsUser=0 (pod must not set runAsUser=0)"
    );
    assert_eq!(
        refusal(&|spec| spec["containers"][0]["securityContext"]["runAsNonRoot"] = json!(false)),
        r#"runAsNonRoot != true (container "a" must not set securityContext.runAsNonRoot=false)"#
    );
    assert_eq!(
        refusal(&|spec| {
            spec["hostUsers"] = json!(false);
            spec["securityContext"]["runAsUser"] = json!(0);
        }),
        ""
    );
}

#[test]
fn a_version_selects_older_rules() {
    let old = policy(json!({
        "pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/enforce-version": "v1.7",
    }));
    assert_eq!(
        old.refusal(&pod(json!({}))).unwrap(),
        r#"violates PodSecurity "restricted:v1.7": runAsNonRoot != true (pod or container "a" must set securityContext.runAsNonRoot=true)"#
    );
}

#[test]
fn warnings_follow_enforcement_unless_they_have_a_label() {
    assert!(
        enforced("restricted")
            .warning(&pod(json!({})))
            .unwrap()
            .starts_with("would violate PodSecurity \"restricted:latest\": ")
    );
    let quiet = policy(json!({
        "pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "privileged",
    }));
    assert_eq!(quiet.warning(&pod(json!({}))), None);
    assert_eq!(enforced("restricted").audit_reason(&pod(json!({}))), None, "what is recorded does not follow");
    let audit = policy(json!({
        "pod-security.kubernetes.io/audit": "restricted", "pod-security.kubernetes.io/audit-version": "v1.7",
    }));
    assert_eq!((audit.refusal(&pod(json!({}))), audit.warning(&pod(json!({})))), (None, None));
    assert_eq!(
        audit.audit_reason(&pod(json!({}))).unwrap(),
        r#"would violate PodSecurity "restricted:v1.7": runAsNonRoot != true (pod or container "a" must set securityContext.runAsNonRoot=true)"#
    );
}

#[test]
fn labels_that_cannot_be_read_are_errors_and_fail_closed() {
    let (policy, errors) = Policy::parse(&json!({
        "pod-security.kubernetes.io/warn": "bad",
        "pod-security.kubernetes.io/enforce": "strict",
        "pod-security.kubernetes.io/enforce-version": "v1.09",
    }));
    let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        [
            r#"metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "strict": must be one of privileged, baseline, restricted"#,
            r#"metadata.labels[pod-security.kubernetes.io/enforce-version]: Invalid value: "v1.09": must be "latest" or "v1.x""#,
            r#"metadata.labels[pod-security.kubernetes.io/warn]: Invalid value: "bad": must be one of privileged, baseline, restricted"#,
        ]
    );
    assert!(policy.refusal(&pod(json!({}))).is_some(), "an unknown enforced level is the strictest");
    assert_eq!(policy.warning(&pod(json!({}))), None);
}

#[test]
fn existing_pods_are_named_when_a_namespace_becomes_stricter() {
    let mut other = pod(json!({}));
    other["metadata"]["name"] = "b".into();
    let warnings =
        enforced("restricted").warnings_about_existing(&Policy::default(), "ns", &[pod(json!({})), other, harmless()]);
    assert_eq!(
        warnings,
        [
            r#"existing pods in namespace "ns" violate the new PodSecurity enforce level "restricted:latest""#,
            "b (and 1 other pod): allowPrivilegeEscalation != false, unrestricted capabilities, runAsNonRoot != true, seccompProfile",
        ]
    );
    let relaxed = enforced("baseline").warnings_about_existing(&enforced("restricted"), "ns", &[pod(json!({}))]);
    assert!(relaxed.is_empty());
}
