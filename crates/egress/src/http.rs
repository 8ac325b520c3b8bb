//! Reads the host that a plain HTTP/1 request is for, and refuses requests that could be for two.

use http::header::{HOST, UPGRADE};
use http::{Method, Request, Version};

use crate::name::{Name, NameError};

/// Maximum size of a request's head, and of its headers in number.
pub const MAX_HEAD: usize = 32 * 1024;
pub const MAX_HEADERS: usize = 100;
/// Longest path that is written to a log.
const MAX_LOGGED_PATH: usize = 256;

/// Why a request is refused before any rule is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("only HTTP/1.1 requests pass")]
    Version,
    #[error("CONNECT is not supported: connect to the host itself")]
    Connect,
    #[error("the request has no Host header, or several")]
    HostHeader,
    #[error("the request's target names another host than its Host header")]
    TwoHosts,
    #[error("the request's target is not an http address")]
    Target,
    #[error("the Host header names another port than the connection is for")]
    Port,
    #[error("the host is not a name: {0}")]
    Name(#[source] NameError),
    #[error("only an upgrade to websocket passes")]
    Upgrade,
}

/// The name that a request is for. `port` is the one that the connection was made to.
pub fn host<B>(request: &Request<B>, port: u16) -> Result<Name, RequestError> {
    if request.version() != Version::HTTP_11 && request.version() != Version::HTTP_10 {
        return Err(RequestError::Version);
    }
    if request.method() == Method::CONNECT {
        return Err(RequestError::Connect);
    }
    let mut upgrades = request.headers().get_all(UPGRADE).iter();
    if !upgrades.all(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket")) {
        return Err(RequestError::Upgrade);
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let header = match (hosts.next(), hosts.next()) {
        (Some(only), None) => only.to_str().map_err(|_| RequestError::HostHeader)?,
        _ => return Err(RequestError::HostHeader),
    };
    let name = authority(header, port)?;
    let target = request.uri();
    match (target.scheme_str(), target.authority()) {
        (None, None) => {}
        (Some("http"), Some(given)) if authority(given.as_str(), port)? != name => return Err(RequestError::TwoHosts),
        (Some("http"), Some(_)) => {}
        _ => return Err(RequestError::Target),
    }
    Ok(name)
}

/// The name in `name[:port]`.
fn authority(text: &str, port: u16) -> Result<Name, RequestError> {
    let (name, given) = match text.rsplit_once(':') {
        Some((name, digits)) if !text.ends_with(']') => (name, Some(digits)),
        _ => (text, None),
    };
    if let Some(digits) = given {
        let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u16>().ok()).flatten();
        if number != Some(port) {
            return Err(RequestError::Port);
        }
    } else if port != 80 {
        return Err(RequestError::Port);
    }
    Name::parse(name).map_err(RequestError::Name)
}

/// A path as it may be logged: without its query, which may hold secrets, and not longer than is useful.
pub fn logged_path(path: &str) -> String {
    path.split(['?', '#']).next().unwrap_or_default().chars().take(MAX_LOGGED_PATH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(target: &str, headers: &[(&str, &str)]) -> Result<String, RequestError> {
        let builder = Request::builder().uri(target);
        let request = headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
        host(&request.body(()).unwrap(), 80).map(|name| name.to_string())
    }

    #[test]
    fn the_host_is_read_from_header_and_target() {
        for (target, header) in [("/", "A.example"), ("/x?y", "a.example:80"), ("http://a.example/x", "a.example.")] {
            assert_eq!(of(target, &[("host", header)]), Ok("a.example".to_owned()), "{target} {header}");
        }
        assert_eq!(of("/", &[("host", "a.example"), ("upgrade", "WebSocket")]), Ok("a.example".to_owned()));
    }

    #[test]
    fn requests_that_could_be_for_two_hosts_are_refused() {
        for (target, headers, error) in [
            ("/", &[][..], RequestError::HostHeader),
            ("/", &[("host", "a.b"), ("host", "a.b")], RequestError::HostHeader),
            ("http://c.d/", &[("host", "a.b")], RequestError::TwoHosts),
            ("https://a.b/", &[("host", "a.b")], RequestError::Target),
            ("http://u@a.b/", &[("host", "a.b")], RequestError::Name(NameError::Character)),
            ("/", &[("host", "a.b:81")], RequestError::Port),
            ("/", &[("host", "a.b:")], RequestError::Port),
            ("/", &[("host", "a.b:+80")], RequestError::Port),
            ("/", &[("host", "192.0.2.1")], RequestError::Name(NameError::Address)),
            ("/", &[("host", "[::1]")], RequestError::Name(NameError::Character)),
            ("/", &[("host", "a.b, c.d")], RequestError::Name(NameError::Character)),
            ("/", &[("host", "")], RequestError::Name(NameError::Empty)),
            ("/", &[("host", "a.b"), ("upgrade", "h2c")], RequestError::Upgrade),
        ] {
            assert_eq!(of(target, headers), Err(error), "{target} {headers:?}");
        }
        let connect = Request::builder().method("CONNECT").uri("a.b:80").header("host", "a.b:80").body(()).unwrap();
        assert_eq!(host(&connect, 80), Err(RequestError::Connect));
    }

    #[test]
    fn queries_are_not_logged() {
        assert_eq!(logged_path("/a?token=x"), "/a");
        assert_eq!(logged_path(&"/".repeat(1000)).len(), MAX_LOGGED_PATH);
    }
}
