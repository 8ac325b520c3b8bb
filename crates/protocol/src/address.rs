//! Classification of IP addresses: which ones a client may name at all. Whether an address belongs to the sandbox is
//! checked later, elsewhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The class of an address. Every notation that embeds an IPv4 address in an IPv6 address is taken into account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressClass {
    /// May belong to a Pod.
    Routable,
    Loopback,
    LinkLocal,
    Multicast,
    /// `0.0.0.0/8`, `::` and broadcast: "this host", or all hosts.
    Unspecified,
    /// An IPv6 address that embeds a special IPv4 address: IPv4-compatible, NAT64, 6to4 or Teredo. Mapped addresses are
    /// classified as IPv4.
    EmbeddedSpecial,
}

/// The address that a connection would really reach: `::ffff:a.b.c.d` is `a.b.c.d`.
pub fn canonical(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

/// Classifies an address; mapped IPv4 addresses are classified as what they map to.
pub fn classify(ip: IpAddr) -> AddressClass {
    match canonical(ip) {
        IpAddr::V4(v4) => classify_v4(v4),
        IpAddr::V6(v6) => classify_v6(v6),
    }
}

fn classify_v4(ip: Ipv4Addr) -> AddressClass {
    if ip.is_loopback() {
        AddressClass::Loopback
    } else if ip.is_link_local() {
        AddressClass::LinkLocal
    } else if ip.is_multicast() {
        AddressClass::Multicast
    } else if ip.octets()[0] == 0 || ip.is_broadcast() {
        AddressClass::Unspecified
    } else {
        AddressClass::Routable
    }
}

fn classify_v6(ip: Ipv6Addr) -> AddressClass {
    if ip.is_loopback() {
        AddressClass::Loopback
    } else if ip.is_unspecified() {
        AddressClass::Unspecified
    } else if ip.is_unicast_link_local() {
        AddressClass::LinkLocal
    } else if ip.is_multicast() {
        AddressClass::Multicast
    } else if embedded_v4(ip).is_some_and(|v4| classify_v4(v4) != AddressClass::Routable) {
        AddressClass::EmbeddedSpecial
    } else {
        AddressClass::Routable
    }
}

/// The IPv4 address that a translation or tunnel prefix would deliver to.
fn embedded_v4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = ip.segments();
    let pair = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match s {
        // IPv4-compatible (RFC 4291, deprecated) and IPv4-translated (RFC 2765).
        [0, 0, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => Some(pair(high, low)),
        // NAT64: well-known (RFC 6052) and local-use (RFC 8215) prefixes, the address in the last 32 bits.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 1, _, _, _, high, low] => Some(pair(high, low)),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => Some(pair(high, low)),
        // Teredo (RFC 4380): the client's address, inverted.
        [0x2001, 0, _, _, _, _, high, low] => Some(pair(!high, !low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(text: &str) -> AddressClass {
        classify(text.parse().unwrap())
    }

    /// D-114
    #[test]
    fn special_ranges_are_recognised() {
        for (text, expected) in [
            ("127.0.0.1", AddressClass::Loopback),
            ("127.255.255.254", AddressClass::Loopback),
            ("::1", AddressClass::Loopback),
            ("169.254.169.254", AddressClass::LinkLocal),
            ("fe80::1", AddressClass::LinkLocal),
            ("febf::1", AddressClass::LinkLocal),
            ("224.0.0.1", AddressClass::Multicast),
            ("ff02::1", AddressClass::Multicast),
            ("0.0.0.0", AddressClass::Unspecified),
            ("0.1.2.3", AddressClass::Unspecified),
            ("255.255.255.255", AddressClass::Unspecified),
            ("::", AddressClass::Unspecified),
            ("10.0.0.7", AddressClass::Routable),
            ("2001:db8::1", AddressClass::Routable),
            ("fd00::1", AddressClass::Routable),
        ] {
            assert_eq!(class(text), expected, "{text}");
        }
    }

    #[test]
    fn special_addresses_stay_special_when_embedded_in_ipv6() {
        for (text, expected) in [
            ("::ffff:127.0.0.1", AddressClass::Loopback),
            ("::ffff:169.254.169.254", AddressClass::LinkLocal),
            ("::ffff:0.0.0.0", AddressClass::Unspecified),
            ("::127.0.0.1", AddressClass::EmbeddedSpecial),
            ("::ffff:0:127.0.0.1", AddressClass::EmbeddedSpecial),
            ("64:ff9b::169.254.169.254", AddressClass::EmbeddedSpecial),
            ("64:ff9b:1::127.0.0.1", AddressClass::EmbeddedSpecial),
            ("2002:7f00:1::", AddressClass::EmbeddedSpecial),
            ("2002:a9fe:a9fe::1", AddressClass::EmbeddedSpecial),
            ("2001:0:1:2:3:4:80ff:fffe", AddressClass::EmbeddedSpecial),
            ("64:ff9b::10.0.0.7", AddressClass::Routable),
            ("::ffff:10.0.0.7", AddressClass::Routable),
        ] {
            assert_eq!(class(text), expected, "{text}");
        }
    }
}
