//! NetworkPolicy planning: policies and Pods in, the allowed flows of a Pod out. Pure.
//!
//! Semantics are those of Kubernetes with two differences. A Pod that no policy selects is closed in both directions.
//! And an address block, or a rule without peers, never includes other Pods of this node: only selectors do, because
//! "any address" is meant to be the world outside, not the neighbouring Pods.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::kubelet::egress::{Ceilings, EgressRules, Hold};
use crate::runtime::{Allow, IpBlock, PodRules, PortRange, Protocol};

mod selector;

pub use selector::matches;

/// Shortest prefix of an address block that names a part of the world, for Pods with egress rules by domain. A larger
/// block means any address.
const SMALLEST_PART: u8 = 8;

type Labels = BTreeMap<String, String>;

/// A Pod as policies see it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PolicyPod {
    pub namespace: String,
    pub name: String,
    pub labels: Labels,
    pub ips: Vec<IpAddr>,
    /// Named container ports.
    pub ports: Vec<(String, Protocol, u16)>,
    /// Its egress rules by domain.
    pub egress: Option<EgressRules>,
}

impl PolicyPod {
    /// What policies see of a Pod. A Pod that has ended has no addresses, so it is a peer of no other Pod.
    pub fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let ended = matches!(status.and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"));
        let ips = status.iter().flat_map(|s| s.pod_ips.iter().flatten()).filter(|_| !ended);
        let containers = pod.spec.iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
        let ports = containers.flat_map(|c| c.ports.iter().flatten()).filter_map(|port| {
            let number = u16::try_from(port.container_port).ok()?;
            Some((port.name.clone()?, protocol(port.protocol.as_deref())?, number))
        });
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            ips: ips.filter_map(|ip| ip.ip.parse().ok()).collect(),
            ports: ports.collect(),
            egress: EgressRules::of(pod),
        }
    }
}

/// Everything on which the rules of a Pod depend.
#[derive(Clone, Debug, Default)]
pub struct PolicyInputs {
    pub policies: BTreeMap<String, NetworkPolicy>,
    /// Labels by namespace.
    pub namespaces: BTreeMap<String, Labels>,
    /// Ceilings of egress rules.
    pub ceilings: Ceilings,
    /// Pods of all nodes by uid.
    pub pods: BTreeMap<String, PolicyPod>,
    /// The network of this node's Pods as address and prefix length.
    pub pod_network: Option<(IpAddr, u8)>,
}

impl PolicyInputs {
    /// Whether any policy selects Pods as peers, so that a Pod's labels and addresses affect the rules of other Pods.
    pub fn has_selectors(&self) -> bool {
        self.policies.values().any(|policy| {
            let spec = policy.spec.as_ref();
            let from = spec.iter().flat_map(|s| s.ingress.iter().flatten()).flat_map(|r| r.from.iter().flatten());
            let to = spec.iter().flat_map(|s| s.egress.iter().flatten()).flat_map(|r| r.to.iter().flatten());
            from.chain(to).any(|peer| peer.pod_selector.is_some() || peer.namespace_selector.is_some())
        })
    }

    /// The allowed flows of a Pod.
    pub fn rules(&self, pod: &PolicyPod) -> PodRules {
        let mut rules = PodRules::default();
        let (mut selected, mut ingress_ruled, mut egress_ruled) = (false, false, false);
        for policy in self.policies.values().filter(|p| applies(p, pod)) {
            let Some(spec) = &policy.spec else { continue };
            selected = true;
            let types = policy_types(policy);
            if types.0 {
                ingress_ruled = true;
                for rule in spec.ingress.iter().flatten() {
                    rules.ingress.extend(self.ingress(policy, pod, rule.from.as_deref(), rule.ports.as_deref()));
                }
            }
            if types.1 {
                egress_ruled = true;
                for rule in spec.egress.iter().flatten() {
                    rules.egress.extend(self.egress(policy, rule.to.as_deref(), rule.ports.as_deref()));
                }
            }
        }
        // A direction that none of the selecting policies covers is open, as in Kubernetes.
        if selected && !ingress_ruled {
            rules.ingress.push(Allow { peers: self.any_address(), ports: Vec::new() });
        }
        if selected && !egress_ruled {
            rules.egress.push(Allow { peers: self.any_address(), ports: Vec::new() });
        }
        let hold = self.ceilings.hold(&pod.namespace);
        rules.by_domain = pod.egress.is_some() || hold == Hold::Ceiling;
        if rules.by_domain || hold == Hold::Unknown {
            // The domain rules say which part of the world the Pod reaches; what names a part of it stays.
            for allow in &mut rules.egress {
                allow.peers.retain(|block| block.prefix >= SMALLEST_PART);
            }
            rules.egress.retain(|allow| !allow.peers.is_empty());
        }
        rules
    }

    fn ingress(
        &self,
        policy: &NetworkPolicy,
        pod: &PolicyPod,
        from: Option<&[NetworkPolicyPeer]>,
        ports: Option<&[NetworkPolicyPort]>,
    ) -> Option<Allow> {
        let mut peers = Vec::new();
        match from.filter(|f| !f.is_empty()) {
            None => peers = self.any_address(),
            Some(from) => {
                for peer in from {
                    peers.extend(self.block(peer));
                    peers.extend(self.peers(policy, peer).flat_map(|m| m.ips.iter().map(|ip| host(*ip))));
                }
            }
        }
        let ports = ranges(ports, pod)?;
        (!peers.is_empty()).then_some(Allow { peers, ports })
    }

    /// The egress flows of a rule. Named ports are those of the receiving Pod, so each peer Pod gets a flow of its own.
    fn egress(
        &self,
        policy: &NetworkPolicy,
        to: Option<&[NetworkPolicyPeer]>,
        ports: Option<&[NetworkPolicyPort]>,
    ) -> Vec<Allow> {
        let mut allowed = Vec::new();
        let no_pod = PolicyPod::default();
        let Some(to) = to.filter(|t| !t.is_empty()) else {
            allowed.extend(ranges(ports, &no_pod).map(|ports| Allow { peers: self.any_address(), ports }));
            return allowed;
        };
        for peer in to {
            if let Some(block) = self.block(peer) {
                allowed.extend(ranges(ports, &no_pod).map(|ports| Allow { peers: vec![block], ports }));
            }
            for pod in self.peers(policy, peer).filter(|m| !m.ips.is_empty()) {
                let peers = pod.ips.iter().map(|ip| host(*ip)).collect();
                allowed.extend(ranges(ports, pod).map(|ports| Allow { peers, ports }));
            }
        }
        allowed
    }

    /// All IPv4 and IPv6 addresses except this node's Pods.
    fn any_address(&self) -> Vec<IpBlock> {
        [IpAddr::from([0, 0, 0, 0]), IpAddr::from([0u16; 8])]
            .into_iter()
            .map(|address| self.except_pods(IpBlock { address, prefix: 0, except: Vec::new() }))
            .collect()
    }

    /// The address block of a peer, except this node's Pods.
    fn block(&self, peer: &NetworkPolicyPeer) -> Option<IpBlock> {
        let block = peer.ip_block.as_ref()?;
        let (address, prefix) = parse_block(&block.cidr)?;
        let except = block.except.iter().flatten().filter_map(|e| parse_block(e)).collect();
        Some(self.except_pods(IpBlock { address, prefix, except }))
    }

    fn except_pods(&self, mut block: IpBlock) -> IpBlock {
        if let Some(pods) = self.pod_network.filter(|p| p.0.is_ipv4() == block.address.is_ipv4()) {
            block.except.push(pods);
        }
        block
    }

    /// The labels of a namespace. Each namespace has its name as a label, even when the object lacks it.
    fn labels_of(&self, namespace: &str) -> Labels {
        let mut labels = self.namespaces.get(namespace).cloned().unwrap_or_default();
        labels.insert("kubernetes.io/metadata.name".to_owned(), namespace.to_owned());
        labels
    }

    /// The Pods that a peer's selectors match.
    fn peers<'a>(
        &'a self,
        policy: &'a NetworkPolicy,
        peer: &'a NetworkPolicyPeer,
    ) -> impl Iterator<Item = &'a PolicyPod> {
        let none = peer.pod_selector.is_none() && peer.namespace_selector.is_none();
        let own = policy.metadata.namespace.as_deref().unwrap_or_default();
        self.pods.values().filter(move |pod| {
            let in_namespace = match &peer.namespace_selector {
                None => pod.namespace == own,
                Some(selector) => matches(selector, &self.labels_of(&pod.namespace)),
            };
            let chosen = peer.pod_selector.as_ref().is_none_or(|s| matches(s, &pod.labels));
            !none && in_namespace && chosen
        })
    }
}

fn applies(policy: &NetworkPolicy, pod: &PolicyPod) -> bool {
    let Some(spec) = &policy.spec else { return false };
    policy.metadata.namespace.as_deref() == Some(&pod.namespace)
        && spec.pod_selector.as_ref().is_none_or(|s| matches(s, &pod.labels))
}

/// Whether a policy covers ingress and egress. Without `policyTypes`: always ingress, and egress when it has egress
/// rules.
fn policy_types(policy: &NetworkPolicy) -> (bool, bool) {
    let spec = policy.spec.as_ref();
    match spec.and_then(|s| s.policy_types.as_ref()).filter(|t| !t.is_empty()) {
        Some(types) => (types.iter().any(|t| t == "Ingress"), types.iter().any(|t| t == "Egress")),
        None => (true, spec.is_some_and(|s| s.egress.as_ref().is_some_and(|e| !e.is_empty()))),
    }
}

/// The port ranges of a rule on the receiving Pod; `None` when the rule lists ports and none of them exists.
fn ranges(ports: Option<&[NetworkPolicyPort]>, receiver: &PolicyPod) -> Option<Vec<PortRange>> {
    let Some(ports) = ports.filter(|p| !p.is_empty()) else { return Some(Vec::new()) };
    let found: Vec<PortRange> = ports.iter().filter_map(|port| range(port, receiver)).collect();
    (!found.is_empty()).then_some(found)
}

fn range(port: &NetworkPolicyPort, receiver: &PolicyPod) -> Option<PortRange> {
    let protocol = protocol(port.protocol.as_deref())?;
    let (first, last) = match &port.port {
        None => (1, u16::MAX),
        Some(IntOrString::Int(number)) => {
            let first = u16::try_from(*number).ok()?;
            (first, port.end_port.and_then(|e| u16::try_from(e).ok()).unwrap_or(first))
        }
        Some(IntOrString::String(name)) => {
            let named = receiver.ports.iter().find(|(n, p, _)| n == name && *p == protocol)?;
            (named.2, named.2)
        }
    };
    (first <= last).then_some(PortRange { protocol, first, last })
}

fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name.unwrap_or("TCP") {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

fn host(ip: IpAddr) -> IpBlock {
    IpBlock { address: ip, prefix: if ip.is_ipv4() { 32 } else { 128 }, except: Vec::new() }
}

fn parse_block(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let prefix: u8 = prefix.parse().ok()?;
    (prefix <= if address.is_ipv4() { 32 } else { 128 }).then_some((address, prefix))
}

/// Whether the rules allow a Pod to query a resolver at this address; if so, its external names are resolved there.
///
/// With rules by domain, names are resolved for it by the egress gateway only.
pub fn may_resolve(rules: &PodRules, resolver: IpAddr) -> bool {
    !rules.by_domain
        && rules.egress.iter().any(|allow| {
            let port = allow.ports.is_empty()
                || allow.ports.iter().any(|p| p.protocol != Protocol::Sctp && (p.first..=p.last).contains(&53));
            let peer = allow.peers.iter().any(|block| {
                // A rule for all addresses includes the machine's resolver, even when that is in an excepted private
                // network.
                block.prefix == 0
                    || (contains((block.address, block.prefix), resolver)
                        && !block.except.iter().any(|e| contains(*e, resolver)))
            });
            port && peer
        })
}

/// Whether an address block contains an address.
pub fn contains((network, prefix): (IpAddr, u8), address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            u32::from(network) & mask == u32::from(address) & mask
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            u128::from(network) & mask == u128::from(address) & mask
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
