//! Addresses that no domain name leads to, whatever DNS says: otherwise who controls a name controls what a sandbox and
//! the proxy reach (DNS rebinding).

use std::net::Ipv4Addr;

/// Networks that are refused, and what they are. The networks for documentation (192.0.2.0/24 and the like) lead
/// nowhere and are not listed.
const REFUSED: [(Ipv4Addr, u8, &str); 15] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "an unspecified address"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "a private address"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "an address shared by a carrier or VPN"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "a loopback address"),
    (Ipv4Addr::new(168, 63, 129, 16), 32, "a metadata address"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "a link-local or metadata address"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "a private address"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "a special-purpose address"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "a relay address"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "a private address"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "a benchmarking address"),
    (Ipv4Addr::new(192, 31, 196, 0), 24, "a special-purpose address"),
    (Ipv4Addr::new(192, 52, 193, 0), 24, "a special-purpose address"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "a multicast address"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "a reserved address"),
];

/// Why a resolved address is refused; `None` for an address of the public internet.
pub fn refused(address: Ipv4Addr) -> Option<&'static str> {
    let within = |network: Ipv4Addr, prefix: u8| {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        u32::from(address) & mask == u32::from(network)
    };
    REFUSED.iter().find(|(network, prefix, _)| within(*network, *prefix)).map(|(_, _, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_pass() {
        for address in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
        ] {
            assert!(refused(address.parse().unwrap()).is_some(), "{address}");
        }
        for address in ["1.1.1.1", "100.63.255.255", "100.128.0.0", "172.32.0.1", "151.101.0.223", "168.63.129.17"] {
            assert_eq!(refused(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn the_standard_library_agrees() {
        for first in 0..=255 {
            for second in [0, 16, 31, 64, 127, 168, 254] {
                let address = Ipv4Addr::new(first, second, 7, 7);
                let special = address.is_private()
                    || address.is_loopback()
                    || address.is_link_local()
                    || address.is_multicast()
                    || address.is_broadcast()
                    || address.is_unspecified();
                assert!(!special || refused(address).is_some(), "{address}");
            }
        }
    }
}
