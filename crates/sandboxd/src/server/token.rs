//! The optional bearer token, read from a descriptor or a file and compared in constant time.

#![expect(unsafe_code, reason = "taking ownership of an inherited descriptor")]

use std::io::Read;
use std::os::fd::FromRawFd;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use subtle::ConstantTimeEq;

use crate::config::TokenSource;
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

    pub(super) fn allows(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let Some((scheme, token)) = given.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(token.trim_ascii().ct_eq(&self.0))
    }
}

pub(super) fn unauthorized() -> Response<Body> {
    let mut response = body::text(StatusCode::UNAUTHORIZED, "a bearer token is required\n");
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
