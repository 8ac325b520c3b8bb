//! Asks the machine's resolvers for the addresses of a name.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

use crate::dns::{self, Answer};
use crate::name::Name;

/// Timeout for one resolver.
const TIMEOUT: Duration = Duration::from_secs(4);
const MAX_DATAGRAM: usize = 4096;

/// The name servers listed in a `resolv.conf`.
pub fn upstreams(resolv_conf: &str) -> Vec<SocketAddr> {
    let servers = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    servers.filter_map(|ip| ip.trim().parse::<IpAddr>().ok()).map(|ip| SocketAddr::new(ip, 53)).collect()
}

/// The answer of the first resolver that gives one.
pub(crate) async fn resolve(servers: &[SocketAddr], name: &Name) -> Option<Answer> {
    for server in servers {
        if let Ok(Ok(answer)) = tokio::time::timeout(TIMEOUT, ask(*server, name)).await {
            return Some(answer);
        }
    }
    None
}

/// Asks over UDP, and over TCP if the answer was cut off.
async fn ask(server: SocketAddr, name: &Name) -> io::Result<Answer> {
    let id: u16 = rand::random();
    let query = dns::query(id, name);
    // A new source port per query, and a connected socket: responses cannot be spoofed by guessing one number.
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(&query).await?;
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let length = socket.recv(&mut buffer).await?;
        match dns::answer(buffer.get(..length).unwrap_or_default(), id, name) {
            Ok(answer) if answer.truncated => break,
            Ok(answer) => return Ok(answer),
            // Late or forged; the right one may follow.
            Err(_) => {}
        }
    }
    let mut stream = TcpStream::connect(server).await?;
    stream.write_u16(u16::try_from(query.len()).map_err(io::Error::other)?).await?;
    stream.write_all(&query).await?;
    let mut packet = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut packet).await?;
    dns::answer(&packet, id, name).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_read_from_the_machines_file() {
        let list = upstreams("# c\nnameserver 192.0.2.1\nsearch x\nnameserver fd00::1\nnameserver bogus\n");
        assert_eq!(list, ["192.0.2.1:53".parse().unwrap(), "[fd00::1]:53".parse().unwrap()]);
    }
}
