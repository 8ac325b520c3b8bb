//! Reaching a sandbox: refused connections, retries, dead hosts, Pods that appear late, limits.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_sandbox_router::{Limits, Retries, RouterConfig, Timeouts};
use http::{Request, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

fn retries(max: u32, initial_ms: u64) -> RouterConfig {
    let delay = Duration::from_millis(initial_ms);
    RouterConfig { retries: Retries { max, initial_delay: delay, max_delay: delay * 4 }, ..quiet() }
}

async fn unused() -> std::net::SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// D-128, D-130
#[tokio::test]
async fn a_dead_port_is_answered_502_after_one_dial_without_retries() {
    let router = TestRouter::with(retries(0, 1), unused().await).await;
    let reply = router.get("/").await;
    assert_eq!(reply.status, StatusCode::BAD_GATEWAY);
    assert_eq!(reply.detail(), "Could not connect to the backend sandbox: box");
    assert_eq!(router.dialled().len(), 1);
}

/// D-129
#[tokio::test]
async fn a_backend_that_starts_late_is_reached_by_retries() {
    let addr = unused().await;
    let router = TestRouter::with(RouterConfig { ..quiet() }, addr).await;
    let late = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Backend::on(TcpListener::bind(addr).await.unwrap(), |seen| http::Response::new(Full::new(seen.body.clone())))
    });
    let request = Request::post("/").header("x-sandbox-id", "box").body(Full::from("once")).unwrap();
    let reply = router.send(request).await;
    assert_eq!((reply.status, reply.text()), (StatusCode::OK, "once"));
    assert_eq!(late.await.unwrap().only().body, "once");
    let retried = metric(&router, "sandbox_router_upstream_retries_total{sandbox_namespace=\"default\"}");
    assert!(retried >= 1.0, "{retried}");
}

/// D-131
#[tokio::test]
async fn a_request_that_was_sent_is_never_sent_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let router = TestRouter::with(retries(3, 1), listener.local_addr().unwrap()).await;
    let requests = Arc::new(Mutex::new(0));
    let count = Arc::clone(&requests);
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 1024];
            if stream.read(&mut buffer).await.unwrap() > 0 {
                *count.lock() += 1;
            }
        }
    });
    let reply = router.get("/").await;
    assert_eq!(reply.status, StatusCode::BAD_GATEWAY);
    assert_eq!((*requests.lock(), router.dialled().len()), (1, 1));
    server.abort();
}

/// D-132
#[tokio::test]
async fn a_client_that_leaves_ends_the_retries() {
    let router = TestRouter::with(retries(100, 50), unused().await).await;
    let mut client = TcpStream::connect(router.addr).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\n\r\n").await.unwrap();
    eventually("a first dial", || !router.dialled().is_empty()).await;
    drop(client);
    eventually("the end of the request", || metric(&router, "sandbox_router_inflight_requests") == 0.0).await;
    let dials = router.dialled().len();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(router.dialled().len(), dials, "no dial follows");
}

/// D-161
#[tokio::test]
async fn pods_on_dead_hosts_are_evicted_and_silent_ports_are_not() {
    let backend = Backend::echo().await;
    let router = TestRouter::with(retries(0, 1), backend.addr).await;
    for (kind, evicted) in [(ErrorKind::ConnectionRefused, false), (ErrorKind::HostUnreachable, true)] {
        *router.connect.outcome.lock() = DialOutcome::Fails(kind);
        assert_eq!(router.get("/").await.status, StatusCode::BAD_GATEWAY);
        assert_eq!(router.router.index().by_name("default", "box").is_none(), evicted, "{kind:?}");
    }
    assert_eq!(metric(&router, "sandbox_router_cache_invalidations_total{sandbox_namespace=\"default\"}"), 1.0);
    *router.connect.outcome.lock() = DialOutcome::To(backend.addr);
    assert_eq!(router.get("/").await.status, StatusCode::BAD_GATEWAY);
    assert_eq!(router.dialled().len(), 2, "an evicted Pod is not dialled");
    router.router.index().apply(pod("box", POD_IP));
    assert_eq!(router.get("/").await.status, StatusCode::OK);
}

/// D-161: a dial without a response counts as a dead host, and its wait has a timeout.
#[tokio::test]
async fn a_dial_without_an_answer_is_given_up() {
    let timeouts = Timeouts { dial: Duration::from_millis(100), ..Timeouts::default() };
    let router = TestRouter::with(RouterConfig { timeouts, ..retries(0, 1) }, unused().await).await;
    *router.connect.outcome.lock() = DialOutcome::Hangs;
    let start = Instant::now();
    assert_eq!(router.get("/").await.status, StatusCode::BAD_GATEWAY);
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(router.router.index().by_name("default", "box").is_none());
}

#[tokio::test]
async fn a_pod_that_appears_while_a_request_waits_is_used_at_once() {
    let backend = Backend::echo().await;
    let router = TestRouter::with(
        RouterConfig { retries: Retries { max: 1, initial_delay: TIMEOUT, max_delay: TIMEOUT }, ..quiet() },
        backend.addr,
    )
    .await;
    let index = Arc::clone(router.router.index());
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        index.apply(pod("neighbour", "10.0.0.9"));
        index.apply(pod("late", "10.0.0.8"));
    });
    let start = Instant::now();
    let request = Request::get("/").header("x-sandbox-id", "late").body(Full::default()).unwrap();
    assert_eq!(router.send(request).await.status, StatusCode::OK);
    assert!(start.elapsed() < TIMEOUT / 2, "it did not wait for the retry");
    assert_eq!(router.dialled(), ["10.0.0.8:8888".parse().unwrap()]);
}

/// D-169
#[tokio::test]
async fn oversized_bodies_are_answered_413() {
    let backend = Backend::echo().await;
    let limits = Limits { request_body_bytes: 1000, ..Limits::default() };
    let router = TestRouter::with(RouterConfig { limits, ..quiet() }, backend.addr).await;
    let post =
        |size: usize| Request::post("/").header("x-sandbox-id", "box").body(Full::from(vec![b'x'; size])).unwrap();
    assert_eq!(router.send(post(1000)).await.status, StatusCode::OK);
    assert_eq!(router.send(post(1001)).await.status, StatusCode::PAYLOAD_TOO_LARGE);
    let mut chunked = b"POST / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..11 {
        chunked.extend(b"64\r\n");
        chunked.extend([b'x'; 100]);
        chunked.extend(b"\r\n");
    }
    chunked.extend(b"0\r\n\r\n");
    let answer = raw(router.addr, &chunked, TIMEOUT).await;
    assert!(answer.starts_with(b"HTTP/1.1 413 "), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(backend.seen.lock().len(), 1, "no oversized body arrives complete");
}

#[tokio::test]
async fn overload_of_one_sandbox_is_answered_503_and_does_not_affect_another() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let limits = Limits { requests_per_sandbox: 2, in_flight_requests: 3, ..Limits::default() };
    let router = TestRouter::with(RouterConfig { limits, ..quiet() }, listener.local_addr().unwrap()).await;
    router.router.index().apply(pod("other", "10.0.0.8"));
    let mut held = Vec::new();
    let hold = |id: &'static str| async move {
        let mut client = TcpStream::connect(router.addr).await.unwrap();
        client.write_all(format!("GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: {id}\r\n\r\n").as_bytes()).await.unwrap();
        client
    };
    held.push(hold("box").await);
    held.push(hold("box").await);
    eventually("two requests under way", || router.dialled().len() == 2).await;
    let reply = router.get("/").await;
    assert_eq!(
        (reply.status, reply.detail().as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, "Too many requests for sandbox: box")
    );
    assert_eq!(reply.headers["retry-after"], "1");
    held.push(hold("other").await);
    eventually("a third request", || router.dialled().len() == 3).await;
    let reply = router.get("/").await;
    assert_eq!((reply.status, reply.detail().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "The router is overloaded."));
    assert_eq!(reply.headers["retry-after"], "1");
    drop(held);
    eventually("room again", || metric(&router, "sandbox_router_inflight_requests") == 0.0).await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_answered_503() {
    let backend = Backend::echo().await;
    let limits = Limits { connections: 1, ..Limits::default() };
    let router = TestRouter::with(RouterConfig { limits, ..quiet() }, backend.addr).await;
    let mut first = TcpStream::connect(router.addr).await.unwrap();
    first.write_all(b"GET /healthz HTTP/1.1\r\nHost: r\r\n\r\n").await.unwrap();
    assert!(first.read(&mut [0; 100]).await.unwrap() > 0);
    let answer = raw(router.addr, b"", TIMEOUT).await;
    let text = String::from_utf8_lossy(&answer);
    assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("retry-after: 1"), "{text}");
    drop(first);
}
