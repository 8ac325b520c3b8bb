//! Rewrites headers between the two sides of the proxy. Pure functions.

use std::net::IpAddr;

use agent_sandbox_protocol::e2b::PUBLIC_ACCESS;
use http::header::{
    AUTHORIZATION, CONNECTION, Entry, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
pub(crate) const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(crate) const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_PREFIX: &str = "x-forwarded-";

/// Facts about the client's side of a connection that are sent to the sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Inbound {
    /// Peer address as text, formatted once per connection.
    pub(crate) peer: HeaderValue,
    pub(crate) scheme: HeaderValue,
}

impl Inbound {
    pub(crate) fn new(peer: Option<IpAddr>, tls: bool) -> Self {
        let peer = match peer {
            Some(ip) => HeaderValue::from_str(&ip.to_string()).expect("an address is visible ASCII"),
            None => HeaderValue::from_static("unknown"),
        };
        Self { peer, scheme: HeaderValue::from_static(if tls { "https" } else { "http" }) }
    }
}

impl Inbound {
    pub(crate) fn is_tls(&self) -> bool {
        self.scheme == "https"
    }
}

/// The protocol that a request wants to switch to, if it is a well-formed upgrade.
pub(crate) fn requested_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let upgrade = headers.get(UPGRADE)?;
    let named = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|token| token.trim().eq_ignore_ascii_case("upgrade"));
    named.then(|| upgrade.clone())
}

/// Converts a client's headers for the sandbox: removes hop-by-hop headers, credentials and forwarding headers, and
/// adds correct forwarding headers.
pub(crate) fn prepare_request(
    headers: &mut HeaderMap,
    inbound: &Inbound,
    authority: Option<HeaderValue>,
    upgrade: Option<&HeaderValue>,
) {
    // gRPC requires `TE: trailers` end to end; it is the only value that is passed on.
    let trailers = headers.get(TE).is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    strip_hop_by_hop(headers);
    headers.remove(AUTHORIZATION);
    headers.remove(PUBLIC_ACCESS);
    strip_forwarding(headers);
    if let Some(host) = headers.remove(HOST).or(authority) {
        headers.insert(FORWARDED_HOST, host);
    }
    headers.insert(FORWARDED_FOR, inbound.peer.clone());
    headers.insert(FORWARDED_PROTO, inbound.scheme.clone());
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = upgrade {
        headers.remove(ORIGIN);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.clone());
    }
}

/// Converts a sandbox's response headers for the client.
pub(crate) fn prepare_response(headers: &mut HeaderMap, upgraded: Option<&HeaderValue>) {
    strip_hop_by_hop(headers);
    if let Some(protocol) = upgraded {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.clone());
    }
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        strip_named_by_connection(headers);
    }
    // The HTTP library decides the framing of each side, so these headers are never passed on.
    for name in
        [KEEP_ALIVE, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, PROXY_CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE]
    {
        headers.remove(name);
    }
}

fn strip_named_by_connection(headers: &mut HeaderMap) {
    let Entry::Occupied(connection) = headers.entry(CONNECTION) else { return };
    let (_, values) = connection.remove_entry_mult();
    let named: Vec<HeaderName> = values
        .filter_map(|value| value.to_str().ok().map(str::to_owned))
        .flat_map(|value| {
            value
                .split(',')
                .filter_map(|token| HeaderName::from_bytes(token.trim().as_bytes()).ok())
                .collect::<Vec<_>>()
        })
        .collect();
    for name in named {
        headers.remove(name);
    }
}

fn strip_forwarding(headers: &mut HeaderMap) {
    headers.remove(FORWARDED);
    if headers.keys().any(|name| name.as_str().starts_with(FORWARDED_PREFIX)) {
        let names: Vec<HeaderName> =
            headers.keys().filter(|name| name.as_str().starts_with(FORWARDED_PREFIX)).cloned().collect();
        for name in names {
            headers.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
