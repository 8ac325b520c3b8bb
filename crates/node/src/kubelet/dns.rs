//! DNS for Pods: a responder on the Pods' gateway that resolves Services and forwards other names where policy allows
//! it.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use parking_lot::RwLock;

use crate::kubelet::policy::{matches, may_resolve};
use crate::runtime::PodRules;

mod client_slots;
mod message;
pub mod server;

/// What the responder knows about a Service.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ServiceNames {
    /// Cluster addresses of the Service; none for a headless one.
    addresses: Vec<IpAddr>,
    selector: BTreeMap<String, String>,
    publish_not_ready: bool,
}

/// What the responder knows about a Pod.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PodNames {
    namespace: String,
    labels: BTreeMap<String, String>,
    ips: Vec<IpAddr>,
    ready: bool,
    /// Host name and subdomain, for a Pod that has a name below a Service.
    hostname: Option<(String, String)>,
}

/// The Services and Pods from which names are resolved.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub domain: String,
    services: BTreeMap<(String, String), ServiceNames>,
    pods: BTreeMap<String, PodNames>,
    /// Network rules by Pod address; they decide whether external names are resolved for that Pod.
    rules: HashMap<IpAddr, PodRules>,
}

/// Names shared between the manager, which writes them, and the responder.
pub type SharedNames = Arc<RwLock<Names>>;

/// Result of a lookup.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Lookup {
    /// A name of the cluster domain, with these addresses (possibly none).
    Addresses(Vec<IpAddr>),
    /// A name of the cluster domain that does not exist.
    NotFound,
    /// A name outside the cluster domain.
    External,
}

impl Names {
    pub fn put_service(&mut self, service: &Service) {
        let key = key_of(&service.metadata);
        let spec = service.spec.as_ref();
        let listed = spec.iter().flat_map(|s| s.cluster_ips.iter().flatten());
        let single = spec.iter().filter_map(|s| s.cluster_ip.as_ref());
        let mut addresses: Vec<IpAddr> = listed.chain(single).filter_map(|ip| ip.parse().ok()).collect();
        addresses.dedup();
        let selector = spec.and_then(|s| s.selector.clone()).unwrap_or_default();
        let publish_not_ready = spec.and_then(|s| s.publish_not_ready_addresses) == Some(true);
        self.services.insert(key, ServiceNames { addresses, selector, publish_not_ready });
    }

    pub fn remove_service(&mut self, service: &Service) {
        self.services.remove(&key_of(&service.metadata));
    }

    pub fn clear_services(&mut self) {
        self.services.clear();
    }

    pub fn put_pod(&mut self, uid: &str, pod: &Pod) {
        let status = pod.status.as_ref();
        let ended = matches!(status.and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"));
        let ips = status.iter().flat_map(|s| s.pod_ips.iter().flatten()).filter(|_| !ended);
        let ready =
            status.and_then(|s| crate::kubelet::status::condition(s, "Ready")).is_some_and(|c| c.status == "True");
        let subdomain = pod.spec.as_ref().and_then(|s| s.subdomain.clone()).filter(|s| !s.is_empty());
        let names = PodNames {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            ips: ips.filter_map(|ip| ip.ip.parse().ok()).collect(),
            ready,
            hostname: subdomain.map(|subdomain| (crate::kubelet::pod_sandbox::hostname(pod), subdomain)),
        };
        self.pods.insert(uid.to_owned(), names);
    }

    /// Removes a Pod and the rules of its addresses.
    pub fn remove_pod(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid) {
            for ip in pod.ips {
                self.rules.remove(&ip);
            }
        }
    }

    /// Stores the rules of a Pod, which decide whether external names are resolved for it.
    pub fn put_rules(&mut self, uid: &str, rules: &PodRules) {
        let ips = self.pods.get(uid).map(|p| p.ips.clone()).unwrap_or_default();
        for ip in ips {
            self.rules.insert(ip, rules.clone());
        }
    }

    /// Whether the rules of the Pod with this address are known.
    pub fn knows(&self, client: IpAddr) -> bool {
        self.rules.contains_key(&client)
    }

    /// Whether external names may be resolved at `resolver` for the Pod with the address `client`.
    pub fn may_resolve_external(&self, client: IpAddr, resolver: IpAddr) -> bool {
        self.rules.get(&client).is_some_and(|rules| may_resolve(rules, resolver))
    }

    /// Looks up a name in lower case, without a trailing dot.
    pub fn find(&self, name: &str) -> Lookup {
        let Some(inside) = name.strip_suffix(&self.domain).and_then(|n| n.strip_suffix('.')) else {
            return if name == self.domain { Lookup::Addresses(Vec::new()) } else { Lookup::External };
        };
        let mut labels: Vec<&str> = inside.split('.').collect();
        if labels.pop() != Some("svc") {
            return Lookup::NotFound;
        }
        match labels[..] {
            [] | [_] => Lookup::Addresses(Vec::new()),
            [service, namespace] => self.service(namespace, service),
            [host, service, namespace] => self.pod_of_service(namespace, service, host),
            _ => Lookup::NotFound,
        }
    }

    fn service(&self, namespace: &str, name: &str) -> Lookup {
        let Some(service) = self.services.get(&(namespace.to_owned(), name.to_owned())) else {
            return Lookup::NotFound;
        };
        if !service.addresses.is_empty() {
            return Lookup::Addresses(service.addresses.clone());
        }
        Lookup::Addresses(self.endpoints(namespace, service).flat_map(|pod| pod.ips.iter().copied()).collect())
    }

    fn pod_of_service(&self, namespace: &str, name: &str, host: &str) -> Lookup {
        let Some(service) = self.services.get(&(namespace.to_owned(), name.to_owned())) else {
            return Lookup::NotFound;
        };
        let has_name = |pod: &&PodNames| pod.hostname.as_ref().is_some_and(|(h, s)| h == host && s == name);
        let found: Vec<IpAddr> =
            self.endpoints(namespace, service).filter(has_name).flat_map(|p| p.ips.iter().copied()).collect();
        if found.is_empty() { Lookup::NotFound } else { Lookup::Addresses(found) }
    }

    /// The Pods that a Service selects.
    fn endpoints<'a>(&'a self, namespace: &'a str, service: &'a ServiceNames) -> impl Iterator<Item = &'a PodNames> {
        let selector = LabelSelector { match_labels: Some(service.selector.clone()), match_expressions: None };
        self.pods.values().filter(move |pod| {
            pod.namespace == namespace
                && !service.selector.is_empty()
                && (pod.ready || service.publish_not_ready)
                && matches(&selector, &pod.labels)
        })
    }
}

fn key_of(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> (String, String) {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// Fuzz target: the bytes are a packet of a Pod.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) {
    let names = Names { domain: "cluster.local".to_owned(), ..Names::default() };
    message::fuzz(data, |name| drop(names.find(name)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names() -> Names {
        let mut names = Names { domain: "cluster.local".into(), ..Names::default() };
        let service = |value: serde_json::Value| -> Service { serde_json::from_value(value).unwrap() };
        names.put_service(&service(json!({"metadata": {"name": "sb", "namespace": "ns"},
            "spec": {"clusterIP": "None", "selector": {"app": "x"}}})));
        names.put_service(&service(json!({"metadata": {"name": "vip", "namespace": "ns"},
            "spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"]}})));
        for (uid, ready, ip) in [("1", "True", "10.80.0.1"), ("2", "False", "10.80.0.2")] {
            let pod: Pod = serde_json::from_value(json!({"metadata": {"name": format!("p{uid}"), "namespace": "ns",
                "labels": {"app": "x"}}, "spec": {"containers": [], "subdomain": "sb"},
                "status": {"podIPs": [{"ip": ip}], "conditions": [{"type": "Ready", "status": ready}]}}))
            .unwrap();
            names.put_pod(uid, &pod);
        }
        names
    }

    #[test]
    fn services_and_their_ready_pods_have_names() {
        let names = names();
        let found = |ip: &str| Lookup::Addresses(vec![ip.parse().unwrap()]);
        assert_eq!(names.find("sb.ns.svc.cluster.local"), found("10.80.0.1"));
        assert_eq!(names.find("vip.ns.svc.cluster.local"), found("10.96.0.9"));
        assert_eq!(names.find("p1.sb.ns.svc.cluster.local"), found("10.80.0.1"));
        assert_eq!(names.find("p2.sb.ns.svc.cluster.local"), Lookup::NotFound, "not ready");
        assert_eq!(names.find("none.ns.svc.cluster.local"), Lookup::NotFound);
        assert_eq!(names.find("x.pod.cluster.local"), Lookup::NotFound);
        assert_eq!(names.find("example.com"), Lookup::External);
        assert_eq!(names.find("xcluster.local"), Lookup::External);
    }

    #[test]
    fn only_pods_with_egress_may_resolve_external_names() {
        let mut names = names();
        let (client, resolver): (IpAddr, IpAddr) = ("10.80.0.1".parse().unwrap(), "192.0.2.53".parse().unwrap());
        assert!(!names.may_resolve_external(client, resolver));
        let block = crate::runtime::IpBlock { address: "0.0.0.0".parse().unwrap(), prefix: 0, except: vec![] };
        let open = PodRules {
            ingress: vec![],
            egress: vec![crate::runtime::Allow { peers: vec![block], ports: vec![] }],
            by_domain: false,
        };
        names.put_rules("1", &open);
        assert!(names.may_resolve_external(client, resolver));
        names.put_rules("1", &PodRules::default());
        assert!(!names.may_resolve_external(client, resolver));
        names.put_rules("1", &open);
        names.remove_pod("1");
        assert!(
            !names.may_resolve_external(client, resolver),
            "the next Pod with the address does not inherit the right"
        );
    }
}
