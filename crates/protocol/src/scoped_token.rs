//! Scoped tokens: `v1.<payload>.<mac>`, each valid for one sandbox until an expiry time. Minting and verifying; the
//! caller passes the current time.

use std::fmt;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// Separates these MACs from any other use of the same secret.
const CONTEXT: &[u8] = b"agent-sandbox/scoped-token/v1.";
const VERSION: &str = "v1";
/// Minimum length of a secret: the output length of SHA-256, so that the secret is not the weakest part of the HMAC.
pub const MIN_SECRET_BYTES: usize = 32;

/// What a token grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    #[serde(rename = "ns", default)]
    pub namespace: String,
    #[serde(default)]
    pub name: String,
    /// Unix seconds; the token is valid strictly before this time.
    #[serde(rename = "exp", default)]
    pub expires: i64,
}

/// A secret shared by minters and verifiers.
#[derive(Clone)]
pub struct Secret {
    /// HMAC state with the key already mixed in.
    keyed: Hmac<Sha256>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret([redacted])")
    }
}

/// Why a secret cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error(
        "secret has {found} bytes after trimming, needs at least {MIN_SECRET_BYTES}; \
         make one with 'openssl rand -hex 32'"
    )]
    TooShort { found: usize },
}

/// Why a token cannot be minted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MintError {
    #[error("namespace is empty")]
    EmptyNamespace,
    #[error("sandbox name is empty")]
    EmptyName,
    #[error("time to live {0:?} is shorter than one second")]
    TooShortLived(Duration),
    #[error("time to live {0:?} does not fit a date")]
    TooLongLived(Duration),
}

/// Why a token is rejected. Callers return the same response for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    #[error("not a scoped token")]
    Malformed,
    #[error("unknown token version")]
    UnknownVersion,
    #[error("signature does not match")]
    BadSignature,
    #[error("payload is not valid")]
    BadPayload,
    #[error("token has expired")]
    Expired,
}

impl Secret {
    /// Reads the secret from the bytes of a file; surrounding white space is removed.
    pub fn from_file_bytes(bytes: &[u8]) -> Result<Self, SecretError> {
        let key = match std::str::from_utf8(bytes) {
            Ok(text) => text.trim().as_bytes(),
            Err(_) => bytes.trim_ascii(),
        };
        if key.len() < MIN_SECRET_BYTES {
            return Err(SecretError::TooShort { found: key.len() });
        }
        let keyed = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
        Ok(Self { keyed })
    }

    /// Creates a token for one sandbox; `now` is the time since the Unix epoch.
    pub fn mint(&self, namespace: &str, name: &str, ttl: Duration, now: Duration) -> Result<String, MintError> {
        if namespace.is_empty() {
            return Err(MintError::EmptyNamespace);
        }
        if name.is_empty() {
            return Err(MintError::EmptyName);
        }
        if ttl < Duration::from_secs(1) {
            return Err(MintError::TooShortLived(ttl));
        }
        let end = now.checked_add(ttl).ok_or(MintError::TooLongLived(ttl))?;
        let expires = i64::try_from(end.as_secs()).map_err(|_| MintError::TooLongLived(ttl))?;
        Ok(self.sign(&Claims { namespace: namespace.to_owned(), name: name.to_owned(), expires }))
    }

    fn sign(&self, claims: &Claims) -> String {
        self.seal(&serde_json::to_vec(claims).expect("two strings and a number always serialise"))
    }

    /// Signs any payload.
    pub(crate) fn seal(&self, payload: &[u8]) -> String {
        let payload = URL_SAFE_NO_PAD.encode(payload);
        let mac = URL_SAFE_NO_PAD.encode(self.mac(payload.as_bytes()).finalize().into_bytes());
        format!("{VERSION}.{payload}.{mac}")
    }

    /// Checks a token; `now` is in Unix seconds.
    pub fn verify(&self, token: &str, now: i64) -> Result<Claims, VerifyError> {
        let (version, rest) = token.split_once('.').ok_or(VerifyError::Malformed)?;
        if version != VERSION {
            return Err(VerifyError::UnknownVersion);
        }
        let (payload, mac) = rest.split_once('.').ok_or(VerifyError::Malformed)?;
        let mut decoded = [0_u8; 64];
        let length = URL_SAFE_NO_PAD.decode_slice(mac, &mut decoded).map_err(|_| VerifyError::BadSignature)?;
        self.mac(payload.as_bytes()).verify_slice(&decoded[..length]).map_err(|_| VerifyError::BadSignature)?;
        let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_| VerifyError::BadPayload)?;
        let claims: Claims = serde_json::from_slice(&payload).map_err(|_| VerifyError::BadPayload)?;
        if now >= claims.expires { Err(VerifyError::Expired) } else { Ok(claims) }
    }

    fn mac(&self, payload: &[u8]) -> Hmac<Sha256> {
        self.mac_in(CONTEXT, payload)
    }

    /// The MAC of a payload for another use of the same secret; `context` separates the uses.
    pub(crate) fn mac_in(&self, context: &[u8], payload: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.keyed.clone();
        mac.update(context);
        mac.update(payload);
        mac
    }
}

/// Whether a bearer token has the outer form of a scoped token, and so must not be checked by any other mode.
pub fn looks_scoped(token: &str) -> bool {
    token.strip_prefix("v1.").is_some_and(|rest| rest.contains('.'))
}

#[cfg(test)]
mod tests;
