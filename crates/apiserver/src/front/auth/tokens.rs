//! ServiceAccount tokens: JSON Web Tokens, signed (HS256) with a key that only this server has.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::Sha256;

/// Issuer and default audience, as in every cluster.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;
/// Maximum length of a token; longer than any token that this server signs.
const MAX_TOKEN: usize = 16 * 1024;

/// Why a token is not valid. The response to a client does not contain the reason; a token review does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("the token was not issued by this server")]
    Malformed,
    #[error("the token's signature is wrong")]
    Signature,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("the token's service account or bound object was deleted")]
    BoundObjectDeleted,
    #[error("the token was revoked")]
    Revoked,
    #[error("the token is meant for another audience")]
    Audience,
}

/// A reference to an object in a token; the object must still exist with this uid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub name: String,
    pub uid: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubernetesClaims {
    pub namespace: String,
    pub serviceaccount: Named,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Named>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Named>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Named>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    #[serde(rename = "aud")]
    pub audiences: Vec<String>,
    #[serde(rename = "exp")]
    pub expires: i64,
    #[serde(rename = "iat")]
    pub issued: i64,
    #[serde(rename = "iss")]
    pub issuer: String,
    #[serde(rename = "jti")]
    pub id: String,
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: KubernetesClaims,
    #[serde(rename = "nbf")]
    pub not_before: i64,
    #[serde(rename = "sub")]
    pub subject: String,
}

impl Claims {
    pub fn new(kubernetes: KubernetesClaims, audiences: Vec<String>, now: Timestamp, lifetime: SignedDuration) -> Self {
        let subject = format!("system:serviceaccount:{}:{}", kubernetes.namespace, kubernetes.serviceaccount.name);
        Self {
            audiences,
            expires: (now + lifetime).as_second(),
            issued: now.as_second(),
            issuer: ISSUER.into(),
            id: uuid::Uuid::new_v4().to_string(),
            kubernetes,
            not_before: now.as_second(),
            subject,
        }
    }
}

/// Signs and verifies tokens.
#[derive(Clone)]
pub struct TokenSigner {
    mac: Hmac<Sha256>,
}

impl TokenSigner {
    pub fn new(key: &[u8]) -> Self {
        Self { mac: Hmac::new_from_slice(key).expect("a key of any length is accepted") }
    }

    pub fn sign(&self, claims: &Claims) -> String {
        self.seal(&serde_json::to_vec(claims).expect("claims are strings and numbers"))
    }

    /// Signs any payload.
    pub(crate) fn seal(&self, payload: &[u8]) -> String {
        let signed = format!("{}.{}", BASE64.encode(HEADER), BASE64.encode(payload));
        let mut mac = self.mac.clone();
        mac.update(signed.as_bytes());
        format!("{signed}.{}", BASE64.encode(mac.finalize().into_bytes()))
    }

    /// Verifies the signature and the times. The caller must check that the account still exists.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Claims, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        let signature = BASE64.decode(signature).map_err(|_| TokenError::Malformed)?;
        let mut mac = self.mac.clone();
        mac.update(signed.as_bytes());
        mac.verify_slice(&signature).map_err(|_| TokenError::Signature)?;
        let decode = |part: &str| BASE64.decode(part).map_err(|_| TokenError::Malformed);
        let header: Value = serde_json::from_slice(&decode(header)?).map_err(|_| TokenError::Malformed)?;
        if header["alg"] != "HS256" {
            return Err(TokenError::Malformed);
        }
        let claims: Claims = serde_json::from_slice(&decode(payload)?).map_err(|_| TokenError::Malformed)?;
        match now.as_second() {
            time if time >= claims.expires => Err(TokenError::Expired),
            time if time < claims.not_before => Err(TokenError::NotYet),
            _ => Ok(claims),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claims(now: Timestamp) -> Claims {
        let kubernetes = KubernetesClaims {
            namespace: "ns".into(),
            serviceaccount: Named { name: "sa".into(), uid: "1".into() },
            pod: None,
            secret: None,
            node: None,
        };
        Claims::new(kubernetes, vec![ISSUER.into()], now, SignedDuration::from_hours(1))
    }

    #[test]
    fn a_token_is_valid_until_it_expires_and_only_with_the_signing_key() {
        let (signer, now) = (TokenSigner::new(b"one"), "2024-01-01T00:00:00Z".parse().unwrap());
        let token = signer.sign(&claims(now));
        assert_eq!(signer.verify(&token, now).unwrap().subject, "system:serviceaccount:ns:sa");
        assert_eq!(signer.verify(&token, now + SignedDuration::from_hours(1)), Err(TokenError::Expired));
        assert_eq!(signer.verify(&token, now - SignedDuration::from_secs(1)), Err(TokenError::NotYet));
        assert_eq!(TokenSigner::new(b"two").verify(&token, now), Err(TokenError::Signature));
    }

    proptest! {
        #[test]
        fn a_modified_token_is_never_valid(at in any::<prop::sample::Index>(), flip in 1u8..128) {
            let (signer, now) = (TokenSigner::new(b"one"), "2024-01-01T00:00:00Z".parse().unwrap());
            let token = signer.sign(&claims(now));
            let mut bytes = token.clone().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            if let Ok(changed) = String::from_utf8(bytes) {
                // The last character of base64 has unused bits, so several encodings of the same bytes exist.
                prop_assume!(at != token.len() - 1);
                prop_assert!(signer.verify(&changed, now).is_err());
            }
        }

        #[test]
        fn arbitrary_text_never_panics(token in "\\PC{0,200}") {
            prop_assert!(TokenSigner::new(b"one").verify(&token, Timestamp::UNIX_EPOCH).is_err());
        }
    }
}
