//! Header validation, as the contract's request table states it.

use super::*;
use proptest::prelude::*;

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        map.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_bytes(value.as_bytes()).unwrap(),
        );
    }
    map
}

fn parse(pairs: &[(&str, &str)]) -> Result<SandboxRequest, HeaderError> {
    SandboxRequest::parse(&headers(pairs), Loopback::Refused)
}

fn with_id<'a>(extra: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all = vec![("x-sandbox-id", "box")];
    all.extend_from_slice(extra);
    all
}

/// D-110
#[test]
fn a_missing_or_empty_id_is_named() {
    assert_eq!(parse(&[]), Err(HeaderError::MissingId));
    assert_eq!(parse(&[("x-sandbox-id", "")]), Err(HeaderError::MissingId));
    assert_eq!(HeaderError::MissingId.to_string(), "X-Sandbox-ID header is required.");
}

/// D-111
#[test]
fn ids_are_dns_labels() {
    let long = "a".repeat(64);
    for bad in ["foo.evil.com", "foo/bar", "foo_bar", "Foo", "-foo", "foo-", "a b", "a\tb", long.as_str()] {
        assert_eq!(parse(&[("x-sandbox-id", bad)]), Err(HeaderError::InvalidId), "{bad}");
    }
    assert_eq!(HeaderError::InvalidId.to_string(), "Invalid sandbox ID format.");
    let longest = "a".repeat(63);
    for good in ["a", "0", "foo-1", "a--b", longest.as_str()] {
        assert_eq!(parse(&[("x-sandbox-id", good)]).unwrap().id.as_str(), good);
    }
}

/// D-112
#[test]
fn namespaces_are_dns_labels_and_default() {
    for bad in ["bad ns", "bad!ns", "---"] {
        assert_eq!(parse(&with_id(&[("x-sandbox-namespace", bad)])), Err(HeaderError::InvalidNamespace), "{bad}");
    }
    assert_eq!(HeaderError::InvalidNamespace.to_string(), "Invalid namespace format.");
    assert_eq!(parse(&with_id(&[("x-sandbox-namespace", "team-a")])).unwrap().namespace.as_str(), "team-a");
    assert_eq!(parse(&with_id(&[])).unwrap().namespace.as_str(), "default");
    assert_eq!(parse(&with_id(&[("x-sandbox-namespace", "")])).unwrap().namespace.as_str(), "default");
}

/// D-113
#[test]
fn ports_are_in_range_and_default() {
    for bad in ["abc", "0", "-1", "65536", "+1", "1 ", "0x50", "999999", "８０"] {
        assert_eq!(parse(&with_id(&[("x-sandbox-port", bad)])), Err(HeaderError::InvalidPort), "{bad}");
    }
    assert_eq!(HeaderError::InvalidPort.to_string(), "Invalid port format.");
    for (text, port) in [("1", 1), ("65535", 65535), ("00080", 80)] {
        assert_eq!(parse(&with_id(&[("x-sandbox-port", text)])).unwrap().port, port);
    }
    assert_eq!(parse(&with_id(&[])).unwrap().port, 8888);
}

/// D-114
#[test]
fn pod_addresses_of_special_classes_are_refused() {
    for bad in ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "224.0.0.1", "0.0.0.0", "::", "garbage"] {
        assert_eq!(parse(&with_id(&[("x-sandbox-pod-ip", bad)])), Err(HeaderError::InvalidPodIp), "{bad}");
    }
    assert_eq!(HeaderError::InvalidPodIp.to_string(), "Invalid target IP address.");
    for good in ["10.0.0.7", "2001:db8::1"] {
        assert_eq!(
            parse(&with_id(&[("x-sandbox-pod-ip", good)])).unwrap().pod_ip,
            Some(good.parse::<IpAddr>().unwrap())
        );
    }
}

/// D-115
#[test]
fn loopback_can_be_allowed_and_nothing_else() {
    let allowed = |ip: &str| SandboxRequest::parse(&headers(&with_id(&[("x-sandbox-pod-ip", ip)])), Loopback::Allowed);
    assert!(allowed("127.0.0.1").is_ok());
    assert!(allowed("::1").is_ok());
    for bad in ["169.254.169.254", "0.0.0.0", "224.0.0.1", "::ffff:169.254.169.254"] {
        assert_eq!(allowed(bad), Err(HeaderError::InvalidPodIp), "{bad}");
    }
}

#[test]
fn the_first_failure_in_contract_order_wins() {
    let all_bad =
        [("x-sandbox-pod-ip", "x"), ("x-sandbox-port", "x"), ("x-sandbox-namespace", "X"), ("x-sandbox-id", "X")];
    assert_eq!(parse(&all_bad), Err(HeaderError::InvalidId));
    assert_eq!(parse(&with_id(&all_bad[..3])), Err(HeaderError::InvalidNamespace));
    assert_eq!(parse(&with_id(&all_bad[..2])), Err(HeaderError::InvalidPort));
}

#[test]
fn repeated_headers_are_ambiguous() {
    for (name, value, error) in [
        ("x-sandbox-id", "box", HeaderError::InvalidId),
        ("x-sandbox-namespace", "a", HeaderError::InvalidNamespace),
        ("x-sandbox-port", "80", HeaderError::InvalidPort),
        ("x-sandbox-pod-ip", "10.0.0.1", HeaderError::InvalidPodIp),
        ("x-sandbox-uid", "u", HeaderError::InvalidUid),
    ] {
        assert_eq!(parse(&with_id(&[(name, value), (name, value)])), Err(error), "{name}");
    }
}

/// D-134: which timeouts are accepted; the router applies the maximum.
#[test]
fn timeouts_are_finite_positive_decimals() {
    for (text, expected) in [("60", 60.0), ("1.5", 1.5), (" 2 ", 2.0), ("1e1", 10.0)] {
        assert_eq!(parse_timeout(text.as_bytes()), Some(Duration::from_secs_f64(expected)), "{text}");
    }
    for text in ["abc", "-1", "0", "inf", "-inf", "nan", "", "1e400", "5s"] {
        assert_eq!(parse_timeout(text.as_bytes()), None, "{text}");
    }
}

proptest! {
    /// No header value makes the parser panic, and every accepted value is valid.
    #[test]
    fn arbitrary_values_are_validated(
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 6),
    ) {
        let names = [SANDBOX_ID, SANDBOX_NAMESPACE, SANDBOX_PORT, SANDBOX_POD_IP, SANDBOX_UID, SANDBOX_TIMEOUT];
        let values = values.iter().map(|bytes| HeaderValue::from_bytes(bytes));
        let headers: HeaderMap =
            names.into_iter().zip(values).filter_map(|(name, value)| Some((name, value.ok()?))).collect();
        if let Ok(request) = SandboxRequest::parse(&headers, Loopback::Refused) {
            prop_assert!(is_dns_label(request.id.as_str().as_bytes()) && request.port > 0);
            prop_assert!(request.pod_ip.is_none_or(|ip| address::classify(ip) == AddressClass::Routable));
            prop_assert!(request.uid_str().is_none_or(|uid| !uid.is_empty()));
        }
    }
}
