//! Shutting down without losing a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use agent_sandbox_router::{RouterConfig, Timeouts};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::support::*;

fn draining(delay_ms: u64, shutdown_ms: u64) -> RouterConfig {
    let timeouts = Timeouts {
        drain_delay: Duration::from_millis(delay_ms),
        shutdown: Duration::from_millis(shutdown_ms),
        ..Timeouts::default()
    };
    RouterConfig { timeouts, ..quiet() }
}

#[tokio::test]
async fn an_open_request_finishes_and_new_connections_are_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut router = TestRouter::with(draining(0, 10_000), listener.local_addr().unwrap()).await;
    let mut client = TcpStream::connect(router.addr).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\n\r\n").await.unwrap();
    let (mut backend, _) = listener.accept().await.unwrap();
    let _ = backend.read(&mut [0; 4096]).await.unwrap();
    router.shutdown.cancel();
    let deadline = Instant::now() + TIMEOUT;
    while TcpStream::connect(router.addr).await.is_ok() {
        assert!(Instant::now() < deadline, "the listener closes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    backend.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone").await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(TIMEOUT, client.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("done"), "{answer}");
    tokio::time::timeout(TIMEOUT, &mut router.served).await.expect("serving ends").unwrap();
}

#[tokio::test]
async fn open_requests_are_aborted_when_the_drain_time_is_over() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut router = TestRouter::with(draining(0, 300), listener.local_addr().unwrap()).await;
    let mut client = TcpStream::connect(router.addr).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\n\r\n").await.unwrap();
    eventually("the request is under way", || router.dialled().len() == 1).await;
    let start = Instant::now();
    router.shutdown.cancel();
    tokio::time::timeout(TIMEOUT, &mut router.served).await.expect("serving ends").unwrap();
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert_eq!(client.read(&mut [0; 100]).await.unwrap_or(0), 0);
}

/// D-142: readiness fails before anything is closed, so that no more clients are sent here.
#[tokio::test]
async fn while_draining_probes_fail_and_responses_close_their_connections() {
    let backend = Backend::echo().await;
    let router = TestRouter::with(draining(60_000, 1000), backend.addr).await;
    let addr = router.addr;
    let probe = |path: &'static str| send(addr, Request::get(path).body(Full::default()).unwrap());
    let ready = probe("/readyz").await;
    assert_eq!((ready.status, ready.text()), (StatusCode::OK, "ok"));
    router.shutdown.cancel();
    let deadline = Instant::now() + TIMEOUT;
    let unready = loop {
        let reply = probe("/readyz").await;
        if reply.status != StatusCode::OK {
            break reply;
        }
        assert!(Instant::now() < deadline, "readiness turns");
    };
    assert_eq!((unready.status, unready.text()), (StatusCode::SERVICE_UNAVAILABLE, "draining"));
    assert_eq!(probe("/healthz").await.status, StatusCode::OK);
    let reply = router.get("/").await;
    assert_eq!((reply.status, &reply.headers["connection"]), (StatusCode::OK, &"close".parse().unwrap()));
}

/// Routers that are replaced one by one; clients use those that are ready, as with the endpoints of a Service.
struct Fleet {
    ready: Mutex<Vec<std::net::SocketAddr>>,
}

impl Fleet {
    fn any(&self, number: usize) -> std::net::SocketAddr {
        let ready = self.ready.lock();
        ready[number % ready.len()]
    }
}

/// Every router of a fleet is replaced under load; no request is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_under_load_loses_nothing() {
    let backend = Backend::answering(|_| Response::new(Full::from("ok"))).await;
    let mut routers = vec![TestRouter::with(draining(300, 5000), backend.addr).await];
    let fleet = Arc::new(Fleet { ready: Mutex::new(vec![routers[0].addr]) });
    let (stop, served, failed) =
        (CancellationToken::new(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..8)
        .map(|number| {
            let (fleet, stop, served) = (Arc::clone(&fleet), stop.clone(), Arc::clone(&served));
            tokio::spawn(async move {
                while !stop.is_cancelled() {
                    send_requests(fleet.any(number), &stop, &served).await;
                }
            })
        })
        .collect();
    for _ in 0..3 {
        let before = served.load(Ordering::Relaxed);
        let fresh = TestRouter::with(draining(300, 5000), backend.addr).await;
        fleet.ready.lock().push(fresh.addr);
        eventually("traffic goes on", || served.load(Ordering::Relaxed) > before + 50).await;
        let mut old = routers.pop().unwrap();
        routers.push(fresh);
        old.shutdown.cancel();
        fleet.ready.lock().retain(|addr| *addr != old.addr);
        tokio::time::timeout(TIMEOUT, &mut old.served).await.expect("the old router drains").unwrap();
    }
    stop.cancel();
    for client in clients {
        if let Err(error) = client.await {
            failed.store(true, Ordering::Relaxed);
            eprintln!("{error}");
        }
    }
    assert!(!failed.load(Ordering::Relaxed));
    assert!(served.load(Ordering::Relaxed) > 150);
}

/// Uses one connection until the router asks to close it; panics if a request fails.
async fn send_requests(addr: std::net::SocketAddr, stop: &CancellationToken, served: &AtomicUsize) {
    let stream = TcpStream::connect(addr).await.expect("a ready router accepts");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    while !stop.is_cancelled() {
        let request = Request::post("/").header("host", "r").header("x-sandbox-id", "box");
        let request = request.body(Full::new(Bytes::from_static(b"x"))).unwrap();
        let response = sender.send_request(request).await.expect("no request is lost");
        assert_eq!(response.status(), StatusCode::OK);
        let closing = response.headers().contains_key("connection");
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
        served.fetch_add(1, Ordering::Relaxed);
        if closing {
            return;
        }
    }
}
