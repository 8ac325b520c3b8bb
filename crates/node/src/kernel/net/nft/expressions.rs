//! Conditions and verdicts of rules as nftables' expressions: each loads a value into a register, masks it, or compares it.

use std::net::Ipv4Addr;

use crate::kernel::net::addresses::netmask;
use crate::kernel::net::engine_group::EngineGroup;
use crate::kernel::net::filter::{Match, Verdict};
use crate::kernel::net::netlink::NetlinkMessage;

const REGISTER: u32 = 1;
const REGISTER_VERDICT: u32 = 0;

fn expression(list: &mut NetlinkMessage, name: &str, fill: impl FnOnce(&mut NetlinkMessage)) {
    list.nested(1, |element| {
        element.attribute_string(1, name);
        element.nested(2, fill);
    });
}

fn be(message: &mut NetlinkMessage, kind: u16, value: u32) {
    message.attribute(kind, &value.to_be_bytes());
}

fn load_meta(list: &mut NetlinkMessage, key: u32) {
    expression(list, "meta", |data| {
        be(data, 1, REGISTER);
        be(data, 2, key);
    });
}

/// Loads a property of the connection to which the packet belongs.
fn load_connection(list: &mut NetlinkMessage, key: u32) {
    expression(list, "ct", |data| {
        be(data, 1, REGISTER);
        be(data, 2, key);
    });
}

fn load_payload(list: &mut NetlinkMessage, base: u32, offset: u32, length: u32) {
    expression(list, "payload", |data| {
        be(data, 1, REGISTER);
        be(data, 2, base);
        be(data, 3, offset);
        be(data, 4, length);
    });
}

const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const AT_MOST: u32 = 3;
const AT_LEAST: u32 = 5;

fn compare(list: &mut NetlinkMessage, operation: u32, value: &[u8]) {
    expression(list, "cmp", |data| {
        be(data, 1, REGISTER);
        be(data, 2, operation);
        data.nested(3, |operand| operand.attribute(1, value));
    });
}

fn mask(list: &mut NetlinkMessage, bits: &[u8]) {
    expression(list, "bitwise", |data| {
        be(data, 1, REGISTER);
        be(data, 2, REGISTER);
        be(data, 3, bits.len() as u32);
        data.nested(4, |operand| operand.attribute(1, bits));
        data.nested(5, |operand| operand.attribute(1, &vec![0; bits.len()]));
    });
}

/// First of the registers of four bytes, in which keys of several parts are put together: an interface's name takes four.
const KEY: u32 = 8;
const KEY_AFTER_NAME: u32 = KEY + 4;

/// Begins a key with the incoming interface's name.
fn key_interface(list: &mut NetlinkMessage) {
    const META_IN: u32 = 6;
    expression(list, "meta", |data| {
        be(data, 1, KEY);
        be(data, 2, META_IN);
    });
}

/// Adds bytes of a packet to a key.
fn key_payload(list: &mut NetlinkMessage, register: u32, base: u32, offset: u32, length: u32) {
    expression(list, "payload", |data| {
        be(data, 1, register);
        be(data, 2, base);
        be(data, 3, offset);
        be(data, 4, length);
    });
}

fn look_up(list: &mut NetlinkMessage, register: u32, set: &str, inverted: bool) {
    const INVERTED: u32 = 1;
    expression(list, "lookup", |data| {
        data.attribute_string(1, set);
        be(data, 2, register);
        if inverted {
            be(data, 5, INVERTED);
        }
    });
}

/// Whether an interface's name is in a set.
fn in_set(list: &mut NetlinkMessage, key: u32, set: &str) {
    load_meta(list, key);
    expression(list, "lookup", |data| {
        data.attribute_string(1, set);
        be(data, 2, REGISTER);
    });
}

pub(super) fn emit_match(list: &mut NetlinkMessage, condition: &Match) {
    const META_IN: u32 = 6;
    const META_OUT: u32 = 7;
    const META_FAMILY: u32 = 15;
    const META_PROTOCOL: u32 = 16;
    const META_SOCKET_UID: u32 = 10;
    const NETWORK_HEADER: u32 = 1;
    const TRANSPORT_HEADER: u32 = 2;
    const SOURCE: u32 = 12;
    const DESTINATION: u32 = 16;
    let network = |list: &mut NetlinkMessage, offset: u32, address: Ipv4Addr, prefix: u8, operation: u32| {
        load_payload(list, NETWORK_HEADER, offset, 4);
        let bits = netmask(prefix);
        mask(list, &bits.to_be_bytes());
        compare(list, operation, &(u32::from(address) & bits).to_be_bytes());
    };
    match condition {
        Match::FromInterfaces(prefix) => {
            load_meta(list, META_IN);
            compare(list, EQUAL, prefix.as_bytes());
        }
        Match::NotFromInterfaces(prefix) => {
            load_meta(list, META_IN);
            compare(list, NOT_EQUAL, prefix.as_bytes());
        }
        Match::ToInterfaces(prefix) => {
            load_meta(list, META_OUT);
            compare(list, EQUAL, prefix.as_bytes());
        }
        Match::NotToInterfaces(prefix) => {
            load_meta(list, META_OUT);
            compare(list, NOT_EQUAL, prefix.as_bytes());
        }
        Match::TcpAnswer => {
            const ACKNOWLEDGES_OR_RESETS: u8 = 0x14;
            load_payload(list, TRANSPORT_HEADER, 13, 1);
            mask(list, &[ACKNOWLEDGES_OR_RESETS]);
            compare(list, NOT_EQUAL, &[0]);
        }
        Match::NotFromRoot => {
            load_meta(list, META_SOCKET_UID);
            compare(list, NOT_EQUAL, &0u32.to_ne_bytes());
        }
        Match::FromGroup(EngineGroup { id, level }) => {
            const SOCKET_CGROUP_V2: u32 = 3;
            expression(list, "socket", |data| {
                be(data, 1, SOCKET_CGROUP_V2);
                be(data, 2, REGISTER);
                be(data, 3, *level);
            });
            compare(list, EQUAL, &id.to_ne_bytes());
        }
        Match::FromProcess => {
            // Every user: the value can only be loaded where there is a socket of a process.
            load_meta(list, META_SOCKET_UID);
            compare(list, AT_LEAST, &0u32.to_ne_bytes());
        }
        Match::FromAddressSet(set) => {
            load_payload(list, NETWORK_HEADER, SOURCE, 4);
            look_up(list, REGISTER, set, false);
        }
        Match::FromPairSet { set, inverted } => {
            key_interface(list);
            key_payload(list, KEY_AFTER_NAME, NETWORK_HEADER, SOURCE, 4);
            look_up(list, KEY, set, *inverted);
        }
        Match::ToOpenSet(set) => {
            key_interface(list);
            key_payload(list, KEY_AFTER_NAME, NETWORK_HEADER, DESTINATION, 4);
            key_payload(list, KEY_AFTER_NAME + 1, TRANSPORT_HEADER, 2, 2);
            look_up(list, KEY, set, false);
        }
        Match::FromSet(set) => in_set(list, META_IN, set),
        Match::ToSet(set) => in_set(list, META_OUT, set),
        Match::TcpAccept => {
            const OPENS_AND_ACKNOWLEDGES: u8 = 0x12;
            load_payload(list, TRANSPORT_HEADER, 13, 1);
            mask(list, &[OPENS_AND_ACKNOWLEDGES]);
            compare(list, EQUAL, &[OPENS_AND_ACKNOWLEDGES]);
        }
        Match::NotIpv4 => {
            load_meta(list, META_FAMILY);
            compare(list, NOT_EQUAL, &[libc::NFPROTO_IPV4 as u8]);
        }
        Match::Original => {
            const DIRECTION: u32 = 1;
            load_connection(list, DIRECTION);
            compare(list, EQUAL, &[0]);
        }
        Match::Established => {
            const STATE: u32 = 0;
            load_connection(list, STATE);
            // Established and related; the state is a word in native byte order.
            mask(list, &6u32.to_ne_bytes());
            compare(list, NOT_EQUAL, &0u32.to_ne_bytes());
        }
        Match::Source { address, prefix, inverted } => {
            network(list, SOURCE, *address, *prefix, if *inverted { NOT_EQUAL } else { EQUAL });
        }
        Match::Destination { address, prefix, inverted } => {
            network(list, DESTINATION, *address, *prefix, if *inverted { NOT_EQUAL } else { EQUAL });
        }
        Match::Protocol(number) => {
            load_meta(list, META_PROTOCOL);
            compare(list, EQUAL, &[*number]);
        }
        Match::Ports { first, last } => {
            load_payload(list, TRANSPORT_HEADER, 2, 2);
            if first == last {
                compare(list, EQUAL, &first.to_be_bytes());
            } else {
                compare(list, AT_LEAST, &first.to_be_bytes());
                compare(list, AT_MOST, &last.to_be_bytes());
            }
        }
    }
}

pub(super) fn emit_verdict(list: &mut NetlinkMessage, what: &Verdict) {
    const META_IN: u32 = 6;
    const META_OUT: u32 = 7;
    let lookup = |list: &mut NetlinkMessage, key: u32, map: &str| {
        load_meta(list, key);
        expression(list, "lookup", |data| {
            data.attribute_string(1, map);
            be(data, 2, REGISTER);
            be(data, 3, REGISTER_VERDICT);
        });
    };
    match what {
        Verdict::LookUpSource(map) => lookup(list, META_IN, map),
        Verdict::LookUpTarget(map) => lookup(list, META_OUT, map),
        Verdict::Masquerade => expression(list, "masq", |_| {}),
        Verdict::Divert { address, port } => {
            const REGISTER_PORT: u32 = 2;
            const DESTINATION_NAT: u32 = 1;
            let values: [(u32, &[u8]); 2] = [(REGISTER, &address.octets()), (REGISTER_PORT, &port.to_be_bytes())];
            for (register, value) in values {
                expression(list, "immediate", |data| {
                    be(data, 1, register);
                    data.nested(2, |operand| operand.attribute(1, value));
                });
            }
            expression(list, "nat", |data| {
                be(data, 1, DESTINATION_NAT);
                be(data, 2, libc::NFPROTO_IPV4 as u32);
                be(data, 3, REGISTER);
                be(data, 5, REGISTER_PORT);
            });
        }
        Verdict::Reject => expression(list, "reject", |data| {
            const ICMPX_UNREACHABLE: u32 = 2;
            const ADMIN_PROHIBITED: u8 = 3;
            be(data, 1, ICMPX_UNREACHABLE);
            data.attribute(2, &[ADMIN_PROHIBITED]);
        }),
        Verdict::Reset => expression(list, "reject", |data| {
            const TCP_RESET: u32 = 1;
            be(data, 1, TCP_RESET);
        }),
        simple => expression(list, "immediate", |data| {
            be(data, 1, REGISTER_VERDICT);
            data.nested(2, |operand| verdict(operand, 2, simple));
        }),
    }
}

pub(super) fn verdict(message: &mut NetlinkMessage, kind: u16, what: &Verdict) {
    let code: i32 = match what {
        Verdict::Accept => 1,
        Verdict::Return => -5,
        Verdict::Jump(_) => -3,
        Verdict::Drop
        | Verdict::Reject
        | Verdict::Reset
        | Verdict::LookUpSource(_)
        | Verdict::LookUpTarget(_)
        | Verdict::Masquerade
        | Verdict::Divert { .. } => 0,
    };
    message.nested(kind, |data| {
        data.attribute(1, &code.to_be_bytes());
        if let Verdict::Jump(chain) = what {
            data.attribute_string(2, chain);
        }
    });
}
