//! The forms in which a request names a sandbox: `X-Sandbox-*` headers, a path
//! (`/<prefix>/<namespace>/<id>/<port>/…`) or a host (`<port>-<id>--<namespace>.<domain>`). Each ends in one
//! [`Address`].

use http::header::{HeaderMap, HeaderValue};

use crate::router_headers::{
    HeaderError, Label, SANDBOX_ID, SANDBOX_NAMESPACE, SANDBOX_POD_IP, SANDBOX_PORT, SANDBOX_UID, parse_port,
};
use crate::web::{Authority, Host};

/// A port of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub namespace: Label,
    pub id: Label,
    pub port: u16,
}

/// Why a path, a host or a combination of forms names no sandbox. `Display` is the text that clients see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("Path-routed request must have the form <prefix>/<namespace>/<id>/<port>/...")]
    Path,
    #[error("Host-routed request must have the form <port>-<id>--<namespace>.<domain>")]
    Host,
    #[error("The host can be read as two sandboxes, because a name contains '--'; use another form.")]
    Ambiguous,
    #[error("E2b-Sandbox-Id and E2b-Sandbox-Port must be sent together, once each.")]
    E2bHeaders,
    #[error("Invalid percent-encoding in path.")]
    Encoding,
    #[error(transparent)]
    Part(#[from] HeaderError),
    #[error("The path, the host and the X-Sandbox-* headers name different sandboxes.")]
    Conflict,
    #[error("X-Sandbox-Pod-IP and X-Sandbox-UID cannot be used where the path or the host names the sandbox.")]
    ClientFacts,
}

impl Address {
    /// Parses a path as it arrived, still encoded, and returns what the sandbox should see of it. `None` if it does not
    /// begin with `prefix`.
    pub fn of_path<'p>(prefix: &str, path: &'p str) -> Option<Result<(Self, &'p str), AddressError>> {
        let rest = path.strip_prefix(prefix)?;
        // `/routerx` is not below `/router`.
        let rest = rest.strip_prefix('/')?;
        Some(Self::of_segments(rest))
    }

    fn of_segments(rest: &str) -> Result<(Self, &str), AddressError> {
        let mut segments = rest.splitn(4, '/');
        let mut segment = || segments.next().filter(|segment| !segment.is_empty()).ok_or(AddressError::Path);
        let (namespace, id, port) = (segment()?, segment()?, segment()?);
        let address = Self {
            namespace: label(&decode(namespace)?).ok_or(HeaderError::InvalidNamespace)?,
            id: label(&decode(id)?).ok_or(HeaderError::InvalidId)?,
            port: parse_port(&decode(port)?).ok_or(HeaderError::InvalidPort)?,
        };
        // The slash before the rest is part of what the sandbox sees.
        let seen = match segments.next() {
            Some(remainder) => &rest[rest.len() - remainder.len() - 1..],
            None => "/",
        };
        Ok((address, seen))
    }

    /// Parses the host that a client used. `None` if it is not below `domain`, or if its label does not begin as one of
    /// this form does: other names of the router may be there, too.
    pub fn of_host(domain: &str, authority: &str) -> Option<Result<Self, AddressError>> {
        let Authority { host: Host::Name(name), .. } = Authority::parse(authority)? else { return None };
        let name = name.to_ascii_lowercase();
        let label = name.strip_suffix(&domain.to_ascii_lowercase())?.strip_suffix('.')?;
        let (port, rest) = label.split_once('-')?;
        if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(Self::of_label(port, rest))
    }

    fn of_label(port: &str, rest: &str) -> Result<Self, AddressError> {
        let port = parse_port(port.as_bytes()).ok_or(HeaderError::InvalidPort)?;
        Self::of_joined(rest, port)
    }

    /// Parses `<id>--<namespace>`.
    pub fn of_joined(rest: &str, port: u16) -> Result<Self, AddressError> {
        let readings = rest
            .match_indices("--")
            .filter_map(|(at, _)| Some((label(&rest.as_bytes()[..at])?, label(&rest.as_bytes()[at + 2..])?)));
        let mut readings = readings.take(2);
        match (readings.next(), readings.next()) {
            (Some((id, namespace)), None) => Ok(Self { namespace, id, port }),
            (None, _) => Err(AddressError::Host),
            (Some(_), Some(_)) => Err(AddressError::Ambiguous),
        }
    }

    /// Whether the headers of the same request, if they name a sandbox at all, name this one.
    pub fn agrees_with(&self, headers: &HeaderMap) -> Result<(), AddressError> {
        if headers.contains_key(SANDBOX_POD_IP) || headers.contains_key(SANDBOX_UID) {
            return Err(AddressError::ClientFacts);
        }
        let port = self.port.to_string();
        let own = [
            (SANDBOX_ID, self.id.as_str()),
            (SANDBOX_NAMESPACE, self.namespace.as_str()),
            (SANDBOX_PORT, port.as_str()),
        ];
        let agree = own.iter().all(|(name, own)| headers.get_all(name).iter().all(|value| value == own));
        if agree { Ok(()) } else { Err(AddressError::Conflict) }
    }
}

fn label(bytes: &[u8]) -> Option<Label> {
    Label::new(HeaderValue::from_bytes(bytes).ok()?)
}

/// Decodes `%xx`; clients may encode characters that need no encoding.
fn decode(segment: &str) -> Result<Vec<u8>, AddressError> {
    let mut decoded = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(AddressError::Encoding) };
        decoded.push((high * 16 + low) as u8);
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(namespace: &'static str, id: &'static str, port: u16) -> Address {
        Address { namespace: Label::from_static(namespace), id: Label::from_static(id), port }
    }

    #[test]
    fn paths_keep_the_rest_as_it_arrived() {
        for (path, seen) in [
            ("/router/team/box/8080/a/b", "/a/b"),
            ("/router/team/box/8080/", "/"),
            ("/router/team/box/8080", "/"),
            ("/router/team/box/8080//x%2Fy/../z", "//x%2Fy/../z"),
            ("/router/te%61m/box/80%380/%ZZ", "/%ZZ"),
        ] {
            assert_eq!(Address::of_path("/router", path), Some(Ok((address("team", "box", 8080), seen))), "{path}");
        }
        for other in ["/", "/routerx/team/box/8080/", "/router", "/Router/team/box/8080/", "/x/router/team/box/80/"] {
            assert_eq!(Address::of_path("/router", other), None, "{other}");
        }
    }

    #[test]
    fn malformed_paths_are_refused() {
        for (path, error) in [
            ("/router/", AddressError::Path),
            ("/router/team/box", AddressError::Path),
            ("/router/team//8080/", AddressError::Path),
            ("/router/Team/box/8080/", HeaderError::InvalidNamespace.into()),
            ("/router/team/b%2Fx/8080/", HeaderError::InvalidId.into()),
            ("/router/team/../8080/", HeaderError::InvalidId.into()),
            ("/router/team/box/0/", HeaderError::InvalidPort.into()),
            ("/router/team/box/65536/", HeaderError::InvalidPort.into()),
            ("/router/team/box/+80/", HeaderError::InvalidPort.into()),
            ("/router/team/box%2/80/", AddressError::Encoding),
            ("/router/team/box%zz/80/", AddressError::Encoding),
        ] {
            assert_eq!(Address::of_path("/router", path), Some(Err(error)), "{path}");
        }
    }

    #[test]
    fn hosts_have_one_label_below_the_domain() {
        for host in [
            "8080-box--team.boxes.example.com",
            "8080-box--team.boxes.example.com:8443",
            "8080-BOX--team.Boxes.example.com.",
        ] {
            assert_eq!(Address::of_host("boxes.example.com", host), Some(Ok(address("team", "box", 8080))), "{host}");
        }
        let dashes = Address::of_host("localhost", "1-my-box-2--team-a.localhost:80");
        assert_eq!(dashes, Some(Ok(address("team-a", "my-box-2", 1))));
        for other in
            ["boxes.example.com", "www.boxes.example.com", "8080-box--team.example.com", "10.0.0.1", "[::1]", "-"]
        {
            assert_eq!(Address::of_host("boxes.example.com", other), None, "{other}");
        }
        assert_eq!(Address::of_host("localhost", "8080-box--teamlocalhost"), None);
    }

    #[test]
    fn malformed_and_ambiguous_hosts_are_refused() {
        for (host, error) in [
            ("8080-box.localhost", AddressError::Host),
            ("8080-box--.localhost", AddressError::Host),
            ("8080---team.localhost", AddressError::Host),
            ("8080-box--team.evil.localhost", AddressError::Host),
            ("0-box--team.localhost", HeaderError::InvalidPort.into()),
            ("99999-box--team.localhost", HeaderError::InvalidPort.into()),
            ("8080-a--b--c.localhost", AddressError::Ambiguous),
        ] {
            assert_eq!(Address::of_host("localhost", host), Some(Err(error)), "{host}");
        }
    }

    #[test]
    fn headers_may_repeat_an_address_but_not_change_it() {
        let own = address("team", "box", 8080);
        for (pairs, outcome) in [
            (&[][..], Ok(())),
            (&[("x-sandbox-id", "box"), ("x-sandbox-namespace", "team"), ("x-sandbox-port", "8080")], Ok(())),
            (&[("x-sandbox-id", "other")], Err(AddressError::Conflict)),
            (&[("x-sandbox-id", "box"), ("x-sandbox-id", "other")], Err(AddressError::Conflict)),
            (&[("x-sandbox-namespace", "default")], Err(AddressError::Conflict)),
            (&[("x-sandbox-port", "22")], Err(AddressError::Conflict)),
            (&[("x-sandbox-pod-ip", "10.0.0.7")], Err(AddressError::ClientFacts)),
            (&[("x-sandbox-uid", "u")], Err(AddressError::ClientFacts)),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            assert_eq!(own.agrees_with(&headers), outcome, "{pairs:?}");
        }
    }
}
