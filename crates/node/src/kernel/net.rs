//! The network of Pods: veths, addresses, routes and packet filter, through netlink without external programs.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::kernel::supervisor::plan::VethPlan;
use crate::kernel::sys;

mod addresses;
mod engine_group;
mod filter;
mod netlink;
mod nft;
mod node_network;
pub(crate) mod pasta;

pub(crate) use addresses::{AddressPool, PodNetwork};
pub(crate) use nft::{open_socket as open_filter_socket, tables};
pub(crate) use node_network::{NodeNetwork, delete_table, pod_network};

use netlink::{Netlink, link_message};

const AF_INET: u8 = libc::AF_INET as u8;

/// Name of the Pod's end of its veth pair.
const POD_INTERFACE: &str = "eth0";

/// Brings up the loopback interface of the current namespace.
pub(crate) fn loopback_up() -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    let mut message = link_message(libc::RTM_NEWLINK, 0, 1, libc::IFF_UP as u32, libc::IFF_UP as u32);
    netlink.call(&mut message)
}

/// Adds an address to the loopback interface of the current namespace, or removes it. Already present, or already gone,
/// is success.
pub(crate) fn loopback_address(address: Ipv4Addr, present: bool) -> io::Result<()> {
    let (kind, flags) =
        if present { (libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_REPLACE) } else { (libc::RTM_DELADDR, 0) };
    match Netlink::open()?.change_address(kind, flags, 1, address, 32) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EEXIST | libc::EADDRNOTAVAIL)) => Ok(()),
        other => other,
    }
}

/// Creates a veth pair between the host and the Pod's namespace: the Pod has one address and reaches everything through
/// the gateway, whose address the host answers for on every veth. There is no bridge, so Pods share no broadcast
/// domain.
pub(crate) fn create_veth(veth: &VethPlan, address: Ipv4Addr, namespace: BorrowedFd<'_>) -> io::Result<()> {
    let mut host = Netlink::open()?;
    let mut message = link_message(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL, 0, 0, 0);
    message.attribute_string(libc::IFLA_IFNAME, &veth.host_name);
    message.attribute(libc::IFLA_ADDRESS, &hardware_address(veth.gateway));
    set_single_queue(&mut message);
    message.nested(libc::IFLA_LINKINFO, |info| {
        info.attribute_string(libc::IFLA_INFO_KIND, "veth");
        info.nested(libc::IFLA_INFO_DATA, |data| {
            data.nested(VETH_INFO_PEER, |peer| {
                peer.link_header(0, 0, 0);
                peer.attribute_string(libc::IFLA_IFNAME, POD_INTERFACE);
                peer.attribute(libc::IFLA_ADDRESS, &hardware_address(address));
                set_single_queue(peer);
                peer.attribute_u32(libc::IFLA_NET_NS_FD, namespace.as_raw_fd() as u32);
            });
        });
    });
    host.call(&mut message)?;
    let host_index = host.link_index(&veth.host_name)?;
    disable_ipv6_address(&mut host, host_index)?;
    host.set_up(host_index)?;
    // The gateway's address is on the host's loopback interface; the node's own connections use it as their source.
    host.add_route(Some((address, 32)), None, Some(veth.gateway), host_index)?;
    host.add_neighbour(host_index, address, hardware_address(address))?;
    in_namespace(namespace, || {
        let mut pod = Netlink::open()?;
        let index = pod.link_index(POD_INTERFACE)?;
        pod.add_address(index, address, 32)?;
        disable_ipv6_address(&mut pod, index)?;
        pod.set_up(index)?;
        pod.add_route(Some((veth.gateway, 32)), None, None, index)?;
        pod.add_neighbour(index, veth.gateway, hardware_address(veth.gateway))?;
        pod.add_route(None, Some(veth.gateway), None, index)
    })
}

/// The hardware address of an end of a veth pair, derived from its IP address so that both ends know it without ARP.
/// ARP entries would fill a neighbour table that all namespaces of a machine share and that holds 1,024 entries: the
/// Pod after the 512th would be unreachable.
fn hardware_address(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    // Locally administered.
    [0x0a, 0x58, a, b, c, d]
}

/// Disables IPv6 on interfaces that are added to the current namespace from now on. Our nftables table drops IPv6 on
/// the host's side; inside it would only cost time.
pub(crate) fn disable_ipv6_by_default() {
    // On a kernel without IPv6 there is nothing to disable.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
}

/// Prevents an interface that is not up yet from getting an IPv6 address: generating one, and duplicate address
/// detection, are half the work of creating a veth. The `disable_ipv6` file in `/proc` would disable it completely, but
/// writing it spins while other processes change interfaces, and opening it takes longer the more namespaces there are.
fn disable_ipv6_address(socket: &mut Netlink, index: i32) -> io::Result<()> {
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

/// Requests one queue in each direction explicitly: by default the kernel creates one for every processor and then
/// removes all but one again, which waits for every processor while it holds the lock for all interfaces.
fn set_single_queue(link: &mut netlink::NetlinkMessage) {
    link.attribute_u32(libc::IFLA_NUM_TX_QUEUES, 1);
    link.attribute_u32(libc::IFLA_NUM_RX_QUEUES, 1);
}

/// Runs a closure inside a network namespace and returns to the current one. Only for single-threaded helpers.
fn in_namespace<T>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = std::fs::File::open("/proc/self/ns/net")?;
    sys::setns(namespace, libc::CLONE_NEWNET)?;
    let result = work();
    sys::setns(own.as_fd(), libc::CLONE_NEWNET)?;
    result
}

/// The nested attribute for the peer of a veth pair.
const VETH_INFO_PEER: u16 = 1;
