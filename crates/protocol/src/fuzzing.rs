//! Fuzz targets: tokens, names of sandboxes and servers, frames of port-forwards, messages of the native API.

#[cfg(test)]
#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/src/request.rs"]
mod input;

use std::io::{self, Cursor};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::e2b::{self, SignedAddress, Token, sandbox_id};
use crate::port_forward::PortForwardStream;
use crate::router_headers::{Loopback, SandboxRequest, is_dns_label};
use crate::sandbox_address::Address;
use crate::sandbox_token::{self, SigningKey, VerifyingKeys};
use crate::scoped_token::{self, Secret};
use crate::web::{AllowedHosts, AllowedOrigins, Authority, BodyKind, Host, Origin, PageRules};
use crate::{native, runtime};

/// A function that gets any bytes and panics if they are handled wrongly.
pub type Target = fn(&[u8]);

/// Name and function of each target.
pub const TARGETS: &[(&str, Target)] = &[
    ("scoped-token", scoped),
    ("sandbox-token", sandbox),
    ("web-page", web_page),
    ("sandbox-address", sandbox_address),
    ("e2b-request", e2b_request),
    ("port-forward-frames", port_forward_frames),
    ("native-messages", native_messages),
];

/// The bytes are a token, then the payload of a valid one.
fn scoped(data: &[u8]) {
    let secret = Secret::from_file_bytes(&[b'k'; 32]).expect("32 bytes are enough");
    if let Ok(token) = std::str::from_utf8(data) {
        let _ = scoped_token::looks_scoped(token);
        assert!(secret.verify(token, 0).is_err(), "a forged token was accepted");
        assert!(secret.verify_link(token, 0).is_err(), "a forged link was accepted");
    }
    if let Ok(claims) = secret.verify_link(&secret.seal_link(data), 1_000) {
        assert!(claims.expires > 1_000);
    }
    if let Ok(claims) = secret.verify(&secret.seal(data), 1_000) {
        assert!(claims.expires > 1_000);
    }
}

/// The bytes are a key file, a token, then the payload of a valid one.
fn sandbox(data: &[u8]) {
    const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB\n-----END PRIVATE KEY-----\n";
    const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAiojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1w=\n-----END PUBLIC KEY-----\n";
    let key = SigningKey::from_pem(PRIVATE).expect("a private key");
    let keys = VerifyingKeys::from_pem(PUBLIC).expect("a public key");
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = SigningKey::from_pem(text);
        let _ = VerifyingKeys::from_pem(text);
        assert!(keys.verify(text, "pod", 0).is_err(), "a forged token was accepted");
    }
    let sealed = keys.verify(&key.seal(data), "pod", 1_000);
    assert_ne!(sealed, Err(sandbox_token::VerifyError::BadSignature));
}

/// The bytes are a request. Whatever a loopback server accepts must name it by a loopback name.
fn web_page(data: &[u8]) {
    let Some(request) = input::request(data) else { return };
    let origins = AllowedOrigins::new(["https://app.example".to_owned()]).expect("an origin");
    let _ = BodyKind::of(request.headers());
    for hosts in [AllowedHosts::loopback(), AllowedHosts::private(["cluster.example".to_owned()])] {
        let rules = PageRules { hosts, origins: origins.clone(), own_proxy: true, links: true };
        let _ = rules.check(&request);
        let _ = rules.check_page(&request, Some("https"));
    }
    for name in crate::web::names(&request) {
        let _ = Origin::parse(&name);
        if AllowedHosts::loopback().contain(&name) {
            assert!(is_loopback(&name), "{name:?} was taken for a loopback name");
        }
    }
}

/// A second reading of a `Host`, by the last colon.
fn is_loopback(authority: &str) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase();
    host == "localhost"
        || host.ends_with(".localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|ip| crate::address::canonical(ip).is_loopback())
}

/// The bytes are a request whose headers, path and host may name a sandbox.
fn sandbox_address(data: &[u8]) {
    let Some(request) = input::request(data) else { return };
    if let Ok(parsed) = SandboxRequest::parse(request.headers(), Loopback::Refused) {
        assert!(is_dns_label(parsed.id.as_str().as_bytes()) && parsed.port > 0);
        assert!(!parsed.pod_ip.is_some_and(|ip| crate::address::canonical(ip).is_loopback()));
        let _ = parsed.uid_str();
    }
    let path = request.uri().path();
    if let Some(Ok((address, seen))) = Address::of_path("/router", path) {
        assert!(is_dns_label(address.namespace.as_str().as_bytes()) && address.port > 0);
        assert!(seen.starts_with('/') && (seen == "/" || path.ends_with(seen)));
        let _ = address.agrees_with(request.headers());
    }
    for name in crate::web::names(&request) {
        if let Some(Ok(Address { namespace, id, port })) = Address::of_host("boxes.example", &name) {
            let again = format!("{port}-{id}--{namespace}.boxes.example");
            let same = matches!(Authority::parse(&name), Some(Authority { host: Host::Name(host), .. })
                if again.eq_ignore_ascii_case(host) || host.starts_with('0'));
            assert!(same, "{name:?} is read as {again:?}");
        }
    }
}

/// The peer of a port-forward: what it sends is given, what it receives is discarded.
struct Peer<'a> {
    sent: Cursor<&'a [u8]>,
    step: usize,
}

impl AsyncRead for Peer<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut part = vec![0; self.step.min(out.remaining())];
        let read = io::Read::read(&mut self.sent, &mut part)?;
        out.put_slice(&part[..read]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Peer<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The bytes are a request of one of E2B's clients, who knows no secret. An id names one sandbox only.
fn e2b_request(data: &[u8]) {
    let Some(request) = input::request(data) else { return };
    let secret = Secret::from_file_bytes(&[b'k'; 32]).expect("32 bytes are enough");
    if let Some(Ok(address)) = e2b::address_in(request.headers()) {
        let (namespace, name) = (address.namespace.as_str(), address.id.as_str());
        assert!(is_dns_label(namespace.as_bytes()) && is_dns_label(name.as_bytes()) && address.port > 0);
        let again = Address::of_joined(&sandbox_id(namespace, name), address.port).expect("an id that was read");
        assert_eq!((again.namespace.as_str(), again.id.as_str()), (namespace, name));
        for token in [Token::Access, Token::Traffic] {
            assert!(!token.is_in(&secret, &address, request.headers()), "a forged token was accepted");
        }
    }
    let Some(query) = request.uri().query() else { return };
    assert!(e2b::query_pairs(query).count() <= query.len());
    if let Some(signed) = SignedAddress::of_query(query) {
        for operation in [e2b::Operation::Read, e2b::Operation::Write] {
            assert!(!signed.is_of(&secret, "ns", "box", operation, 0), "a forged signature was accepted");
        }
    }
}

/// The first byte is the size of the packets; the rest arrives at both sides of a port-forward.
fn port_forward_frames(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else { return };
    let peer = || Peer { sent: Cursor::new(bytes), step: usize::from(*step).max(1) };
    for mut stream in [PortForwardStream::server(peer(), 80), PortForwardStream::client(peer())] {
        let mut received = Vec::new();
        let reading = pin!(stream.read_to_end(&mut received));
        // The peer is always ready, so one poll reads to the end.
        let ended = reading.poll(&mut Context::from_waker(Waker::noop()));
        assert!(ended.is_ready(), "the stream waits although its peer has ended");
        assert!(received.len() <= bytes.len());
    }
}

/// The bytes are a message of a client or of a sandbox.
fn native_messages(data: &[u8]) {
    let _ = serde_json::from_slice::<native::ExecRequest>(data);
    let _ = serde_json::from_slice::<native::Input>(data);
    let _ = serde_json::from_slice::<native::SignalRequest>(data);
    let _ = serde_json::from_slice::<native::FileOperation>(data);
    let _ = serde_json::from_slice::<native::ErrorBody>(data);
    let _ = serde_json::from_slice::<runtime::ExecuteRequest>(data);
    if let Ok(event) = serde_json::from_slice::<native::Event>(data) {
        let text = serde_json::to_vec(&event).expect("an event serialises");
        serde_json::from_slice::<native::Event>(&text).expect("an event is read as it was written");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpora_pass() {
        super::corpus::replay(super::TARGETS);
    }
}
