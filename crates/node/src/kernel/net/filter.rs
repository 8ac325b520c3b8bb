//! Packet filter rules as data: those that apply to every Pod, and those that a Pod's policies allow. Pure; `nft`
//! writes them.

use std::net::{IpAddr, Ipv4Addr};

use super::addresses::netmask;
use super::engine_group::EngineGroup;
use crate::runtime::{Allow, IpBlock, PodRules, PortRange, Protocol};

/// One rule: the verdict applies if all conditions match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilterRule {
    pub(super) matches: Vec<Match>,
    pub(super) verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Match {
    /// Interfaces whose name begins with this prefix.
    FromInterfaces(String),
    NotFromInterfaces(String),
    ToInterfaces(String),
    NotToInterfaces(String),
    NotIpv4,
    /// Sent by a socket of another user than root. Packets without a socket, such as resets, do not match.
    NotFromRoot,
    /// Sent by a socket that was created in this cgroup. Packets without a socket, and those of a connection that is not
    /// established yet, do not match.
    FromGroup(EngineGroup),
    /// Sent by a socket of a process.
    FromProcess,
    /// From a source address in this set.
    FromAddressSet(String),
    /// From a pair of interface and source address in this set.
    FromPairSet {
        set: String,
        inverted: bool,
    },
    /// From an interface to an address and a destination port in this set.
    ToOpenSet(String),
    /// From one, or to one, of the interfaces in this set.
    FromSet(String),
    ToSet(String),
    Established,
    /// Sent in the direction in which its connection was opened.
    Original,
    /// A TCP segment that accepts a connection.
    TcpAccept,
    /// A TCP segment that does not open a connection.
    TcpAnswer,
    Source {
        address: Ipv4Addr,
        prefix: u8,
        inverted: bool,
    },
    Destination {
        address: Ipv4Addr,
        prefix: u8,
        inverted: bool,
    },
    Protocol(u8),
    /// The destination port.
    Ports {
        first: u16,
        last: u16,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Drop,
    /// Drops the packet and tells the sender at once (ICMP administratively prohibited).
    Reject,
    /// Drops a TCP segment and ends the sender's connection.
    Reset,
    /// Allowed by this chain; the calling chain continues.
    Return,
    Jump(String),
    /// Looked up in a map by the incoming interface's name.
    LookUpSource(String),
    /// Looked up in a map by the outgoing interface's name.
    LookUpTarget(String),
    Masquerade,
    /// Replaces the destination of a new connection.
    Divert {
        address: Ipv4Addr,
        port: u16,
    },
}

/// Sets and maps of Pods with rules by domain: their addresses; their interfaces, each with its Pod's address; what is
/// open for how long; the chains that divert their connections.
pub(super) const BY_DOMAIN: &str = "by-domain";
pub(super) const BY_DOMAIN_PAIRS: &str = "by-domain-pairs";
pub(super) const OPEN: &str = "open";
pub(super) const DIVERTED: &str = "diverted";

/// Port of the proxy on the gateway's address. Below 1024, so that no unprivileged program of the host can listen there
/// while the engine does not run.
pub(super) const PROXY_PORT: u16 = 280;
/// Ports whose connections are diverted.
const DIVERTED_PORTS: [u16; 2] = [80, 443];

/// Packets from Pods with rules by domain to the host, before all other rules of the input chain: no other program may use
/// their addresses (DNS and the proxy know a Pod by its address), and only they reach the proxy.
pub(super) fn by_domain_input_rules(gateway: Ipv4Addr) -> Vec<FilterRule> {
    let own = |inverted| Match::FromPairSet { set: BY_DOMAIN_PAIRS.to_owned(), inverted };
    let spoofed = vec![Match::FromAddressSet(BY_DOMAIN.to_owned()), own(true)];
    let to_proxy = vec![
        own(false),
        Match::Destination { address: gateway, prefix: 32, inverted: false },
        Match::Protocol(libc::IPPROTO_TCP as u8),
        Match::Ports { first: PROXY_PORT, last: PROXY_PORT },
    ];
    vec![rule(spoofed, Verdict::Drop), rule(to_proxy, Verdict::Accept)]
}

/// New connections of Pods with rules by domain, before routing.
pub(super) fn prerouting_rules() -> Vec<FilterRule> {
    vec![rule(Vec::new(), Verdict::LookUpSource(DIVERTED.to_owned()))]
}

/// Which new connections of a Pod with rules by domain are diverted: those to the proxied ports that its policies do
/// not allow directly.
pub(super) fn divert_rules(own: Ipv4Addr, gateway: Ipv4Addr, rules: &PodRules) -> Vec<FilterRule> {
    let spoofed = Match::Source { address: own, prefix: 32, inverted: true };
    let mut list = vec![rule(vec![spoofed], Verdict::Drop)];
    list.extend(rules.egress.iter().flat_map(|allow| allow_rules(allow, false)));
    list.extend(to_diverted_ports(Verdict::Divert { address: gateway, port: PROXY_PORT }));
    list
}

/// TCP to the proxied ports.
fn to_diverted_ports(verdict: Verdict) -> impl Iterator<Item = FilterRule> {
    DIVERTED_PORTS.into_iter().map(move |port| {
        let matches = vec![Match::Protocol(libc::IPPROTO_TCP as u8), Match::Ports { first: port, last: port }];
        rule(matches, verdict.clone())
    })
}

pub(super) fn rule(matches: Vec<Match>, verdict: Verdict) -> FilterRule {
    FilterRule { matches, verdict }
}

/// Chains for forwarded packets from Pods, and to Pods.
pub(super) const FROM_PODS: &str = "from-pods";
pub(super) const TO_PODS: &str = "to-pods";

/// Packets from Pods to the host itself: replies, and DNS queries to the gateway. Nothing else, on any address. Packets
/// from other interfaces are accepted by the first rule.
///
/// The host connects to Pods from the gateway's address. While connections are not tracked, replies are recognised by
/// their flags: a segment that opens no connection either belongs to a connection that the host opened, or is rejected
/// by the host's kernel.
pub(super) fn input_rules(veth_prefix: &str, gateway: Ipv4Addr, tracked: bool) -> Vec<FilterRule> {
    let to_gateway = || Match::Destination { address: gateway, prefix: 32, inverted: false };
    let dns = |protocol: i32| {
        let port = Match::Ports { first: 53, last: 53 };
        rule(vec![to_gateway(), Match::Protocol(protocol as u8), port], Verdict::Accept)
    };
    let answers = match tracked {
        true => vec![Match::Established],
        false => vec![to_gateway(), Match::Protocol(libc::IPPROTO_TCP as u8), Match::TcpAnswer],
    };
    vec![
        rule(vec![Match::NotFromInterfaces(veth_prefix.to_owned())], Verdict::Accept),
        rule(vec![Match::NotIpv4], Verdict::Drop),
        rule(answers, Verdict::Accept),
        dns(libc::IPPROTO_UDP),
        dns(libc::IPPROTO_TCP),
        rule(Vec::new(), Verdict::Drop),
    ]
}

/// Packets from the host itself to Pods: only the node may send them, for its probes and connections. Otherwise every
/// program of the machine could use a sandbox without a token. The rules stay while sandboxes run, also without a node.
///
/// Without a group (no unified cgroup hierarchy) the node is recognised by its user only, which is root.
pub(super) fn output_rules(veth_prefix: &str, group: Option<EngineGroup>) -> Vec<FilterRule> {
    let to_pods = || Match::ToInterfaces(veth_prefix.to_owned());
    let Some(group) = group else {
        return vec![rule(vec![to_pods(), Match::NotFromRoot], Verdict::Reject)];
    };
    let tcp = Match::Protocol(libc::IPPROTO_TCP as u8);
    vec![
        rule(vec![to_pods(), Match::FromGroup(group)], Verdict::Accept),
        // To a Pod that asks the DNS server: the input chain lets no other connection of a Pod in.
        rule(vec![to_pods(), tcp, Match::TcpAccept], Verdict::Accept),
        rule(vec![to_pods(), Match::FromProcess], Verdict::Reject),
    ]
}

/// Set of the interfaces between which this host did not forward packets before a node switched forwarding on.
pub(super) const NOT_FORWARDED: &str = "not-forwarded";

/// Forwarded packets: those from Pods, then those to Pods; some are both. `strict` drops what only the node's own
/// setting would let the host forward: packets between interfaces of the set. Those from or to interfaces that other
/// programs (container engines, VPNs) add later are left to them.
pub(super) fn forward_rules(veth_prefix: &str, strict: bool) -> Vec<FilterRule> {
    let mut list = vec![
        rule(vec![Match::FromInterfaces(veth_prefix.to_owned())], Verdict::Jump(FROM_PODS.to_owned())),
        rule(vec![Match::ToInterfaces(veth_prefix.to_owned())], Verdict::Jump(TO_PODS.to_owned())),
    ];
    if strict {
        let between = vec![Match::FromSet(NOT_FORWARDED.to_owned()), Match::ToSet(NOT_FORWARDED.to_owned())];
        list.push(rule(between, Verdict::Drop));
    }
    list
}

/// With `by_domain`, Pods with rules by domain keep no connection to a proxied port that their policies do not allow
/// directly: it was opened before the Pod had these rules.
pub(super) fn from_pods_rules(tracked: bool, by_domain: bool) -> Vec<FilterRule> {
    let own_rules = || Verdict::LookUpSource("from".to_owned());
    let mut list = pod_chain_rules(tracked, own_rules());
    if by_domain {
        let checked = [libc::IPPROTO_TCP, libc::IPPROTO_UDP].into_iter().flat_map(|protocol| {
            DIVERTED_PORTS.map(|port| {
                let pairs = Match::FromPairSet { set: BY_DOMAIN_PAIRS.to_owned(), inverted: false };
                let to_port = Match::Ports { first: port, last: port };
                rule(vec![Match::Protocol(protocol as u8), to_port, Match::Original, pairs], own_rules())
            })
        });
        list.splice(ESTABLISHED_POSITION..ESTABLISHED_POSITION, checked);
    }
    list
}

/// Position in the chains of Pods of the rule about established connections: after those about other protocols.
const ESTABLISHED_POSITION: usize = 1;

pub(super) fn to_pods_rules(tracked: bool) -> Vec<FilterRule> {
    pod_chain_rules(tracked, Verdict::LookUpTarget("to".to_owned()))
}

/// Established connections are accepted, new ones follow the Pod's own rules.
fn pod_chain_rules(tracked: bool, own_rules: Verdict) -> Vec<FilterRule> {
    let mut list = vec![rule(vec![Match::NotIpv4], Verdict::Drop)];
    if tracked {
        list.push(rule(vec![Match::Established], Verdict::Accept));
    }
    list.push(rule(Vec::new(), own_rules));
    list
}

/// Pods' traffic to other hosts is masqueraded with the host's address.
pub(super) fn masquerade_rules(veth_prefix: &str, network: Ipv4Addr, prefix: u8) -> Vec<FilterRule> {
    let from_network = Match::Source { address: network, prefix, inverted: false };
    vec![rule(vec![from_network, Match::NotToInterfaces(veth_prefix.to_owned())], Verdict::Masquerade)]
}

/// What a Pod may send: only from its own address, and only where a rule allows it.
pub(super) fn egress_rules(own: Ipv4Addr, rules: &PodRules) -> Vec<FilterRule> {
    let spoofed = Match::Source { address: own, prefix: 32, inverted: true };
    let mut list = vec![rule(vec![spoofed], Verdict::Drop)];
    list.extend(rules.egress.iter().flat_map(|allow| allow_rules(allow, false)));
    if rules.by_domain {
        let open = vec![Match::Protocol(libc::IPPROTO_TCP as u8), Match::ToOpenSet(OPEN.to_owned())];
        list.push(rule(open, Verdict::Return));
        // New connections to these ports are diverted: this one was opened before the Pod had these rules.
        list.extend(to_diverted_ports(Verdict::Reset));
        // Programs learn at once that they must not, instead of waiting; with QUIC they turn to TCP.
        list.push(rule(Vec::new(), Verdict::Reject));
        return list;
    }
    list.push(rule(Vec::new(), Verdict::Drop));
    list
}

/// What may be sent to a Pod.
pub(super) fn ingress_rules(rules: &PodRules) -> Vec<FilterRule> {
    let mut list: Vec<_> = rules.ingress.iter().flat_map(|allow| allow_rules(allow, true)).collect();
    list.push(rule(Vec::new(), Verdict::Drop));
    list
}

/// Destinations that a wider permission does not include: they lead to the provider's or the operator's own services.
/// A rule that names one of them, or a part of it, opens it.
const NEVER_IMPLIED: [(Ipv4Addr, u8); 4] = [
    // Shared address space of carriers; some clouds and VPNs use it for their own networks.
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    // Link-local, with the metadata services of most clouds.
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    // Azure's platform services.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    // Oracle's metadata service.
    (Ipv4Addr::new(192, 0, 0, 192), 32),
];

fn allow_rules(allow: &Allow, peer_is_source: bool) -> Vec<FilterRule> {
    let ports: Vec<Option<PortRange>> =
        if allow.ports.is_empty() { vec![None] } else { allow.ports.iter().copied().map(Some).collect() };
    let mut list = Vec::new();
    for peer in &allow.peers {
        let Some(conditions) = peer_matches(peer, peer_is_source) else { continue };
        for range in &ports {
            let with_ports = range.iter().flat_map(port_matches);
            list.push(rule(conditions.iter().cloned().chain(with_ports).collect(), Verdict::Return));
        }
    }
    list
}

/// `None` for IPv6, which Pods do not have.
fn peer_matches(peer: &IpBlock, peer_is_source: bool) -> Option<Vec<Match>> {
    let network = |address: Ipv4Addr, prefix: u8, inverted: bool| {
        if peer_is_source {
            Match::Source { address, prefix, inverted }
        } else {
            Match::Destination { address, prefix, inverted }
        }
    };
    let IpAddr::V4(address) = peer.address else { return None };
    let mut list = vec![network(address, peer.prefix, false)];
    for except in &peer.except {
        if let (IpAddr::V4(address), prefix) = except {
            list.push(network(*address, *prefix, true));
        }
    }
    if !peer_is_source {
        let implied = NEVER_IMPLIED
            .iter()
            .filter(|(special, prefix)| peer.prefix < *prefix && contains(address, peer.prefix, *special));
        list.extend(implied.map(|(special, prefix)| network(*special, *prefix, true)));
    }
    Some(list)
}

fn contains(network: Ipv4Addr, prefix: u8, address: Ipv4Addr) -> bool {
    let mask = netmask(prefix);
    u32::from(network) & mask == u32::from(address) & mask
}

fn port_matches(range: &PortRange) -> Vec<Match> {
    let number = match range.protocol {
        Protocol::Tcp => libc::IPPROTO_TCP,
        Protocol::Udp => libc::IPPROTO_UDP,
        Protocol::Sctp => libc::IPPROTO_SCTP,
    };
    let mut list = vec![Match::Protocol(number as u8)];
    if (range.first, range.last) != (0, u16::MAX) {
        list.push(Match::Ports { first: range.first, last: range.last });
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: [u8; 4], prefix: u8, except: Vec<(IpAddr, u8)>) -> IpBlock {
        IpBlock { address: address.into(), prefix, except }
    }

    #[test]
    fn no_rules_mean_closed_both_ways() {
        let own = Ipv4Addr::new(10, 1, 0, 2);
        assert!(egress_rules(own, &PodRules::default()).iter().all(|rule| rule.verdict == Verdict::Drop));
        assert!(ingress_rules(&PodRules::default()).iter().all(|rule| rule.verdict == Verdict::Drop));
    }

    #[test]
    fn rules_by_domain_divert_what_no_policy_allows_and_reject_what_is_not_open() {
        let (own, gateway) = (Ipv4Addr::new(10, 1, 0, 2), Ipv4Addr::new(10, 1, 0, 1));
        let allow = Allow { peers: vec![block([192, 0, 2, 0], 24, Vec::new())], ports: Vec::new() };
        let rules = PodRules { egress: vec![allow], ingress: Vec::new(), by_domain: true };
        let diverted = divert_rules(own, gateway, &rules);
        let verdicts: Vec<&Verdict> = diverted.iter().map(|rule| &rule.verdict).collect();
        let proxy = Verdict::Divert { address: gateway, port: PROXY_PORT };
        assert_eq!(verdicts, [&Verdict::Drop, &Verdict::Return, &proxy, &proxy]);
        assert!(matches!(diverted[0].matches[..], [Match::Source { inverted: true, .. }]), "a spoofed address first");
        let egress = egress_rules(own, &rules);
        let verdicts: Vec<&Verdict> = egress.iter().map(|rule| &rule.verdict).collect();
        let reset = &Verdict::Reset;
        assert_eq!(verdicts, [&Verdict::Drop, &Verdict::Return, &Verdict::Return, reset, reset, &Verdict::Reject]);
        assert!(egress[2].matches.contains(&Match::ToOpenSet(OPEN.to_owned())));
        let input = by_domain_input_rules(gateway);
        let foreign = Match::FromPairSet { set: BY_DOMAIN_PAIRS.to_owned(), inverted: true };
        assert_eq!(input[0], rule(vec![Match::FromAddressSet(BY_DOMAIN.to_owned()), foreign], Verdict::Drop));
        assert!(matches!(input[1].matches[0], Match::FromPairSet { inverted: false, .. }), "only Pods with rules");
    }

    #[test]
    fn established_connections_to_proxied_ports_follow_the_rules_of_a_pod_with_rules_by_domain() {
        let plain = from_pods_rules(true, false);
        assert_eq!(plain[1], rule(vec![Match::Established], Verdict::Accept));
        let rules = from_pods_rules(true, true);
        let (checked, rest) = rules[1..].split_at(4);
        assert_eq!((&rules[..1], rest), plain.split_at(1));
        for rule in checked {
            assert_eq!(rule.verdict, Verdict::LookUpSource("from".to_owned()));
            assert!(rule.matches.contains(&Match::Original), "answers of a server in the Pod stay");
            let pairs = Match::FromPairSet { set: BY_DOMAIN_PAIRS.to_owned(), inverted: false };
            assert!(rule.matches.contains(&pairs), "other Pods keep theirs");
        }
    }

    #[test]
    fn the_host_reaches_pods_from_the_engines_group_only() {
        let group = EngineGroup { id: 7, level: 1 };
        let rules = output_rules("asb1234", Some(group));
        assert!(rules.iter().all(|rule| rule.matches[0] == Match::ToInterfaces("asb1234".to_owned())), "{rules:?}");
        assert_eq!((&rules[0].matches[1], &rules[0].verdict), (&Match::FromGroup(group), &Verdict::Accept));
        assert_eq!((&rules[2].matches[1..], &rules[2].verdict), (&[Match::FromProcess][..], &Verdict::Reject));
        let by_user = output_rules("asb1234", None);
        assert_eq!((by_user.len(), &by_user[0].matches[1]), (1, &Match::NotFromRoot));
    }

    #[test]
    fn only_packets_between_interfaces_of_the_set_are_dropped_by_a_strict_host() {
        assert_eq!(forward_rules("asb1234", false).len(), 2);
        let rules = forward_rules("asb1234", true);
        let set = || NOT_FORWARDED.to_owned();
        assert_eq!(rules[2], rule(vec![Match::FromSet(set()), Match::ToSet(set())], Verdict::Drop));
    }

    #[test]
    fn packets_from_other_interfaces_match_the_first_rule_and_are_not_tracked() {
        let gateway = Ipv4Addr::new(10, 1, 0, 1);
        let rules = input_rules("asb1234", gateway, false);
        assert_eq!(rules[0], rule(vec![Match::NotFromInterfaces("asb1234".to_owned())], Verdict::Accept));
        assert_eq!(rules.last(), Some(&rule(Vec::new(), Verdict::Drop)));
        let all = rules
            .iter()
            .chain(&from_pods_rules(false, false))
            .chain(&to_pods_rules(false))
            .cloned()
            .collect::<Vec<_>>();
        assert!(all.iter().all(|rule| !rule.matches.contains(&Match::Established)), "{all:?}");
        assert!(input_rules("asb1234", gateway, true).iter().any(|rule| rule.matches == [Match::Established]));
    }

    #[test]
    fn the_spoofing_check_comes_before_every_permission() {
        let rules = PodRules {
            egress: vec![Allow { peers: vec![block([0, 0, 0, 0], 0, Vec::new())], ports: Vec::new() }],
            ingress: Vec::new(),
            by_domain: false,
        };
        let list = egress_rules(Ipv4Addr::new(10, 1, 0, 2), &rules);
        assert!(
            matches!(list[0].matches[..], [Match::Source { inverted: true, .. }]) && list[0].verdict == Verdict::Drop
        );
        assert_eq!(list[1].verdict, Verdict::Return);
        assert_eq!(list.last().map(|rule| &rule.verdict), Some(&Verdict::Drop));
    }

    #[test]
    fn exceptions_and_ports_narrow_every_rule_of_a_peer() {
        let except = vec![(IpAddr::from([10, 0, 0, 0]), 8)];
        let tcp = |first, last| PortRange { protocol: Protocol::Tcp, first, last };
        let allow = Allow { peers: vec![block([0, 0, 0, 0], 0, except)], ports: vec![tcp(80, 80), tcp(1000, 2000)] };
        let rules = PodRules { ingress: vec![allow], egress: Vec::new(), by_domain: false };
        let list = ingress_rules(&rules);
        assert_eq!(list.len(), 3, "one per port range, and the final drop");
        for rule in &list[..2] {
            assert!(rule.matches.iter().any(|m| matches!(m, Match::Source { inverted: true, prefix: 8, .. })));
            assert!(rule.matches.contains(&Match::Protocol(6)));
        }
    }

    #[test]
    fn special_destinations_are_open_only_where_a_rule_names_them() {
        let egress = |address, prefix| {
            let allow = Allow { peers: vec![block(address, prefix, Vec::new())], ports: Vec::new() };
            egress_rules(
                Ipv4Addr::new(10, 1, 0, 2),
                &PodRules { egress: vec![allow], ingress: Vec::new(), by_domain: false },
            )[1]
            .clone()
        };
        let excepted = |rule: &FilterRule| {
            rule.matches.iter().filter(|m| matches!(m, Match::Destination { inverted: true, .. })).count()
        };
        assert_eq!(excepted(&egress([0, 0, 0, 0], 0)), NEVER_IMPLIED.len());
        assert_eq!(excepted(&egress([100, 0, 0, 0], 8)), 1, "only what it contains");
        assert_eq!(excepted(&egress([100, 64, 0, 0], 10)), 0, "named");
        assert_eq!(excepted(&egress([169, 254, 169, 254], 32)), 0, "named in part");
        let ingress = Allow { peers: vec![block([0, 0, 0, 0], 0, Vec::new())], ports: Vec::new() };
        assert_eq!(
            excepted(&ingress_rules(&PodRules { ingress: vec![ingress], egress: Vec::new(), by_domain: false })[0]),
            0
        );
    }

    #[test]
    fn an_empty_peer_list_allows_nothing() {
        let rules = PodRules { ingress: vec![Allow::default()], egress: vec![Allow::default()], by_domain: false };
        assert_eq!(ingress_rules(&rules).len(), 1);
    }
}
