//! Streaming in both directions: back-pressure, peers that disconnect, HTTP/2 clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

/// A client that does not read blocks its sandbox instead of filling the router's memory.
#[tokio::test]
async fn a_slow_reader_pushes_back_on_the_sandbox() {
    const SIZE: usize = 64 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let router = TestRouter::before(listener.local_addr().unwrap()).await;
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n").as_bytes()).await.unwrap();
        let chunk = [b'x'; 16 * 1024];
        while count.load(Ordering::Relaxed) < SIZE {
            stream.write_all(&chunk).await.unwrap();
            count.fetch_add(chunk.len(), Ordering::Relaxed);
        }
    });
    let mut client = TcpStream::connect(router.addr).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut previous = 0;
    eventually("the sandbox stalls", || {
        let now = written.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(200));
        std::mem::replace(&mut previous, now) == now && now > 0
    })
    .await;
    let stalled = written.load(Ordering::Relaxed);
    assert!(stalled < SIZE / 2, "{stalled} bytes were taken in without a reader");
    let mut body = Vec::new();
    tokio::time::timeout(TIMEOUT, client.read_to_end(&mut body)).await.unwrap().unwrap();
    assert!(body.len() > SIZE, "all of it arrives in the end");
}

/// An aborted response is not passed on as a complete one.
#[tokio::test]
async fn a_backend_that_dies_mid_response_breaks_the_response() {
    for head in ["content-length: 100\r\n\r\n12345", "transfer-encoding: chunked\r\n\r\n5\r\n12345\r\n"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let router = TestRouter::before(listener.local_addr().unwrap()).await;
        let (die, dying) = tokio::sync::oneshot::channel::<()>();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}").as_bytes()).await.unwrap();
            dying.await.unwrap();
        });
        let stream = TcpStream::connect(router.addr).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::get("/").header("host", "r").header("x-sandbox-id", "box");
        let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        die.send(()).unwrap();
        assert!(response.into_body().collect().await.is_err(), "{head:?}");
        let broken = "sandbox_router_upstream_errors_total{sandbox_namespace=\"default\",reason=\"eof\"}";
        eventually("the break is counted", || metric(&router, broken) == 1.0).await;
    }
}

/// When a client disconnects, its command ends: the sandbox sees the connection close.
#[tokio::test]
async fn a_client_that_leaves_closes_the_sandboxs_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let router = TestRouter::before(listener.local_addr().unwrap()).await;
    let closed = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 4096];
        while matches!(stream.read(&mut buffer).await, Ok(count) if count > 0) {}
    });
    let mut client = TcpStream::connect(router.addr).await.unwrap();
    client
        .write_all(b"POST /execute HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\nContent-Length: 2\r\n\r\n{}")
        .await
        .unwrap();
    eventually("the request is under way", || router.dialled().len() == 1).await;
    drop(client);
    tokio::time::timeout(TIMEOUT, closed).await.expect("the sandbox's connection is closed").unwrap();
}

/// HTTP/2 clients share one connection and see the same things.
#[tokio::test]
async fn http2_clients_are_served() {
    let backend = Backend::echo().await;
    let router = TestRouter::before(backend.addr).await;
    let stream = TcpStream::connect(router.addr).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let exchange = |number: usize| {
        let mut sender = sender.clone();
        async move {
            let request = Request::post(format!("http://router.example/n/{number}?q=%2F"))
                .header("x-sandbox-id", "box")
                .header("cookie", "a=1")
                .header("cookie", "b=2")
                .body(Full::new(Bytes::from(vec![b'x'; number * 1000])))
                .unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), number * 1000);
        }
    };
    tokio::time::timeout(TIMEOUT, futures::future::join_all((0..40).map(exchange))).await.unwrap();
    let seen = backend.seen.lock();
    assert_eq!(seen.len(), 40);
    assert!(seen.iter().all(|seen| seen.header("x-forwarded-host") == Some("router.example")));
    assert!(seen.iter().all(|seen| seen.header("cookie") == Some("a=1; b=2") && seen.target.ends_with("?q=%2F")));
}
