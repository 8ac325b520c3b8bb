//! The sandbox as a machine: listening ports and resource usage, read from procfs and the cgroup.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use agent_sandbox_protocol::native::{Port, Ports, Usage};
use http::{Response, StatusCode};

use super::Native;
use super::error::ApiError;
use crate::core::files::blocking;
use crate::core::machine;
use crate::http_io::body::{self, Body};

/// The state TCP_LISTEN in `/proc/net/tcp`.
const TCP_LISTEN: &str = "0A";

pub(super) async fn ports() -> Result<Response<Body>, ApiError> {
    let ports = blocking(|| {
        let mut found = BTreeSet::new();
        for (file, protocol) in [("/proc/self/net/tcp", "tcp"), ("/proc/self/net/tcp6", "tcp6")] {
            let table = std::fs::read_to_string(file).unwrap_or_default();
            found.extend(listening_sockets(&table).map(|(port, address)| (port, address, protocol)));
        }
        let port = |(port, address, protocol): (u16, IpAddr, &str)| Port {
            port,
            address: address.to_string(),
            protocol: protocol.into(),
        };
        Ok(Ports { ports: found.into_iter().map(port).collect() })
    })
    .await?;
    Ok(body::json(StatusCode::OK, &ports))
}

fn listening_sockets(table: &str) -> impl Iterator<Item = (u16, IpAddr)> {
    table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (address, port) = fields.next()?.split_once(':')?;
        let state = fields.nth(1)?;
        (state == TCP_LISTEN).then_some(())?;
        Some((u16::from_str_radix(port, 16).ok()?, parse_address(address)?))
    })
}

/// procfs prints addresses as 32-bit words in the machine's byte order.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| text.get(at..at + 8).and_then(|word| u32::from_str_radix(word, 16).ok());
    if text.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?.to_ne_bytes()).into());
    }
    let mut bytes = [0_u8; 16];
    for index in 0..4 {
        bytes[index * 4..index * 4 + 4].copy_from_slice(&word(index * 8)?.to_ne_bytes());
    }
    Some(Ipv6Addr::from(bytes).into())
}

pub(super) async fn usage(native: &Native) -> Result<Response<Body>, ApiError> {
    let running = native.sandbox.reaper.running() as u64;
    let base = native.sandbox.paths.open_base()?;
    let usage = blocking(move || {
        let disk = rustix::fs::fstatvfs(&base)?;
        Ok(Usage {
            daemon_memory_bytes: resident_memory(),
            running_commands: running,
            disk_total_bytes: disk.f_blocks.saturating_mul(disk.f_frsize),
            disk_free_bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
            ..cgroup_usage()
        })
    })
    .await?;
    Ok(body::json(StatusCode::OK, &usage))
}

fn resident_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().unwrap_or_default();
    kibibytes * 1024
}

/// Usage of the sandbox's own cgroup. Reads version 2, else version 1.
fn cgroup_usage() -> Usage {
    Usage {
        cpu_microseconds: machine::cpu_microseconds(),
        memory_bytes: machine::memory_in_use(),
        memory_limit_bytes: machine::memory_limit(),
        processes: machine::cgroup_number("pids.current").or_else(|| machine::cgroup_number("pids/pids.current")),
        ..Usage::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_read_from_procfs() {
        let table = "  sl  local_address rem_address   st\n\
                     0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n\
                     1: 0100007F:C350 0100007F:1F90 01 00000000:00000000\n\
                     broken\n";
        let found: Vec<_> = listening_sockets(table).collect();
        assert_eq!(found, [(8080, IpAddr::from(Ipv4Addr::LOCALHOST))]);
        let found = parse_address("00000000000000000000000001000000");
        assert_eq!(found, Some(IpAddr::from(Ipv6Addr::LOCALHOST)));
        assert_eq!(parse_address("zz"), None);
    }
}
