//! Sandbox tokens: `s1.<payload>.<signature>`. With one, a router proves to the daemon in a Pod that it has authorised a
//! request. Signed with Ed25519, so that Pods hold only the public key; each is valid for one Pod until an expiry time.
//! The caller passes the current time.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::header::HeaderName;
use ring::signature::{ED25519, Ed25519KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

/// The header that carries the token.
pub const SANDBOX_TOKEN: HeaderName = HeaderName::from_static("x-sandbox-token");

/// Separates these signatures from any other use of the same key.
const CONTEXT: &str = "agent-sandbox/sandbox-token/s1.";
const VERSION: &str = "s1";
/// Encoding of an Ed25519 public key (RFC 8410) up to the key itself.
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    /// UID of the Pod.
    pod: String,
    /// Unix seconds; the token is valid strictly before this time.
    exp: i64,
}

/// Why a key cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("not an Ed25519 private key in PEM; make one with 'openssl genpkey -algorithm ed25519'")]
    Private,
    #[error("not an Ed25519 public key in PEM; derive it with 'openssl pkey -in KEY -pubout'")]
    Public,
}

/// Why a token is rejected. Callers return the same response for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    #[error("not a sandbox token")]
    Malformed,
    #[error("signature does not match")]
    BadSignature,
    #[error("token is for another Pod")]
    OtherPod,
    #[error("token has expired")]
    Expired,
}

/// The router's key.
pub struct SigningKey(Ed25519KeyPair);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey([redacted])")
    }
}

impl SigningKey {
    /// Reads a PKCS #8 key, as openssl writes it.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let blocks = pem_blocks(text, "PRIVATE KEY").ok_or(KeyError::Private)?;
        let [der] = blocks.as_slice() else { return Err(KeyError::Private) };
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map(Self).map_err(|_| KeyError::Private)
    }

    /// Creates a token for a Pod that is valid until `expires`, in Unix seconds.
    pub fn sign(&self, pod_uid: &str, expires: i64) -> String {
        let claims = Claims { pod: pod_uid.to_owned(), exp: expires };
        self.seal(&serde_json::to_vec(&claims).expect("a string and a number serialise"))
    }

    /// Signs any payload.
    pub(crate) fn seal(&self, payload: &[u8]) -> String {
        let payload = URL_SAFE_NO_PAD.encode(payload);
        let signature = self.0.sign(signed_text(&payload).as_bytes());
        format!("{VERSION}.{payload}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

/// The public keys that a Pod knows; several while a router's key is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyingKeys(Vec<[u8; 32]>);

impl VerifyingKeys {
    /// Reads one or more public keys in PEM.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let blocks = pem_blocks(text, "PUBLIC KEY").ok_or(KeyError::Public)?;
        let key = |der: &Vec<u8>| der.strip_prefix(&SPKI_PREFIX)?.try_into().ok();
        let keys: Option<Vec<[u8; 32]>> = blocks.iter().map(key).collect();
        keys.filter(|keys| !keys.is_empty()).map(Self).ok_or(KeyError::Public)
    }

    /// Checks a token for the Pod `pod_uid`; `now` is in Unix seconds.
    pub fn verify(&self, token: &str, pod_uid: &str, now: i64) -> Result<(), VerifyError> {
        let mut parts = token.split('.');
        let (Some(VERSION), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(VerifyError::Malformed);
        };
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| VerifyError::Malformed)?;
        let text = signed_text(payload);
        let signed = |key: &[u8; 32]| UnparsedPublicKey::new(&ED25519, key).verify(text.as_bytes(), &signature).is_ok();
        if !self.0.iter().any(signed) {
            return Err(VerifyError::BadSignature);
        }
        let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_| VerifyError::Malformed)?;
        let claims: Claims = serde_json::from_slice(&payload).map_err(|_| VerifyError::Malformed)?;
        match () {
            () if claims.pod != pod_uid => Err(VerifyError::OtherPod),
            () if now >= claims.exp => Err(VerifyError::Expired),
            () => Ok(()),
        }
    }
}

fn signed_text(payload: &str) -> String {
    format!("{CONTEXT}{payload}")
}

/// The decoded blocks of a PEM text, all of which must have this label; `None` if the text is malformed.
fn pem_blocks(text: &str, label: &str) -> Option<Vec<Vec<u8>>> {
    let (begin, end) = (format!("-----BEGIN {label}-----"), format!("-----END {label}-----"));
    let mut blocks = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (block, after) = rest.strip_prefix(&begin)?.split_once(&end)?;
        let encoded: String = block.split_whitespace().collect();
        blocks.push(STANDARD.decode(encoded).ok()?);
        rest = after.trim_start();
    }
    Some(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(label: &str, prefix: &[u8], key: &[u8]) -> String {
        let encoded = STANDARD.encode([prefix, key].concat());
        let lines: Vec<&str> = encoded.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
    }

    /// A key as openssl writes it: PKCS #8 without the public half.
    fn private(seed: u8) -> String {
        let prefix = [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
        pem("PRIVATE KEY", &prefix, &[seed; 32])
    }

    fn public(seed: u8) -> String {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
        pem("PUBLIC KEY", &SPKI_PREFIX, ring::signature::KeyPair::public_key(&pair).as_ref())
    }

    fn keys(text: &str) -> VerifyingKeys {
        VerifyingKeys::from_pem(text).unwrap()
    }

    #[test]
    fn a_token_is_for_one_pod_and_a_time() {
        let token = SigningKey::from_pem(&private(1)).unwrap().sign("pod-a", 1000);
        let keys = keys(&public(1));
        assert_eq!(keys.verify(&token, "pod-a", 999), Ok(()));
        assert_eq!(keys.verify(&token, "pod-a", 1000), Err(VerifyError::Expired));
        assert_eq!(keys.verify(&token, "pod-b", 999), Err(VerifyError::OtherPod));
    }

    #[test]
    fn forged_tokens_are_refused() {
        let token = SigningKey::from_pem(&private(1)).unwrap().sign("pod-a", 1000);
        assert_eq!(keys(&public(2)).verify(&token, "pod-a", 0), Err(VerifyError::BadSignature));
        assert_eq!(keys(&format!("{}{}", public(2), public(1))).verify(&token, "pod-a", 0), Ok(()), "a rotation");
        let parts: Vec<&str> = token.split('.').collect();
        let payload = URL_SAFE_NO_PAD.encode(r#"{"pod":"pod-b","exp":9999999999}"#);
        for forged in [
            format!("s1.{payload}.{}", parts[2]),
            format!("s1.{}.", parts[1]),
            format!("s1.{}", parts[1]),
            format!("{token}.x"),
            token.replacen("s1", "s2", 1),
            String::new(),
            "..".to_owned(),
        ] {
            assert!(keys(&public(1)).verify(&forged, "pod-b", 0).is_err(), "{forged}");
        }
    }

    #[test]
    fn unusable_keys_are_refused_and_private_ones_not_shown() {
        let (private, public) = (private(1), public(1));
        for bad in ["", "x", &private, &public[..40], &format!("{public}x")] {
            assert_eq!(VerifyingKeys::from_pem(bad), Err(KeyError::Public), "{bad}");
        }
        for bad in ["", &public, &format!("{private}{private}")] {
            assert!(SigningKey::from_pem(bad).is_err(), "{bad}");
        }
        assert_eq!(format!("{:?}", SigningKey::from_pem(&private).unwrap()), "SigningKey([redacted])");
    }
}
