//! Loopback host names and upgrade headers.

use super::*;

#[test]
fn loopback_hosts_are_told_from_names_that_merely_resolve_there() {
    for local in ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.1.2.3:1", "[::1]", "[::1]:8080"] {
        assert!(is_loopback_host(local), "{local}");
    }
    for foreign in
        ["evil.com", "localhost.evil.com:80", "10.0.0.1", "[2001:db8::1]:1", "", "0.0.0.0", "127.0.0.1.nip.io"]
    {
        assert!(!is_loopback_host(foreign), "{foreign}");
    }
}

#[test]
fn an_upgrade_needs_both_headers() {
    let headers = |pairs: &[(HeaderName, &'static str)]| -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    };
    assert!(requested_upgrade(&headers(&[(UPGRADE, "websocket")])).is_none());
    assert!(requested_upgrade(&headers(&[(CONNECTION, "upgrade")])).is_none());
    let both = headers(&[(UPGRADE, "websocket"), (CONNECTION, "keep-alive, Upgrade")]);
    assert_eq!(requested_upgrade(&both).unwrap(), "websocket");
}
