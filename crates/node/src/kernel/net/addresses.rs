//! The Pods' network and the address of each Pod: pure, given the host's routes.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

/// A network of Pod addresses; its first address is the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PodNetwork {
    pub(crate) base: Ipv4Addr,
    pub(crate) prefix: u8,
}

impl PodNetwork {
    /// Parses `10.88.0.0/16`. Networks too small for a gateway and a Pod are rejected.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let prefix: u8 = prefix.parse().ok().filter(|prefix| (8..=29).contains(prefix))?;
        let address: Ipv4Addr = address.parse().ok()?;
        Some(Self { base: Ipv4Addr::from(u32::from(address) & netmask(prefix)), prefix })
    }

    pub(crate) fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.base) + 1)
    }

    fn overlaps(self, other: Self) -> bool {
        let shared = netmask(self.prefix.min(other.prefix));
        u32::from(self.base) & shared == u32::from(other.base) & shared
    }
}

/// The netmask of a prefix length.
pub(super) fn netmask(prefix: u8) -> u32 {
    if prefix == 0 { 0 } else { u32::MAX << (32 - u32::from(prefix.min(32))) }
}

/// The networks of `/proc/net/route`, without the default route.
pub(crate) fn parse_routes(text: &str) -> Vec<PodNetwork> {
    text.lines()
        .skip(1)
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let destination = u32::from_str_radix(fields.nth(1)?, 16).ok()?.swap_bytes();
            let netmask = u32::from_str_radix(fields.nth(5)?, 16).ok()?.swap_bytes();
            let prefix = netmask.leading_ones() as u8;
            (prefix > 0).then_some(PodNetwork { base: Ipv4Addr::from(destination), prefix })
        })
        .collect()
}

/// The first network, from a list that depends on `seed`, that overlaps no route: two nodes on one machine choose
/// different ones, and one node chooses the same again.
pub(crate) fn choose_network(seed: u32, routes: &[PodNetwork]) -> Option<PodNetwork> {
    // 10.64.0.0/10 in 1,024 pieces of 4,094 addresses.
    (0..64u32)
        .map(|attempt| {
            let piece = (seed.wrapping_add(attempt * 17)) % 1_024;
            PodNetwork { base: Ipv4Addr::from(0x0a40_0000 + (piece << 12)), prefix: 20 }
        })
        .find(|candidate| !routes.iter().any(|route| candidate.overlaps(*route)))
}

/// The addresses in use.
#[derive(Debug)]
pub(crate) struct AddressPool {
    network: PodNetwork,
    taken: BTreeSet<u32>,
    next: u32,
}

impl AddressPool {
    pub(crate) fn new(network: PodNetwork) -> Self {
        Self { network, taken: BTreeSet::new(), next: 2 }
    }

    /// Takes the address that has been free for the longest; `None` when all are in use.
    pub(crate) fn take(&mut self) -> Option<Ipv4Addr> {
        let last = !netmask(self.network.prefix) - 1;
        let offset = (self.next..=last).chain(2..self.next).find(|offset| !self.taken.contains(offset))?;
        self.taken.insert(offset);
        self.next = if offset >= last { 2 } else { offset + 1 };
        Some(Ipv4Addr::from(u32::from(self.network.base) + offset))
    }

    /// Marks the address of a recovered Pod as in use.
    pub(crate) fn mark(&mut self, address: Ipv4Addr) {
        self.taken.insert(u32::from(address).wrapping_sub(u32::from(self.network.base)));
    }

    pub(crate) fn give_back(&mut self, address: Ipv4Addr) {
        self.taken.remove(&u32::from(address).wrapping_sub(u32::from(self.network.base)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_read_and_avoided() {
        let text = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                    eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\n\
                    eth0\t0000400A\t00000000\t0001\t0\t0\t0\t0000F0FF\n";
        let routes = parse_routes(text);
        assert_eq!(routes, [PodNetwork { base: Ipv4Addr::new(10, 64, 0, 0), prefix: 12 }]);
        let chosen = choose_network(5, &routes).unwrap();
        assert!(!chosen.overlaps(routes[0]), "{chosen:?}");
        let everything = PodNetwork { base: Ipv4Addr::new(10, 0, 0, 0), prefix: 8 };
        assert_eq!(choose_network(5, &[everything]), None);
    }

    #[test]
    fn another_piece_is_chosen_when_the_first_is_taken() {
        let first = choose_network(5, &[]).unwrap();
        let second = choose_network(5, &[first]).unwrap();
        assert_ne!(first, second);
        assert!(!first.overlaps(second));
        assert_eq!(choose_network(5, &[]), Some(first));
    }

    #[test]
    fn addresses_are_reused_as_late_as_possible() {
        let mut pool = AddressPool::new(PodNetwork::parse("10.0.0.0/29").unwrap());
        let first = pool.take().unwrap();
        assert_eq!(first, Ipv4Addr::new(10, 0, 0, 2));
        pool.give_back(first);
        let rest: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(rest.len(), 5);
        assert_eq!(rest.last(), Some(&first));
    }

    #[test]
    fn networks_are_parsed_strictly() {
        assert_eq!(PodNetwork::parse("10.1.2.3/16").map(|n| n.gateway()), Some(Ipv4Addr::new(10, 1, 0, 1)));
        for bad in ["10.0.0.0", "10.0.0.0/31", "x/16", "10.0.0.0/4"] {
            assert_eq!(PodNetwork::parse(bad), None, "{bad}");
        }
    }
}
