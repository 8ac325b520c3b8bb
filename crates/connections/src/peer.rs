//! Who is at the other end of a connection: the user id of a local process, else the address.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A client, as far as connections are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    Uid(u32),
    Address(IpAddr),
}

/// The user ids of all TCP sockets of this network namespace, by their local address.
pub(crate) fn local_uids() -> HashMap<SocketAddr, u32> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    // A system without these files has no uids to offer: peers are then told apart by address.
    tables.iter().filter_map(|path| fs::read_to_string(path).ok()).flat_map(|text| parse(&text)).collect()
}

fn parse(table: &str) -> Vec<(SocketAddr, u32)> {
    table.lines().skip(1).filter_map(parse_line).collect()
}

/// `sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid ...`
fn parse_line(line: &str) -> Option<(SocketAddr, u32)> {
    let mut columns = line.split_ascii_whitespace();
    let local = columns.nth(1)?;
    let uid = columns.nth(5)?.parse().ok()?;
    let (address, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((SocketAddr::new(parse_address(address)?, port), uid))
}

/// The kernel prints addresses as numbers of 32 bits in the byte order of the machine.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    if text.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?).into());
    }
    let mut bytes = [0; 16];
    for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
        part.copy_from_slice(&word(8 * index)?);
    }
    Some(Ipv6Addr::from(bytes).to_canonical())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernels_table_names_the_owner_of_a_socket() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let uids = local_uids();
            let own = rustix::process::getuid().as_raw();
            assert_eq!(uids.get(&client.local_addr().unwrap()), Some(&own), "{address}");
        }
    }

    #[test]
    fn lines_that_are_not_understood_are_left_out() {
        assert!(parse("header\n  0: x\n 1: 0100007F 0 0\n").is_empty());
    }
}
