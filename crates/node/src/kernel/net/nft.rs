//! Our own nftables table, written through netlink: which flows of Pods are allowed. One batch per change, so the
//! kernel applies either the old rules of a Pod or the new ones, never a mixture.
//!
//! Layout: packets from or to our veths are looked up by interface name in the maps `from` and `to`, which lead to a
//! chain per Pod and direction. A Pod without an entry matches the map's catch-all element, which drops: closed is the
//! default that needs no rule.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::filter::{FilterRule, Verdict};
use super::netlink::{NetlinkMessage, acknowledgement_of_any};

mod expressions;

use expressions::{emit_match, emit_verdict, verdict};

const SUBSYSTEM: u16 = 10;
const FAMILY_INET: u8 = 1;

const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const DELETE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const NEW_ELEMENT: u16 = 12;
const DELETE_ELEMENT: u16 = 14;

const TABLE_USER_DATA: u16 = 6;

/// The type of interface names in sets, for programs that list them.
const INTERFACE_NAME_TYPE: u32 = 41;

/// A netlink socket to nftables. Closing one waits until the kernel has freed everything that was deleted through it,
/// and blocks all other changes meanwhile: a node keeps one for its whole life.
pub(crate) struct NftSocket {
    socket: Mutex<OwnedFd>,
}

impl NftSocket {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { socket: Mutex::new(open_socket()?) })
    }

    /// Uses a socket of another network namespace.
    pub(super) fn from_fd(socket: OwnedFd) -> Self {
        Self { socket: Mutex::new(socket) }
    }

    /// Whether a table exists.
    pub(super) fn has_table(&self, name: &str) -> io::Result<bool> {
        let mut request = message((SUBSYSTEM << 8) | GET_TABLE, libc::NLM_F_ACK, FAMILY_INET, 0);
        request.attribute_string(1, name);
        match self.exchange(request.finish(1)) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Sends messages and waits for their acknowledgement.
    fn exchange(&self, bytes: &[u8]) -> io::Result<()> {
        let socket = self.socket.lock();
        let mut buffer = vec![0u8; 32 * 1024];
        // An earlier batch with several errors may have left more than one acknowledgement.
        while rustix::net::recv(&*socket, &mut buffer, RecvFlags::DONTWAIT).is_ok() {}
        rustix::net::sockopt::set_socket_send_buffer_size(&*socket, bytes.len().max(64 * 1024))?;
        rustix::net::send(&*socket, bytes, SendFlags::empty())?;
        loop {
            let (length, _) = rustix::net::recv(&*socket, &mut buffer, RecvFlags::empty())?;
            if let Some(result) = acknowledgement_of_any(buffer.get(..length).unwrap_or_default()) {
                return result;
            }
        }
    }

    /// Runs `work` with the descriptor, for passing it to another process that keeps it open too.
    pub(crate) fn with_fd<T>(&self, work: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        work(self.socket.lock().as_fd())
    }
}

/// A part of a set's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyPart {
    Interface,
    Address,
    Port,
}

impl KeyPart {
    fn kind(self) -> u32 {
        match self {
            Self::Interface => INTERFACE_NAME_TYPE,
            Self::Address => 7,
            Self::Port => 13,
        }
    }

    /// Parts fill words of four bytes.
    fn length(self) -> u32 {
        if self == Self::Interface { 16 } else { 4 }
    }
}

/// A set of keys with these parts.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeySet {
    pub(super) name: &'static str,
    pub(super) parts: &'static [KeyPart],
    pub(super) timed: bool,
}

/// The key of an element, and the time after which the kernel removes it if it has one.
pub(super) type SetElement = (Vec<u8>, Option<Duration>);

/// The key of an interface, an address and a port, of those that a set has.
pub(super) fn set_key(interface: Option<&str>, address: Ipv4Addr, port: Option<u16>) -> Vec<u8> {
    let interface = interface.map(interface_key);
    let port = port.map(|port| [port.to_be_bytes(), [0, 0]].concat());
    let parts = [interface.as_ref().map_or(&[][..], |key| key), &address.octets(), port.as_deref().unwrap_or_default()];
    parts.concat()
}

/// A list of changes that the kernel applies together.
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// Offset of the last change.
    last: usize,
    table: String,
}

impl Batch {
    pub(super) fn new(table: &str) -> Self {
        let mut begin = message(libc::NFNL_MSG_BATCH_BEGIN as u16, 0, 0, SUBSYSTEM);
        Self { bytes: begin.finish(0).to_vec(), last: 0, table: table.to_owned() }
    }

    fn push(&mut self, mut message: NetlinkMessage) {
        self.last = self.bytes.len();
        self.bytes.extend_from_slice(message.finish(1));
    }

    /// Requests an acknowledgement of the last change, which the kernel sends once all are applied. Acknowledging the
    /// end of the batch is only supported since 6.10.
    fn request_acknowledgement(&mut self) {
        const FLAGS: usize = 6;
        if let Some([low, high]) = self.bytes.get_mut(self.last + FLAGS..).and_then(|rest| rest.first_chunk_mut::<2>())
        {
            let flags = u16::from_ne_bytes([*low, *high]) | libc::NLM_F_ACK as u16;
            [*low, *high] = flags.to_ne_bytes();
        }
    }

    fn start(&self, kind: u16, flags: libc::c_int) -> NetlinkMessage {
        let mut message = message((SUBSYSTEM << 8) | kind, flags, FAMILY_INET, 0);
        message.attribute_string(1, &self.table);
        message
    }

    /// The comment is for people who list tables, and for `doctor`, which may find the table without its node.
    pub(super) fn add_table(&mut self, comment: &str) {
        let mut message = self.start(NEW_TABLE, libc::NLM_F_CREATE);
        if let Some(data) = comment_data(comment) {
            message.attribute(TABLE_USER_DATA, &data);
        }
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

    /// A base chain: `filter` or `nat`, at a hook, with a priority.
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

    /// A map from interface names to verdicts whose catch-all element drops.
    pub(super) fn add_interface_map(&mut self, name: &str) {
        self.add_open_interface_map(name);
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

    /// A map from interface names to verdicts; for others the chain continues.
    pub(super) fn add_open_interface_map(&mut self, name: &str) {
        const MAP: u32 = 0x8;
        const VERDICT_TYPE: u32 = 0xffff_ff00;
        let mut message = self.start(NEW_SET, libc::NLM_F_CREATE);
        message.attribute_string(2, name);
        message.attribute(3, &MAP.to_be_bytes());
        message.attribute(4, &INTERFACE_NAME_TYPE.to_be_bytes());
        message.attribute(5, &16u32.to_be_bytes());
        message.attribute(6, &VERDICT_TYPE.to_be_bytes());
        message.attribute(7, &0u32.to_be_bytes());
        message.attribute(10, &1u32.to_be_bytes());
        self.push(message);
    }

    /// A set of keys. The elements of one with time-outs are removed by the kernel.
    pub(super) fn add_set(&mut self, set: &KeySet) {
        const TIMEOUT: u32 = 0x10;
        let mut message = self.start(NEW_SET, libc::NLM_F_CREATE);
        message.attribute_string(2, set.name);
        message.attribute(3, &if set.timed { TIMEOUT } else { 0 }.to_be_bytes());
        // The types of a key's parts, six bits each, are for programs that list the set.
        let kind = set.parts.iter().fold(0, |kind, part| kind << 6 | part.kind());
        let length: u32 = set.parts.iter().map(|part| part.length()).sum();
        message.attribute(4, &kind.to_be_bytes());
        message.attribute(5, &length.to_be_bytes());
        message.attribute(10, &3u32.to_be_bytes());
        self.push(message);
    }

    /// Adds elements; one that exists stays as it is. (Since kernel 6.12 it gets the new time.)
    pub(super) fn add_elements(&mut self, set: &str, elements: &[SetElement]) {
        self.change_elements(NEW_ELEMENT, libc::NLM_F_CREATE, set, elements);
    }

    /// Removes elements; one that does not exist is an error of the whole batch.
    pub(super) fn remove_elements(&mut self, set: &str, elements: &[SetElement]) {
        self.change_elements(DELETE_ELEMENT, 0, set, elements);
    }

    /// Removes elements, whether they exist or have expired.
    pub(super) fn clear_elements(&mut self, set: &str, elements: &[SetElement]) {
        self.add_elements(set, elements);
        self.remove_elements(set, elements);
    }

    /// Adds elements, and gives those that exist their new time.
    pub(super) fn renew_elements(&mut self, set: &str, elements: &[SetElement]) {
        self.clear_elements(set, elements);
        self.add_elements(set, elements);
    }

    /// Removes all elements.
    pub(super) fn flush_set(&mut self, set: &str) {
        let mut message = self.start(DELETE_ELEMENT, 0);
        message.attribute_string(2, set);
        self.push(message);
    }

    fn change_elements(&mut self, kind: u16, flags: i32, set: &str, elements: &[SetElement]) {
        let mut message = self.start(kind, flags);
        message.attribute_string(2, set);
        message.nested(3, |list| {
            for (key, time) in elements {
                list.nested(1, |element| {
                    element.nested(1, |data| data.attribute(1, key));
                    if let Some(time) = time {
                        let milliseconds = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                        element.attribute(4, &milliseconds.to_be_bytes());
                    }
                });
            }
        });
        self.push(message);
    }

    /// A set of interface names.
    pub(super) fn add_interface_set(&mut self, name: &str, interfaces: &[String]) {
        let mut message = self.start(NEW_SET, libc::NLM_F_CREATE);
        message.attribute_string(2, name);
        message.attribute(3, &0u32.to_be_bytes());
        message.attribute(4, &INTERFACE_NAME_TYPE.to_be_bytes());
        message.attribute(5, &16u32.to_be_bytes());
        message.attribute(10, &2u32.to_be_bytes());
        self.push(message);
        if interfaces.is_empty() {
            return;
        }
        let mut message = self.start(NEW_ELEMENT, libc::NLM_F_CREATE);
        message.attribute_string(2, name);
        message.nested(3, |list| {
            for interface in interfaces {
                list.nested(1, |element| element.nested(1, |key| key.attribute(1, &interface_key(interface))));
            }
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

    /// Sends the batch and waits for its acknowledgement.
    pub(super) fn commit(mut self, nft: &NftSocket) -> io::Result<()> {
        self.request_acknowledgement();
        let mut end = message(libc::NFNL_MSG_BATCH_END as u16, 0, 0, SUBSYSTEM);
        self.bytes.extend_from_slice(end.finish(2));
        nft.exchange(&self.bytes)
    }
}

/// A table, as listed by the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) comment: Option<String>,
}

/// All tables of the inet family in the current network namespace.
pub(crate) fn tables() -> io::Result<Vec<Table>> {
    let mut request = message((SUBSYSTEM << 8) | GET_TABLE, libc::NLM_F_DUMP, FAMILY_INET, 0);
    let socket = open_socket()?;
    rustix::net::send(&socket, request.finish(1), SendFlags::empty())?;
    let mut buffer = vec![0u8; 32 * 1024];
    let mut list = Vec::new();
    loop {
        let (length, _) = rustix::net::recv(&socket, &mut buffer, RecvFlags::empty())?;
        let bytes = buffer.get(..length).unwrap_or_default();
        if let Some(result) = acknowledgement_of_any(bytes) {
            return result.map(|()| list);
        }
        let done = each_message(bytes, |attributes| list.extend(parse_table(attributes)));
        if done || length == 0 {
            return Ok(list);
        }
    }
}

/// Calls `visit` with the attributes of each message; returns whether the end of the list was reached.
fn each_message(mut bytes: &[u8], mut visit: impl FnMut(&[u8])) -> bool {
    const HEADERS: usize = 20;
    while let Some(header) = bytes.first_chunk::<16>() {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let length = length.clamp(16, bytes.len());
        if u16::from_ne_bytes([header[4], header[5]]) == libc::NLMSG_DONE as u16 {
            return true;
        }
        visit(bytes.get(HEADERS..length).unwrap_or_default());
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

fn parse_table(mut attributes: &[u8]) -> Option<Table> {
    let (mut name, mut comment) = (None, None);
    while let Some(header) = attributes.first_chunk::<4>() {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]])).clamp(4, attributes.len());
        let value = attributes.get(4..length).unwrap_or_default();
        match u16::from_ne_bytes([header[2], header[3]]) & 0x3fff {
            1 => name = Some(text_of(value)),
            TABLE_USER_DATA => comment = comment_of(value),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Table { name: name?, comment })
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

/// A comment in the format of the `nft` program: type, length with the final zero, text. Longer ones are left out.
fn comment_data(comment: &str) -> Option<Vec<u8>> {
    let length = u8::try_from(comment.len() + 1).ok().filter(|_| comment.len() <= 128)?;
    Some([&[0, length], comment.as_bytes(), &[0]].concat())
}

fn comment_of(data: &[u8]) -> Option<String> {
    match data {
        [0, length, text @ ..] => text.get(..usize::from(*length)).map(text_of),
        _ => None,
    }
}

/// An nftables socket of the current network namespace.
pub(crate) fn open_socket() -> io::Result<OwnedFd> {
    let protocol = Some(rustix::net::netlink::NETFILTER);
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    let timeout = Some(std::time::Duration::from_secs(10));
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, timeout)?;
    Ok(socket)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_read_as_they_are_written() {
        let data = comment_data("/var/lib/agent-sandbox").unwrap();
        assert_eq!(comment_of(&data).as_deref(), Some("/var/lib/agent-sandbox"));
        assert_eq!(comment_data(&"x".repeat(129)), None);
        for broken in [&[][..], &[0], &[0, 9, b'x'], &[7, 1, 0]] {
            assert_eq!(comment_of(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn renewing_an_element_replaces_it() {
        let mut batch = Batch::new("table");
        let begin = batch.bytes.len();
        let key = set_key(Some("veth"), Ipv4Addr::LOCALHOST, Some(22));
        batch.renew_elements("open", &[(key, Some(Duration::from_secs(60)))]);
        let mut kinds = Vec::new();
        let mut rest = &batch.bytes[begin..];
        while let Some(header) = rest.first_chunk::<16>() {
            kinds.push(u16::from_ne_bytes([header[4], header[5]]) & 0xff);
            rest = &rest[u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize..];
        }
        assert_eq!(kinds, [NEW_ELEMENT, DELETE_ELEMENT, NEW_ELEMENT], "kernels before 6.12 keep an element's time");
    }

    #[test]
    fn listed_tables_are_parsed_and_truncated_input_does_no_harm() {
        let mut listed = message(SUBSYSTEM << 8, 0, FAMILY_INET, 0);
        listed.attribute_string(1, "agent-sandbox-0f26e452");
        listed.attribute(TABLE_USER_DATA, &comment_data("/data").unwrap());
        let mut bytes = listed.finish(1).to_vec();
        let mut found = Vec::new();
        assert!(!each_message(&bytes, |attributes| found.extend(parse_table(attributes))));
        let table = Table { name: "agent-sandbox-0f26e452".to_owned(), comment: Some("/data".to_owned()) };
        assert_eq!(found, [table]);
        while bytes.pop().is_some() {
            each_message(&bytes, |attributes| drop(parse_table(attributes)));
        }
    }
}
