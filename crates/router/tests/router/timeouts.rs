//! Timeouts: one budget for the wait for a response, and none for streams that make progress.

use std::time::{Duration, Instant};

use agent_sandbox_router::{RouterConfig, Timeouts};
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

fn timeouts(change: impl FnOnce(&mut Timeouts)) -> RouterConfig {
    let mut timeouts = Timeouts::default();
    change(&mut timeouts);
    RouterConfig { timeouts, ..quiet() }
}

/// Accepts connections, reads the request, and reports when the router closes the connection.
struct SilentBackend {
    addr: std::net::SocketAddr,
    hung_up: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl SilentBackend {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let hung_up = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
        let count = std::sync::Arc::clone(&hung_up);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let count = std::sync::Arc::clone(&count);
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while matches!(stream.read(&mut buffer).await, Ok(read) if read > 0) {}
                    count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                });
            }
        });
        Self { addr, hung_up }
    }
}

/// D-133
#[tokio::test]
async fn a_slow_backend_is_answered_504_in_time_and_disconnected() {
    let backend = SilentBackend::start().await;
    let router = TestRouter::with(timeouts(|t| t.proxy = Duration::from_millis(300)), backend.addr).await;
    let start = Instant::now();
    let reply = router.get("/").await;
    let took = start.elapsed();
    assert_eq!(reply.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(reply.detail(), "Timed out waiting for the backend sandbox: box");
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "{took:?}");
    eventually("the router hangs up, so that the command can stop", || {
        backend.hung_up.load(std::sync::atomic::Ordering::Relaxed) == 1
    })
    .await;
}

/// D-134
#[tokio::test]
async fn clients_may_ask_for_less_and_not_for_more() {
    let backend = SilentBackend::start().await;
    let router = TestRouter::with(timeouts(|t| t.proxy = Duration::from_millis(800)), backend.addr).await;
    let wait = |value: &'static str| {
        let router = &router;
        async move {
            let start = Instant::now();
            let reply = router.get_with("/", &[("x-sandbox-timeout", value)]).await;
            assert_eq!(reply.status, StatusCode::GATEWAY_TIMEOUT);
            start.elapsed()
        }
    };
    assert!(wait("0.2").await < Duration::from_millis(750));
    for unusable in ["60", "abc", "-1", "inf", "nan"] {
        let took = wait(unusable).await;
        assert!(took >= Duration::from_millis(800) && took < Duration::from_secs(5), "{unusable}: {took:?}");
    }
}

/// D-135: with defaults, a 90 s command of a client that waits 120 s is within the budget.
#[test]
fn the_default_budget_covers_long_commands() {
    let timeouts = Timeouts::default();
    let granted = timeouts.response_header.map_or(timeouts.proxy, |stricter| stricter.min(timeouts.proxy));
    assert!(granted.min(Duration::from_secs(120)) > Duration::from_secs(90));
}

/// Whether to run with the real durations.
fn soak() -> bool {
    std::env::var_os("AGENT_SANDBOX_SOAK").is_some()
}

/// D-135: commands that take long, but less than the budget, finish. With `AGENT_SANDBOX_SOAK` in real time: 90 s with
/// defaults, 200 s under a longer proxy timeout.
#[tokio::test]
async fn long_commands_finish() {
    let command = |length: Duration, config: RouterConfig| async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let router = TestRouter::with(config, listener.local_addr().unwrap()).await;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            tokio::time::sleep(length).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone").await.unwrap();
        });
        let request = http::Request::post("/execute")
            .header("x-sandbox-id", "box")
            .header("x-sandbox-timeout", (length.as_secs() + 30).to_string())
            .body(http_body_util::Full::default())
            .unwrap();
        let reply = send(router.addr, request).await;
        assert_eq!((reply.status, reply.text()), (StatusCode::OK, "done"), "{length:?}");
    };
    if soak() {
        let longer = timeouts(|t| t.proxy = Duration::from_secs(300));
        futures::future::join(command(Duration::from_secs(90), quiet()), command(Duration::from_secs(200), longer))
            .await;
    } else {
        command(Duration::from_secs(2), timeouts(|t| t.proxy = Duration::from_secs(6))).await;
    }
}

/// A stream may take longer than the budget while it makes progress: 20 s against a budget of 2 s, with
/// `AGENT_SANDBOX_SOAK` ten minutes.
#[tokio::test]
async fn a_live_stream_is_not_cut_by_the_proxy_timeout() {
    let (length, budget) = if soak() { (600, 180) } else { (20, 2) };
    stream_for(Duration::from_secs(length), Duration::from_secs(budget)).await;
}

async fn stream_for(length: Duration, proxy_timeout: Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let router = TestRouter::with(timeouts(|t| t.proxy = proxy_timeout), listener.local_addr().unwrap()).await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            .await
            .unwrap();
        let end = Instant::now() + length;
        while Instant::now() < end {
            stream.write_all(b"6\r\ndata\n\n\r\n").await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    });
    let mut client = TcpStream::connect(router.addr).await.unwrap();
    client.write_all(b"GET /events HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\n\r\n").await.unwrap();
    let (start, mut received, mut buffer) = (Instant::now(), Vec::new(), [0; 4096]);
    while !received.ends_with(b"0\r\n\r\n") {
        let count =
            tokio::time::timeout(TIMEOUT, client.read(&mut buffer)).await.expect("events arrive at once").unwrap();
        assert!(count > 0, "cut after {:?}", start.elapsed());
        received.extend_from_slice(&buffer[..count]);
    }
    assert!(start.elapsed() >= length);
    let events = received.windows(6).filter(|window| window == b"data\n\n").count();
    assert!(events as u128 >= length.as_millis() / 500 / 2, "{events} events");
}

/// An upload that makes progress is not aborted, however slow its client is.
#[tokio::test]
async fn a_slow_upload_is_not_aborted_while_it_makes_progress() {
    let backend = Backend::echo().await;
    let router = TestRouter::with(timeouts(|t| t.proxy = Duration::from_millis(400)), backend.addr).await;
    let mut client = TcpStream::connect(router.addr).await.unwrap();
    client
        .write_all(
            b"POST / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\nContent-Length: 10\r\nConnection: close\r\n\r\n",
        )
        .await
        .unwrap();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(150)).await;
        client.write_all(b"x").await.unwrap();
    }
    let mut answer = String::new();
    tokio::time::timeout(TIMEOUT, client.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("xxxxxxxxxx"), "{answer}");
}

#[tokio::test]
async fn idle_streams_and_clients_are_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = timeouts(|t| {
        t.stream_idle = Some(Duration::from_millis(300));
        t.head_read = Duration::from_millis(300);
        t.client_idle = Duration::from_millis(600);
    });
    let router = TestRouter::with(config, listener.local_addr().unwrap()).await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nxx").await.unwrap();
        std::future::pending::<()>().await;
    });
    let closes = |bytes: &'static [u8]| {
        let addr = router.addr;
        async move {
            let start = Instant::now();
            let answer = raw(addr, bytes, TIMEOUT).await;
            (answer, start.elapsed())
        }
    };
    let (answer, took) = closes(b"GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\n\r\n").await;
    let text = String::from_utf8_lossy(&answer);
    assert!(text.ends_with("\r\n\r\nxx") && took >= Duration::from_millis(300) && took < TIMEOUT, "{took:?} {text:?}");
    for silent in [b"".as_slice(), b"GET / HTTP/1.1\r\nHost:".as_slice()] {
        let (_, took) = closes(silent).await;
        assert!(took >= Duration::from_millis(300) && took < TIMEOUT, "{took:?}");
    }
    let (answer, took) = closes(b"GET /healthz HTTP/1.1\r\nHost: r\r\n\r\n").await;
    assert!(answer.starts_with(b"HTTP/1.1 200") && took >= Duration::from_millis(600) && took < TIMEOUT, "{took:?}");
}
