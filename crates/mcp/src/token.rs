//! The bearer token that clients of the HTTP transport must send.

use crate::McpError;
use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};
use subtle::ConstantTimeEq as _;

/// Shortest token that is accepted from a file; a generated one has 64 characters.
const MIN_LENGTH: usize = 16;

/// A shared secret; never printed.
#[derive(Clone)]
pub struct BearerToken(String);

impl std::fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BearerToken([redacted])")
    }
}

impl BearerToken {
    /// Reads the token from a file.
    pub fn load(path: &Path) -> Result<Self, McpError> {
        let text = fs::read_to_string(path).map_err(|source| McpError::TokenFile {
            path: path.to_owned(),
            operation: "read",
            source,
        })?;
        let token = text.trim();
        if token.len() < MIN_LENGTH || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(McpError::Token { path: path.to_owned(), min_length: MIN_LENGTH });
        }
        Ok(Self(token.to_owned()))
    }

    /// Reads the token from a file; a missing file is created with a new token that only its owner can read.
    pub fn load_or_create(path: &Path) -> Result<Self, McpError> {
        let failed = |source| McpError::TokenFile { path: path.to_owned(), operation: "create", source };
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(mut file) => {
                let token = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
                file.write_all(token.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
                Ok(Self(token))
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Self::load(path),
            Err(error) => Err(failed(error)),
        }
    }

    /// Whether an `Authorization` header carries this token. Takes the same time for every token of this length.
    pub(crate) fn is_in(&self, headers: &http::HeaderMap) -> bool {
        let value = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((scheme, token)) = value.and_then(|value| value.split_once(' ')) else { return false };
        scheme.eq_ignore_ascii_case("bearer") && bool::from(token.trim().as_bytes().ct_eq(self.0.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn headers(value: &str) -> http::HeaderMap {
        [(http::header::AUTHORIZATION, value.parse().unwrap())].into_iter().collect()
    }

    #[test]
    fn a_created_token_is_private_and_stays_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mcp-token");
        let token = BearerToken::load_or_create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let again = BearerToken::load_or_create(&path).unwrap();
        assert_eq!((token.0.len(), &token.0), (64, &again.0));
        assert!(!format!("{token:?}").contains(&token.0));
    }

    #[test]
    fn only_the_exact_token_is_accepted() {
        let token = BearerToken("0123456789abcdef".to_owned());
        assert!(token.is_in(&headers("Bearer 0123456789abcdef")) && token.is_in(&headers("bearer  0123456789abcdef ")));
        for wrong in ["", "Bearer", "Bearer 0123456789abcde", "Bearer 0123456789abcdefg", "Basic 0123456789abcdef"] {
            assert!(!token.is_in(&headers(wrong)), "{wrong:?}");
        }
        assert!(!token.is_in(&http::HeaderMap::new()));
    }

    #[test]
    fn a_file_without_a_usable_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t");
        assert!(BearerToken::load(&path).unwrap_err().to_string().contains("cannot read"));
        for wrong in ["", "short", "spaces in this long token"] {
            fs::write(&path, wrong).unwrap();
            let error = BearerToken::load(&path).unwrap_err().to_string();
            assert!(error.contains("16"), "{error}");
        }
    }
}
