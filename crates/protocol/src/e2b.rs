//! What E2B's clients, the router and the sandbox agree on: ports, headers, ids, tokens, signed addresses.
//!
//! The tokens of a sandbox are derived from a secret that the control API and the router share, so that neither has to
//! store them: they stay the same for the life of the sandbox, and only its name is needed to check one.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use hmac::Mac as _;
use http::header::HeaderMap;
use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::router_headers::{HeaderError, parse_port};
use crate::sandbox_address::{Address, AddressError};
use crate::scoped_token::Secret;

/// Port of processes and files in a sandbox.
pub const ENVD_PORT: u16 = 49983;
/// Port of the code interpreter in a sandbox.
pub const INTERPRETER_PORT: u16 = 49999;
/// The version of the daemon on [`ENVD_PORT`] that clients are told; they use only what that version has.
pub const ENVD_VERSION: &str = "0.6.13";

/// Names the sandbox of a request; [`SANDBOX_PORT`] must come with it.
pub const SANDBOX_ID: &str = "e2b-sandbox-id";
/// Names the port of a request.
pub const SANDBOX_PORT: &str = "e2b-sandbox-port";
/// The token for processes, files and the code interpreter.
pub const ACCESS_TOKEN: &str = "x-access-token";
/// The token for every other port of a sandbox that is not public, and for the code interpreter.
pub const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";
/// Set by the router on requests that reached a sandbox without the rights of a user of the cluster. sandboxd refuses
/// them on the ports of its other protocols.
pub const PUBLIC_ACCESS: &str = "x-sandbox-public-access";

/// Separates these tokens from any other use of the same secret.
const CONTEXT: &[u8] = b"agent-sandbox/e2b/v1.";

/// What a derived token opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// Processes, files and the code interpreter.
    Access,
    /// Ports of programs in the sandbox, and the code interpreter.
    Traffic,
}

impl Token {
    fn name(self) -> &'static str {
        match self {
            Self::Access => "access",
            Self::Traffic => "traffic",
        }
    }

    /// The token of a sandbox.
    pub fn derive(self, secret: &Secret, namespace: &str, name: &str) -> String {
        derive(secret, self.name(), namespace, name)
    }

    /// Whether a request header carries this token of the sandbox.
    pub fn is_in(self, secret: &Secret, address: &Address, headers: &HeaderMap) -> bool {
        let header = match self {
            Self::Access => ACCESS_TOKEN,
            Self::Traffic => TRAFFIC_TOKEN,
        };
        let Some(given) = headers.get(header) else { return false };
        let expected = self.derive(secret, address.namespace.as_str(), address.id.as_str());
        bool::from(given.as_bytes().ct_eq(expected.as_bytes()))
    }
}

/// A value that only holders of the secret can compute, as hexadecimal digits. No part may contain a slash.
pub fn derive(secret: &Secret, purpose: &str, namespace: &str, name: &str) -> String {
    let payload = format!("{purpose}/{namespace}/{name}");
    let mac = secret.mac_in(CONTEXT, payload.as_bytes()).finalize().into_bytes();
    mac.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The id by which E2B's clients know a sandbox: unique in the cluster, and with a port before it the first label of
/// the sandbox's host.
pub fn sandbox_id(namespace: &str, name: &str) -> String {
    format!("{name}--{namespace}")
}

/// The sandbox and port that a request's headers name; `None` if they name none.
pub fn address_in(headers: &HeaderMap) -> Option<Result<Address, AddressError>> {
    let text = |name: &str| headers.get(name).map(|value| value.as_bytes());
    let (id, port) = (text(SANDBOX_ID), text(SANDBOX_PORT));
    if id.is_none() && port.is_none() {
        return None;
    }
    let repeated = [SANDBOX_ID, SANDBOX_PORT].iter().any(|name| headers.get_all(*name).iter().nth(1).is_some());
    let (Some(id), Some(port), false) = (id, port, repeated) else { return Some(Err(AddressError::E2bHeaders)) };
    let Some(port) = parse_port(port) else { return Some(Err(HeaderError::InvalidPort.into())) };
    Some(std::str::from_utf8(id).map_err(|_| AddressError::E2bHeaders).and_then(|id| Address::of_joined(id, port)))
}

/// What a signed address of a file allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
}

/// The signed part of a file's address.
#[derive(Debug)]
pub struct Signed<'a> {
    pub path: &'a str,
    pub operation: Operation,
    pub user: &'a str,
    pub expiration: Option<&'a str>,
}

impl Signed<'_> {
    /// Whether `signature` was made with `token` and has not expired at `now`, in seconds since 1970.
    pub fn verify(&self, token: &str, signature: &str, now: i64) -> bool {
        let operation = match self.operation {
            Operation::Read => "read",
            Operation::Write => "write",
        };
        let mut text = format!("{}:{operation}:{}:{token}", self.path, self.user);
        if let Some(expiration) = self.expiration {
            if expiration.parse::<i64>().map_or(true, |at| at < now) {
                return false;
            }
            text.push(':');
            text.push_str(expiration);
        }
        let expected = format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text.as_bytes())));
        // A plus sign that was not escaped in the address arrives as a space.
        let given = signature.trim_end_matches('=').replace(' ', "+");
        bool::from(given.as_bytes().ct_eq(expected.as_bytes()))
    }
}

/// The signature and what it signs, from the query of a file's address.
#[derive(Debug, PartialEq, Eq)]
pub struct SignedAddress {
    path: String,
    user: String,
    expiration: Option<String>,
    signature: String,
}

impl SignedAddress {
    /// `None` without a signature, and for a query that two readers could understand differently: a parameter that
    /// occurs twice, or whose name is escaped.
    pub fn of_query(query: &str) -> Option<Self> {
        const NAMES: [&str; 4] = ["path", "username", "signature", "signature_expiration"];
        let mut found: [Option<String>; 4] = Default::default();
        for pair in query.split('&') {
            let (raw, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(raw);
            let Some(at) = NAMES.iter().position(|known| *known == name) else { continue };
            if raw != name || found[at].replace(decode(value).into_owned()).is_some() {
                return None;
            }
        }
        let [path, user, signature, expiration] = found;
        let signature = signature.filter(|signature| !signature.is_empty())?;
        Some(Self { path: path.unwrap_or_default(), user: user.unwrap_or_default(), expiration, signature })
    }

    /// Whether the access token of this sandbox signed the address.
    pub fn is_of(&self, secret: &Secret, namespace: &str, name: &str, operation: Operation, now: i64) -> bool {
        let token = Token::Access.derive(secret, namespace, name);
        let signed = Signed { path: &self.path, operation, user: &self.user, expiration: self.expiration.as_deref() };
        signed.verify(&token, &self.signature, now)
    }
}

/// The decoded pairs of a query or form.
pub fn query_pairs(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name), decode(value))
    })
}

fn decode(raw: &str) -> Cow<'_, str> {
    match raw.contains(['%', '+']) {
        true => percent_decode_str(&raw.replace('+', " ")).decode_utf8_lossy().into_owned().into(),
        false => raw.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn secret() -> Secret {
        Secret::from_file_bytes(&[b'k'; 32]).unwrap()
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    /// E-004, E-005
    #[test]
    fn both_headers_name_a_sandbox() {
        let id = sandbox_id("team-a", "box");
        assert_eq!(id, "box--team-a");
        let found = address_in(&headers(&[(SANDBOX_ID, &id), (SANDBOX_PORT, "49983")])).unwrap().unwrap();
        assert_eq!((found.namespace.as_str(), found.id.as_str(), found.port), ("team-a", "box", 49983));
        assert!(address_in(&headers(&[])).is_none());
        for wrong in [
            &[(SANDBOX_ID, "box--a")][..],
            &[(SANDBOX_PORT, "1")],
            &[(SANDBOX_ID, "box--a"), (SANDBOX_ID, "c--a"), (SANDBOX_PORT, "1")],
            &[(SANDBOX_ID, "box"), (SANDBOX_PORT, "1")],
            &[(SANDBOX_ID, "box--a"), (SANDBOX_PORT, "0")],
            &[(SANDBOX_ID, "../box--a"), (SANDBOX_PORT, "1")],
        ] {
            assert!(address_in(&headers(wrong)).unwrap().is_err(), "{wrong:?}");
        }
    }

    /// E-009, E-010
    #[test]
    fn each_sandbox_and_purpose_has_its_own_token() {
        let token = |kind: Token, namespace: &str, name: &str| kind.derive(&secret(), namespace, name);
        let own = token(Token::Access, "a", "box");
        assert_eq!(own.len(), 64);
        for other in [
            token(Token::Traffic, "a", "box"),
            token(Token::Access, "b", "box"),
            token(Token::Access, "a", "box2"),
            Token::Access.derive(&Secret::from_file_bytes(&[b'x'; 32]).unwrap(), "a", "box"),
        ] {
            assert_ne!(own, other);
        }
        let address = Address::of_joined("box--a", 1).unwrap();
        assert!(Token::Access.is_in(&secret(), &address, &headers(&[(ACCESS_TOKEN, &own)])));
        assert!(!Token::Traffic.is_in(&secret(), &address, &headers(&[(TRAFFIC_TOKEN, &own)])));
        assert!(!Token::Access.is_in(&secret(), &address, &headers(&[])));
    }

    /// E-103: the values were computed with the published Python client.
    #[test]
    fn signatures_of_published_clients_are_verified() {
        let signed = |expiration| Signed { path: "/a b.txt", operation: Operation::Read, user: "", expiration };
        let plain = "v1_lOhIAlkOCK8IqgkxnAFuMgoamvaGI6KxjI5Z+IDqkgs";
        let expiring = "v1_ofD2uzZqSKK3hcwCnGoHsl8cbBRxngbTaa9e2VZnDv0";
        assert!(signed(None).verify("secret", plain, 0));
        assert!(signed(None).verify("secret", &plain.replace('+', " "), 0));
        assert!(signed(Some("2000000000")).verify("secret", expiring, 1_999_999_999));
        assert!(!signed(Some("2000000000")).verify("secret", expiring, 2_000_000_001), "expired");
        assert!(!signed(Some("soon")).verify("secret", expiring, 0));
        assert!(!signed(Some("2000000000")).verify("secret", plain, 0));
        let other = Signed { path: "/a b.txt", operation: Operation::Write, user: "", expiration: None };
        assert!(!other.verify("secret", plain, 0), "made for reading");
    }

    /// E-007
    #[test]
    fn a_signed_address_belongs_to_one_sandbox() {
        let token = Token::Access.derive(&secret(), "a", "box");
        let text = Sha256::digest(format!("/a b:write:root:{token}:77"));
        let signature = STANDARD_NO_PAD.encode(text).replace('+', "%2B").replace('/', "%2F");
        let query = format!("path=%2Fa+b&username=root&signature=v1_{signature}&signature_expiration=77");
        let address = SignedAddress::of_query(&query).unwrap();
        assert!(address.is_of(&secret(), "a", "box", Operation::Write, 77));
        assert!(!address.is_of(&secret(), "a", "box", Operation::Write, 78), "expired");
        assert!(!address.is_of(&secret(), "a", "box", Operation::Read, 77));
        assert!(!address.is_of(&secret(), "b", "box", Operation::Write, 77));
        assert_eq!(SignedAddress::of_query("path=/a"), None);
    }
}
