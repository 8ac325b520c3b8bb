//! Allowed flows of one Pod, with selectors already resolved to addresses.

use std::net::IpAddr;

/// Everything not listed is closed. The host's own addresses and spoofed sources are always closed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodRules {
    pub ingress: Vec<Allow>,
    pub egress: Vec<Allow>,
    /// The Pod has egress rules by domain: TCP connections to ports 80 and 443 that `egress` does not allow are diverted
    /// to the proxy, and addresses of resolved names are opened by [`PodRuntime::open_ports`](super::PodRuntime).
    pub by_domain: bool,
}

/// Traffic with any of `peers` on any of `ports`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allow {
    /// Empty allows no peer; every address is `0.0.0.0/0`.
    pub peers: Vec<IpBlock>,
    /// Empty means all ports and protocols.
    pub ports: Vec<PortRange>,
}

/// A network without some smaller ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpBlock {
    pub address: IpAddr,
    pub prefix: u8,
    pub except: Vec<(IpAddr, u8)>,
}

/// `first..=last` of one protocol, on the receiving side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    pub protocol: Protocol,
    pub first: u16,
    pub last: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}
