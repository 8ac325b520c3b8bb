//! The DNS server: UDP and TCP on the Pods' gateway address, the only port of the host that Pods can reach.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_egress::{self as egress, Gateway, Name, Sandbox};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tracing::{debug, info};

use super::client_slots::ClientSlots;
use super::message::{self, Code, Question};
use super::{Lookup, SharedNames};

/// Maximum number of UDP queries, and of TCP connections, served at the same time, in all and for one Pod. More are
/// dropped or closed at once: resolvers repeat a query after some seconds.
const MAX_QUERIES: (usize, usize) = (512, 64);
const MAX_CONNECTIONS: (usize, usize) = (512, 16);
/// Timeout for the next query of a TCP connection, and for sending a response.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum age of a TCP connection.
const MAX_CONNECTION_AGE: Duration = Duration::from_secs(30);
/// Timeout for a query to an upstream resolver.
const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(4);
/// How long a query waits for the rules of a new Pod, and how often it looks.
const RULES_TIMEOUT: Duration = Duration::from_secs(1);
const RULES_INTERVAL: Duration = Duration::from_millis(10);
const MAX_MESSAGE: usize = 4096;

/// The state of the DNS server.
#[derive(Clone)]
pub struct Responder {
    pub names: SharedNames,
    /// The machine's own resolvers, in order of preference.
    pub upstreams: Vec<SocketAddr>,
    /// Resolves names for Pods with egress rules.
    pub egress: Arc<Gateway>,
}

/// Serves on this address until the future is dropped. The gateway's address may be configured after the node has
/// started, so a failed bind is retried.
pub async fn run(address: SocketAddr, responder: Responder) {
    loop {
        match bind(address).await {
            Ok((udp, tcp)) => {
                info!(%address, "Serving DNS");
                tokio::join!(serve_udp(udp, responder.clone()), serve_tcp(tcp, responder.clone()));
            }
            Err(error) => debug!(%error, %address, "Could not bind the DNS server, retrying"),
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

async fn bind(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let udp = UdpSocket::bind(address).await?;
    let tcp = TcpListener::bind(udp.local_addr()?).await?;
    Ok((udp, tcp))
}

async fn serve_udp(socket: UdpSocket, responder: Responder) {
    let socket = Arc::new(socket);
    let slots = ClientSlots::new(MAX_QUERIES.1, MAX_QUERIES.0);
    let mut buffer = vec![0; MAX_MESSAGE];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Some(slot) = slots.take(client.ip()) else { continue };
        let (packet, socket, responder) = (buffer[..length].to_vec(), Arc::clone(&socket), responder.clone());
        tokio::spawn(async move {
            if let Some(response) = responder.respond(&packet, client.ip(), Transport::Udp).await {
                let _ = socket.send_to(&response, client).await;
            }
            drop(slot);
        });
    }
}

async fn serve_tcp(listener: TcpListener, responder: Responder) {
    let slots = ClientSlots::new(MAX_CONNECTIONS.1, MAX_CONNECTIONS.0);
    loop {
        let Ok((stream, client)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // Closes the connection.
        let Some(slot) = slots.take(client.ip()) else { continue };
        let responder = responder.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(MAX_CONNECTION_AGE, serve_connection(stream, client.ip(), responder)).await;
            drop(slot);
        });
    }
}

async fn serve_connection(mut stream: TcpStream, client: IpAddr, responder: Responder) -> io::Result<()> {
    loop {
        let packet = tokio::time::timeout(TRANSFER_TIMEOUT, read_framed(&mut stream)).await??;
        let Some(response) = responder.respond(&packet, client, Transport::Tcp).await else { return Ok(()) };
        tokio::time::timeout(TRANSFER_TIMEOUT, write_framed(&mut stream, &response)).await??;
    }
}

async fn read_framed(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    let mut packet = vec![0; length];
    stream.read_exact(&mut packet).await?;
    Ok(packet)
}

async fn write_framed(stream: &mut TcpStream, packet: &[u8]) -> io::Result<()> {
    let length = u16::try_from(packet.len()).map_err(io::Error::other)?;
    stream.write_u16(length).await?;
    stream.write_all(packet).await
}

/// The transport of a query; it is forwarded over the same one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Transport {
    Udp,
    Tcp,
}

impl Responder {
    async fn respond(&self, packet: &[u8], client: IpAddr, transport: Transport) -> Option<Vec<u8>> {
        let question = message::parse(packet)?;
        if self.names.read().find(&question.name) == Lookup::External {
            self.wait_for_rules(client).await;
        }
        let (found, upstreams) = {
            let names = self.names.read();
            let allowed = self.upstreams.iter().copied().filter(|u| names.may_resolve_external(client, u.ip()));
            (names.find(&question.name), allowed.collect::<Vec<_>>())
        };
        if found == Lookup::External
            && let IpAddr::V4(client) = client
            && let Some(sandbox) = self.egress.sandbox(client)
        {
            return Some(self.resolve_by_rules(&question, &sandbox).await);
        }
        match found {
            Lookup::Addresses(addresses) => Some(message::response(&question, Code::NoError, &addresses)),
            Lookup::NotFound => Some(message::response(&question, Code::NxDomain, &[])),
            Lookup::External if upstreams.is_empty() => Some(message::response(&question, Code::Refused, &[])),
            Lookup::External => match forward(packet, &upstreams, transport).await {
                Some(response) => Some(response),
                None => Some(message::response(&question, Code::ServFail, &[])),
            },
        }
    }
}

impl Responder {
    /// Waits a moment for the rules of a Pod that was just started: its programs run before the API has its address.
    async fn wait_for_rules(&self, client: IpAddr) {
        let known = async {
            while !self.names.read().knows(client) {
                tokio::time::sleep(RULES_INTERVAL).await;
            }
        };
        let _ = tokio::time::timeout(RULES_TIMEOUT, known).await;
    }

    /// The response to a Pod with egress rules. Only addresses are resolved: records of other types have no use for
    /// programs that connect, or would take a connection past the rules (`HTTPS`).
    async fn resolve_by_rules(&self, question: &Question, sandbox: &Sandbox) -> Vec<u8> {
        let name = match Name::parse(&question.name) {
            Ok(name) => name,
            Err(error) => return message::blocked(question, &error.to_string()),
        };
        if question.kind != message::A {
            return match sandbox.policy().ports(&name).is_empty() {
                true => message::blocked(question, &format!("{name}: no egress rule allows it")),
                false => message::response(question, Code::NoError, &[]),
            };
        }
        match self.egress.resolve(sandbox, &name).await {
            egress::Lookup::Found { addresses, ttl } => {
                let addresses: Vec<IpAddr> = addresses.into_iter().map(IpAddr::V4).collect();
                message::response_for(question, Code::NoError, &addresses, ttl)
            }
            egress::Lookup::Missing(code) if code == Code::NxDomain as u8 => {
                message::response(question, Code::NxDomain, &[])
            }
            egress::Lookup::Missing(0) => message::response(question, Code::NoError, &[]),
            egress::Lookup::Missing(_) | egress::Lookup::Failed => message::response(question, Code::ServFail, &[]),
            egress::Lookup::Denied(reason) => message::blocked(question, &reason),
        }
    }
}

/// Forwards a query to one upstream after the other and returns the first response.
async fn forward(packet: &[u8], upstreams: &[SocketAddr], transport: Transport) -> Option<Vec<u8>> {
    for upstream in upstreams {
        let result = match transport {
            Transport::Udp => tokio::time::timeout(UPSTREAM_TIMEOUT, query_udp(packet, *upstream)).await,
            Transport::Tcp => tokio::time::timeout(UPSTREAM_TIMEOUT, query_tcp(packet, *upstream)).await,
        };
        if let Ok(Ok(response)) = result {
            return Some(response);
        }
    }
    None
}

async fn query_udp(packet: &[u8], upstream: SocketAddr) -> io::Result<Vec<u8>> {
    // A new source port per query: responses cannot be spoofed by guessing and cannot be mixed up.
    let any: IpAddr = if upstream.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(upstream).await?;
    socket.send(packet).await?;
    let mut buffer = vec![0; MAX_MESSAGE];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if buffer[..length].get(..2) == packet.get(..2) {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn query_tcp(packet: &[u8], upstream: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(upstream).await?;
    write_framed(&mut stream, packet).await?;
    read_framed(&mut stream).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::dns::Names;
    use crate::kubelet::dns::message::tests::query;
    use crate::runtime::{Allow, IpBlock, PodRules};
    use serde_json::json;

    /// Starts an upstream resolver that repeats each query and appends `outside`.
    async fn outside() -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
                let mut response = buffer[..length].to_vec();
                response[2] |= 0x80;
                response.extend(b"outside");
                socket.send_to(&response, client).await.unwrap();
            }
        });
        address
    }

    /// Opens no ports: the tests' rules have none that need it.
    struct NoPorts;

    #[async_trait::async_trait]
    impl egress::OpenPorts for NoPorts {
        async fn open(&self, id: &str, _: Vec<((Ipv4Addr, u16), Duration)>) -> io::Result<()> {
            Err(io::Error::other(id.to_owned()))
        }

        async fn close(&self, id: &str, _: Vec<(Ipv4Addr, u16)>) -> io::Result<()> {
            Err(io::Error::other(id.to_owned()))
        }
    }

    fn gateway(upstreams: Vec<SocketAddr>) -> Arc<Gateway> {
        Arc::new(Gateway::new(upstreams, Arc::new(NoPorts), None))
    }

    async fn ask(server: SocketAddr, name: &str) -> Vec<u8> {
        let response = tokio::time::timeout(Duration::from_secs(10), query_udp(&query(name, message::A), server)).await;
        response.expect("a response in time").unwrap()
    }

    #[tokio::test]
    async fn cluster_names_are_resolved_and_others_only_for_pods_with_egress() {
        let names = SharedNames::default();
        names.write().domain = "cluster.local".into();
        let upstream = outside().await;
        let (udp, tcp) = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let server = udp.local_addr().unwrap();
        let responder =
            Responder { names: Arc::clone(&names), upstreams: vec![upstream], egress: gateway(vec![upstream]) };
        tokio::spawn(serve_udp(udp, responder.clone()));
        tokio::spawn(serve_tcp(tcp, responder));
        assert_eq!(ask(server, "none.ns.svc.cluster.local").await[3] & 0xf, 3);
        assert_eq!(ask(server, "example.com").await[3] & 0xf, 5, "refused without egress");
        let me: k8s_openapi::api::core::v1::Pod = serde_json::from_value(json!({"metadata": {"namespace": "ns"},
            "spec": {"containers": []}, "status": {"podIPs": [{"ip": "127.0.0.1"}]}}))
        .unwrap();
        let everywhere = IpBlock { address: "0.0.0.0".parse().unwrap(), prefix: 0, except: vec![] };
        let open = PodRules {
            ingress: vec![],
            egress: vec![Allow { peers: vec![everywhere], ports: vec![] }],
            ..PodRules::default()
        };
        with(&names, |n| {
            n.put_pod("1", &me);
            n.put_rules("1", &open);
        });
        assert!(ask(server, "example.com").await.ends_with(b"outside"));
        let mut stream = TcpStream::connect(server).await.unwrap();
        write_framed(&mut stream, &query("none.ns.svc.cluster.local", message::A)).await.unwrap();
        assert_eq!(read_framed(&mut stream).await.unwrap()[3] & 0xf, 3, "over TCP too");
    }

    /// A resolver that answers every query for an IPv4 address with these.
    async fn answers(addresses: &'static [[u8; 4]]) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let server = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
                let question = message::parse(&buffer[..length]).unwrap();
                let list: Vec<IpAddr> = addresses.iter().map(|address| IpAddr::from(*address)).collect();
                socket.send_to(&message::response(&question, Code::NoError, &list), client).await.unwrap();
            }
        });
        server
    }

    #[tokio::test]
    async fn pods_with_egress_rules_resolve_what_the_rules_allow_and_no_private_address() {
        let names = SharedNames::default();
        names.write().domain = "cluster.local".into();
        for (addresses, code, count) in
            [(&[[192, 0, 2, 7], [10, 0, 0, 1]][..], 0, 1), (&[[10, 0, 0, 1], [169, 254, 169, 254]], 3, 0), (&[], 0, 0)]
        {
            let upstream = answers(addresses).await;
            let egress = gateway(vec![upstream]);
            let policy = egress::Policy::default().and("test", "a.example").unwrap();
            let sandbox = Sandbox::new("1".into(), "ns".into(), "box".into(), policy);
            egress.insert(Ipv4Addr::LOCALHOST, Arc::new(sandbox));
            let (udp, _) = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
            let server = udp.local_addr().unwrap();
            tokio::spawn(serve_udp(udp, Responder { names: Arc::clone(&names), upstreams: vec![upstream], egress }));
            let answer = ask(server, "A.example").await;
            assert_eq!((answer[3] & 0xf, answer[7]), (code, count), "{addresses:?}");
            assert!(count == 0 || answer.ends_with(&[192, 0, 2, 7]), "the private one is left out");
            assert_eq!(ask(server, "b.example").await[3] & 0xf, 3, "no rule");
            let https = query_udp(&query("a.example", 65), server).await.unwrap();
            assert_eq!((https[3] & 0xf, https[7]), (0, 0), "no other records");
        }
    }

    #[tokio::test]
    async fn a_client_that_holds_connections_starves_no_other() {
        let names = SharedNames::default();
        names.write().domain = "cluster.local".into();
        let (udp, tcp) = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let server = udp.local_addr().unwrap();
        tokio::spawn(serve_tcp(tcp, Responder { names, upstreams: vec![], egress: gateway(vec![]) }));
        let connect = async |from: &str| {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(from.parse().unwrap()).unwrap();
            socket.connect(server).await.unwrap()
        };
        let mut held = Vec::new();
        for _ in 0..MAX_CONNECTIONS.1 {
            let mut stream = connect("127.0.0.2:0").await;
            // An answered query shows that the server has accepted the connection.
            write_framed(&mut stream, &query("x.ns.svc.cluster.local", message::A)).await.unwrap();
            read_framed(&mut stream).await.unwrap();
            held.push(stream);
        }
        let mut refused = connect("127.0.0.2:0").await;
        let ended = tokio::time::timeout(Duration::from_secs(3), refused.read_u8()).await;
        assert!(ended.expect("closed at once").is_err());
        let mut other = connect("127.0.0.3:0").await;
        write_framed(&mut other, &query("x.ns.svc.cluster.local", message::A)).await.unwrap();
        let answered = tokio::time::timeout(Duration::from_secs(3), read_framed(&mut other)).await;
        assert_eq!(answered.expect("another Pod is served").unwrap()[3] & 0xf, 3);
        let idle = tokio::time::timeout(TRANSFER_TIMEOUT * 3, held[0].read_u8()).await;
        assert!(idle.expect("an idle connection is closed").is_err());
    }

    fn with(names: &SharedNames, change: impl FnOnce(&mut Names)) {
        change(&mut names.write());
    }
}
