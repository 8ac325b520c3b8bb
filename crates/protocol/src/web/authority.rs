//! The authority of a URL (`host:port`), and origins of web pages. Parsing is strict: what is not well-formed names no
//! server.

use std::net::{IpAddr, Ipv6Addr};

/// A host with an optional port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority<'a> {
    pub host: Host<'a>,
    pub port: Option<u16>,
}

/// A literal address, or a name without the dot at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host<'a> {
    Address(IpAddr),
    Name(&'a str),
}

impl Host<'_> {
    fn is(&self, other: &Host<'_>) -> bool {
        match (self, other) {
            (Host::Address(one), Host::Address(other)) => one == other,
            (Host::Name(one), Host::Name(other)) => one.eq_ignore_ascii_case(other),
            _ => false,
        }
    }
}

impl<'a> Authority<'a> {
    /// Parses `name`, `name:port`, `1.2.3.4:port` or `[::1]:port`; `None` for everything else.
    pub fn parse(text: &'a str) -> Option<Self> {
        if let Some(bracketed) = text.strip_prefix('[') {
            let (address, rest) = bracketed.split_once(']')?;
            let port = match rest {
                "" => None,
                _ => Some(parse_port(rest.strip_prefix(':')?)?),
            };
            let address: Ipv6Addr = address.parse().ok()?;
            return Some(Self { host: Host::Address(address.into()), port });
        }
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(parse_port(port)?)),
            None => (text, None),
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        let label = |label: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            !label.is_empty() && label.bytes().all(plain)
        };
        if !name.split('.').all(label) {
            return None;
        }
        let host = name.parse().map_or(Host::Name(name), |address| Host::Address(IpAddr::V4(address)));
        Some(Self { host, port })
    }
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// The origin of a web page: scheme, host and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    scheme: &'a str,
    authority: Authority<'a>,
}

impl<'a> Origin<'a> {
    /// Parses an `Origin` header. `null`, which pages without an origin of their own send, is none.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        if scheme.is_empty() || !scheme.bytes().all(plain) {
            return None;
        }
        Some(Self { scheme, authority: Authority::parse(authority)? })
    }

    /// Whether pages of the server `own` have this origin; without a `scheme`, served over TLS or not.
    pub fn is_of(&self, scheme: Option<&str>, own: &Authority<'_>) -> bool {
        let usual = default_port(self.scheme);
        let port = |authority: &Authority<'_>| authority.port.or(usual);
        scheme.is_none_or(|scheme| scheme.eq_ignore_ascii_case(self.scheme))
            && self.authority.host.is(&own.host)
            && port(&self.authority) == port(own)
    }
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    }
}

/// A list of origins such as `https://app.example.com`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedOrigins(Vec<String>);

/// An entry of such a list that can match no page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an origin; write scheme://host[:port], without a path")]
pub struct OriginError(String);

impl AllowedOrigins {
    pub fn new(list: impl IntoIterator<Item = String>) -> Result<Self, OriginError> {
        let checked = list.into_iter().map(|entry| match Origin::parse(&entry) {
            Some(_) => Ok(entry),
            None => Err(OriginError(entry)),
        });
        checked.collect::<Result<_, _>>().map(Self)
    }

    pub fn contain(&self, origin: &Origin<'_>) -> bool {
        let listed = self.0.iter().filter_map(|entry| Origin::parse(entry));
        listed.into_iter().any(|listed| origin.is_of(Some(listed.scheme), &listed.authority))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
