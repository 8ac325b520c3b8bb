//! Upgrade headers.

use super::*;

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
