//! What passes, as data: the rules every Pod lives under, and those a Pod's policies allow. Pure; `nft` writes them.

use std::net::{IpAddr, Ipv4Addr};

use crate::runtime::{Allow, IpBlock, PodRules, PortRange, Protocol};

/// One rule: all conditions hold, then the verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilterRule {
    pub(super) matches: Vec<Match>,
    pub(super) verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Match {
    /// Interfaces whose name begins so.
    FromInterfaces(String),
    NotFromInterfaces(String),
    ToInterfaces(String),
    NotToInterfaces(String),
    NotIpv4,
    Established,
    /// A segment that does not open a connection.
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
    /// The receiver's port.
    Ports {
        first: u16,
        last: u16,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Drop,
    /// Allowed by this chain; the chain before it goes on.
    Return,
    Jump(String),
    /// By a map from the incoming interface's name.
    LookUpSource(String),
    /// By a map from the outgoing interface's name.
    LookUpTarget(String),
    Masquerade,
}

pub(super) fn rule(matches: Vec<Match>, verdict: Verdict) -> FilterRule {
    FilterRule { matches, verdict }
}

/// What packets from Pods go through on their way through the host, and packets to Pods.
pub(super) const FROM_PODS: &str = "from-pods";
pub(super) const TO_PODS: &str = "to-pods";

/// Packets from Pods to the host itself: answers, and questions to DNS on the gateway. Nothing else, on any address. Packets
/// of anybody else leave with the first rule.
///
/// The host talks to Pods from the gateway's address. As long as connections are not tracked, answers are told by their
/// flags: a segment that opens no connection finds a connection that the host opened, or is refused by the host's kernel.
pub(super) fn input_rules(cables: &str, gateway: Ipv4Addr, tracked: bool) -> Vec<FilterRule> {
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
        rule(vec![Match::NotFromInterfaces(cables.to_owned())], Verdict::Accept),
        rule(vec![Match::NotIpv4], Verdict::Drop),
        rule(answers, Verdict::Accept),
        dns(libc::IPPROTO_UDP),
        dns(libc::IPPROTO_TCP),
        rule(Vec::new(), Verdict::Drop),
    ]
}

/// Packets through the host: those from Pods, then those to Pods; some are both.
pub(super) fn forward_rules(cables: &str) -> Vec<FilterRule> {
    vec![
        rule(vec![Match::FromInterfaces(cables.to_owned())], Verdict::Jump(FROM_PODS.to_owned())),
        rule(vec![Match::ToInterfaces(cables.to_owned())], Verdict::Jump(TO_PODS.to_owned())),
    ]
}

pub(super) fn from_pods_rules(tracked: bool) -> Vec<FilterRule> {
    passing(tracked, Verdict::LookUpSource("from".to_owned()))
}

pub(super) fn to_pods_rules(tracked: bool) -> Vec<FilterRule> {
    passing(tracked, Verdict::LookUpTarget("to".to_owned()))
}

/// Known connections pass, new ones by the Pod's own rules.
fn passing(tracked: bool, own_rules: Verdict) -> Vec<FilterRule> {
    let mut list = vec![rule(vec![Match::NotIpv4], Verdict::Drop)];
    if tracked {
        list.push(rule(vec![Match::Established], Verdict::Accept));
    }
    list.push(rule(Vec::new(), own_rules));
    list
}

/// Pods' traffic to the world carries the host's address.
pub(super) fn masquerade_rules(cables: &str, network: Ipv4Addr, prefix: u8) -> Vec<FilterRule> {
    let from_network = Match::Source { address: network, prefix, inverted: false };
    vec![rule(vec![from_network, Match::NotToInterfaces(cables.to_owned())], Verdict::Masquerade)]
}

/// What a Pod may send: only as itself, only where a rule allows.
pub(super) fn egress_rules(own: Ipv4Addr, rules: &PodRules) -> Vec<FilterRule> {
    let spoofed = Match::Source { address: own, prefix: 32, inverted: true };
    let mut list = vec![rule(vec![spoofed], Verdict::Drop)];
    list.extend(rules.egress.iter().flat_map(|allow| allow_rules(allow, false)));
    list.push(rule(Vec::new(), Verdict::Drop));
    list
}

/// What a Pod may be sent.
pub(super) fn ingress_rules(rules: &PodRules) -> Vec<FilterRule> {
    let mut list: Vec<_> = rules.ingress.iter().flat_map(|allow| allow_rules(allow, true)).collect();
    list.push(rule(Vec::new(), Verdict::Drop));
    list
}

fn allow_rules(allow: &Allow, peer_is_source: bool) -> Vec<FilterRule> {
    let ports: Vec<Option<PortRange>> =
        if allow.ports.is_empty() { vec![None] } else { allow.ports.iter().copied().map(Some).collect() };
    let mut list = Vec::new();
    for peer in &allow.peers {
        let Some(mut conditions) = peer_matches(peer, peer_is_source) else { continue };
        for range in &ports {
            let with_ports = range.iter().flat_map(port_matches);
            list.push(rule(conditions.iter().cloned().chain(with_ports).collect(), Verdict::Return));
        }
        conditions.clear();
    }
    list
}

/// `None` for addresses Pods do not have (IPv6).
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
    Some(list)
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
    fn packets_of_others_leave_with_the_first_rule_and_are_not_tracked() {
        let gateway = Ipv4Addr::new(10, 1, 0, 1);
        let rules = input_rules("asb1234", gateway, false);
        assert_eq!(rules[0], rule(vec![Match::NotFromInterfaces("asb1234".to_owned())], Verdict::Accept));
        assert_eq!(rules.last(), Some(&rule(Vec::new(), Verdict::Drop)));
        let all = rules.iter().chain(&from_pods_rules(false)).chain(&to_pods_rules(false)).cloned().collect::<Vec<_>>();
        assert!(all.iter().all(|rule| !rule.matches.contains(&Match::Established)), "{all:?}");
        assert!(input_rules("asb1234", gateway, true).iter().any(|rule| rule.matches == [Match::Established]));
    }

    #[test]
    fn the_spoofing_check_comes_before_every_permission() {
        let rules = PodRules {
            egress: vec![Allow { peers: vec![block([0, 0, 0, 0], 0, Vec::new())], ports: Vec::new() }],
            ingress: Vec::new(),
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
        let rules = PodRules { ingress: vec![allow], egress: Vec::new() };
        let list = ingress_rules(&rules);
        assert_eq!(list.len(), 3, "one per port range, and the final drop");
        for rule in &list[..2] {
            assert!(rule.matches.iter().any(|m| matches!(m, Match::Source { inverted: true, prefix: 8, .. })));
            assert!(rule.matches.contains(&Match::Protocol(6)));
        }
    }

    #[test]
    fn nobody_is_allowed_by_an_empty_peer_list() {
        let rules = PodRules { ingress: vec![Allow::default()], egress: vec![Allow::default()] };
        assert_eq!(ingress_rules(&rules).len(), 1);
    }
}
