//! Requests of web pages, told from those of other clients.

use super::*;

fn request(method: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut builder = Request::builder().method(method).uri("/execute");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(()).unwrap()
}

fn private() -> PageRules {
    PageRules {
        hosts: AllowedHosts::private(["corp.example".to_owned()]),
        origins: AllowedOrigins::new(["https://app.example.com".to_owned()]).unwrap(),
        own_proxy: true,
        links: false,
    }
}

#[test]
fn authorities_are_parsed_strictly() {
    for (text, host, port) in [
        ("localhost", Host::Name("localhost"), None),
        ("localhost.:80", Host::Name("localhost"), Some(80)),
        ("10.0.0.1:8888", Host::Address([10, 0, 0, 1].into()), Some(8888)),
        ("[::1]", Host::Address(std::net::Ipv6Addr::LOCALHOST.into()), None),
        ("[::1]:1", Host::Address(std::net::Ipv6Addr::LOCALHOST.into()), Some(1)),
        ("0177.0.0.1", Host::Name("0177.0.0.1"), None),
    ] {
        assert_eq!(Authority::parse(text), Some(Authority { host, port }), "{text}");
    }
    for bad in [
        "",
        ":80",
        "[::1]evil.com",
        "[::1]:evil.com",
        "[::1",
        "[localhost]",
        "localhost:evil.com",
        "localhost:",
        "a:+1",
        "localhost:80:80",
        "user@localhost",
        "local host",
        "a..b",
        ".",
        "a/b",
        "a:65536",
        "::1",
        "localhost\u{e9}",
        "a,b",
    ] {
        assert_eq!(Authority::parse(bad), None, "{bad}");
    }
}

#[test]
fn loopback_names_are_told_from_names_that_merely_resolve_there() {
    let hosts = AllowedHosts::loopback();
    for local in [
        "localhost",
        "LOCALHOST:8080",
        "127.0.0.1",
        "127.1.2.3:1",
        "[::1]",
        "[::1]:8080",
        "a.localhost",
        "8888-box--default.localhost:8080",
        "localhost.",
        "[::ffff:127.0.0.1]",
    ] {
        assert!(hosts.contain(local), "{local}");
    }
    for foreign in [
        "evil.com",
        "localhost.evil.com:80",
        "10.0.0.1",
        "[2001:db8::1]:1",
        "",
        "0.0.0.0",
        "127.0.0.1.nip.io",
        "[::1]evil.com",
        "localhost:evil.com",
        "evillocalhost",
        ".localhost",
        "sandbox",
    ] {
        assert!(!hosts.contain(foreign), "{foreign}");
    }
}

#[test]
fn private_networks_have_addresses_and_names_that_no_public_domain_has() {
    let hosts = AllowedHosts::private(["corp.example".to_owned()]);
    for own in [
        "10.0.0.7:8888",
        "[fd00::5]:8888",
        "203.0.113.9",
        "localhost:1",
        "a.localhost",
        "sandbox",
        "box.default.svc",
        "box.default.svc.cluster.local:8888",
        "0.box.default.svc.cluster.local.",
        "10-0-0-7.default.pod.cluster.local",
        "box.default.svc.corp.example",
        "BOX.default.SVC.cluster.local",
    ] {
        assert!(hosts.contain(own), "{own}");
    }
    for foreign in [
        "evil.com",
        "box.default",
        "box.default.svc.evil.com",
        "cluster.local",
        "svc.cluster.local",
        "x.cluster.local",
        "xsvc.cluster.local",
        "svc",
        "a.xsvc",
        "10.0.0.7.evil.com",
        "corp.example",
        "10.0.0.7:80.evil.com",
        "printer.local",
    ] {
        let single_label = foreign == "svc";
        assert_eq!(hosts.contain(foreign), single_label, "{foreign}");
    }
}

#[test]
fn names_can_be_added() {
    let list = |list: &[&str]| AllowedHosts::loopback().and(list.iter().map(|entry| (*entry).to_owned()));
    let hosts = list(&["box.example.com", "*.sandboxes.example.com", "192.0.2.1", "[2001:db8::1]"]).unwrap();
    for own in [
        "BOX.example.com:443",
        "a.sandboxes.example.com",
        "a.b.sandboxes.example.com",
        "192.0.2.1:1",
        "[2001:db8::1]:1",
    ] {
        assert!(hosts.contain(own), "{own}");
    }
    for foreign in ["example.com", "sandboxes.example.com", "xsandboxes.example.com", "192.0.2.2", "evil.com"] {
        assert!(!hosts.contain(foreign), "{foreign}");
    }
    assert!(list(&["*"]).unwrap().contain("evil.com"));
    for bad in ["", "box.example.com:443", "*.", "*x", "https://box", "*.192.0.2.1", "a b"] {
        assert!(list(&[bad]).is_err(), "{bad}");
    }
    assert!(!AllowedHosts::listed().contain("localhost") && AllowedHosts::any().contain("evil.com"));
}

#[test]
fn a_rebinding_page_is_refused_by_its_name_for_the_server() {
    let rules = private();
    let refused = rules.check(&request("POST", &[("host", "evil.com:8888"), ("origin", "http://evil.com:8888")]));
    assert_eq!(refused, Err(PageError::Host("evil.com:8888".to_owned())));
    assert_eq!(refused.unwrap_err().status(), 421);
    // Each of several names counts, whichever of them another reader would choose.
    let two = request("GET", &[("host", "localhost"), ("host", "evil.com")]);
    assert!(rules.check(&two).is_err());
    let mut absolute = request("GET", &[("host", "localhost")]);
    *absolute.uri_mut() = "http://evil.com/".parse().unwrap();
    assert!(rules.check(&absolute).is_err());
    assert_eq!(rules.check(&request("GET", &[])), Ok(()), "HTTP/1.0");
}

#[test]
fn pages_of_other_origins_are_refused() {
    let rules = private();
    let host = ("host", "localhost:8888");
    for (headers, allowed) in [
        (&[][..], true),
        (&[("origin", "http://localhost:8888")], true),
        (&[("origin", "https://localhost:8888")], true),
        (&[("origin", "https://app.example.com")], true),
        (&[("origin", "https://app.example.com:443"), ("sec-fetch-site", "cross-site")], true),
        (&[("origin", "http://app.example.com")], false),
        (&[("origin", "http://localhost:3000")], false),
        (&[("origin", "http://localhost")], false),
        (&[("origin", "null")], false),
        (&[("origin", "")], false),
        (&[("origin", "http://evil.com")], false),
        (&[("origin", "http://evil.com"), ("origin", "http://localhost:8888")], false),
        (&[("origin", "http://localhost:8888@evil.com")], false),
        (&[("sec-fetch-site", "cross-site")], false),
        (&[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")], false),
        (&[("sec-fetch-site", "same-origin")], true),
        (&[("sec-fetch-site", "none")], true),
        (&[("origin", "https://router.example"), ("x-forwarded-host", "router.example")], true),
        (&[("origin", "https://evil.com"), ("x-forwarded-host", "router.example")], false),
    ] {
        let all: Vec<_> = headers.iter().copied().chain([host]).collect();
        assert_eq!(rules.check(&request("POST", &all)).is_ok(), allowed, "{headers:?}");
    }
    let without_proxy = PageRules { own_proxy: false, ..private() };
    let forwarded = [host, ("origin", "https://router.example"), ("x-forwarded-host", "router.example")];
    assert!(without_proxy.check(&request("POST", &forwarded)).is_err());
}

#[test]
fn links_can_be_followed_where_a_server_has_pages() {
    let rules = PageRules { links: true, ..private() };
    let link = [("host", "localhost"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    assert_eq!(rules.check(&request("GET", &link)), Ok(()));
    assert_eq!(rules.check(&request("POST", &link)), Err(PageError::CrossSite));
    assert_eq!(rules.check(&request("GET", &link[..2])), Err(PageError::CrossSite));
}

#[test]
fn the_default_port_of_a_scheme_may_be_written_or_not() {
    let origin = Origin::parse("https://router.example").unwrap();
    for (scheme, own, same) in [
        (Some("https"), "router.example", true),
        (Some("https"), "ROUTER.example:443", true),
        (None, "router.example", true),
        (Some("http"), "router.example", false),
        (Some("https"), "router.example:80", false),
        (Some("https"), "x.router.example", false),
    ] {
        assert_eq!(origin.is_of(scheme, &Authority::parse(own).unwrap()), same, "{scheme:?} {own}");
    }
    for bad in ["app.example.com", "https://app.example.com/", "https://a b", "://a", "*", "https://u@a"] {
        assert!(AllowedOrigins::new([bad.to_owned()]).is_err(), "{bad}");
    }
}

/// D-198
#[test]
fn only_the_media_type_itself_makes_a_body_json() {
    for (value, kind) in [
        ("application/json", BodyKind::Json),
        ("APPLICATION/JSON ; charset=utf-8", BodyKind::Json),
        ("application/vnd.api+json", BodyKind::Json),
        ("text/plain;x=json", BodyKind::Form),
        ("text/plain; charset=application/json", BodyKind::Form),
        ("Multipart/Form-Data; boundary=json", BodyKind::Form),
        ("application/x-www-form-urlencoded", BodyKind::Form),
        ("application/json, text/plain", BodyKind::Other),
        ("application/jsonx", BodyKind::Other),
        ("text/json", BodyKind::Other),
        ("json", BodyKind::Other),
        ("", BodyKind::Other),
    ] {
        assert_eq!(BodyKind::of(request("POST", &[("content-type", value)]).headers()), kind, "{value}");
    }
    assert_eq!(BodyKind::of(&HeaderMap::new()), BodyKind::Unnamed);
    let two = [("content-type", "application/json"), ("content-type", "text/plain")];
    assert_eq!(BodyKind::of(request("POST", &two).headers()), BodyKind::Other);
}
