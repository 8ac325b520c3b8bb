//! The part of rtnetlink that is needed to create links, addresses and routes: messages are built by hand, each is
//! acknowledged.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::AF_INET;

/// A netlink request being built.
pub(super) struct NetlinkMessage {
    bytes: Vec<u8>,
}

const HEADER: usize = 16;

impl NetlinkMessage {
    pub(super) fn new(kind: u16, flags: libc::c_int) -> Self {
        Self::without_acknowledgement(kind, flags | libc::NLM_F_ACK)
    }

    pub(super) fn without_acknowledgement(kind: u16, flags: libc::c_int) -> Self {
        let mut bytes = vec![0; HEADER];
        let flags = (libc::NLM_F_REQUEST | flags) as u16;
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Self { bytes }
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    /// `struct ifinfomsg`.
    pub(super) fn link_header(&mut self, index: i32, flags: u32, change: u32) {
        self.raw(&[0, 0, 0, 0]);
        self.raw(&index.to_ne_bytes());
        self.raw(&flags.to_ne_bytes());
        self.raw(&change.to_ne_bytes());
    }

    pub(super) fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = (4 + value.len()) as u16;
        self.bytes.extend_from_slice(&length.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.raw(value);
    }

    pub(super) fn attribute_u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    pub(super) fn attribute_string(&mut self, kind: u16, value: &str) {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(kind, &bytes);
    }

    pub(super) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0]);
        self.bytes.extend_from_slice(&(kind | libc::NLA_F_NESTED as u16).to_ne_bytes());
        fill(self);
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }

    pub(super) fn finish(&mut self, sequence: u32) -> &[u8] {
        let length = self.bytes.len() as u32;
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.bytes
    }
}

pub(super) fn link_message(kind: u16, flags: libc::c_int, index: i32, set: u32, change: u32) -> NetlinkMessage {
    let mut message = NetlinkMessage::new(kind, flags);
    message.link_header(index, set, change);
    message
}

/// An rtnetlink socket, of the network namespace it was opened in.
pub(super) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    pub(super) fn open() -> io::Result<Self> {
        let family = AddressFamily::NETLINK;
        let socket = rustix::net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        rustix::net::sockopt::set_socket_timeout(
            &socket,
            rustix::net::sockopt::Timeout::Recv,
            Some(std::time::Duration::from_secs(10)),
        )?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request and waits for its acknowledgement.
    pub(super) fn call(&mut self, message: &mut NetlinkMessage) -> io::Result<()> {
        self.sequence += 1;
        rustix::net::send(&self.socket, message.finish(self.sequence), SendFlags::empty())?;
        let mut buffer = [0u8; 4096];
        loop {
            let (length, _) = rustix::net::recv(&self.socket, &mut buffer, RecvFlags::empty())?;
            if let Some(result) = acknowledgement(buffer.get(..length).unwrap_or_default(), self.sequence) {
                return result;
            }
        }
    }

    pub(super) fn link_index(&mut self, name: &str) -> io::Result<i32> {
        rustix::net::netdevice::name_to_index(&self.socket, name).map(|index| index as i32).map_err(io::Error::from)
    }

    pub(super) fn set_up(&mut self, index: i32) -> io::Result<()> {
        let up = libc::IFF_UP as u32;
        self.call(&mut link_message(libc::RTM_NEWLINK, 0, index, up, up))
    }

    pub(super) fn add_address(&mut self, index: i32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        self.change_address(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, index, address, prefix)
    }

    pub(super) fn change_address(
        &mut self,
        kind: u16,
        flags: libc::c_int,
        index: i32,
        address: Ipv4Addr,
        prefix: u8,
    ) -> io::Result<()> {
        let mut message = NetlinkMessage::new(kind, flags);
        message.raw(&[AF_INET, prefix, 0, libc::RT_SCOPE_UNIVERSE]);
        message.raw(&index.to_ne_bytes());
        message.attribute(libc::IFA_LOCAL, &address.octets());
        message.attribute(libc::IFA_ADDRESS, &address.octets());
        self.call(&mut message)
    }

    /// Adds a permanent neighbour entry for the other end of a veth pair.
    pub(super) fn add_neighbour(&mut self, index: i32, address: Ipv4Addr, hardware: [u8; 6]) -> io::Result<()> {
        let mut message = NetlinkMessage::new(libc::RTM_NEWNEIGH, libc::NLM_F_CREATE | libc::NLM_F_REPLACE);
        message.raw(&[AF_INET, 0, 0, 0]);
        message.raw(&index.to_ne_bytes());
        let [low, high] = libc::NUD_PERMANENT.to_ne_bytes();
        message.raw(&[low, high, 0, 0]);
        message.attribute(libc::NDA_DST, &address.octets());
        message.attribute(libc::NDA_LLADDR, &hardware);
        self.call(&mut message)
    }

    /// Adds a route to a network (or the default route) through an interface, over a gateway if given.
    pub(super) fn add_route(
        &mut self,
        destination: Option<(Ipv4Addr, u8)>,
        gateway: Option<Ipv4Addr>,
        source: Option<Ipv4Addr>,
        index: i32,
    ) -> io::Result<()> {
        let mut message = NetlinkMessage::new(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_REPLACE);
        let prefix = destination.map_or(0, |(_, prefix)| prefix);
        let scope = if gateway.is_some() { libc::RT_SCOPE_UNIVERSE } else { libc::RT_SCOPE_LINK };
        message.raw(&[AF_INET, prefix, 0, 0, libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, scope, libc::RTN_UNICAST]);
        message.raw(&0u32.to_ne_bytes());
        if let Some((network, _)) = destination {
            message.attribute(libc::RTA_DST, &network.octets());
        }
        if let Some(gateway) = gateway {
            message.attribute(libc::RTA_GATEWAY, &gateway.octets());
        }
        if let Some(source) = source {
            message.attribute(libc::RTA_PREFSRC, &source.octets());
        }
        message.attribute(libc::RTA_OIF, &index.to_ne_bytes());
        self.call(&mut message)
    }
}

/// Finds the acknowledgement of request `sequence` in a datagram.
fn acknowledgement(bytes: &[u8], sequence: u32) -> Option<io::Result<()>> {
    find_answer(bytes, Some(sequence))
}

/// Finds the first acknowledgement in a datagram: in a batch, that is the first error.
pub(super) fn acknowledgement_of_any(bytes: &[u8]) -> Option<io::Result<()>> {
    find_answer(bytes, None)
}

fn find_answer(mut bytes: &[u8], sequence: Option<u32>) -> Option<io::Result<()>> {
    while bytes.len() >= HEADER {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        let length = (word(0) as usize).clamp(HEADER, bytes.len());
        if sequence.is_none_or(|wanted| word(8) == wanted) && kind == libc::NLMSG_ERROR as u16 && length >= HEADER + 4 {
            let errno = word(HEADER) as i32;
            return Some(if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-errno)) });
        }
        bytes = &bytes[length..];
    }
    None
}
