//! Credentials in links and cookies, and what a sandbox sees of them.

use super::*;
use agent_sandbox_protocol::router_headers::Label;
use agent_sandbox_protocol::sandbox_address::Address;

fn config() -> CookieConfig {
    CookieConfig {
        name: "session".to_owned(),
        query_param: Some("token".to_owned()),
        same_site: SameSite::Lax,
        secure: true,
        allowed_origins: AllowedOrigins::new(["https://app.example".to_owned()]).unwrap(),
        trust_forwarded_proto: false,
    }
}

fn route(base: &str) -> Route {
    let address = Address { namespace: Label::from_static("team"), id: Label::from_static("box"), port: 8080 };
    Route { address, base: base.to_owned(), path: "/".to_owned() }
}

fn request(uri: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::get(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

#[test]
fn headers_come_before_queries_before_cookies() {
    let (header, cookie) = (("authorization", "Bearer h"), ("cookie", "a=b; session=c; session2=d"));
    for (uri, headers, in_url, expected) in [
        ("/?token=q", &[header, cookie][..], true, Some(("h", Source::Header))),
        ("/?x=1&tok%65n=q%2B", &[cookie], true, Some(("q+", Source::Query))),
        ("/", &[cookie], true, Some(("c", Source::Cookie))),
        ("/?token=", &[("cookie", "session=")], true, None),
        ("/?token=q", &[cookie], false, None),
        ("/?token=q", &[header], false, Some(("h", Source::Header))),
    ] {
        let request = request(uri, headers);
        let found = credential(Some(&config()), in_url, &request);
        assert_eq!(found.as_ref().map(|(token, source)| (token.as_ref(), *source)), expected, "{uri} {headers:?}");
        assert!(credential(None, in_url, &request).is_none_or(|(_, source)| source == Source::Header));
    }
}

#[test]
fn a_link_sets_the_cookie_and_loses_the_credential() {
    let base = "/router/team/box/8080/";
    let link = request("/router/team/box/8080/a%2Fb?z=1&token=abc&a=space%2btab", &[]);
    let response = set_cookie(&config(), &route(base), "abc", None, &link).unwrap();
    assert_eq!(response.status(), 302);
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("set-cookie"), "session=abc; Path=/router/team/box/8080/; HttpOnly; Secure; SameSite=Lax");
    assert_eq!(header("location"), "/router/team/box/8080/a%2Fb?z=1&a=space%2btab");
    assert_eq!((header("cache-control"), header("referrer-policy")), ("no-store".into(), "no-referrer".into()));
    let insecure = CookieConfig { secure: false, same_site: SameSite::Strict, ..config() };
    let response = set_cookie(&insecure, &route("/"), "abc", None, &request("/?token=abc", &[])).unwrap();
    assert_eq!(response.headers()["set-cookie"], "session=abc; Path=/; HttpOnly; SameSite=Strict");
    assert_eq!(response.headers()["location"], "/");
}

#[test]
fn nothing_redirects_to_another_host_or_loses_a_body() {
    for uri in ["//evil.example/?token=abc", "/\\evil.example/?token=abc"] {
        assert!(set_cookie(&config(), &route("/"), "abc", None, &request(uri, &[])).is_none(), "{uri}");
    }
    let post = Request::post("/?token=abc").body(()).unwrap();
    assert!(set_cookie(&config(), &route("/"), "abc", None, &post).is_none());
    assert!(set_cookie(&config(), &route("/"), "a;b", None, &request("/?token=a%3Bb", &[])).is_none());
}

#[test]
fn sandboxes_see_other_cookies_and_parameters_only() {
    assert_eq!(without_parameter("a=1&token=x&%74oken=y&b", "token").as_deref(), Some("a=1&b"));
    assert_eq!(without_parameter("token=x", "token"), None);
    let mut headers =
        request("/", &[("cookie", "a=b; session=x; sessions=y"), ("cookie", "session=z")]).headers().clone();
    strip_cookie(&mut headers, "session");
    assert_eq!(headers.get_all("cookie").iter().collect::<Vec<_>>(), ["a=b; sessions=y"]);
    let mut untouched = request("/", &[("cookie", "a=b;c=d")]).headers().clone();
    strip_cookie(&mut untouched, "session");
    assert_eq!(untouched["cookie"], "a=b;c=d");
}

#[test]
fn pages_of_other_origins_cannot_use_the_cookie() {
    let check = |source, tls, origin: &str, extra: &[(&str, &str)]| {
        let headers = [&[("host", "router.example"), ("origin", origin)], extra].concat();
        let config = CookieConfig { trust_forwarded_proto: !extra.is_empty(), ..config() };
        let routing = Routing::default();
        check_page(Some(&config), &AllowedOrigins::default(), source, tls, &routing, &request("/", &headers)).is_ok()
    };
    let cookie = Some(Source::Cookie);
    assert!(check(cookie, true, "https://router.example", &[]));
    assert!(check(cookie, true, "https://app.example", &[]));
    assert!(!check(cookie, true, "http://router.example", &[]), "a page without TLS");
    assert!(check(cookie, false, "https://router.example", &[]), "TLS may end in front");
    assert!(!check(cookie, false, "https://router.example.evil.example", &[]));
    assert!(!check(cookie, false, "https://router.example:8443", &[]));
    assert!(!check(cookie, false, "https://router.example", &[("x-forwarded-proto", "http")]), "it does not");
    assert!(!check(cookie, false, "https://router.example", &[("x-forwarded-proto", "")]), "it does not say so");
    assert!(check(cookie, false, "https://router.example", &[("x-forwarded-proto", "https, http")]));
    assert!(!check(cookie, true, "https://evil.example", &[]));
    for known in [Source::Header, Source::Query] {
        assert!(check(Some(known), true, "https://evil.example", &[]), "the page knows the credential");
    }
    assert!(!check(None, false, "https://evil.example", &[]), "nothing is required");
    assert!(check(None, false, "https://router.example", &[]));
}

/// With sandboxes in hosts another page of the same site may be another sandbox's.
#[test]
fn a_page_of_the_same_site_may_use_the_cookie_of_a_path() {
    let by_path = Routing { path_prefix: Some("/router".to_owned()), host_domain: None };
    let by_host = Routing { host_domain: Some("boxes.example".to_owned()), ..by_path.clone() };
    let check = |routing: &Routing, headers: &[(&str, &str)]| {
        let headers = [&[("host", "router.example")], headers].concat();
        let request = request("/router/team/box/8080/", &headers);
        let source = Some(Source::Cookie);
        check_page(Some(&config()), &AllowedOrigins::default(), source, true, routing, &request).is_ok()
    };
    let image = [("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")];
    let frame = [("sec-fetch-site", "same-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
    for used in [image, frame] {
        assert!(check(&by_path, &used) && !check(&by_host, &used), "{used:?}");
    }
    let foreign = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")];
    let named = [("sec-fetch-site", "same-site"), ("origin", "https://other.example")];
    let listed = [("sec-fetch-site", "same-site"), ("origin", "https://app.example")];
    for routing in [&by_path, &by_host] {
        assert!(!check(routing, &foreign) && !check(routing, &named) && check(routing, &listed));
    }
}
