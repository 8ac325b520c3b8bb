//! Messages for fields that have no effect on this node, each with what happens instead. They become events.

use k8s_openapi::api::core::v1::{
    Container, LifecycleHandler, PodSecurityContext, PodSpec, Probe, SecurityContext, Volume,
};

use crate::kubelet::model::Role;

/// Adds the messages of the fields that are set.
fn collect<const N: usize>(fields: [(bool, &str); N], prefix: &str, out: &mut Vec<String>) {
    out.extend(fields.iter().filter(|(set, _)| *set).map(|(_, sentence)| format!("{prefix}{sentence}")));
}

fn filled<T>(list: Option<&Vec<T>>) -> bool {
    list.is_some_and(|list| !list.is_empty())
}

pub(super) fn of_pod(spec: &PodSpec, out: &mut Vec<String>) {
    let fields = [
        (spec.affinity.is_some(), "affinity has no effect on this node"),
        (filled(spec.topology_spread_constraints.as_ref()), "topologySpreadConstraints have no effect on this node"),
        (filled(spec.ephemeral_containers.as_ref()), "ephemeralContainers are not started by this node; use exec"),
        (filled(spec.resource_claims.as_ref()), "resourceClaims are not supported: no device is provided"),
        (spec.set_hostname_as_fqdn == Some(true), "setHostnameAsFQDN is not supported: the hostname is the short one"),
        (
            spec.priority_class_name.as_deref().is_some_and(|p| !p.is_empty()),
            "priorityClassName has no effect on this node",
        ),
        // API servers default priority to 0 and preemptionPolicy to PreemptLowerPriority.
        (spec.priority.is_some_and(|p| p != 0), "priority has no effect on this node"),
        (
            spec.preemption_policy.as_deref().is_some_and(|p| p != "PreemptLowerPriority"),
            "preemptionPolicy has no effect on this node",
        ),
        (spec.scheduling_group.is_some(), "schedulingGroup has no effect on this node"),
    ];
    collect(fields, "", out);
    if let Some(security) = &spec.security_context {
        of_pod_security(security, out);
    }
}

fn of_pod_security(security: &PodSecurityContext, out: &mut Vec<String>) {
    let fields = [
        (security.se_linux_options.is_some(), "seLinuxOptions have no effect on this node"),
        (security.se_linux_change_policy.is_some(), "seLinuxChangePolicy has no effect on this node"),
        (security.app_armor_profile.is_some(), "appArmorProfile has no effect on this node"),
        (security.windows_options.is_some(), "windowsOptions have no effect on this node"),
        (
            security.fs_group_change_policy.as_deref() == Some("Always"),
            "fsGroupChangePolicy Always is not supported: the group is given to the volume, not to files already in it",
        ),
        (
            security.supplemental_groups_policy.as_deref() == Some("Strict"),
            "supplementalGroupsPolicy Strict is not supported: the user keeps the groups that the image gives it",
        ),
    ];
    collect(fields, "", out);
}

pub(super) fn of_container(container: &Container, role: Role, out: &mut Vec<String>) {
    let prefix = format!("container {}: ", container.name);
    let resources = container.resources.as_ref();
    let fields = [
        (
            container.ports.iter().flatten().any(|p| p.host_port.is_some_and(|p| p != 0)),
            "hostPort is not opened: reach the Pod through the router or port-forward",
        ),
        (filled(container.volume_devices.as_ref()), "volumeDevices are not supported"),
        (
            filled(container.restart_policy_rules.as_ref()),
            "restartPolicyRules have no effect: the Pod's restartPolicy decides",
        ),
        (
            role == Role::Main && container.restart_policy.is_some(),
            "restartPolicy of a single container has no effect: the Pod's decides",
        ),
        (
            filled(container.resize_policy.as_ref()),
            "resizePolicy has no effect: resources are fixed while a container runs",
        ),
        (
            resources.is_some_and(|r| filled(r.claims.as_ref())),
            "resources.claims are not supported: no device is provided",
        ),
    ];
    collect(fields, &prefix, out);
    if let Some(security) = &container.security_context {
        of_security(security, &prefix, out);
    }
    for mount in container.volume_mounts.iter().flatten() {
        if mount.mount_propagation.as_deref().is_some_and(|p| p != "None") {
            out.push(format!("{prefix}mountPropagation of {} has no effect", mount.name));
        }
    }
    of_checks(container, &prefix, out);
}

fn of_security(security: &SecurityContext, prefix: &str, out: &mut Vec<String>) {
    let fields = [
        (
            security.allow_privilege_escalation == Some(true),
            "allowPrivilegeEscalation: true has no effect: no-new-privileges is always on",
        ),
        (security.se_linux_options.is_some(), "seLinuxOptions have no effect on this node"),
        (security.app_armor_profile.is_some(), "appArmorProfile has no effect on this node"),
        (security.windows_options.is_some(), "windowsOptions have no effect on this node"),
    ];
    collect(fields, prefix, out);
}

/// Probes and hooks always connect to the Pod itself: a node that connects to a host named by the Pod would bypass the
/// Pod's network policies.
fn of_checks(container: &Container, prefix: &str, out: &mut Vec<String>) {
    let probes = [&container.startup_probe, &container.liveness_probe, &container.readiness_probe];
    let by_probe = |probe: &Probe| {
        let http = probe.http_get.as_ref().is_some_and(|h| h.host.is_some());
        http || probe.tcp_socket.as_ref().is_some_and(|t| t.host.is_some())
    };
    let hooks = container.lifecycle.iter().flat_map(|l| [&l.post_start, &l.pre_stop]);
    let by_hook = |hook: &LifecycleHandler| {
        let http = hook.http_get.as_ref().is_some_and(|h| h.host.is_some());
        http || hook.tcp_socket.as_ref().is_some_and(|t| t.host.is_some())
    };
    let named = probes.into_iter().flatten().any(by_probe) || hooks.flatten().any(by_hook);
    collect([(named, "host of a probe or hook has no effect: the Pod's own address is used")], prefix, out);
}

pub(super) fn of_volume(volume: &Volume, out: &mut Vec<String>) {
    let medium = volume.empty_dir.as_ref().and_then(|e| e.medium.as_deref()).unwrap_or_default();
    let pages = medium.starts_with("HugePages");
    collect(
        [(pages, "medium HugePages is not supported: the volume is on disk")],
        &format!("volume {}: ", volume.name),
        out,
    );
}
