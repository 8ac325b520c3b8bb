//! The rules of the levels `baseline` and `restricted`, with Kubernetes' messages.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Pod, Violation};

/// First minor version with the rules for Pods of a user namespace.
const USER_NAMESPACES: u32 = 35;
/// First minor version that exempts Pods for Windows.
const WINDOWS: u32 = 25;

/// Runs all rules of a level and version, in Kubernetes' order.
pub(super) fn run(restricted: bool, minor: u32, pod: &Pod<'_>) -> Vec<Violation> {
    let windows = minor >= WINDOWS && pod.spec["os"]["name"] == "windows";
    let user_namespace = minor >= USER_NAMESPACES && pod.spec["hostUsers"] == false;
    let mut found: Vec<Option<Violation>> = vec![apparmor(pod)];
    if !restricted || minor < 22 {
        found.push(default_capabilities(pod));
    }
    found.push(host_namespaces(pod));
    if !restricted {
        found.push(host_path_volumes(pod));
    }
    found.push(host_ports(pod));
    if minor >= 34 {
        found.push(probe_hosts(pod));
    }
    found.push(privileged(pod));
    if !(restricted && minor >= USER_NAMESPACES || user_namespace) {
        found.push(proc_mount(pod));
    }
    found.push(selinux(pod, minor));
    if minor < 19 {
        found.push(seccomp_annotations(pod));
    } else if !restricted {
        found.push(seccomp(pod, false));
    }
    found.push(sysctls(pod, minor));
    found.push(windows_host_process(pod));
    if restricted {
        if minor >= 8 && !windows {
            found.push(privilege_escalation(pod));
        }
        if minor >= 22 && !windows {
            found.push(dropped_capabilities(pod));
        }
        if minor >= USER_NAMESPACES {
            found.push(proc_mount(pod));
        }
        found.push(volume_types(pod));
        if !user_namespace {
            found.push(non_root(pod));
        }
        if minor >= 23 && !user_namespace {
            found.push(root_user(pod));
        }
        if minor >= 19 && !windows {
            found.push(seccomp(pod, true));
        }
    }
    found.into_iter().flatten().collect()
}

fn violation(reason: &str, detail: String) -> Option<Violation> {
    Some(Violation { reason: reason.to_owned(), detail })
}

/// All containers, in Kubernetes' order.
fn containers<'a>(pod: &Pod<'a>) -> impl Iterator<Item = &'a Value> {
    let spec = pod.spec;
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    lists.into_iter().flat_map(move |list| spec[list].as_array().into_iter().flatten())
}

/// Names of the containers for which `test` holds.
fn names_where<'a>(pod: &Pod<'a>, mut test: impl FnMut(&Value) -> bool) -> Vec<&'a str> {
    containers(pod).filter(|container| test(container)).map(|one| text(&one["name"])).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn quoted<T: AsRef<str>>(list: impl IntoIterator<Item = T>) -> String {
    list.into_iter().map(|item| format!("\"{}\"", item.as_ref())).collect::<Vec<_>>().join(", ")
}

fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

/// `container "a"` or `containers "a", "b"`.
fn named(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

/// `pod and containers "a", "b"`: what sets a bad value.
fn setters(pod: bool, names: &[&str]) -> String {
    let containers = (!names.is_empty()).then(|| named(names));
    pod.then(|| "pod".to_owned()).into_iter().chain(containers).collect::<Vec<_>>().join(" and ")
}

fn apparmor(pod: &Pod<'_>) -> Option<Violation> {
    const KEY: &str = "container.apparmor.security.beta.kubernetes.io/";
    let mut values = BTreeSet::new();
    let mut bad = |context: &Value| {
        let profile = &context["appArmorProfile"];
        let kind = text(&profile["type"]);
        let bad = profile.is_object() && !matches!(kind, "RuntimeDefault" | "Localhost");
        if bad {
            values.insert(kind.to_owned());
        }
        bad
    };
    let of_pod = bad(&pod.spec["securityContext"]);
    let names = names_where(pod, |container| bad(&container["securityContext"]));
    let annotations = pod.metadata["annotations"].as_object().into_iter().flatten();
    let mut forbidden: Vec<String> = annotations
        .filter(|(key, _)| key.starts_with(KEY))
        .map(|(key, value)| (key, text(value)))
        .filter(|(_, value)| !(value.is_empty() || *value == "runtime/default" || value.starts_with("localhost/")))
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    forbidden.sort();
    let mut who = setters(of_pod, &names);
    if !forbidden.is_empty() {
        let what = plural("annotation", "annotations", forbidden.len());
        who = if who.is_empty() { what.to_owned() } else { format!("{who} and {what}") };
    }
    if who.is_empty() {
        return None;
    }
    let all: Vec<String> = values.into_iter().chain(forbidden).collect();
    let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", all.len());
    violation(reason, format!("{who} must not set AppArmor profile type to {}", quoted(&all)))
}

/// The names of added capabilities that are not `allowed`, and of the containers that add them.
fn added_capabilities<'a>(pod: &Pod<'a>, allowed: &[&str]) -> (Vec<&'a str>, BTreeSet<String>) {
    let mut added = BTreeSet::new();
    let names = names_where(pod, |container| {
        let bad: Vec<&str> = items(&container["securityContext"]["capabilities"]["add"])
            .map(text)
            .filter(|capability| !allowed.contains(capability))
            .collect();
        added.extend(bad.iter().map(|capability| (*capability).to_owned()));
        !bad.is_empty()
    });
    (names, added)
}

fn added_detail(names: &[&str], added: &BTreeSet<String>) -> String {
    format!("{} must not include {} in securityContext.capabilities.add", named(names), quoted(added))
}

fn default_capabilities(pod: &Pod<'_>) -> Option<Violation> {
    const DEFAULT: [&str; 13] = [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ];
    let (names, added) = added_capabilities(pod, &DEFAULT);
    if names.is_empty() { None } else { violation("non-default capabilities", added_detail(&names, &added)) }
}

fn dropped_capabilities(pod: &Pod<'_>) -> Option<Violation> {
    let keeps = |container: &Value| !items(&container["securityContext"]["capabilities"]["drop"]).any(|c| c == "ALL");
    let keeping = names_where(pod, keeps);
    let (adding, added) = added_capabilities(pod, &["NET_BIND_SERVICE"]);
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", named(&keeping)));
    }
    if !adding.is_empty() {
        details.push(added_detail(&adding, &added));
    }
    if details.is_empty() { None } else { violation("unrestricted capabilities", details.join("; ")) }
}

fn host_namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let used = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|key| pod.spec[*key] == true);
    let used: Vec<String> = used.map(|key| format!("{key}=true")).collect();
    if used.is_empty() { None } else { violation("host namespaces", used.join(", ")) }
}

fn host_path_volumes(pod: &Pod<'_>) -> Option<Violation> {
    let volumes = items(&pod.spec["volumes"]).filter(|volume| volume["hostPath"].is_object());
    let names: Vec<&str> = volumes.map(|volume| text(&volume["name"])).collect();
    if names.is_empty() {
        return None;
    }
    violation("hostPath volumes", format!("{} {}", plural("volume", "volumes", names.len()), quoted(&names)))
}

fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
    let mut ports = BTreeSet::new();
    let names = names_where(pod, |container| {
        let used = items(&container["ports"]).filter_map(|port| port["hostPort"].as_i64()).filter(|port| *port != 0);
        let used: Vec<String> = used.map(|port| port.to_string()).collect();
        let any = !used.is_empty();
        ports.extend(used);
        any
    });
    if names.is_empty() {
        return None;
    }
    let list = ports.iter().cloned().collect::<Vec<_>>().join(", ");
    let (use_, port) = (plural("uses", "use", names.len()), plural("hostPort", "hostPorts", ports.len()));
    violation("hostPort", format!("{} {use_} {port} {list}", named(&names)))
}

fn probe_hosts(pod: &Pod<'_>) -> Option<Violation> {
    let mut hosts = BTreeSet::new();
    let names: BTreeSet<&str> = names_where(pod, |container| {
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|key| &container[key]);
        let hooks = ["postStart", "preStop"].map(|key| &container["lifecycle"][key]);
        let handlers = probes.into_iter().chain(hooks);
        let used = handlers.flat_map(|handler| ["httpGet", "tcpSocket"].map(|kind| text(&handler[kind]["host"])));
        let used: Vec<String> = used.filter(|host| !host.is_empty()).map(str::to_owned).collect();
        let any = !used.is_empty();
        hosts.extend(used);
        any
    })
    .into_iter()
    .collect();
    if names.is_empty() {
        return None;
    }
    let names: Vec<&str> = names.into_iter().collect();
    let what = plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len());
    let use_ = plural("uses", "use", names.len());
    violation("probe or lifecycle host", format!("{} {use_} {what} {}", named(&names), quoted(&hosts)))
}

fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let names = names_where(pod, |container| container["securityContext"]["privileged"] == true);
    if names.is_empty() {
        return None;
    }
    violation("privileged", format!("{} must not set securityContext.privileged=true", named(&names)))
}

fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    let mut kinds = BTreeSet::new();
    let names = names_where(pod, |container| {
        let kind = container["securityContext"]["procMount"].as_str().filter(|kind| *kind != "Default");
        kinds.extend(kind.map(str::to_owned));
        kind.is_some()
    });
    if names.is_empty() {
        return None;
    }
    violation("procMount", format!("{} must not set securityContext.procMount to {}", named(&names), quoted(&kinds)))
}

fn selinux(pod: &Pod<'_>, minor: u32) -> Option<Violation> {
    let (mut types, mut user, mut role) = (BTreeSet::new(), false, false);
    let mut bad = |context: &Value| {
        let options = &context["seLinuxOptions"];
        let kind = text(&options["type"]);
        let allowed = matches!(kind, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || (kind == "container_engine_t" && minor >= 31);
        let (sets_user, sets_role) = (!text(&options["user"]).is_empty(), !text(&options["role"]).is_empty());
        if !allowed {
            types.insert(kind.to_owned());
        }
        user |= sets_user;
        role |= sets_role;
        !allowed || sets_user || sets_role
    };
    let of_pod = bad(&pod.spec["securityContext"]);
    let names = names_where(pod, |container| bad(&container["securityContext"]));
    let who = setters(of_pod, &names);
    if who.is_empty() {
        return None;
    }
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(format!("{} {}", plural("type", "types", types.len()), quoted(&types)));
    }
    data.extend(user.then(|| "user may not be set".to_owned()));
    data.extend(role.then(|| "role may not be set".to_owned()));
    violation("seLinuxOptions", format!("{who} set forbidden securityContext.seLinuxOptions: {}", data.join("; ")))
}

fn seccomp_annotations(pod: &Pod<'_>) -> Option<Violation> {
    const POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
    const CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
    let keys = containers(pod).map(|container| format!("{CONTAINER}{}", text(&container["name"])));
    let forbidden: BTreeSet<String> = std::iter::once(POD.to_owned())
        .chain(keys)
        .filter_map(|key| {
            let value = pod.metadata["annotations"][&key].as_str()?;
            let allowed = matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/");
            (!allowed).then(|| format!("{key}={value:?}"))
        })
        .collect();
    if forbidden.is_empty() {
        return None;
    }
    let list = forbidden.iter().cloned().collect::<Vec<_>>().join(", ");
    violation("seccompProfile", format!("forbidden {} {list}", plural("annotation", "annotations", forbidden.len())))
}

/// Seccomp must not be turned off. If it is `required`, every container also needs a profile of its own or its Pod's.
fn seccomp(pod: &Pod<'_>, required: bool) -> Option<Violation> {
    let mut values = BTreeSet::new();
    // Whether a security context sets a profile: `Some(true)` for a bad one.
    let mut sets_bad = |context: &Value| {
        let profile = context["seccompProfile"].as_object()?;
        let kind = profile.get("type").and_then(Value::as_str).unwrap_or_default();
        let bad = !matches!(kind, "Localhost" | "RuntimeDefault");
        if bad {
            values.insert(kind.to_owned());
        }
        Some(bad)
    };
    let of_pod = sets_bad(&pod.spec["securityContext"]);
    let explicit = names_where(pod, |container| sets_bad(&container["securityContext"]) == Some(true));
    let who = setters(of_pod == Some(true), &explicit);
    if !who.is_empty() {
        let detail = format!("{who} must not set securityContext.seccompProfile.type to {}", quoted(&values));
        return violation("seccompProfile", detail);
    }
    let implicit = names_where(pod, |container| !container["securityContext"]["seccompProfile"].is_object());
    if !required || of_pod == Some(false) || implicit.is_empty() {
        return None;
    }
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        named(&implicit)
    );
    violation("seccompProfile", detail)
}

fn sysctls(pod: &Pod<'_>, minor: u32) -> Option<Violation> {
    /// Names with the first minor version that allows them.
    const ALLOWED: [(&str, u32); 12] = [
        ("kernel.shm_rmid_forced", 0),
        ("net.ipv4.ip_local_port_range", 0),
        ("net.ipv4.tcp_syncookies", 0),
        ("net.ipv4.ping_group_range", 0),
        ("net.ipv4.ip_unprivileged_port_start", 0),
        ("net.ipv4.ip_local_reserved_ports", 27),
        ("net.ipv4.tcp_keepalive_time", 29),
        ("net.ipv4.tcp_fin_timeout", 29),
        ("net.ipv4.tcp_keepalive_intvl", 29),
        ("net.ipv4.tcp_keepalive_probes", 29),
        ("net.ipv4.tcp_rmem", 32),
        ("net.ipv4.tcp_wmem", 32),
    ];
    let allowed = |name: &str| ALLOWED.iter().any(|(known, since)| *known == name && minor >= *since);
    let set = items(&pod.spec["securityContext"]["sysctls"]).map(|sysctl| text(&sysctl["name"]));
    let forbidden: Vec<&str> = set.filter(|name| !allowed(name)).collect();
    if forbidden.is_empty() { None } else { violation("forbidden sysctls", forbidden.join(", ")) }
}

fn windows_host_process(pod: &Pod<'_>) -> Option<Violation> {
    let bad = |context: &Value| context["windowsOptions"]["hostProcess"] == true;
    let names = names_where(pod, |container| bad(&container["securityContext"]));
    let who = setters(bad(&pod.spec["securityContext"]), &names);
    if who.is_empty() {
        return None;
    }
    violation("hostProcess", format!("{who} must not set securityContext.windowsOptions.hostProcess=true"))
}

fn privilege_escalation(pod: &Pod<'_>) -> Option<Violation> {
    let names = names_where(pod, |container| container["securityContext"]["allowPrivilegeEscalation"] != false);
    if names.is_empty() {
        return None;
    }
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", named(&names));
    violation("allowPrivilegeEscalation != false", detail)
}

fn volume_types(pod: &Pod<'_>) -> Option<Violation> {
    const ALLOWED: [&str; 9] = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    const OTHERS: [&str; 21] = [
        "hostPath",
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "gitRepo",
        "nfs",
        "iscsi",
        "glusterfs",
        "rbd",
        "flexVolume",
        "cinder",
        "cephfs",
        "flocker",
        "fc",
        "azureFile",
        "vsphereVolume",
        "quobyte",
        "azureDisk",
        "photonPersistentDisk",
        "portworxVolume",
        "scaleIO",
        "storageos",
    ];
    let mut types = BTreeSet::new();
    let mut names = Vec::new();
    for volume in items(&pod.spec["volumes"]) {
        let has = |kind: &&&str| volume[**kind].is_object();
        if ALLOWED.iter().any(|kind| has(&kind)) {
            continue;
        }
        names.push(text(&volume["name"]));
        types.insert(OTHERS.iter().find(has).copied().unwrap_or("unknown"));
    }
    if names.is_empty() {
        return None;
    }
    let detail = format!(
        "{} {} {} {} {}",
        plural("volume", "volumes", names.len()),
        quoted(&names),
        plural("uses", "use", names.len()),
        plural("restricted volume type", "restricted volume types", types.len()),
        quoted(&types)
    );
    violation("restricted volume types", detail)
}

fn non_root(pod: &Pod<'_>) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    let set = |context: &Value| context["runAsNonRoot"].as_bool();
    let of_pod = set(&pod.spec["securityContext"]);
    let explicit = names_where(pod, |container| set(&container["securityContext"]) == Some(false));
    let who = setters(of_pod == Some(false), &explicit);
    if !who.is_empty() {
        return violation(REASON, format!("{who} must not set securityContext.runAsNonRoot=false"));
    }
    let implicit = names_where(pod, |container| set(&container["securityContext"]).is_none());
    if of_pod == Some(true) || implicit.is_empty() {
        return None;
    }
    violation(REASON, format!("pod or {} must set securityContext.runAsNonRoot=true", named(&implicit)))
}

fn root_user(pod: &Pod<'_>) -> Option<Violation> {
    let bad = |context: &Value| context["runAsUser"] == 0;
    let names = names_where(pod, |container| bad(&container["securityContext"]));
    let who = setters(bad(&pod.spec["securityContext"]), &names);
    if who.is_empty() { None } else { violation("runAsUser=0", format!("{who} must not set runAsUser=0")) }
}
