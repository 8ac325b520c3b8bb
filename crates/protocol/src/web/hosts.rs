//! The names by which clients may call a server.

use http::Request;

use super::authority::{Authority, Host};
use super::{PageError, names};
use crate::address::{self, AddressClass};

/// Domain of a cluster whose administrator chose none.
const CLUSTER_DOMAIN: &str = "cluster.local";

/// Names that are allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHosts {
    usual: Usual,
    listed: Vec<Pattern>,
}

/// What is allowed without being listed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Usual {
    Any,
    /// Nothing.
    Listed,
    Loopback,
    /// Names that no public domain can have, and the Services and Pods of these cluster domains.
    Cluster(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Any,
    Name(String),
    /// Every name below this domain.
    Below(String),
}

/// An entry of a list of names that can match no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a host name; write a name or address without a port, *.domain for all names below a domain, or *"
)]
pub struct HostError(String);

impl AllowedHosts {
    /// Every name. For servers whose clients prove who they are, or whose names only the administrator knows.
    pub fn any() -> Self {
        Self { usual: Usual::Any, listed: Vec::new() }
    }

    /// Only names that are added with [`AllowedHosts::and`].
    pub fn listed() -> Self {
        Self { usual: Usual::Listed, listed: Vec::new() }
    }

    /// `localhost`, names below it, and loopback addresses.
    pub fn loopback() -> Self {
        Self { usual: Usual::Loopback, listed: Vec::new() }
    }

    /// Names that only a network's own resolver knows: literal addresses, `localhost` and names below it, names without
    /// a dot, and names of Services and Pods below `cluster.local` and the given cluster domains. An attacker's page
    /// has a public domain name and so none of these.
    pub fn private(cluster_domains: impl IntoIterator<Item = String>) -> Self {
        let domains = cluster_domains.into_iter().chain([CLUSTER_DOMAIN.to_owned()]).collect();
        Self { usual: Usual::Cluster(domains), listed: Vec::new() }
    }

    /// The listed names and, in place of what is allowed besides them, the private ones of [`AllowedHosts::private`]. For
    /// pages that need no credential.
    pub fn or_private(&self, cluster_domains: impl IntoIterator<Item = String>) -> Self {
        Self { listed: self.listed.clone(), ..Self::private(cluster_domains) }
    }

    /// Adds names, `*.domain` patterns, or `*` for every name.
    pub fn and(mut self, list: impl IntoIterator<Item = String>) -> Result<Self, HostError> {
        for entry in list {
            let pattern = match entry.strip_prefix("*.") {
                None if entry == "*" => Pattern::Any,
                None if is_host(&entry) => Pattern::Name(entry),
                Some(domain) if is_name(domain) => Pattern::Below(domain.to_owned()),
                _ => return Err(HostError(entry)),
            };
            self.listed.push(pattern);
        }
        Ok(self)
    }

    /// Every name that the request has for the server must be allowed. A request without any is not a browser's.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), PageError> {
        if self.usual == Usual::Any {
            return Ok(());
        }
        match names(request).into_iter().find(|name| !self.contain(name)) {
            Some(name) => Err(PageError::Host(name)),
            None => Ok(()),
        }
    }

    /// Whether a client may call the server `authority`, the value of a `Host` header.
    pub fn contain(&self, authority: &str) -> bool {
        if self.usual == Usual::Any || self.listed.contains(&Pattern::Any) {
            return true;
        }
        let Some(Authority { host, .. }) = Authority::parse(authority) else { return false };
        let usual = match (&self.usual, host) {
            (Usual::Any, _) => true,
            (Usual::Listed, _) => false,
            (_, Host::Name(name)) if is_localhost(name) => true,
            (Usual::Loopback, Host::Name(_)) => false,
            (Usual::Loopback, Host::Address(ip)) => address::classify(ip) == AddressClass::Loopback,
            (Usual::Cluster(_), Host::Address(_)) => true,
            (Usual::Cluster(domains), Host::Name(name)) => !name.contains('.') || is_of_cluster(name, domains),
        };
        usual || self.listed.iter().any(|pattern| pattern.matches(&host))
    }
}

impl Pattern {
    fn matches(&self, host: &Host<'_>) -> bool {
        match (self, host) {
            (Self::Any, _) => true,
            (Self::Name(listed), host) => match (Authority::parse(listed), host) {
                (Some(Authority { host: Host::Address(listed), .. }), Host::Address(ip)) => listed == *ip,
                (Some(Authority { host: Host::Name(listed), .. }), Host::Name(name)) => {
                    listed.eq_ignore_ascii_case(name)
                }
                _ => false,
            },
            (Self::Below(domain), Host::Name(name)) => is_below(name, domain),
            (Self::Below(_), Host::Address(_)) => false,
        }
    }
}

fn is_host(entry: &str) -> bool {
    Authority::parse(entry).is_some_and(|parsed| parsed.port.is_none())
}

fn is_name(entry: &str) -> bool {
    matches!(Authority::parse(entry), Some(Authority { host: Host::Name(_), port: None }))
}

/// Browsers and resolvers answer `localhost` and every name below it with loopback addresses (RFC 6761).
fn is_localhost(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || is_below(name, "localhost")
}

/// `svc` is no top-level domain, so that names that end with it are those of Services.
fn is_of_cluster(name: &str, domains: &[String]) -> bool {
    is_below(name, "svc")
        || domains.iter().any(|domain| ["svc", "pod"].iter().any(|kind| is_below(name, &format!("{kind}.{domain}"))))
}

fn is_below(name: &str, domain: &str) -> bool {
    let Some(start) = name.len().checked_sub(domain.len() + 1) else { return false };
    let (labels, rest) = (&name.as_bytes()[..start], &name.as_bytes()[start..]);
    !labels.is_empty() && rest[0] == b'.' && rest[1..].eq_ignore_ascii_case(domain.as_bytes())
}
