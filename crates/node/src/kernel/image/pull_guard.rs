//! Where a pull may connect to. Names of images come from users of the API, while pulls are made by the engine, mostly as
//! root and from within the operator's network: a registry, a redirect or a token server that leads to loopback, private,
//! link-local or metadata addresses is refused, unless the operator configured the registry or the image names that very
//! address.
//!
//! The client library has no hook for that. All connections that no proxy of the operator makes (`pull_proxy`) therefore
//! go through a forward proxy in this process, which resolves each name once, checks the addresses, and connects to what it
//! checked. The proxy lasts as long as the pull, listens on loopback, and requires a password that only the client has.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

/// Timeout for a request's head, and for a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the head of a request or response.
const MAX_HEAD: usize = 32 * 1024;

/// What the pull of one image may connect to besides public addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Permission {
    /// Host and port of the registry, as named.
    registry: (String, u16),
    /// The registry itself may have any address.
    any_registry_address: bool,
    /// Addresses of private networks are allowed, for example the storage that a private registry redirects to.
    private_networks: bool,
}

impl Permission {
    /// The permission for a registry (`host` or `host:port`); `configured` says that the operator named it.
    pub(super) fn new(registry: &str, default_port: u16, configured: bool) -> Self {
        let (host, port) = split_host(registry, default_port);
        let address = host.parse::<IpAddr>().ok();
        let named = address.is_some() || host == "localhost";
        Self {
            registry: (host, port),
            any_registry_address: named || configured,
            private_networks: configured || address.is_some_and(is_private),
        }
    }

    /// Whether a connection to `host` at this address is allowed.
    fn allows(&self, host: &str, address: SocketAddr) -> bool {
        let is_registry = self.registry == (host.to_owned(), address.port());
        is_public(address.ip())
            || (is_registry && self.any_registry_address)
            || (self.private_networks && is_private(address.ip()))
    }
}

/// `host:port`, `[v6]:port` or a host alone.
fn split_host(text: &str, default_port: u16) -> (String, u16) {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()),
        _ => (text, None),
    };
    (host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase(), port.unwrap_or(default_port))
}

/// Addresses of private networks, which an operator may use for registries.
fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_private() || is_shared(address),
        IpAddr::V6(address) => address.is_unique_local(),
    }
}

/// 100.64.0.0/10.
fn is_shared(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    first == 100 && second & 0xc0 == 64
}

/// Addresses that everyone can reach: neither private nor of this machine, its link or its provider.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [first, second, third, _] = v4.octets();
            let reserved = first == 0 || first >= 240 || v4.is_multicast() || (first, second, third) == (192, 0, 0);
            // The platform services of Azure have a public address.
            let provider = v4 == Ipv4Addr::new(168, 63, 129, 16);
            !(is_private(address) || v4.is_loopback() || v4.is_link_local() || reserved || provider)
        }
        IpAddr::V6(v6) => {
            let translated = matches!(v6.segments(), [0x64, 0xff9b, ..] | [0x2002, ..]);
            let local = v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local() || v6.is_multicast();
            !(is_private(address) || local || translated)
        }
    }
}

/// The proxy of one pull.
pub(super) struct PullGuard {
    /// Address of the proxy, with its password.
    pub(super) url: String,
    refused: Arc<Mutex<Option<String>>>,
    _serving: AbortOnDropHandle<()>,
}

impl PullGuard {
    pub(super) async fn start(permission: Permission) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let password = format!("{:032x}", rand::random::<u128>());
        let url = format!("http://pull:{password}@{}", listener.local_addr()?);
        let refused: Arc<Mutex<Option<String>>> = Arc::default();
        let proxy = Arc::new(Proxy {
            permission,
            authorization: format!("Basic {}", base64::prelude::BASE64_STANDARD.encode(format!("pull:{password}"))),
            refused: Arc::clone(&refused),
        });
        let serving = tokio::spawn(async move {
            // Connections end with the pull.
            let mut connections = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((stream, _)) = accepted else { return };
                        let proxy = Arc::clone(&proxy);
                        connections.spawn(async move { proxy.serve(stream).await });
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { url, refused, _serving: AbortOnDropHandle::new(serving) })
    }

    /// The last connection that was refused, and why: the client itself only knows that a request failed.
    pub(super) fn refused(&self) -> Option<String> {
        self.refused.lock().clone()
    }
}

struct Proxy {
    permission: Permission,
    authorization: String,
    refused: Arc<Mutex<Option<String>>>,
}

/// The head of a request to the proxy.
struct Head {
    method: String,
    host: String,
    port: u16,
    /// Path and query, for requests that are not CONNECT.
    path: String,
    authorized: bool,
    headers: Vec<String>,
}

impl Proxy {
    async fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        let (head, rest) = tokio::time::timeout(HEAD_TIMEOUT, read_head(&mut client)).await??;
        let Some(head) = parse_head(&head, &self.authorization) else {
            return refuse(&mut client, "400 Bad Request").await;
        };
        // The client does not repeat the password when it follows a redirect to plain HTTP. Without it, only what every
        // program of this machine can reach anyway is open.
        if !head.authorized && head.method == "CONNECT" {
            return refuse(&mut client, "407 Proxy Authentication Required").await;
        }
        let mut server = match self.connect(&head.host, head.port, head.authorized).await {
            Ok(server) => server,
            Err(error) => {
                let status =
                    if error.kind() == io::ErrorKind::PermissionDenied { "403 Forbidden" } else { "502 Bad Gateway" };
                *self.refused.lock() = Some(error.to_string());
                return refuse(&mut client, status).await;
            }
        };
        if head.method == "CONNECT" {
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await?;
            return Ok(());
        }
        if !matches!(head.method.as_str(), "GET" | "HEAD") || !rest.is_empty() {
            return refuse(&mut client, "405 Method Not Allowed").await;
        }
        // One request for each connection: the next one may be for another host.
        let headers: String = head.headers.iter().map(|line| format!("{line}\r\n")).collect();
        let request = format!("{} {} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n", head.method, head.path);
        server.write_all(request.as_bytes()).await?;
        let (response, rest) = read_head(&mut server).await?;
        let response = response.trim_end_matches("\r\n");
        let kept = response.split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
        let response: String = kept.map(|line| format!("{line}\r\n")).collect();
        client.write_all(format!("{response}Connection: close\r\n\r\n").as_bytes()).await?;
        client.write_all(&rest).await?;
        tokio::io::copy(&mut server, &mut client).await?;
        client.shutdown().await
    }

    /// Resolves a name once and connects to the first of its addresses that is allowed and answers.
    async fn connect(&self, host: &str, port: u16, authorized: bool) -> io::Result<TcpStream> {
        let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
        let allows = |address: &SocketAddr| match authorized {
            true => self.permission.allows(host, *address),
            false => is_public(address.ip()),
        };
        let allowed: Vec<_> = found.iter().copied().filter(allows).collect();
        if let (true, Some(address)) = (allowed.is_empty(), found.first()) {
            let advice = match is_private(address.ip()) && host == self.permission.registry.0 {
                true => format!("; if this is your registry, start the engine with --registry-mirror {host}={host}"),
                false => String::new(),
            };
            let message =
                format!("refused to connect to {host} at {}, which is not a public address{advice}", address.ip());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&allowed[..])).await?
    }
}

async fn refuse(client: &mut TcpStream, status: &str) -> io::Result<()> {
    client.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    client.shutdown().await
}

/// Reads up to the empty line; returns the head and what was read beyond it.
async fn read_head(stream: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    const END: &[u8] = b"\r\n\r\n";
    let mut bytes = Vec::new();
    loop {
        if let Some(at) = bytes.windows(END.len()).position(|window| window == END) {
            let rest = bytes.split_off(at + END.len());
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), rest));
        }
        if bytes.len() > MAX_HEAD || stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

fn parse_head(text: &str, authorization: &str) -> Option<Head> {
    let mut lines = text.split("\r\n").filter(|line| !line.is_empty());
    let mut words = lines.next()?.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (place, path) = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or((rest, "/"), |at| rest.split_at(at)),
        None if method == "CONNECT" => (target, ""),
        None => return None,
    };
    let (host, port) = split_host(place, 80);
    let mut authorized = false;
    let mut headers = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':')?;
        match name.to_ascii_lowercase().as_str() {
            "proxy-authorization" => authorized = value.trim() == authorization,
            "connection" | "proxy-connection" => {}
            _ => headers.push(line.to_owned()),
        }
    }
    Some(Head { method, host, port, path: path.to_owned(), authorized, headers })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_public_addresses_are_open_to_every_image() {
        let public = Permission::new("registry.example", 443, false);
        assert!(public.allows("registry.example", address("93.184.216.34:443")));
        assert!(public.allows("blobs.example", address("[2606:4700::1]:443")));
        for inside in [
            "127.0.0.1:443",
            "10.0.0.1:443",
            "172.16.0.1:443",
            "192.168.1.1:443",
            "169.254.169.254:80",
            "100.64.0.1:443",
            "168.63.129.16:80",
            "192.0.0.192:80",
            "0.0.0.0:443",
            "[::1]:443",
            "[fe80::1]:443",
            "[fd00:ec2::254]:80",
            "[::ffff:127.0.0.1]:443",
            "[64:ff9b::7f00:1]:443",
        ] {
            assert!(!public.allows("registry.example", address(inside)), "{inside}");
            assert!(!public.allows("elsewhere.example", address(inside)), "{inside}");
        }
    }

    #[test]
    fn a_registry_that_is_named_by_its_address_is_reached_there_and_nowhere_else_inside() {
        let local = Permission::new("127.0.0.1:5000", 80, false);
        assert!(local.allows("127.0.0.1", address("127.0.0.1:5000")));
        assert!(!local.allows("127.0.0.1", address("127.0.0.1:6443")), "another port of this machine");
        assert!(!local.allows("10.0.0.1", address("10.0.0.1:5000")));
        let lan = Permission::new("10.0.0.1:5000", 443, false);
        assert!(lan.allows("blobs.lan", address("10.0.0.2:443")), "storage in the same network");
        assert!(!lan.allows("x", address("127.0.0.1:443")) && !lan.allows("x", address("169.254.169.254:80")));
    }

    #[test]
    fn a_registry_that_the_operator_configured_may_be_private() {
        let configured = Permission::new("registry.corp", 443, true);
        assert!(configured.allows("registry.corp", address("10.1.2.3:443")));
        assert!(configured.allows("blobs.corp", address("10.1.2.4:443")));
        assert!(
            !configured.allows("x", address("127.0.0.1:443")) && !configured.allows("x", address("169.254.169.254:80"))
        );
    }

    #[test]
    fn requests_are_parsed_and_need_the_password() {
        let head =
            parse_head("CONNECT a.example:443 HTTP/1.1\r\nProxy-Authorization: Basic x\r\n\r\n", "Basic x").unwrap();
        assert_eq!((head.host.as_str(), head.port, head.authorized), ("a.example", 443, true));
        let head =
            parse_head("GET http://[::1]:5000/v2/?a=b HTTP/1.1\r\nHost: x\r\nConnection: y\r\n\r\n", "p").unwrap();
        assert_eq!((head.host.as_str(), head.port, head.path.as_str()), ("::1", 5000, "/v2/?a=b"));
        assert_eq!((head.authorized, head.headers), (false, vec!["Host: x".to_owned()]));
        for wrong in ["", "GET /v2/ HTTP/1.1\r\n\r\n", "GET", "CONNECT", "GET ftp://x/ HTTP/1.1"] {
            assert!(parse_head(wrong, "p").is_none(), "{wrong:?}");
        }
    }
}
