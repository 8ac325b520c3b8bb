//! Interoperability vectors and every way a token can be wrong.

use super::*;
use proptest::prelude::*;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
const EXP: i64 = 4_102_444_800;
const NOW: i64 = 1_800_000_000;
const VECTORS: [(&str, &str, &str); 2] = [
    (
        "ns",
        "box-a",
        "v1.eyJucyI6Im5zIiwibmFtZSI6ImJveC1hIiwiZXhwIjo0MTAyNDQ0ODAwfQ.r2JXrfWgrnRQrT4if-XrUGSWtMSeRAUXNzrdKb3T8qk",
    ),
    (
        "default",
        "sandbox-claim-1234abcd",
        "v1.eyJucyI6ImRlZmF1bHQiLCJuYW1lIjoic2FuZGJveC1jbGFpbS0xMjM0YWJjZCIsImV4cCI6NDEwMjQ0NDgwMH0._54um8Iafyoj2slI9F9csRDXgwE8Dk5qi9zNVAtq6eU",
    ),
];

fn secret() -> Secret {
    Secret::from_file_bytes(SECRET).unwrap()
}

/// D-149
#[test]
fn vectors_are_minted_and_accepted() {
    for (namespace, name, token) in VECTORS {
        let ttl = Duration::from_secs(60);
        let now = Duration::from_secs(EXP as u64 - 60) + Duration::from_millis(900);
        assert_eq!(secret().mint(namespace, name, ttl, now).unwrap(), token);
        let claims = secret().verify(token, NOW).unwrap();
        assert_eq!((claims.namespace.as_str(), claims.name.as_str(), claims.expires), (namespace, name, EXP));
    }
}

/// D-151
#[test]
fn wrong_expired_or_mangled_tokens_are_refused() {
    let (_, _, token) = VECTORS[0];
    let other = Secret::from_file_bytes(&[b'x'; 32]).unwrap();
    assert_eq!(other.verify(token, NOW), Err(VerifyError::BadSignature));
    assert!(secret().verify(token, EXP - 1).is_ok());
    assert_eq!(secret().verify(token, EXP), Err(VerifyError::Expired), "the end is exclusive");
    assert_eq!(secret().verify(token, EXP + 1), Err(VerifyError::Expired));
    let (two_parts, _) = token.rsplit_once('.').unwrap();
    for garbage in ["", "v1", "v1.", "v1..", two_parts, "garbage", "v2.a.b", "v1.a.b", "V1.a.b"] {
        assert!(secret().verify(garbage, NOW).is_err(), "{garbage}");
    }
    assert!(secret().verify(&format!("{token}.x"), NOW).is_err());
    assert!(secret().verify(&token.replace("v1.", "v2."), NOW).is_err());
}

/// D-152
#[test]
fn a_signature_without_the_context_is_refused() {
    let payload = URL_SAFE_NO_PAD.encode(br#"{"ns":"ns","name":"box-a","exp":4102444800}"#);
    let mut bare = Hmac::<Sha256>::new_from_slice(SECRET).unwrap();
    bare.update(payload.as_bytes());
    let mac = URL_SAFE_NO_PAD.encode(bare.finalize().into_bytes());
    assert_eq!(secret().verify(&format!("v1.{payload}.{mac}"), NOW), Err(VerifyError::BadSignature));
}

/// D-153
#[test]
fn white_space_around_a_secret_does_not_count_and_short_ones_are_refused() {
    for padded in [
        b"0123456789abcdef0123456789abcdef\n".as_slice(),
        b"\r\n 0123456789abcdef0123456789abcdef\t\n".as_slice(),
        "\u{a0}0123456789abcdef0123456789abcdef\u{2003}".as_bytes(),
    ] {
        assert!(Secret::from_file_bytes(padded).unwrap().verify(VECTORS[0].2, NOW).is_ok());
    }
    assert_eq!(Secret::from_file_bytes(&SECRET[1..]).unwrap_err(), SecretError::TooShort { found: 31 });
    let mostly_space = [&SECRET[..31], b"          "].concat();
    assert_eq!(Secret::from_file_bytes(&mostly_space).unwrap_err(), SecretError::TooShort { found: 31 });
    let mut binary = [0xff_u8; 33];
    binary[32] = b'\n';
    assert!(Secret::from_file_bytes(&binary).is_ok());
}

/// D-154
#[test]
fn tokens_live_at_least_a_second() {
    let now = Duration::from_secs(NOW as u64);
    let short = Duration::from_millis(999);
    assert_eq!(secret().mint("ns", "a", short, now), Err(MintError::TooShortLived(short)));
    let token = secret().mint("ns", "a", Duration::from_secs(1), now).unwrap();
    assert!(secret().verify(&token, NOW).is_ok());
    assert_eq!(secret().mint("", "a", Duration::from_secs(1), now), Err(MintError::EmptyNamespace));
    assert_eq!(secret().mint("ns", "", Duration::from_secs(1), now), Err(MintError::EmptyName));
    assert!(matches!(secret().mint("ns", "a", Duration::MAX, now), Err(MintError::TooLongLived(_))));
}

#[test]
fn unknown_members_are_ignored_and_missing_ones_are_zero() {
    let sign = |payload: &[u8]| {
        let payload = URL_SAFE_NO_PAD.encode(payload);
        let mac = URL_SAFE_NO_PAD.encode(secret().mac(payload.as_bytes()).finalize().into_bytes());
        format!("v1.{payload}.{mac}")
    };
    let extra = sign(br#"{"iss":"me","exp":4102444800,"name":"a","ns":"n"}"#);
    assert_eq!(secret().verify(&extra, NOW).unwrap().name, "a");
    assert_eq!(secret().verify(&sign(b"{}"), NOW), Err(VerifyError::Expired));
    assert_eq!(secret().verify(&sign(b"[]x"), NOW), Err(VerifyError::BadPayload));
}

#[test]
fn secrets_do_not_print() {
    assert_eq!(format!("{:?}", secret()), "Secret([redacted])");
}

proptest! {
    /// No text makes the verifier panic, and no text that was not minted is accepted.
    #[test]
    fn arbitrary_text_is_never_a_token(text in ".{0,200}", mac in "[A-Za-z0-9_-]{43}") {
        prop_assert!(secret().verify(&text, NOW).is_err());
        let forged = ["v1", &text, &mac].join(".");
        prop_assert!(secret().verify(&forged, NOW).is_err());
    }
}
