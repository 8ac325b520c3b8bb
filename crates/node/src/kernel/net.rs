//! Network plumbing through netlink: no program needed.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::plan::VethPlan;
use super::sys;

pub(crate) mod egress;
mod filter;
mod netlink;
mod nft;
mod node;
mod pool;

pub(crate) use nft::{open_socket as open_filter_socket, tables};
pub(crate) use node::{NodeNetwork, delete_table, pod_network, table_name, word_of};
pub(crate) use pool::{AddressPool, PodNetwork};

use netlink::{Netlink, link_message};

const AF_INET: u8 = libc::AF_INET as u8;

/// Name of the Pod's end of the cable.
const INSIDE: &str = "eth0";

/// Brings the loopback interface of the present namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    let mut message = link_message(libc::RTM_NEWLINK, 0, 1, libc::IFF_UP as u32, libc::IFF_UP as u32);
    netlink.call(&mut message)
}

/// Adds an address to, or removes it from, the loopback interface of the present namespace. Already there, or already gone, is success.
pub(crate) fn loopback_address(address: Ipv4Addr, present: bool) -> io::Result<()> {
    let (kind, flags) =
        if present { (libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_REPLACE) } else { (libc::RTM_DELADDR, 0) };
    match Netlink::open()?.change_address(kind, flags, 1, address, 32) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EEXIST | libc::EADDRNOTAVAIL)) => Ok(()),
        other => other,
    }
}

/// Lays a cable between the host and the Pod's namespace: the Pod has one address and reaches everything through the
/// gateway, for whose address the host answers on every cable. No bridge, so no broadcast domain shared by Pods.
pub(crate) fn connect(veth: &VethPlan, address: Ipv4Addr, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let mut host = Netlink::open()?;
    let mut message = link_message(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL, 0, 0, 0);
    message.attribute_string(libc::IFLA_IFNAME, &veth.host_name);
    message.attribute(libc::IFLA_ADDRESS, &hardware_address(veth.gateway));
    one_queue(&mut message);
    message.nested(libc::IFLA_LINKINFO, |info| {
        info.attribute_string(libc::IFLA_INFO_KIND, "veth");
        info.nested(libc::IFLA_INFO_DATA, |data| {
            data.nested(VETH_INFO_PEER, |peer| {
                peer.link_header(0, 0, 0);
                peer.attribute_string(libc::IFLA_IFNAME, INSIDE);
                peer.attribute(libc::IFLA_ADDRESS, &hardware_address(address));
                one_queue(peer);
                peer.attribute_u32(libc::IFLA_NET_NS_FD, namespace.as_raw_fd() as u32);
            });
        });
    });
    host.call(&mut message)?;
    let host_index = host.link_index(&veth.host_name)?;
    without_ipv6(&mut host, host_index)?;
    host.set_up(host_index)?;
    // The gateway's address is on the host's loopback; connections of the node's own come from it.
    host.add_route(Some((address, 32)), None, Some(veth.gateway), host_index)?;
    host.add_neighbour(host_index, address, hardware_address(address))?;
    inside(namespace, || {
        let mut pod = Netlink::open()?;
        let index = pod.link_index(INSIDE)?;
        pod.add_address(index, address, 32)?;
        without_ipv6(&mut pod, index)?;
        pod.set_up(index)?;
        pod.add_route(Some((veth.gateway, 32)), None, None, index)?;
        pod.add_neighbour(index, veth.gateway, hardware_address(veth.gateway))?;
        pod.add_route(None, Some(veth.gateway), None, index)
    })
}

/// The hardware address of an end of a cable: known to both, so that nobody has to ask. What was learned by asking fills a table that all
/// namespaces of a machine share, with room for 1,024: the sandbox after the 512th would not be reached.
fn hardware_address(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    // Locally administered.
    [0x0a, 0x58, a, b, c, d]
}

/// Interfaces that come to the present namespace from now on know no IPv6. Our table drops it on the host's side; here it would
/// only cost time.
pub(crate) fn no_ipv6() {
    // A kernel without it has nothing to switch off.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
}

/// An end of a cable that is not up yet gets no IPv6 address: making one, and asking around whether it is taken, is half the work of a
/// cable. The switch in `/proc` would be turned off for good, but whoever turns it spins while others change interfaces, and finding it
/// takes the longer the more namespaces there are.
fn without_ipv6(socket: &mut Netlink, index: i32) -> io::Result<()> {
    const INET6_ADDRESS_MODE: u16 = 8;
    const NO_ADDRESS: u8 = 1;
    let mut message = link_message(libc::RTM_NEWLINK, 0, index, 0, 0);
    message.nested(libc::IFLA_AF_SPEC, |families| {
        families.nested(libc::AF_INET6 as u16, |family| family.attribute(INET6_ADDRESS_MODE, &[NO_ADDRESS]));
    });
    match socket.call(&mut message) {
        // A kernel without IPv6.
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(()),
        other => other,
    }
}

/// One queue each way, said outright: by itself the kernel makes one for every processor and then takes all but one away
/// again, which waits for every processor while nobody else may touch any interface.
fn one_queue(link: &mut netlink::NetlinkMessage) {
    link.attribute_u32(libc::IFLA_NUM_TX_QUEUES, 1);
    link.attribute_u32(libc::IFLA_NUM_RX_QUEUES, 1);
}

/// Runs a closure inside a network namespace and comes back. Only for single-threaded helpers.
fn inside<T>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = std::fs::File::open("/proc/self/ns/net")?;
    sys::setns(namespace, libc::CLONE_NEWNET)?;
    let result = work();
    sys::setns(own.as_fd(), libc::CLONE_NEWNET)?;
    result
}

/// The peer's part of a veth pair's data.
const VETH_INFO_PEER: u16 = 1;
