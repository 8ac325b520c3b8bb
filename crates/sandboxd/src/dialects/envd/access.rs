//! Who may use the dialect: the access token of the sandbox, signed addresses of files, and pages in browsers.

use agent_sandbox_protocol::e2b::{ACCESS_TOKEN, Signed};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use subtle::ConstantTimeEq as _;

use crate::http_io::body::{self, Body};

/// What the daemon's own token says about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The request carries the daemon's token.
    Trusted,
    /// The daemon has no token.
    Unchecked,
    /// The daemon has a token, and the request does not carry it.
    Unproven,
}

/// An access token. It prints as `[redacted]`.
#[derive(Clone)]
pub(super) struct AccessToken(String);

impl std::fmt::Debug for AccessToken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("[redacted]")
    }
}

impl AccessToken {
    /// `None` for an empty token, which means none.
    pub(super) fn new(text: String) -> Option<Self> {
        (!text.is_empty()).then_some(Self(text))
    }

    fn equals(&self, given: &[u8]) -> bool {
        bool::from(given.ct_eq(self.0.as_bytes()))
    }

    /// Whether `signature` was made with this token and has not expired at `now`, in seconds since 1970.
    pub(super) fn verifies(&self, signed: &Signed<'_>, signature: &str, now: i64) -> bool {
        signed.verify(&self.0, signature, now)
    }
}

/// The token in a request, if it has one.
pub(super) fn given_token(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(ACCESS_TOKEN).map(HeaderValue::as_bytes)
}

/// Whether a request may be served: it carries the access token, or there is no token at all to carry.
pub(super) fn allows(token: Option<&AccessToken>, caller: Caller, headers: &HeaderMap) -> bool {
    match (caller, token) {
        (Caller::Trusted, _) => true,
        (_, Some(token)) => given_token(headers).is_some_and(|given| token.equals(given)),
        (caller, None) => caller == Caller::Unchecked,
    }
}

/// Whether a page of another origin sent the request. Browsers name the origin; programs do not.
pub(super) fn is_cross_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes).unwrap_or_default();
    let own = origin.as_bytes().splitn(2, |byte| *byte == b'/').nth(1).and_then(|rest| rest.strip_prefix(b"/"));
    own != Some(host)
}

/// The answer to a browser that asks whether a page may send a request.
pub(super) fn preflight(request: &Request<Body>) -> Option<Response<Body>> {
    let headers = request.headers();
    if request.method() != Method::OPTIONS || !headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let mut response = body::empty(StatusCode::NO_CONTENT);
    let out = response.headers_mut();
    let methods = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE");
    out.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    if let Some(asked) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        out.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    out.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    Some(response)
}

/// Lets pages of any origin read the response. Only for sandboxes with an access token, which a page must know.
pub(super) fn share_with_pages(response: &mut Response<Body>) {
    let out = response.headers_mut();
    out.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    let exposed = "Content-Length, Content-Disposition, Content-Range, ETag, Grpc-Status, Grpc-Message, \
                   Grpc-Status-Details-Bin";
    out.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(exposed));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> AccessToken {
        AccessToken::new("secret".into()).expect("not empty")
    }

    /// E-074
    #[test]
    fn a_token_is_demanded_as_soon_as_there_is_one() {
        let none = HeaderMap::new();
        let mut right = HeaderMap::new();
        right.insert(ACCESS_TOKEN, HeaderValue::from_static("secret"));
        let token = token();
        assert!(allows(None, Caller::Unchecked, &none));
        assert!(!allows(None, Caller::Unproven, &right), "the daemon's own token protects a sandbox without another");
        assert!(!allows(Some(&token), Caller::Unchecked, &none));
        assert!(allows(Some(&token), Caller::Unproven, &right));
        assert!(allows(Some(&token), Caller::Trusted, &none));
        assert_eq!(format!("{token:?}"), "[redacted]");
    }

    #[test]
    fn pages_of_other_origins_are_recognised() {
        let headers = |origin: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static("localhost:49983"));
            headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            headers
        };
        assert!(!is_cross_origin(&HeaderMap::new()));
        assert!(!is_cross_origin(&headers("http://localhost:49983")));
        for origin in ["https://evil.example", "http://localhost:8080", "null", "http://localhost:49983.evil.example"] {
            assert!(is_cross_origin(&headers(origin)), "{origin}");
        }
    }
}
