//! Builds the runtime's specification of a Pod's sandbox: names, hosts file, resolver, limits, runtime handler. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use agent_sandbox_api::keys::annotations;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::{Deserialize, Serialize};

use crate::kubelet::container::runtime_limits;
use crate::kubelet::resources::pod_limits;
use crate::kubelet::resources::quantity::QuantityError;
use crate::kubelet::volumes::copied::copied;
use crate::kubelet::volumes::mounts::{memory_volumes, writes_host_paths};
use crate::runtime::{NetworkMode, PodSandboxSpec, RuntimeHandler, SnapshotOrigin};

/// Name resolution settings of the node.
#[derive(Clone, Copy, Debug)]
pub struct DnsSettings<'a> {
    /// Address of the node's DNS responder, if Pods have a network.
    pub dns: Option<IpAddr>,
    pub cluster_domain: &'a str,
    /// The machine's `resolv.conf`, for `dnsPolicy: Default`.
    pub host_resolv_conf: &'a str,
}

/// The key under which writable layers and user ids are kept: that of the controlling owner, or that of the Pod itself,
/// so that they outlive the sandbox and are removed with the object. The API does not verify owner references, so the
/// namespace is part of the key: a Pod that references an owner in another namespace gets none of that owner's layers.
pub fn owner(pod: &Pod) -> String {
    controller(pod).map_or_else(|| own_key(pod), |o| owner_key(pod.metadata.namespace.as_deref(), &o.uid))
}

/// The reference to a Pod's controlling owner.
pub fn controller(pod: &Pod) -> Option<&OwnerReference> {
    let controller = pod.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
    controller.filter(|o| is_plain(&o.uid))
}

/// The kind of an owner. Its version is not part of it: an object is the same in all versions of its kind.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct OwnerKind {
    pub group: String,
    pub kind: String,
}

impl OwnerKind {
    pub fn new(api_version: &str, kind: &str) -> Self {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        Self { group: group.to_owned(), kind: kind.to_owned() }
    }
}

/// The key of an owner. Neither namespace nor uid can contain a dot.
pub fn owner_key(namespace: Option<&str>, uid: &str) -> String {
    format!("{}.{uid}", namespace.unwrap_or_default())
}

/// Whether a uid consists of the characters that Kubernetes uses. The API accepts any text in an owner reference, and
/// the uid becomes part of a folder name.
fn is_plain(uid: &str) -> bool {
    !uid.is_empty() && uid.len() <= 64 && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// The key of a Pod that has no controlling owner.
pub fn own_key(pod: &Pod) -> String {
    format!("pod-{}", pod.metadata.uid.as_deref().unwrap_or_default())
}

/// The short host name: from the spec or the Pod's name, at most 63 characters, without a trailing separator.
pub fn hostname(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    let requested =
        spec.and_then(|s| s.hostname_override.clone().or_else(|| s.hostname.clone())).filter(|h| !h.is_empty());
    let name = requested.or_else(|| pod.metadata.name.clone()).unwrap_or_default();
    name.chars().take(63).collect::<String>().trim_end_matches(['-', '.']).to_owned()
}

/// The contents of `/etc/hosts`; the runtime replaces `{pod_ip}`.
pub fn hosts(pod: &Pod, cluster_domain: &str) -> String {
    let mut text = String::from("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    let host = hostname(pod);
    let spec = pod.spec.as_ref();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    match spec.and_then(|s| s.subdomain.as_deref()).filter(|s| !s.is_empty()) {
        Some(subdomain) => {
            text += &format!("{{pod_ip}}\t{host}.{subdomain}.{namespace}.svc.{cluster_domain}\t{host}\n");
        }
        None => text += &format!("{{pod_ip}}\t{host}\n"),
    }
    for alias in spec.iter().flat_map(|s| s.host_aliases.iter().flatten()) {
        text +=
            &format!("{}\t{}\n", alias.ip, alias.hostnames.iter().flatten().cloned().collect::<Vec<_>>().join("\t"));
    }
    text
}

/// The contents of `/etc/resolv.conf` according to `dnsPolicy` and `dnsConfig`.
pub fn resolv_conf(pod: &Pod, dns_settings: DnsSettings<'_>) -> String {
    let spec = pod.spec.as_ref();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let domain = dns_settings.cluster_domain;
    let mut resolver = match spec.and_then(|s| s.dns_policy.as_deref()) {
        Some("None") => ResolvConf::default(),
        Some("Default") => ResolvConf::parse(dns_settings.host_resolv_conf),
        _ => ResolvConf {
            nameservers: dns_settings.dns.iter().map(IpAddr::to_string).collect(),
            searches: vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()],
            options: vec![("ndots".to_owned(), Some("5".to_owned()))],
        },
    };
    if let Some(config) = spec.and_then(|s| s.dns_config.as_ref()) {
        resolver.nameservers.extend(config.nameservers.iter().flatten().cloned());
        resolver.searches.extend(config.searches.iter().flatten().cloned());
        for option in config.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            resolver.options.retain(|(n, _)| *n != name);
            resolver.options.push((name, option.value.clone()));
        }
    }
    resolver.render()
}

/// The parts of a `resolv.conf`.
#[derive(Clone, Debug, Default)]
struct ResolvConf {
    nameservers: Vec<String>,
    searches: Vec<String>,
    options: Vec<(String, Option<String>)>,
}

impl ResolvConf {
    fn parse(text: &str) -> Self {
        let mut out = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => out.nameservers.extend(words.next().map(str::to_owned)),
                Some("search" | "domain") => out.searches = words.map(str::to_owned).collect(),
                Some("options") => out.options.extend(words.map(|w| match w.split_once(':') {
                    Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                    None => (w.to_owned(), None),
                })),
                _ => {}
            }
        }
        out
    }

    fn render(mut self) -> String {
        let mut text = String::new();
        for list in [&mut self.nameservers, &mut self.searches] {
            let mut seen = std::collections::BTreeSet::new();
            list.retain(|item| seen.insert(item.clone()));
        }
        if !self.searches.is_empty() {
            text += &format!("search {}\n", self.searches.join(" "));
        }
        for server in self.nameservers.iter().take(3) {
            text += &format!("nameserver {server}\n");
        }
        if !self.options.is_empty() {
            let options = self.options.iter().map(|(name, value)| match value {
                Some(value) => format!("{name}:{value}"),
                None => name.clone(),
            });
            text += &format!("options {}\n", options.collect::<Vec<_>>().join(" "));
        }
        text
    }
}

/// Builds the specification of the sandbox.
pub fn assemble(
    pod: &Pod,
    spec: &PodSpec,
    handler: RuntimeHandler,
    dns_settings: DnsSettings<'_>,
) -> Result<PodSandboxSpec, QuantityError> {
    let sysctls = spec.security_context.iter().flat_map(|s| s.sysctls.iter().flatten());
    Ok(PodSandboxSpec {
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        owner: owner(pod),
        hostname: hostname(pod),
        network: NetworkMode::Routed,
        hosts: hosts(pod, dns_settings.cluster_domain),
        resolv_conf: resolv_conf(pod, dns_settings),
        limits: runtime_limits(&pod_limits(spec)?),
        handler,
        share_processes: spec.share_process_namespace == Some(true),
        memory_volumes: memory_volumes(spec),
        sysctls: sysctls.map(|s| (s.name.clone(), s.value.clone())).collect(),
        writes_host_paths: writes_host_paths(spec) || copies_host_paths(pod, spec),
        snapshot: snapshot_origin(pod),
    })
}

/// The snapshot that the Pod's files come from.
fn snapshot_origin(pod: &Pod) -> Option<SnapshotOrigin> {
    let annotation = |key: &str| pod.metadata.annotations.as_ref()?.get(key).filter(|value| !value.is_empty()).cloned();
    let restored_at = annotation(annotations::RESTORED_AT).unwrap_or_default();
    Some(SnapshotOrigin { name: annotation(annotations::SNAPSHOT)?, restored_at })
}

/// Whether the Pod gets a copy of a host folder. The annotation alone, without such a volume, means nothing: with it the
/// Pod would run as the engine's own user where that user has no other ids.
fn copies_host_paths(pod: &Pod, spec: &PodSpec) -> bool {
    let copies = copied(pod);
    spec.volumes.iter().flatten().any(|volume| volume.host_path.is_some() && copies.contains_key(&volume.name))
}

/// The runtime handler of a runtime class. `handlers` has the operator's programs by handler; well-known handlers need
/// no entry.
pub fn handler(
    class: Option<&str>,
    handler_of_class: Option<&str>,
    handlers: &BTreeMap<String, String>,
) -> RuntimeHandler {
    let Some(class) = class.filter(|c| !c.is_empty()) else { return RuntimeHandler::BuiltIn };
    let name = handler_of_class.unwrap_or(class);
    if name == BUILT_IN {
        return RuntimeHandler::BuiltIn;
    }
    let known = match name {
        "gvisor" | "runsc" => "runsc",
        "kata" | "kata-qemu" => "kata-runtime",
        other => other,
    };
    let program = handlers.get(name).cloned().unwrap_or_else(|| known.to_owned());
    RuntimeHandler::Oci { handler: name.to_owned(), program }
}

/// Handler name of the built-in runtime.
pub const BUILT_IN: &str = "agent-sandbox";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec})).unwrap()
    }

    fn dns_settings() -> DnsSettings<'static> {
        DnsSettings {
            dns: Some("10.9.0.1".parse().unwrap()),
            cluster_domain: "cluster.local",
            host_resolv_conf: "# x\nnameserver 192.0.2.53\nsearch corp\noptions edns0 ndots:2\n",
        }
    }

    #[test]
    fn an_owner_with_an_invalid_uid_is_ignored() {
        let owned = |uid: &str| {
            let mut pod = pod(json!({}));
            let owner = json!([{"apiVersion": "v1", "kind": "K", "name": "n", "uid": uid, "controller": true}]);
            pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
            super::owner(&pod)
        };
        assert_eq!(owned("6ec4ce84-0929-4488-b8a9-7e619f07ba60"), "ns.6ec4ce84-0929-4488-b8a9-7e619f07ba60");
        for wrong in ["/", "..", "a/b", "../../etc", &"a".repeat(65), "a.b"] {
            assert_eq!(owned(wrong), "pod-u", "{wrong}");
        }
    }

    #[test]
    fn each_dns_policy_gives_its_resolver() {
        assert_eq!(
            resolv_conf(&pod(json!({})), dns_settings()),
            "search ns.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.9.0.1\noptions ndots:5\n"
        );
        assert_eq!(
            resolv_conf(&pod(json!({"dnsPolicy": "Default"})), dns_settings()),
            "search corp\nnameserver 192.0.2.53\noptions edns0 ndots:2\n"
        );
        assert_eq!(
            resolv_conf(
                &pod(json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["8.8.8.8", "1.1.1.1"]}})),
                dns_settings()
            ),
            "nameserver 8.8.8.8\nnameserver 1.1.1.1\n"
        );
        assert_eq!(
            resolv_conf(
                &pod(json!({"dnsConfig": {"options": [{"name": "ndots", "value": "1"}], "searches": ["x"]}})),
                dns_settings()
            ),
            "search ns.svc.cluster.local svc.cluster.local cluster.local x\nnameserver 10.9.0.1\noptions ndots:1\n"
        );
    }

    #[test]
    fn hosts_name_the_pod_and_its_aliases() {
        let text = hosts(
            &pod(
                json!({"hostname": "h", "subdomain": "s", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]}),
            ),
            "cluster.local",
        );
        assert!(text.contains("{pod_ip}\th.s.ns.svc.cluster.local\th\n"), "{text}");
        assert!(text.ends_with("1.2.3.4\ta\tb\n"), "{text}");
    }

    #[test]
    fn the_owner_is_the_controller_or_else_the_pod() {
        let mut owned = pod(json!({}));
        assert_eq!(owner(&owned), "pod-u");
        owned.metadata.owner_references = Some(
            serde_json::from_value(json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "no"},
                {"apiVersion": "v1", "kind": "Y", "name": "y", "uid": "yes", "controller": true}]))
            .unwrap(),
        );
        assert_eq!(owner(&owned), "ns.yes");
        owned.metadata.namespace = Some("elsewhere".into());
        assert_eq!(owner(&owned), "elsewhere.yes", "the same uid named in another namespace is another owner");
    }

    #[test]
    fn runtime_classes_name_a_program() {
        let none = BTreeMap::new();
        assert_eq!(handler(None, None, &none), RuntimeHandler::BuiltIn);
        assert_eq!(handler(Some("x"), Some(BUILT_IN), &none), RuntimeHandler::BuiltIn);
        let oci =
            |handler: &str, program: &str| RuntimeHandler::Oci { handler: handler.into(), program: program.into() };
        assert_eq!(handler(Some("gvisor"), None, &none), oci("gvisor", "runsc"));
        assert_eq!(handler(Some("safe"), Some("crun"), &none), oci("crun", "crun"));
        let table = BTreeMap::from([("mine".to_owned(), "/opt/mine".to_owned())]);
        assert_eq!(handler(Some("mine"), None, &table), oci("mine", "/opt/mine"));
    }

    #[test]
    fn long_names_are_cut_to_a_host_name() {
        let mut long = pod(json!({}));
        long.metadata.name = Some(format!("{}-x", "a".repeat(62)));
        assert_eq!(hostname(&long), "a".repeat(62));
    }
}
