//! Requests that try to make the router dial another address than the live Pod of the sandbox they name. Whatever the
//! response is, only one address may ever be dialled.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_router::{Deps, Lookup, PodFacts, Retries, RouterConfig, Verification};
use async_trait::async_trait;
use http::StatusCode;
use parking_lot::Mutex;

use crate::support::*;

fn config() -> RouterConfig {
    let delay = Duration::from_millis(1);
    RouterConfig { retries: Retries { max: 1, initial_delay: delay, max_delay: delay }, ..quiet() }
}

/// Addresses that a client may send for sandbox `box`, whose Pod has [`POD_IP`].
const ADDRESSES: &[&str] = &[
    // Loopback, in every notation.
    "127.0.0.1",
    "127.0.0.2",
    "127.1.1.1",
    "127.255.255.255",
    "::1",
    "0:0:0:0:0:0:0:1",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "::127.0.0.1",
    "::7f00:1",
    "::ffff:0:127.0.0.1",
    "127.1",
    "127.0.1",
    "0x7f.0.0.1",
    "0x7f000001",
    "2130706433",
    "0177.0.0.1",
    "127.0.0.1.",
    "127.0.0.01",
    "localhost",
    "127.0.0.1:80",
    "[::1]",
    "::1%lo",
    "127.0.0.1/8",
    "①27.0.0.1",
    // Link-local and cloud metadata.
    "169.254.169.254",
    "169.254.170.2",
    "169.254.0.1",
    "fe80::1",
    "fe80::1%eth0",
    "febf::1",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "::169.254.169.254",
    "64:ff9b::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "64:ff9b::7f00:1",
    "2002:a9fe:a9fe::",
    "2002:7f00:1::1",
    "2001:0:0:0:0:0:8001:5601",
    "2001:0:1:2:3:4:80ff:fffe",
    "0251.0376.0251.0376",
    "2852039166",
    "0xa9fea9fe",
    "metadata.google.internal",
    "fd00:ec2::254",
    // Unspecified, broadcast and multicast.
    "0.0.0.0",
    "::",
    "0",
    "0.1.2.3",
    "255.255.255.255",
    "224.0.0.1",
    "239.255.255.250",
    "ff02::1",
    "ff0e::1",
    "::ffff:0.0.0.0",
    "::ffff:224.0.0.1",
    // Addresses that exist but are not this sandbox's: other Pods, nodes, Services, the API.
    "10.0.0.8",
    "10.0.0.6",
    "10.96.0.1",
    "10.96.0.10",
    "192.168.0.1",
    "172.17.0.1",
    "100.100.100.200",
    "8.8.8.8",
    "2001:db8::8",
    "::ffff:10.0.0.8",
    "fd00::1",
    // Not addresses.
    "garbage",
    "10.0.0.7,10.0.0.8",
    "10.0.0.7 ",
    "10.0.0.7:22",
    "http://10.0.0.8",
    "10.0.0.7@10.0.0.8",
    "10.0.0.7/../10.0.0.8",
    "10.0.0.7#",
    "10.0.0.7%00",
    "*",
    "10.0.0",
    "10.0.0.7.8",
    "a.b.c.d",
    "-1.0.0.1",
    "256.0.0.1",
    "10.0.0.007",
    "１０.0.0.7",
];

#[tokio::test]
async fn only_the_sandboxs_own_address_is_dialled() {
    let backend = Backend::echo().await;
    let router = TestRouter::with(config(), backend.addr).await;
    router.router.index().apply(pod("other", "10.0.0.8"));
    for address in ADDRESSES {
        let head = format!(
            "GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\nX-Sandbox-Pod-IP: {address}\r\nConnection: close\r\n\r\n"
        );
        let answer = raw(router.addr, head.as_bytes(), TIMEOUT).await;
        // White space around a header's value is not part of it.
        let own = address.trim() == POD_IP;
        let refused = answer.starts_with(b"HTTP/1.1 400") || answer.starts_with(b"HTTP/1.1 403");
        assert_eq!(refused, !own, "{address}: {}", String::from_utf8_lossy(&answer));
        assert!(router.dialled().iter().all(|dialled| dialled.ip() == ip(POD_IP)), "{address}: {:?}", router.dialled());
    }
    assert!(ADDRESSES.len() >= 85, "{}", ADDRESSES.len());
}

/// Names and UIDs that do not belong to a live sandbox, or not to the named one.
#[tokio::test]
async fn no_name_or_uid_leads_anywhere_else() {
    let backend = Backend::echo().await;
    let router = TestRouter::with(config(), backend.addr).await;
    router.router.index().apply(pod("other", "10.0.0.8"));
    router.router.index().apply(PodFacts { name_routable: false, ..pod("pooled", "10.0.0.9") });
    router.router.index().apply(pod("liar", "127.0.0.1"));
    let requests: &[&[(&str, &str)]] = &[
        &[("x-sandbox-id", "169.254.169.254")],
        &[("x-sandbox-id", "box.evil.com")],
        &[("x-sandbox-id", "box@evil")],
        &[("x-sandbox-id", "box:22")],
        &[("x-sandbox-id", "box/../other")],
        &[("x-sandbox-id", "box%2eevil")],
        &[("x-sandbox-id", "BOX")],
        &[("x-sandbox-id", "xn--")],
        &[("x-sandbox-id", "unknown")],
        &[("x-sandbox-id", "unknown"), ("x-sandbox-pod-ip", "10.0.0.8")],
        &[("x-sandbox-id", "pooled")],
        &[("x-sandbox-id", "liar")],
        &[("x-sandbox-id", "liar"), ("x-sandbox-uid", "uid-liar")],
        &[("x-sandbox-id", "box"), ("x-sandbox-namespace", "kube-system")],
        &[("x-sandbox-id", "box"), ("x-sandbox-namespace", "default.svc.evil")],
        &[("x-sandbox-id", "box"), ("x-sandbox-namespace", "default/../kube-system")],
        &[("x-sandbox-id", "box"), ("x-sandbox-uid", "uid-other")],
        &[("x-sandbox-id", "box"), ("x-sandbox-uid", "uid-other"), ("x-sandbox-pod-ip", "10.0.0.8")],
        &[("x-sandbox-id", "box"), ("x-sandbox-namespace", "team-a"), ("x-sandbox-uid", "uid-box")],
        &[("x-sandbox-id", "box"), ("x-sandbox-port", "0")],
        &[("x-sandbox-id", "box"), ("x-sandbox-port", "22@evil")],
        &[("x-sandbox-id", "box"), ("x-sandbox-port", "99999999999999999999")],
    ];
    for headers in requests {
        let mut request = http::Request::get("/");
        for (name, value) in *headers {
            request = request.header(*name, *value);
        }
        let reply = router.send(request.body(Default::default()).unwrap()).await;
        assert!(
            reply.status.is_client_error() || reply.status == StatusCode::BAD_GATEWAY,
            "{headers:?}: {}",
            reply.status
        );
        assert!(router.dialled().is_empty(), "{headers:?}: {:?}", router.dialled());
    }
}

/// Requests whose bytes are ambiguous. Each must reach the sandbox at most once, as one request, and reach nothing
/// else.
#[tokio::test]
async fn smuggled_requests_and_doubled_headers_change_nothing() {
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: other\r\n\r\n";
    let length = smuggled.len();
    let id = "X-Sandbox-ID: box\r\n";
    let requests = [
        format!("GET / HTTP/1.1\r\nHost: r\r\n{id}X-Sandbox-ID: other\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: r\r\n{id}X-Sandbox-Pod-IP: {POD_IP}\r\nX-Sandbox-Pod-IP: 10.0.0.8\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: r\r\n{id}X-Sandbox-UID: uid-box\r\nX-Sandbox-UID: uid-other\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: r\r\n{id}X-Sandbox-Port: 1\r\nX-Sandbox-Port: 2\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: r\r\n{id}X-Sandbox-Namespace: default\r\nX-Sandbox-Namespace: x\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: r\r\n{id}X_Sandbox_Pod_IP: 10.0.0.8\r\nConnection: close\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: r\r\n{id}X-Sandbox-Pod-IP : 10.0.0.8\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: r\r\n{id} X-Sandbox-Pod-IP: 10.0.0.8\r\n\r\n"),
        "GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\n\rX-Sandbox-ID: other\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\x0bother\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\0\r\n\r\n".to_owned(),
        format!("GET http://10.0.0.8:22/ HTTP/1.1\r\nHost: 10.0.0.8\r\n{id}Connection: close\r\n\r\n"),
        format!("GET http://user@10.0.0.8/ HTTP/1.1\r\nHost: r\r\n{id}Connection: close\r\n\r\n"),
        format!("GET //10.0.0.8/ HTTP/1.1\r\nHost: r\r\n{id}Connection: close\r\n\r\n"),
        format!("GET @10.0.0.8/ HTTP/1.1\r\nHost: r\r\n{id}Connection: close\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: 10.0.0.8\r\nHost: 127.0.0.1\r\n{id}Connection: close\r\n\r\n"),
        format!("CONNECT 10.0.0.8:22 HTTP/1.1\r\nHost: r\r\n{id}Connection: close\r\n\r\n"),
        format!("CONNECT box HTTP/1.1\r\nHost: r\r\n{id}\r\n"),
        format!("GET /a HTTP/1.1\r\nHost: r\r\n{id}Connection: x-sandbox-id, close\r\n\r\n"),
        format!("GET /a HTTP/1.1 HTTP/1.1\r\nHost: r\r\n{id}\r\n"),
        format!("GET /a b HTTP/1.1\r\nHost: r\r\n{id}\r\n"),
        format!("POST / HTTP/1.1\r\nHost: r\r\n{id}Content-Length: 0\r\nContent-Length: {length}\r\n\r\n{smuggled}"),
        format!("POST / HTTP/1.1\r\nHost: r\r\n{id}Content-Length: 0, {length}\r\n\r\n{smuggled}"),
        format!("POST / HTTP/1.1\r\nHost: r\r\n{id}Content-Length: +{length}\r\n\r\n{smuggled}"),
        format!("POST / HTTP/1.1\r\nHost: r\r\n{id}Content-Length: -1\r\n\r\n{smuggled}"),
        format!("POST / HTTP/1.1\r\nHost: r\r\n{id}Content-Length: 0x10\r\n\r\n{smuggled}"),
        format!("POST / HTTP/1.1\r\nHost: r\r\n{id}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("POST / HTTP/1.1\r\nHost: r\r\n{id}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("POST / HTTP/1.1\r\nHost: r\r\n{id}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("POST / HTTP/1.0\r\nHost: r\r\n{id}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}"),
        format!("POST / HTTP/1.1\r\nHost: r\r\n{id}Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n{smuggled}"),
        format!("POST / HTTP/1.1\r\nHost: r\r\n{id}Transfer-Encoding: chunked\r\n\r\n1;\n\r\nx\r\n0\r\n\r\n"),
        format!(
            "POST / HTTP/1.1\r\nHost: r\r\n{id}Content-Length: {length}\r\nConnection: content-length, close\r\n\r\n{smuggled}"
        ),
        format!("POST / HTTP/1.1\r\nHost: r\r\n{id}Content-Length: {length}\r\nConnection: close\r\n\r\n{smuggled}"),
    ];
    for request in &requests {
        let backend = Backend::echo().await;
        let router = TestRouter::with(config(), backend.addr).await;
        router.router.index().apply(pod("other", "10.0.0.8"));
        raw(router.addr, request.as_bytes(), Duration::from_millis(300)).await;
        assert!(
            router.dialled().iter().all(|dialled| dialled.ip() == ip(POD_IP)),
            "{request:?}: {:?}",
            router.dialled()
        );
        let seen = backend.seen.lock();
        assert!(seen.len() <= 1, "{request:?} became {seen:?}");
        assert!(seen.iter().all(|seen| !seen.target.contains("smuggled")), "{request:?} became {seen:?}");
    }
}

/// Both framings at once: the body ends where `Transfer-Encoding` says, on both sides of the router.
#[tokio::test]
async fn conflicting_framing_is_resolved_once() {
    let backend = Backend::echo().await;
    let router = TestRouter::with(config(), backend.addr).await;
    let request = "POST /one HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\nContent-Length: 60\r\n\
        Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    raw(router.addr, request.as_bytes(), Duration::from_millis(500)).await;
    let seen = backend.seen.lock();
    assert!(
        seen.iter().all(|seen| seen.body == "abc"
            && seen.header("transfer-encoding").is_none() | seen.header("content-length").is_none()),
        "{seen:?}"
    );
}

/// A resolver with scripted answers, which may differ from one lookup to the next.
#[derive(Default)]
struct Rebinding(Mutex<Vec<Vec<IpAddr>>>);

#[async_trait]
impl Lookup for Rebinding {
    async fn lookup(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        let mut answers = self.0.lock();
        if answers.len() > 1 { Ok(answers.remove(0)) } else { Ok(answers[0].clone()) }
    }
}

#[tokio::test]
async fn dns_answers_that_are_not_the_sandboxs_are_refused() {
    let backend = Backend::echo().await;
    let dns = Arc::new(Rebinding::default());
    let deps = Deps { dns: Arc::clone(&dns) as _, ..Deps::detached() };
    let router = TestRouter::with_deps(
        RouterConfig { cluster_domain: Some("cluster.local".into()), ..config() },
        backend.addr,
        deps,
    )
    .await;
    router.router.index().apply(PodFacts { name_routable: false, ..pod("pooled", "10.0.0.9") });
    let ask =
        || router.send(http::Request::get("/").header("x-sandbox-id", "pooled").body(Default::default()).unwrap());
    for address in ADDRESSES.iter().filter_map(|text| text.parse().ok()) {
        *dns.0.lock() = vec![vec![address]];
        assert_eq!(ask().await.status, StatusCode::FORBIDDEN, "{address}");
    }
    assert!(router.dialled().is_empty(), "{:?}", router.dialled());
    // The verified address is dialled; what the name resolves to a moment later does not matter.
    *dns.0.lock() = vec![vec![ip("10.0.0.9")], vec![ip("169.254.169.254")]];
    assert_eq!(ask().await.status, StatusCode::OK);
    assert_eq!(ask().await.status, StatusCode::FORBIDDEN);
    assert_eq!(router.dialled(), ["10.0.0.9:8888".parse().unwrap()]);
}

/// D-114, D-116: even if targets are not verified, special addresses are not dialled, by header or by DNS.
#[tokio::test]
async fn unverified_targets_are_still_no_special_addresses() {
    let backend = Backend::echo().await;
    let dns = Arc::new(Rebinding::default());
    let deps = Deps { dns: Arc::clone(&dns) as _, ..Deps::detached() };
    let config = RouterConfig {
        verification: Verification { verify_targets: false, allow_loopback: false },
        cluster_domain: Some("cluster.local".into()),
        ..config()
    };
    let router = TestRouter::with_deps(config, backend.addr, deps).await;
    let ask =
        || router.send(http::Request::get("/").header("x-sandbox-id", "nobody").body(Default::default()).unwrap());
    for special in ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "224.0.0.1", "0.0.0.0", "::ffff:127.0.0.1"] {
        *dns.0.lock() = vec![vec![ip(special)]];
        assert_eq!(ask().await.status, StatusCode::FORBIDDEN, "{special}");
        assert_eq!(router.get_with("/", &[("x-sandbox-pod-ip", special)]).await.status, StatusCode::BAD_REQUEST);
    }
    assert!(router.dialled().is_empty());
    *dns.0.lock() = vec![vec![ip("10.1.2.3")]];
    assert_eq!(ask().await.status, StatusCode::OK);
    assert_eq!(router.dialled(), ["10.1.2.3:8888".parse().unwrap()]);
}
