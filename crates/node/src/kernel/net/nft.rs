//! Our own nftables table through netlink: which flows of Pods pass. One batch per change, so the kernel sees either the
//! old rules of a Pod or the new ones, never half of them.
//!
//! Layout: packets from or to our cables are looked up by interface name in the maps `from` and `to`, which lead to a
//! chain per Pod and direction. A Pod without an entry meets the map's catch-all, which drops: closed is the default that
//! needs no rule.

use std::io;
use std::net::Ipv4Addr;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::filter::{FilterRule, Match, Verdict};
use super::netlink::{NetlinkMessage, acknowledgement_of_any};

const SUBSYSTEM: u16 = 10;
const FAMILY_INET: u8 = 1;

const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const DELETE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const NEW_ELEMENT: u16 = 12;
const DELETE_ELEMENT: u16 = 14;

const REGISTER: u32 = 1;
const REGISTER_VERDICT: u32 = 0;

/// A list of changes applied together.
pub(super) struct Batch {
    bytes: Vec<u8>,
    table: String,
}

impl Batch {
    pub(super) fn new(table: &str) -> Self {
        let mut begin = message(libc::NFNL_MSG_BATCH_BEGIN as u16, 0, 0, SUBSYSTEM);
        Self { bytes: begin.finish(0).to_vec(), table: table.to_owned() }
    }

    fn push(&mut self, mut message: NetlinkMessage) {
        self.bytes.extend_from_slice(message.finish(1));
    }

    fn start(&self, kind: u16, flags: libc::c_int) -> NetlinkMessage {
        let mut message = message((SUBSYSTEM << 8) | kind, flags, FAMILY_INET, 0);
        message.attribute_string(1, &self.table);
        message
    }

    pub(super) fn add_table(&mut self) {
        let message = self.start(NEW_TABLE, libc::NLM_F_CREATE);
        self.push(message);
    }

    pub(super) fn delete_table(&mut self) {
        let message = self.start(DELETE_TABLE, 0);
        self.push(message);
    }

    pub(super) fn add_chain(&mut self, name: &str) {
        let mut message = self.start(NEW_CHAIN, libc::NLM_F_CREATE);
        message.attribute_string(3, name);
        self.push(message);
    }

    /// A chain the kernel enters by itself: `filter` or `nat`, at a hook, with a priority.
    pub(super) fn add_base_chain(&mut self, name: &str, kind: &str, hook: u32, priority: i32) {
        let mut message = self.start(NEW_CHAIN, libc::NLM_F_CREATE);
        message.attribute_string(3, name);
        message.nested(4, |hooked| {
            hooked.attribute(1, &hook.to_be_bytes());
            hooked.attribute(2, &priority.to_be_bytes());
        });
        message.attribute_string(7, kind);
        self.push(message);
    }

    pub(super) fn flush_chain(&mut self, name: &str) {
        let mut message = self.start(DELETE_RULE, 0);
        message.attribute_string(2, name);
        self.push(message);
    }

    pub(super) fn delete_chain(&mut self, name: &str) {
        let mut message = self.start(DELETE_CHAIN, 0);
        message.attribute_string(3, name);
        self.push(message);
    }

    /// A map from interface names to verdicts whose catch-all drops.
    pub(super) fn add_interface_map(&mut self, name: &str) {
        const MAP: u32 = 0x8;
        const VERDICT_TYPE: u32 = 0xffff_ff00;
        const INTERFACE_NAME_TYPE: u32 = 41;
        let mut message = self.start(NEW_SET, libc::NLM_F_CREATE);
        message.attribute_string(2, name);
        message.attribute(3, &MAP.to_be_bytes());
        message.attribute(4, &INTERFACE_NAME_TYPE.to_be_bytes());
        message.attribute(5, &16u32.to_be_bytes());
        message.attribute(6, &VERDICT_TYPE.to_be_bytes());
        message.attribute(7, &0u32.to_be_bytes());
        message.attribute(10, &1u32.to_be_bytes());
        self.push(message);
        let mut message = self.start(NEW_ELEMENT, libc::NLM_F_CREATE);
        message.attribute_string(2, name);
        message.nested(3, |list| {
            list.nested(1, |element| {
                const CATCH_ALL: u32 = 2;
                element.attribute(3, &CATCH_ALL.to_be_bytes());
                element.nested(2, |data| verdict(data, 2, &Verdict::Drop));
            });
        });
        self.push(message);
    }

    pub(super) fn add_interface(&mut self, map: &str, interface: &str, chain: &str) {
        let mut message = self.start(NEW_ELEMENT, libc::NLM_F_CREATE);
        message.attribute_string(2, map);
        message.nested(3, |list| {
            list.nested(1, |element| {
                element.nested(1, |key| key.attribute(1, &interface_key(interface)));
                element.nested(2, |data| verdict(data, 2, &Verdict::Jump(chain.to_owned())));
            });
        });
        self.push(message);
    }

    pub(super) fn remove_interface(&mut self, map: &str, interface: &str) {
        let mut message = self.start(DELETE_ELEMENT, 0);
        message.attribute_string(2, map);
        message.nested(3, |list| {
            list.nested(1, |element| element.nested(1, |key| key.attribute(1, &interface_key(interface))));
        });
        self.push(message);
    }

    pub(super) fn add_rule(&mut self, chain: &str, rule: &FilterRule) {
        let mut message = self.start(NEW_RULE, libc::NLM_F_CREATE | libc::NLM_F_APPEND);
        message.attribute_string(2, chain);
        message.nested(4, |expressions| {
            for condition in &rule.matches {
                emit_match(expressions, condition);
            }
            emit_verdict(expressions, &rule.verdict);
        });
        self.push(message);
    }

    /// Sends the batch and waits for the kernel's word on it.
    pub(super) fn commit(mut self) -> io::Result<()> {
        let mut end = message(libc::NFNL_MSG_BATCH_END as u16, libc::NLM_F_ACK, 0, SUBSYSTEM);
        self.bytes.extend_from_slice(end.finish(2));
        let protocol = Some(rustix::net::netlink::NETFILTER);
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        let timeout = Some(std::time::Duration::from_secs(10));
        rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, timeout)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, self.bytes.len().max(64 * 1024))?;
        rustix::net::send(&socket, &self.bytes, SendFlags::empty())?;
        let mut buffer = vec![0u8; 32 * 1024];
        loop {
            let (length, _) = rustix::net::recv(&socket, &mut buffer, RecvFlags::empty())?;
            if let Some(result) = acknowledgement_of_any(buffer.get(..length).unwrap_or_default()) {
                return result;
            }
        }
    }
}

fn message(kind: u16, flags: libc::c_int, family: u8, resource: u16) -> NetlinkMessage {
    let mut message = NetlinkMessage::without_acknowledgement(kind, flags);
    let resource = resource.to_be_bytes();
    message.raw(&[family, 0, resource[0], resource[1]]);
    message
}

fn interface_key(name: &str) -> [u8; 16] {
    let mut key = [0; 16];
    for (slot, byte) in key.iter_mut().take(15).zip(name.bytes()) {
        *slot = byte;
    }
    key
}

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

fn emit_match(list: &mut NetlinkMessage, condition: &Match) {
    const META_IN: u32 = 6;
    const META_OUT: u32 = 7;
    const META_FAMILY: u32 = 15;
    const META_PROTOCOL: u32 = 16;
    const NETWORK_HEADER: u32 = 1;
    const TRANSPORT_HEADER: u32 = 2;
    let network = |list: &mut NetlinkMessage, offset: u32, address: Ipv4Addr, prefix: u8, operation: u32| {
        load_payload(list, NETWORK_HEADER, offset, 4);
        let bits = if prefix == 0 { 0 } else { u32::MAX << (32 - u32::from(prefix.min(32))) };
        mask(list, &bits.to_be_bytes());
        compare(list, operation, &(u32::from(address) & bits).to_be_bytes());
    };
    match condition {
        Match::FromInterfaces(prefix) => {
            load_meta(list, META_IN);
            compare(list, EQUAL, prefix.as_bytes());
        }
        Match::ToInterfaces(prefix) => {
            load_meta(list, META_OUT);
            compare(list, EQUAL, prefix.as_bytes());
        }
        Match::NotToInterfaces(prefix) => {
            load_meta(list, META_OUT);
            compare(list, NOT_EQUAL, prefix.as_bytes());
        }
        Match::NotIpv4 => {
            load_meta(list, META_FAMILY);
            compare(list, NOT_EQUAL, &[libc::NFPROTO_IPV4 as u8]);
        }
        Match::Established => {
            expression(list, "ct", |data| {
                be(data, 1, REGISTER);
                be(data, 2, 0);
            });
            // Established and related; the state is a word in the machine's own order.
            mask(list, &6u32.to_ne_bytes());
            compare(list, NOT_EQUAL, &0u32.to_ne_bytes());
        }
        Match::Source { address, prefix, inverted } => {
            network(list, 12, *address, *prefix, if *inverted { NOT_EQUAL } else { EQUAL });
        }
        Match::Destination { address, prefix, inverted } => {
            network(list, 16, *address, *prefix, if *inverted { NOT_EQUAL } else { EQUAL });
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

fn emit_verdict(list: &mut NetlinkMessage, what: &Verdict) {
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
        simple => expression(list, "immediate", |data| {
            be(data, 1, REGISTER_VERDICT);
            data.nested(2, |operand| verdict(operand, 2, simple));
        }),
    }
}

fn verdict(message: &mut NetlinkMessage, kind: u16, what: &Verdict) {
    let code: i32 = match what {
        Verdict::Accept => 1,
        Verdict::Return => -5,
        Verdict::Jump(_) => -3,
        Verdict::Drop | Verdict::LookUpSource(_) | Verdict::LookUpTarget(_) | Verdict::Masquerade => 0,
    };
    message.nested(kind, |data| {
        data.attribute(1, &code.to_be_bytes());
        if let Verdict::Jump(chain) = what {
            data.attribute_string(2, chain);
        }
    });
}
