//! Which sandbox a request names: in headers, in its path or in its host. Pure functions.

use agent_sandbox_protocol::router_headers::{Loopback, SandboxRequest};
use agent_sandbox_protocol::sandbox_address::{Address, AddressError};
use agent_sandbox_protocol::web;
use http::{HeaderMap, Request};

use crate::error::RouterError;

/// The forms beside headers that a router understands.
#[derive(Clone, Debug, Default)]
pub struct Routing {
    /// Begins with a slash and does not end with one.
    pub path_prefix: Option<String>,
    pub host_domain: Option<String>,
}

/// Where a request names its sandbox.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Named {
    InHeaders,
    InUrl(Route),
    /// In the headers of E2B's clients, or by the signature of a file's address.
    ByE2b(Address),
}

/// A sandbox that the URL names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) address: Address,
    /// The path below which every URL of this sandbox and port lies.
    pub(crate) base: String,
    /// The path that the sandbox sees.
    pub(crate) path: String,
}

impl Routing {
    /// Finds the sandbox's name. Forms that contradict each other are refused.
    pub(crate) fn find<B>(&self, request: &Request<B>) -> Result<Named, AddressError> {
        let path = request.uri().path();
        let in_path = self.path_prefix.as_deref().and_then(|prefix| Some((prefix, Address::of_path(prefix, path)?)));
        let in_host = match self.in_host(request) {
            Some(address) => Some(address?),
            None => None,
        };
        let route = match (in_path, in_host) {
            (None, None) => return Ok(Named::InHeaders),
            (Some((prefix, found)), in_host) => {
                let (address, seen) = found?;
                if in_host.is_some_and(|other| other != address) {
                    return Err(AddressError::Conflict);
                }
                let base = format!("{prefix}/{}/{}/{}/", address.namespace, address.id, address.port);
                Route { address, base, path: seen.to_owned() }
            }
            (None, Some(address)) => Route { address, base: "/".to_owned(), path: path.to_owned() },
        };
        route.address.agrees_with(request.headers())?;
        Ok(Named::InUrl(route))
    }

    /// The sandbox that the host names. A request with different names for the router has no host.
    pub(crate) fn in_host<B>(&self, request: &Request<B>) -> Option<Result<Address, AddressError>> {
        let domain = self.host_domain.as_deref()?;
        let names = web::names(request);
        let (first, others) = names.split_first()?;
        if others.iter().any(|other| other != first) {
            return None;
        }
        Address::of_host(domain, first)
    }
}

impl Named {
    /// The request with everything that its headers say in addition.
    pub(crate) fn read(&self, headers: &HeaderMap, loopback: Loopback) -> Result<SandboxRequest, RouterError> {
        match self {
            Self::InHeaders => Ok(SandboxRequest::parse(headers, loopback)?),
            Self::InUrl(Route { address, .. }) | Self::ByE2b(address) => {
                Ok(SandboxRequest::of_address(address.clone(), headers))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(uri: &str, headers: &[(&str, &str)]) -> Result<Named, AddressError> {
        let routing =
            Routing { path_prefix: Some("/router".to_owned()), host_domain: Some("boxes.example".to_owned()) };
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        routing.find(&request.body(()).unwrap())
    }

    fn shown(found: Result<Named, AddressError>) -> String {
        match found {
            Ok(Named::InHeaders) => "headers".to_owned(),
            Ok(Named::InUrl(Route { address: Address { namespace, id, port }, base, path })) => {
                format!("{namespace} {id} {port} {base} {path}")
            }
            Ok(other) => format!("{other:?}"),
            Err(error) => format!("{error:?}"),
        }
    }

    #[test]
    fn every_form_ends_in_one_address() {
        let host = ("host", "8080-box--team.boxes.example");
        for (uri, headers, expected) in [
            ("/router/team/box/8080/a?b=c", &[][..], "team box 8080 /router/team/box/8080/ /a"),
            ("/a?b=c", &[host], "team box 8080 / /a"),
            ("http://8080-box--team.boxes.example/a", &[], "team box 8080 / /a"),
            ("/router/team/box/8080/a", &[host], "team box 8080 /router/team/box/8080/ /a"),
            ("/router/team/box/8080/a", &[("x-sandbox-id", "box")], "team box 8080 /router/team/box/8080/ /a"),
            ("/a", &[("x-sandbox-id", "box")], "headers"),
            ("/a", &[("host", "boxes.example")], "headers"),
            // Forms that disagree.
            ("/router/team/other/8080/a", &[host], "Conflict"),
            ("/router/team/box/8080/a", &[("x-sandbox-id", "other")], "Conflict"),
            ("/a", &[host, ("x-sandbox-port", "22")], "Conflict"),
            ("/a", &[host, ("x-sandbox-pod-ip", "10.0.0.1")], "ClientFacts"),
            ("/router/team/box", &[("x-sandbox-id", "box")], "Path"),
            // Two names for the router: neither is believed.
            ("/a", &[host, ("host", "8080-other--team.boxes.example")], "headers"),
        ] {
            assert_eq!(shown(find(uri, headers)), expected, "{uri} {headers:?}");
        }
    }

    #[test]
    fn forms_are_off_unless_configured() {
        let request = Request::get("/router/team/box/8080/").header("host", "1-a--b.localhost").body(()).unwrap();
        assert_eq!(Routing::default().find(&request), Ok(Named::InHeaders));
    }
}
