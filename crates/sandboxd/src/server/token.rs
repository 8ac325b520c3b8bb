//! Who may send requests: holders of the optional bearer token, which is read from a descriptor or a file and compared
//! in constant time, and the router whose public key the daemon was given.

#![expect(unsafe_code, reason = "taking ownership of an inherited descriptor")]

use std::io::Read;
use std::os::fd::FromRawFd;
use std::time::{SystemTime, UNIX_EPOCH};

use agent_sandbox_protocol::sandbox_token::SANDBOX_TOKEN;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use subtle::ConstantTimeEq;

use crate::config::{RouterKeys, TokenSource};
use crate::http_io::body::{self, Body};

/// Maximum length of a token.
const MAX_TOKEN: u64 = 4096;

/// A secret that prints as `[redacted]`.
pub struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("[redacted]")
    }
}

impl Token {
    /// Reads the token, without surrounding white space.
    pub fn read(source: &TokenSource) -> std::io::Result<Self> {
        let file = match source {
            TokenSource::File(path) => std::fs::File::open(path)?,
            // SAFETY: the descriptor was passed for this purpose alone; it is closed after reading, so that no command
            // inherits it.
            TokenSource::Descriptor(number) => unsafe { std::fs::File::from_raw_fd(*number) },
        };
        let mut text = Vec::new();
        file.take(MAX_TOKEN).read_to_end(&mut text)?;
        let token = text.trim_ascii().to_vec();
        if token.is_empty() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "the token is empty"));
        }
        Ok(Self(token))
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn of(token: &[u8]) -> Self {
        Self(token.to_vec())
    }

    pub(super) fn allows(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let Some((scheme, token)) = given.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(token.trim_ascii().ct_eq(&self.0))
    }
}

/// Whether a request may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Nothing is required.
    NotRequired,
    Proven,
    /// The text says what is missing.
    Refused(&'static str),
}

/// Checks what a request carries against what is required: one of both suffices.
pub(super) fn check(token: Option<&Token>, router: Option<&RouterKeys>, headers: &HeaderMap) -> Access {
    let signed = |router: &RouterKeys| {
        let text = headers.get(SANDBOX_TOKEN).and_then(|value| value.to_str().ok());
        text.is_some_and(|text| router.keys.verify(text, &router.pod_uid, unix_seconds()).is_ok())
    };
    match (token, router) {
        (None, None) => Access::NotRequired,
        (Some(token), _) if token.allows(headers) => Access::Proven,
        (_, Some(router)) if signed(router) => Access::Proven,
        (Some(_), _) => Access::Refused("a bearer token is required\n"),
        (None, Some(_)) => Access::Refused(
            "this sandbox accepts only requests that its router has signed (X-Sandbox-Token): send them to the router\n",
        ),
    }
}

fn unix_seconds() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

pub(super) async fn unauthorized(why: &'static str, request: Request<Body>) -> Response<Body> {
    body::discard(request.into_body()).await;
    let mut response = body::text(StatusCode::UNAUTHORIZED, why);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_bearer_token_passes() {
        let token = Token(b"secret".to_vec());
        for (value, passes) in [
            ("Bearer secret", true),
            ("bearer secret", true),
            ("Bearer secret2", false),
            ("secret", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
            assert_eq!(token.allows(&headers), passes, "{value}");
        }
        assert!(!token.allows(&HeaderMap::new()));
        assert_eq!(format!("{token:?}"), "[redacted]");
    }
}
