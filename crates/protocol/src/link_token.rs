//! Link tokens: `l1.<payload>.<mac>`, each valid for some ports of one sandbox until an expiry time, perhaps for reading
//! only. A link has an id, by which it is revoked; whether it was is not in the token. The form differs from a scoped
//! token's, and the MAC has a context of its own, so that neither can stand for the other.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::Mac;
use http::Method;
use serde::{Deserialize, Serialize};

use crate::scoped_token::{Secret, VerifyError};

const CONTEXT: &[u8] = b"agent-sandbox/link-token/l1.";
const VERSION: &str = "l1";

/// What a link grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkClaims {
    pub id: String,
    #[serde(rename = "ns")]
    pub namespace: String,
    pub name: String,
    pub ports: Vec<u16>,
    /// Only GET, HEAD and OPTIONS, and no upgrades: what passes through an upgraded connection cannot be told apart.
    #[serde(rename = "ro", default)]
    pub read_only: bool,
    /// Unix seconds; the link is valid strictly before this time.
    #[serde(rename = "exp")]
    pub expires: i64,
}

impl LinkClaims {
    pub fn allows_method(&self, method: &Method, upgrade: bool) -> bool {
        !self.read_only || !upgrade && matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
    }
}

/// Whether a credential has the outer form of a link token.
pub fn looks_like_link(token: &str) -> bool {
    token.strip_prefix("l1.").is_some_and(|rest| rest.contains('.'))
}

impl Secret {
    /// Creates the token of a link.
    pub fn sign_link(&self, claims: &LinkClaims) -> String {
        self.seal_link(&serde_json::to_vec(claims).expect("texts and numbers always serialise"))
    }

    /// Signs any payload.
    pub(crate) fn seal_link(&self, payload: &[u8]) -> String {
        let payload = URL_SAFE_NO_PAD.encode(payload);
        let mac = URL_SAFE_NO_PAD.encode(self.mac_in(CONTEXT, payload.as_bytes()).finalize().into_bytes());
        format!("{VERSION}.{payload}.{mac}")
    }

    /// Checks a link token; `now` is in Unix seconds. [`VerifyError::Expired`] means that the token was valid once.
    pub fn verify_link(&self, token: &str, now: i64) -> Result<LinkClaims, VerifyError> {
        let mut parts = token.split('.');
        let (Some(version), Some(payload), Some(mac), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(VerifyError::Malformed);
        };
        if version != VERSION {
            return Err(VerifyError::UnknownVersion);
        }
        let mut decoded = [0_u8; 64];
        let length = URL_SAFE_NO_PAD.decode_slice(mac, &mut decoded).map_err(|_| VerifyError::BadSignature)?;
        let expected = self.mac_in(CONTEXT, payload.as_bytes());
        expected.verify_slice(&decoded[..length]).map_err(|_| VerifyError::BadSignature)?;
        let payload = URL_SAFE_NO_PAD.decode(payload).map_err(|_| VerifyError::BadPayload)?;
        let claims: LinkClaims = serde_json::from_slice(&payload).map_err(|_| VerifyError::BadPayload)?;
        if now >= claims.expires { Err(VerifyError::Expired) } else { Ok(claims) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoped_token::looks_scoped;
    use proptest::prelude::*;
    use std::time::Duration;

    fn secret(byte: u8) -> Secret {
        Secret::from_file_bytes(&[byte; 32]).unwrap()
    }

    fn claims() -> LinkClaims {
        LinkClaims {
            id: "0a1b".to_owned(),
            namespace: "team".to_owned(),
            name: "box".to_owned(),
            ports: vec![3000],
            read_only: true,
            expires: 1_000,
        }
    }

    #[test]
    fn a_link_is_valid_until_it_expires_and_for_its_secret_only() {
        let token = secret(b'a').sign_link(&claims());
        assert_eq!(secret(b'a').verify_link(&token, 999), Ok(claims()));
        assert_eq!(secret(b'a').verify_link(&token, 1_000), Err(VerifyError::Expired));
        assert_eq!(secret(b'b').verify_link(&token, 999), Err(VerifyError::BadSignature));
        assert_eq!(secret(b'b').verify_link(&token, 1_000), Err(VerifyError::BadSignature), "not known to be expired");
    }

    /// A link for one port must not open every port, which a scoped token does.
    #[test]
    fn links_and_scoped_tokens_never_stand_for_each_other() {
        let secret = secret(b'a');
        let link = secret.sign_link(&claims());
        let scoped = secret.mint("team", "box", Duration::from_secs(60), Duration::ZERO).unwrap();
        assert!(looks_like_link(&link) && !looks_scoped(&link));
        assert!(looks_scoped(&scoped) && !looks_like_link(&scoped));
        assert!(secret.verify(&link, 0).is_err() && secret.verify_link(&scoped, 0).is_err());
        let (renamed, other) = (link.replacen("l1.", "v1.", 1), scoped.replacen("v1.", "l1.", 1));
        assert_eq!(secret.verify(&renamed, 0), Err(VerifyError::BadSignature));
        assert_eq!(secret.verify_link(&other, 0), Err(VerifyError::BadSignature));
    }

    #[test]
    fn a_link_for_reading_allows_neither_writes_nor_upgrades() {
        let read = claims();
        for (method, upgrade, allowed) in [
            (Method::GET, false, true),
            (Method::HEAD, false, true),
            (Method::OPTIONS, false, true),
            (Method::GET, true, false),
            (Method::POST, false, false),
            (Method::DELETE, false, false),
            (Method::CONNECT, true, false),
            (Method::from_bytes(b"get").unwrap(), false, false),
        ] {
            assert_eq!(read.allows_method(&method, upgrade), allowed, "{method} {upgrade}");
            assert!(LinkClaims { read_only: false, ..claims() }.allows_method(&method, upgrade));
        }
    }

    proptest! {
        #[test]
        fn a_changed_token_is_refused(at in 0_usize..200, byte in 0x21_u8..0x7f) {
            let secret = secret(b'a');
            let token = secret.sign_link(&claims());
            let mut changed = token.clone().into_bytes();
            let at = at % changed.len();
            prop_assume!(changed[at] != byte);
            changed[at] = byte;
            prop_assert!(secret.verify_link(std::str::from_utf8(&changed).unwrap(), 0).is_err());
        }

        #[test]
        fn any_signed_payload_is_read_or_refused(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let secret = secret(b'a');
            prop_assert_ne!(secret.verify_link(&secret.seal_link(&payload), 0), Err(VerifyError::BadSignature));
        }
    }
}
