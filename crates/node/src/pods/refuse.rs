//! What this node will not run, and what it runs without honouring: the first fails the Pod, the second is an event.
//!
//! No field is ignored in silence. A field is either honoured, refused here, or named in a warning here.

use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, SeccompProfile, SecurityContext, Volume};

use super::model::{Verdict, roles};
use crate::runtime::Capability;

/// What the operator allows beyond the defaults.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// Host folders that Pods may mount with `hostPath`, with everything beneath them.
    pub host_paths: Vec<PathBuf>,
}

/// The result of reading a spec.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Review {
    /// The Pod is not run at all.
    pub refusal: Option<Verdict>,
    /// Events: reason and message.
    pub warnings: Vec<(String, String)>,
}

/// The reason of every refused Pod.
pub const REFUSED: &str = "PodRefused";
/// The reason of the event for a field without effect here.
pub const UNSUPPORTED: &str = "UnsupportedField";

/// Kernel parameters that belong to the Pod's own namespaces and cannot hurt the machine.
const SAFE_SYSCTLS: [&str; 8] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.ip_local_reserved_ports",
];

/// Reads a Pod before anything is done for it.
pub fn review(pod: &Pod, allowed: &Allowed) -> Review {
    let Some(spec) = pod.spec.as_ref() else { return Review::default() };
    let mut refusals = Vec::new();
    refuse_pod(spec, &mut refusals);
    for (container, _) in roles(spec) {
        refuse_container(container, &mut refusals);
    }
    for volume in spec.volumes.iter().flatten() {
        refuse_volume(volume, allowed, &mut refusals);
    }
    let mut unsupported = Vec::new();
    warn_pod(spec, &mut unsupported);
    for (container, _) in roles(spec) {
        warn_container(container, &mut unsupported);
    }
    let refusal = (!refusals.is_empty())
        .then(|| Verdict { reason: REFUSED.to_owned(), message: format!("this node refuses {}", refusals.join("; ")) });
    let warnings = unsupported.into_iter().map(|message| (UNSUPPORTED.to_owned(), message)).collect();
    Review { refusal, warnings }
}

fn refuse_pod(spec: &PodSpec, out: &mut Vec<String>) {
    let flags = [
        (spec.host_network == Some(true), "hostNetwork: true"),
        (spec.host_pid == Some(true), "hostPID: true"),
        (spec.host_ipc == Some(true), "hostIPC: true"),
        (spec.host_users == Some(true), "hostUsers: true"),
        (spec.os.as_ref().is_some_and(|os| os.name != "linux"), "os other than linux"),
    ];
    out.extend(flags.iter().filter(|(set, _)| *set).map(|(_, what)| (*what).to_owned()));
    let Some(security) = &spec.security_context else { return };
    refuse_seccomp(security.seccomp_profile.as_ref(), "the Pod", out);
    for sysctl in security.sysctls.iter().flatten() {
        if !SAFE_SYSCTLS.contains(&sysctl.name.as_str()) {
            out.push(format!("sysctl {} (allowed: {})", sysctl.name, SAFE_SYSCTLS.join(", ")));
        }
    }
}

fn refuse_seccomp(profile: Option<&SeccompProfile>, who: &str, out: &mut Vec<String>) {
    match profile.map(|p| p.type_.as_str()) {
        None | Some("RuntimeDefault") => {}
        Some("Localhost") => out.push(format!(
            "seccompProfile Localhost of {who} (only RuntimeDefault is built in; leave it out or use an OCI runtime class)"
        )),
        Some(other) => out.push(format!("seccompProfile {other} of {who}")),
    }
}

fn refuse_container(container: &Container, out: &mut Vec<String>) {
    let who = format!("container {}", container.name);
    let Some(security) = &container.security_context else { return };
    if security.privileged == Some(true) {
        out.push(format!("privileged: true of {who}"));
    }
    if security.proc_mount.as_deref().is_some_and(|p| p != "Default") {
        out.push(format!("procMount other than Default of {who}"));
    }
    refuse_seccomp(security.seccomp_profile.as_ref(), &who, out);
    refuse_capabilities(security, &who, out);
}

fn refuse_capabilities(security: &SecurityContext, who: &str, out: &mut Vec<String>) {
    let added = security.capabilities.iter().flat_map(|c| c.add.iter().flatten());
    for name in added {
        if Capability::parse(name).is_none() {
            let list: Vec<_> = Capability::ALL.iter().map(|c| c.name()).collect();
            out.push(format!("capability {name} of {who} (allowed: {})", list.join(", ")));
        }
    }
}

fn refuse_volume(volume: &Volume, allowed: &Allowed, out: &mut Vec<String>) {
    if let Some(host) = &volume.host_path
        && !is_allowed_host_path(&host.path, allowed)
    {
        out.push(format!("hostPath {} of volume {} (allow it with --allow-host-path)", host.path, volume.name));
    }
}

/// Lexical only: whoever mounts it opens the path without following links out of the allowed folder.
fn is_allowed_host_path(path: &str, allowed: &Allowed) -> bool {
    let path = Path::new(path);
    let plain = path.is_absolute() && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    plain && allowed.host_paths.iter().any(|root| path.starts_with(root))
}

fn warn_pod(spec: &PodSpec, out: &mut Vec<String>) {
    let set = [
        (spec.affinity.is_some(), "affinity has no effect on this node"),
        (
            spec.topology_spread_constraints.as_ref().is_some_and(|t| !t.is_empty()),
            "topologySpreadConstraints have no effect on this node",
        ),
        (
            spec.ephemeral_containers.as_ref().is_some_and(|e| !e.is_empty()),
            "ephemeralContainers are not started by this node; use exec",
        ),
        (
            spec.resource_claims.as_ref().is_some_and(|r| !r.is_empty()),
            "resourceClaims are not supported: no device will be there",
        ),
        (spec.set_hostname_as_fqdn == Some(true), "setHostnameAsFQDN is not supported: the hostname is the short one"),
        (
            spec.priority_class_name.as_deref().is_some_and(|p| !p.is_empty()),
            "priorityClassName has no effect on this node",
        ),
        (
            spec.security_context.as_ref().is_some_and(|s| s.se_linux_options.is_some()),
            "seLinuxOptions have no effect on this node",
        ),
        (
            spec.security_context.as_ref().is_some_and(|s| s.app_armor_profile.is_some()),
            "appArmorProfile has no effect on this node",
        ),
        (
            spec.security_context.as_ref().is_some_and(|s| s.windows_options.is_some()),
            "windowsOptions have no effect on this node",
        ),
    ];
    out.extend(set.iter().filter(|(present, _)| *present).map(|(_, message)| (*message).to_owned()));
}

fn warn_container(container: &Container, out: &mut Vec<String>) {
    let security = container.security_context.as_ref();
    let set = [
        (
            container.ports.iter().flatten().any(|p| p.host_port.is_some_and(|p| p != 0)),
            "hostPort is not opened: reach the Pod through the router or port-forward",
        ),
        (container.volume_devices.as_ref().is_some_and(|v| !v.is_empty()), "volumeDevices are not supported"),
        (
            container.restart_policy_rules.as_ref().is_some_and(|r| !r.is_empty()),
            "restartPolicyRules have no effect: the Pod's restartPolicy decides",
        ),
        (
            container.resize_policy.as_ref().is_some_and(|r| !r.is_empty()),
            "resizePolicy has no effect: resources are fixed while a container runs",
        ),
        (
            security.is_some_and(|s| s.allow_privilege_escalation == Some(true)),
            "allowPrivilegeEscalation: true has no effect: no-new-privileges is always on",
        ),
        (security.is_some_and(|s| s.se_linux_options.is_some()), "seLinuxOptions have no effect on this node"),
        (security.is_some_and(|s| s.app_armor_profile.is_some()), "appArmorProfile has no effect on this node"),
        (security.is_some_and(|s| s.windows_options.is_some()), "windowsOptions have no effect on this node"),
    ];
    let who = &container.name;
    out.extend(set.iter().filter(|(present, _)| *present).map(|(_, message)| format!("container {who}: {message}")));
    for mount in container.volume_mounts.iter().flatten() {
        if mount.mount_propagation.as_deref().is_some_and(|p| p != "None") {
            out.push(format!("container {who}: mountPropagation of {} has no effect", mount.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(spec: Value) -> Review {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
        review(&pod, &Allowed { host_paths: vec!["/srv/data".into()] })
    }

    fn container(security: Value) -> Value {
        json!({"containers": [{"name": "a", "securityContext": security}]})
    }

    #[test]
    fn what_would_open_a_wall_is_refused_with_its_name() {
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
    fn ordinary_and_hardened_pods_pass_without_a_word() {
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
            (
                json!({"containers": [{"name": "a", "volumeDevices": [{"name": "x", "devicePath": "/d"}]}]}),
                "volumeDevices",
            ),
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
}
