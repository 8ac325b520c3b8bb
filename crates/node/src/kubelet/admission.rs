//! Reviews a Pod's spec: what this node refuses fails the Pod, and fields that have no effect here become events.
//!
//! No field is ignored silently: each is honoured, refused here, or named in a warning here.

use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, SeccompProfile, SecurityContext, Volume};

use crate::kubelet::egress::EgressRules;
use crate::kubelet::model::{PodFailure, roles};
use crate::kubelet::volumes::{grants::FolderGrants, wanted_access};
use crate::runtime::Capability;

mod unsupported;

/// What the operator allows beyond the defaults.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// Host folders that Pods may mount with `hostPath`, including everything below them.
    pub host_paths: Vec<PathBuf>,
    /// Host folders that were given to single Pods.
    pub folders: FolderGrants,
    /// Why this node cannot enforce egress rules by domain; `None` if it can.
    pub egress_refused: Option<String>,
}

/// The result of a review.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Review {
    /// Why the Pod is not run; `None` if it is accepted.
    pub refusal: Option<PodFailure>,
    /// Events: reason and message.
    pub warnings: Vec<(String, String)>,
}

/// Status reason of a refused Pod.
pub const REFUSED: &str = "PodRefused";
/// Reason of the event for a field that has no effect on this node.
pub const UNSUPPORTED: &str = "UnsupportedField";

/// Namespaced kernel parameters that cannot affect the machine outside the Pod.
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

/// Reviews a Pod before anything is started for it.
pub fn review(pod: &Pod, allowed: &Allowed) -> Review {
    let Some(spec) = pod.spec.as_ref() else { return Review::default() };
    let mut refusals = Vec::new();
    refuse_pod(spec, &mut refusals);
    for (container, _) in roles(spec) {
        refuse_container(container, &mut refusals);
    }
    for volume in spec.volumes.iter().flatten() {
        refuse_volume(pod, spec, volume, allowed, &mut refusals);
    }
    refuse_egress(pod, allowed, &mut refusals);
    let mut unsupported = Vec::new();
    unsupported::of_pod(spec, &mut unsupported);
    for (container, role) in roles(spec) {
        unsupported::of_container(container, role, &mut unsupported);
    }
    for volume in spec.volumes.iter().flatten() {
        unsupported::of_volume(volume, &mut unsupported);
    }
    let refusal = (!refusals.is_empty()).then(|| PodFailure {
        reason: REFUSED.to_owned(),
        message: format!("this node refuses {}", refusals.join("; ")),
    });
    let warnings = unsupported.into_iter().map(|message| (UNSUPPORTED.to_owned(), message)).collect();
    Review { refusal, warnings }
}

/// Egress rules that cannot be read, or that this node cannot enforce, are refused: the Pod would run without them.
fn refuse_egress(pod: &Pod, allowed: &Allowed, out: &mut Vec<String>) {
    let Some(rules) = EgressRules::of(pod) else { return };
    if let Err(error) = rules.policy() {
        out.push(error.to_string());
    }
    if let Some(reason) = &allowed.egress_refused {
        out.push(format!("egress rules, which it cannot enforce: {reason}"));
    }
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

fn refuse_volume(pod: &Pod, spec: &PodSpec, volume: &Volume, allowed: &Allowed, out: &mut Vec<String>) {
    if let Some(host) = &volume.host_path
        && !is_allowed_host_path(&host.path, allowed)
        && !allowed.folders.permits(pod, Path::new(&host.path), wanted_access(pod, spec, &volume.name))
    {
        out.push(format!("hostPath {} of volume {} (allow it with --allow-host-path)", host.path, volume.name));
    }
}

/// Whether a host path is below an allowed folder, judged by its text only: the volume code later opens the path
/// without following symbolic links out of the folder.
fn is_allowed_host_path(path: &str, allowed: &Allowed) -> bool {
    let path = Path::new(path);
    let plain = path.is_absolute() && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    plain && allowed.host_paths.iter().any(|root| path.starts_with(root))
}

#[cfg(test)]
mod tests;
