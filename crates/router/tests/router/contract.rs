//! The request contract: which requests are refused and how, and what sandboxes see of the others.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;

use crate::support::*;

fn request(headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::get("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).unwrap()
}

/// D-110, D-111, D-112, D-113, D-114: the wording and status of every refusal.
#[tokio::test]
async fn malformed_headers_are_answered_400_with_the_contracts_messages() {
    let backend = Backend::echo().await;
    let router = TestRouter::before(backend.addr).await;
    let id = ("x-sandbox-id", "box");
    for (headers, detail) in [
        (vec![], "X-Sandbox-ID header is required."),
        (vec![("x-sandbox-id", "foo.evil.com")], "Invalid sandbox ID format."),
        (vec![("X-SANDBOX-ID", "Foo")], "Invalid sandbox ID format."),
        (vec![id, ("x-sandbox-namespace", "bad!ns")], "Invalid namespace format."),
        (vec![id, ("x-sandbox-port", "65536")], "Invalid port format."),
        (vec![id, ("x-sandbox-pod-ip", "169.254.169.254")], "Invalid target IP address."),
        (vec![id, ("x-sandbox-pod-ip", "127.0.0.1")], "Invalid target IP address."),
    ] {
        let reply = router.send(request(&headers)).await;
        assert_eq!((reply.status, reply.detail()), (StatusCode::BAD_REQUEST, detail.to_owned()), "{headers:?}");
    }
    assert!(router.dialled().is_empty());
}

/// D-120
#[tokio::test]
async fn methods_pass_unchanged() {
    let backend = Backend::echo().await;
    let router = TestRouter::before(backend.addr).await;
    let methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "PROPFIND"];
    for method in methods {
        let request = Request::builder().method(method).uri("/").header("x-sandbox-id", "box");
        let reply = router.send(request.body(Full::default()).unwrap()).await;
        assert_eq!(reply.status, StatusCode::OK);
    }
    let seen: Vec<String> = backend.seen.lock().iter().map(|seen| seen.method.clone()).collect();
    assert_eq!(seen, methods);
}

/// D-121
#[tokio::test]
async fn path_query_status_and_headers_pass_unchanged() {
    let backend = Backend::answering(|_| {
        Response::builder()
            .status(418)
            .header("x-custom", "1")
            .header("set-cookie", "a=1")
            .header("set-cookie", "b=2")
            .body(Full::from("short and stout"))
            .unwrap()
    })
    .await;
    let router = TestRouter::before(backend.addr).await;
    let reply = router.get("/api/v1/items?a=1&b=2").await;
    assert_eq!(backend.only().target, "/api/v1/items?a=1&b=2");
    assert_eq!((reply.status.as_u16(), reply.text()), (418, "short and stout"));
    assert_eq!(reply.headers["x-custom"], "1");
    assert_eq!(reply.headers.get_all("set-cookie").iter().count(), 2);
}

/// D-122: raw bytes, no cleaning, no redirects.
#[tokio::test]
async fn paths_pass_byte_for_byte() {
    let backend = Backend::echo().await;
    let router = TestRouter::before(backend.addr).await;
    let paths = [
        "/files/a%2Fb%2e%2e",
        "/a//b/./c/../d",
        "//double",
        "/%00%0a?q=%20+%zz&&=",
        "/download/..%2f..%2fetc%2fpasswd",
        "/q?",
        "/?a=b?c=d/e",
        "/caf%C3%A9;v=1,2@x:y!$&'()*",
        "/{curly}|pipe",
    ];
    for path in paths {
        let head = format!("GET {path} HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\nConnection: close\r\n\r\n");
        let answer = raw(router.addr, head.as_bytes(), TIMEOUT).await;
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{path}: {}", String::from_utf8_lossy(&answer));
    }
    let seen: Vec<String> = backend.seen.lock().iter().map(|seen| seen.target.clone()).collect();
    assert_eq!(seen, paths);
}

/// D-123
#[tokio::test]
async fn streamed_uploads_arrive_complete() {
    let backend = Backend::echo().await;
    let router = TestRouter::before(backend.addr).await;
    let body: Vec<u8> = (0..57 * 1024).map(|n| (n % 251) as u8).collect();
    let mut chunked =
        b"POST /up HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            .to_vec();
    for piece in body.chunks(1000) {
        chunked.extend(format!("{:x}\r\n", piece.len()).bytes());
        chunked.extend(piece);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    let answer = raw(router.addr, &chunked, TIMEOUT).await;
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    assert_eq!(backend.only().body, body);
}

/// D-124, D-125, D-126, D-127: which parts of a request the sandbox sees.
#[tokio::test]
async fn hop_by_hop_headers_and_credentials_are_not_passed_on() {
    let backend = Backend::answering(|_| {
        Response::builder()
            .header("connection", "x-secret")
            .header("x-secret", "1")
            .header("keep-alive", "timeout=5")
            .header("proxy-authenticate", "Basic")
            .header("x-open", "1")
            .body(Full::default())
            .unwrap()
    })
    .await;
    let router = TestRouter::before(backend.addr).await;
    let reply = router
        .get_with(
            "/",
            &[
                ("host", "sandbox.example.com"),
                ("authorization", "Bearer x"),
                ("connection", "x-foo, close"),
                ("x-foo", "1"),
                ("te", "gzip"),
                ("proxy-authorization", "Basic x"),
                ("forwarded", "for=1.2.3.4"),
                ("x-forwarded-for", "1.2.3.4"),
                ("x-forwarded-for", "5.6.7.8"),
                ("x-forwarded-prefix", "/x"),
                ("x-request-id", "0123456789abcdef"),
            ],
        )
        .await;
    let seen = backend.only();
    assert_eq!(seen.header("host"), Some("10.0.0.7:8888"));
    for absent in
        ["authorization", "connection", "x-foo", "te", "proxy-authorization", "forwarded", "x-forwarded-prefix"]
    {
        assert_eq!(seen.header(absent), None, "{absent}");
    }
    let forwarded: Vec<_> = seen.headers.get_all("x-forwarded-for").iter().collect();
    assert_eq!(forwarded, ["127.0.0.1"]);
    assert_eq!(seen.header("x-forwarded-host"), Some("sandbox.example.com"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("x-sandbox-id"), Some("box"));
    assert_eq!(seen.header("x-request-id"), Some("0123456789abcdef"));
    assert_eq!(reply.headers["x-open"], "1");
    for absent in ["x-secret", "keep-alive", "proxy-authenticate"] {
        assert!(!reply.headers.contains_key(absent), "{absent}");
    }
}

/// D-118
#[tokio::test]
async fn an_ipv6_authority_is_bracketed() {
    let backend = Backend::echo().await;
    let router = TestRouter::before(backend.addr).await;
    router.router.index().apply(pod("six", "2001:db8::1"));
    let reply = router.send(request(&[("x-sandbox-id", "six"), ("x-sandbox-pod-ip", "2001:db8::1")])).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(backend.only().header("host"), Some("[2001:db8::1]:8888"));
}

/// D-141
#[tokio::test]
async fn the_routers_own_health_and_the_sandboxs_are_told_apart() {
    let backend = Backend::answering(|_| Response::new(Full::from("sandbox"))).await;
    let router = TestRouter::before(backend.addr).await;
    for method in [Method::GET, Method::POST] {
        let reply = router.send(Request::builder().method(method).uri("/healthz").body(Full::default()).unwrap()).await;
        assert_eq!((reply.status, reply.text()), (StatusCode::OK, "{\"status\":\"ok\"}"));
    }
    assert_eq!(router.get("/healthz").await.text(), "sandbox");
}

#[tokio::test]
async fn connections_to_a_sandbox_are_used_again() {
    let backend = Backend::echo().await;
    let router = TestRouter::before(backend.addr).await;
    for _ in 0..10 {
        let body = Bytes::from_static(b"hello");
        let request = Request::post("/").header("x-sandbox-id", "box").body(Full::new(body)).unwrap();
        assert_eq!(router.send(request).await.text(), "hello");
    }
    assert_eq!(router.dialled().len(), 1);
}
