//! The `X-Sandbox-*` request headers a router reads: names, validation, defaults.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::address::{self, AddressClass};
use crate::sandbox_address::Address;

/// Name of the sandbox (required).
pub const SANDBOX_ID: HeaderName = HeaderName::from_static("x-sandbox-id");
/// Namespace of the sandbox.
pub const SANDBOX_NAMESPACE: HeaderName = HeaderName::from_static("x-sandbox-namespace");
/// Port inside the sandbox.
pub const SANDBOX_PORT: HeaderName = HeaderName::from_static("x-sandbox-port");
/// Address the client believes the sandbox has.
pub const SANDBOX_POD_IP: HeaderName = HeaderName::from_static("x-sandbox-pod-ip");
/// UID of the Sandbox object.
pub const SANDBOX_UID: HeaderName = HeaderName::from_static("x-sandbox-uid");
/// Seconds the client is willing to wait, as a decimal number.
pub const SANDBOX_TIMEOUT: HeaderName = HeaderName::from_static("x-sandbox-timeout");
/// Opaque correlation id, passed through.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Namespace used when the header is absent.
pub const DEFAULT_NAMESPACE: &str = "default";
/// Port used when the header is absent: the python-compatible runtime.
pub const DEFAULT_PORT: u16 = 8888;

/// Longest DNS-1123 label.
const MAX_LABEL: usize = 63;

/// A header value that was checked to be a DNS-1123 label. Cloning shares the request's buffer.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Label(HeaderValue);

impl Label {
    /// `None` unless `value` is a DNS-1123 label.
    pub fn new(value: HeaderValue) -> Option<Self> {
        is_dns_label(value.as_bytes()).then_some(Self(value))
    }

    /// A label from a constant.
    ///
    /// # Panics
    /// When the text is not a DNS-1123 label.
    pub fn from_static(value: &'static str) -> Self {
        Self::new(HeaderValue::from_static(value)).expect("a static label is written correctly")
    }

    /// The label as text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().expect("a DNS-1123 label is visible ASCII")
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether `value` is a DNS-1123 label: lower-case letters, digits and inner dashes, 1 to 63 of them.
pub fn is_dns_label(value: &[u8]) -> bool {
    let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    match (value.first(), value.last()) {
        (Some(first), Some(last)) => {
            value.len() <= MAX_LABEL && edge(first) && edge(last) && value.iter().all(|b| edge(b) || *b == b'-')
        }
        _ => false,
    }
}

/// What one request says about its sandbox: the validated `X-Sandbox-*` headers, or an address from its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxRequest {
    pub id: Label,
    pub namespace: Label,
    pub port: u16,
    /// An address of a permitted class; whether it belongs to the sandbox has not been checked.
    pub pod_ip: Option<IpAddr>,
    pub uid: Option<HeaderValue>,
    /// Positive and finite; the router caps it.
    pub timeout: Option<Duration>,
}

/// Why a request's headers were rejected. `Display` is the exact text that clients see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("X-Sandbox-ID header is required.")]
    MissingId,
    #[error("Invalid sandbox ID format.")]
    InvalidId,
    #[error("Invalid namespace format.")]
    InvalidNamespace,
    #[error("Invalid port format.")]
    InvalidPort,
    #[error("Invalid target IP address.")]
    InvalidPodIp,
    #[error("Invalid sandbox UID format.")]
    InvalidUid,
}

/// Whether a loopback address may be named in `X-Sandbox-Pod-IP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loopback {
    Refused,
    Allowed,
}

impl SandboxRequest {
    /// Reads and validates the headers in the contract's order: id, namespace, port, address.
    ///
    /// An empty value counts as absent. A repeated header counts as malformed, because two readers could choose
    /// different values.
    pub fn parse(headers: &HeaderMap, loopback: Loopback) -> Result<Self, HeaderError> {
        let id = single(headers, &SANDBOX_ID, HeaderError::InvalidId)?.ok_or(HeaderError::MissingId)?;
        let id = Label::new(id.clone()).ok_or(HeaderError::InvalidId)?;
        let namespace = match single(headers, &SANDBOX_NAMESPACE, HeaderError::InvalidNamespace)? {
            Some(value) => Label::new(value.clone()).ok_or(HeaderError::InvalidNamespace)?,
            None => Label(HeaderValue::from_static(DEFAULT_NAMESPACE)),
        };
        let port = match single(headers, &SANDBOX_PORT, HeaderError::InvalidPort)? {
            Some(value) => parse_port(value.as_bytes()).ok_or(HeaderError::InvalidPort)?,
            None => DEFAULT_PORT,
        };
        let pod_ip = match single(headers, &SANDBOX_POD_IP, HeaderError::InvalidPodIp)? {
            Some(value) => Some(parse_pod_ip(value, loopback).ok_or(HeaderError::InvalidPodIp)?),
            None => None,
        };
        let uid = single(headers, &SANDBOX_UID, HeaderError::InvalidUid)?.cloned();
        let timeout = headers.get(&SANDBOX_TIMEOUT).and_then(|value| parse_timeout(value.as_bytes()));
        Ok(Self { id, namespace, port, pod_ip, uid, timeout })
    }

    /// The request for a sandbox that the URL names. Headers that would name another one were refused before.
    pub fn of_address(address: Address, headers: &HeaderMap) -> Self {
        let Address { namespace, id, port } = address;
        let timeout = headers.get(&SANDBOX_TIMEOUT).and_then(|value| parse_timeout(value.as_bytes()));
        Self { id, namespace, port, pod_ip: None, uid: None, timeout }
    }

    /// The UID as text; `None` for a value that is not text, which matches no Sandbox.
    pub fn uid_str(&self) -> Option<&str> {
        self.uid.as_ref().map(|value| value.to_str().unwrap_or("\u{fffd}"))
    }
}

/// The single non-empty value of `name`, if any.
fn single<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
    repeated: HeaderError,
) -> Result<Option<&'h HeaderValue>, HeaderError> {
    let Some(first) = headers.get(name) else { return Ok(None) };
    if headers.get_all(name).iter().nth(1).is_some() {
        return Err(repeated);
    }
    Ok((!first.is_empty()).then_some(first))
}

/// Parses a port between 1 and 65535, in decimal digits only.
pub(crate) fn parse_port(value: &[u8]) -> Option<u16> {
    if value.is_empty() || value.len() > 5 || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let port = value.iter().fold(0_u32, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    u16::try_from(port).ok().filter(|port| *port != 0)
}

fn parse_pod_ip(value: &HeaderValue, loopback: Loopback) -> Option<IpAddr> {
    let ip = address::canonical(value.to_str().ok()?.parse().ok()?);
    match (address::classify(ip), loopback) {
        (AddressClass::Routable, _) | (AddressClass::Loopback, Loopback::Allowed) => Some(ip),
        _ => None,
    }
}

/// Parses a timeout in decimal seconds; `None` unless it is a finite positive number.
pub fn parse_timeout(value: &[u8]) -> Option<Duration> {
    let seconds: f64 = std::str::from_utf8(value).ok()?.trim().parse().ok()?;
    (seconds.is_finite() && seconds > 0.0).then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}

#[cfg(test)]
mod tests;
