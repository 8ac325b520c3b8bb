//! Names for Pods: a responder on the Pods' gateway that knows Services and forwards the rest where policy allows.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use parking_lot::RwLock;

use crate::policy::{matches, may_resolve};
use crate::runtime::PodRules;

mod message;
pub mod server;

/// What a Service means to a resolver.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ServiceNames {
    /// Addresses of its own; none for a headless Service.
    addresses: Vec<IpAddr>,
    selector: BTreeMap<String, String>,
    unready_too: bool,
}

/// What a Pod means to a resolver.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PodNames {
    namespace: String,
    labels: BTreeMap<String, String>,
    ips: Vec<IpAddr>,
    ready: bool,
    /// Its own name below a Service: host name and subdomain.
    own: Option<(String, String)>,
}

/// Everything names are made of.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub domain: String,
    services: BTreeMap<(String, String), ServiceNames>,
    pods: BTreeMap<String, PodNames>,
    rules: HashMap<IpAddr, PodRules>,
}

/// Names as they are shared between the node, which writes them, and the responder.
pub type SharedNames = Arc<RwLock<Names>>;

/// What a name is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Lookup {
    /// Ours, with these addresses (possibly none).
    Addresses(Vec<IpAddr>),
    /// Ours, and it does not exist.
    Unknown,
    /// Somebody else's.
    Foreign,
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
        let unready_too = spec.and_then(|s| s.publish_not_ready_addresses) == Some(true);
        self.services.insert(key, ServiceNames { addresses, selector, unready_too });
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
        let ready = status.and_then(|s| crate::pods::status::condition(s, "Ready")).is_some_and(|c| c.status == "True");
        let subdomain = pod.spec.as_ref().and_then(|s| s.subdomain.clone()).filter(|s| !s.is_empty());
        let names = PodNames {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            ips: ips.filter_map(|ip| ip.ip.parse().ok()).collect(),
            ready,
            own: subdomain.map(|subdomain| (crate::pods::sandbox::hostname(pod), subdomain)),
        };
        self.pods.insert(uid.to_owned(), names);
    }

    /// Forgets a Pod and what it may ask.
    pub fn remove_pod(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid) {
            for ip in pod.ips {
                self.rules.remove(&ip);
            }
        }
    }

    /// Takes note of the flows a Pod is allowed, which decide whether its names are looked up outside.
    pub fn put_rules(&mut self, uid: &str, rules: &PodRules) {
        let ips = self.pods.get(uid).map(|p| p.ips.clone()).unwrap_or_default();
        for ip in ips {
            self.rules.insert(ip, rules.clone());
        }
    }

    /// Whether names that are not ours may be looked up for whoever asks from this address.
    pub fn may_ask_outside(&self, asker: IpAddr, resolver: IpAddr) -> bool {
        self.rules.get(&asker).is_some_and(|rules| may_resolve(rules, resolver))
    }

    /// Finds a name (lower case, no dot at its end).
    pub fn find(&self, name: &str) -> Lookup {
        let Some(inside) = name.strip_suffix(&self.domain).and_then(|n| n.strip_suffix('.')) else {
            return if name == self.domain { Lookup::Addresses(Vec::new()) } else { Lookup::Foreign };
        };
        let mut labels: Vec<&str> = inside.split('.').collect();
        if labels.pop() != Some("svc") {
            return Lookup::Unknown;
        }
        match labels[..] {
            [] | [_] => Lookup::Addresses(Vec::new()),
            [service, namespace] => self.service(namespace, service),
            [host, service, namespace] => self.member(namespace, service, host),
            _ => Lookup::Unknown,
        }
    }

    fn service(&self, namespace: &str, name: &str) -> Lookup {
        let Some(service) = self.services.get(&(namespace.to_owned(), name.to_owned())) else { return Lookup::Unknown };
        if !service.addresses.is_empty() {
            return Lookup::Addresses(service.addresses.clone());
        }
        Lookup::Addresses(self.behind(namespace, service).flat_map(|pod| pod.ips.iter().copied()).collect())
    }

    fn member(&self, namespace: &str, name: &str, host: &str) -> Lookup {
        let Some(service) = self.services.get(&(namespace.to_owned(), name.to_owned())) else { return Lookup::Unknown };
        let own = |pod: &&PodNames| pod.own.as_ref().is_some_and(|(h, s)| h == host && s == name);
        let found: Vec<IpAddr> =
            self.behind(namespace, service).filter(own).flat_map(|p| p.ips.iter().copied()).collect();
        if found.is_empty() { Lookup::Unknown } else { Lookup::Addresses(found) }
    }

    fn behind<'a>(&'a self, namespace: &'a str, service: &'a ServiceNames) -> impl Iterator<Item = &'a PodNames> {
        let selector = LabelSelector { match_labels: Some(service.selector.clone()), match_expressions: None };
        self.pods.values().filter(move |pod| {
            pod.namespace == namespace
                && !service.selector.is_empty()
                && (pod.ready || service.unready_too)
                && matches(&selector, &pod.labels)
        })
    }
}

fn key_of(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> (String, String) {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
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
        assert_eq!(names.find("p2.sb.ns.svc.cluster.local"), Lookup::Unknown, "not ready");
        assert_eq!(names.find("none.ns.svc.cluster.local"), Lookup::Unknown);
        assert_eq!(names.find("x.pod.cluster.local"), Lookup::Unknown);
        assert_eq!(names.find("example.com"), Lookup::Foreign);
        assert_eq!(names.find("xcluster.local"), Lookup::Foreign);
    }

    #[test]
    fn only_pods_with_a_way_out_may_ask_outside() {
        let mut names = names();
        let (asker, resolver): (IpAddr, IpAddr) = ("10.80.0.1".parse().unwrap(), "192.0.2.53".parse().unwrap());
        assert!(!names.may_ask_outside(asker, resolver));
        let block = crate::runtime::IpBlock { address: "0.0.0.0".parse().unwrap(), prefix: 0, except: vec![] };
        let open =
            PodRules { ingress: vec![], egress: vec![crate::runtime::Allow { peers: vec![block], ports: vec![] }] };
        names.put_rules("1", &open);
        assert!(names.may_ask_outside(asker, resolver));
        names.put_rules("1", &PodRules::default());
        assert!(!names.may_ask_outside(asker, resolver));
        names.put_rules("1", &open);
        names.remove_pod("1");
        assert!(!names.may_ask_outside(asker, resolver), "an address that changes hands takes no rights along");
    }
}
