//! WebSockets and other upgrades: a real WebSocket application behind the router, and its limits.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_protocol::web::{AllowedHosts, AllowedOrigins};
use agent_sandbox_router::{Cidr, RouterConfig, Timeouts, UpgradeLimits};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{HeaderMap, StatusCode};
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::server::{Request as Handshake, Response as Agreement};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, accept_hdr_async, connect_async};

use crate::sleeping::{Api, asleep_before, by_idleness, when_asked};
use crate::support::*;

/// A WebSocket application: echoes messages, supports sub-protocol `chat`, records what it received.
struct Chat {
    addr: SocketAddr,
    handshakes: Arc<Mutex<Vec<HeaderMap>>>,
    closes: Arc<Mutex<Vec<u16>>>,
}

impl Chat {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (handshakes, closes) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (record, record_close) = (Arc::clone(&handshakes), Arc::clone(&closes));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, Arc::clone(&record), Arc::clone(&record_close)));
            }
        });
        Self { addr, handshakes, closes }
    }
}

#[allow(clippy::result_large_err, reason = "the signature is tungstenite's")]
async fn converse(stream: TcpStream, record: Arc<Mutex<Vec<HeaderMap>>>, closes: Arc<Mutex<Vec<u16>>>) {
    let agree = |request: &Handshake, mut response: Agreement| {
        record.lock().push(request.headers().clone());
        if request.headers().contains_key("sec-websocket-protocol") {
            response.headers_mut().insert("sec-websocket-protocol", "chat".parse().unwrap());
        }
        Ok(response)
    };
    let Ok(mut socket) = accept_hdr_async(stream, agree).await else { return };
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Text(_) | Message::Binary(_) => {
                // A failure shows at the next read.
                let _ = socket.send(message).await;
            }
            Message::Close(frame) => closes.lock().push(frame.map_or(0, |frame| frame.code.into())),
            _ => {}
        }
    }
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn open(router: &TestRouter, headers: &[(&'static str, &str)]) -> Result<Socket, Error> {
    let mut request = format!("ws://{}/chat?room=1", router.addr).into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    tokio::time::timeout(TIMEOUT, connect_async(request))
        .await
        .expect("handshakes do not hang")
        .map(|(socket, _)| socket)
}

const TO_BOX: &[(&str, &str)] = &[("x-sandbox-id", "box")];

async fn next(socket: &mut Socket) -> Option<Result<Message, Error>> {
    tokio::time::timeout(TIMEOUT, socket.next()).await.expect("a message or an end comes")
}

/// The close code the router or the application ends a socket with.
async fn close_code(socket: &mut Socket) -> u16 {
    loop {
        match next(socket).await {
            Some(Ok(Message::Close(Some(CloseFrame { code, .. })))) => return code.into(),
            Some(Ok(_)) => {}
            other => panic!("no close frame but {other:?}"),
        }
    }
}

fn limited(change: impl FnOnce(&mut UpgradeLimits)) -> RouterConfig {
    let mut upgrades = UpgradeLimits::default();
    change(&mut upgrades);
    RouterConfig { upgrades, ..quiet() }
}

/// A router that pages of `app.example` may use as `router.example`.
fn for_pages() -> RouterConfig {
    RouterConfig {
        allowed_origins: AllowedOrigins::new(["https://app.example".to_owned()]).unwrap(),
        allowed_hosts: AllowedHosts::private([]).and(["router.example".to_owned(), "r".to_owned()]).unwrap(),
        ..quiet()
    }
}

/// D-136
#[tokio::test]
async fn messages_of_all_sizes_round_trip() {
    let chat = Chat::start().await;
    let router = TestRouter::before(chat.addr).await;
    let mut socket = open(&router, &[TO_BOX[0], ("sec-websocket-protocol", "chat, other")]).await.unwrap();
    for size in [0, 1, 125, 126, 65_535, 65_536, 1_000_000] {
        let message = Message::binary(vec![7_u8; size]);
        socket.send(message.clone()).await.unwrap();
        assert_eq!(next(&mut socket).await.unwrap().unwrap(), message, "{size}");
    }
    socket.send(Message::text("héllo")).await.unwrap();
    assert_eq!(next(&mut socket).await.unwrap().unwrap(), Message::text("héllo"));
    socket.close(Some(CloseFrame { code: 4321.into(), reason: "bye".into() })).await.unwrap();
    assert_eq!(close_code(&mut socket).await, 4321, "close codes pass both ways");
    eventually("the application hears the code", || chat.closes.lock().contains(&4321)).await;
    eventually("the end is accounted for", || {
        metric(&router, "sandbox_router_requests_total{method=\"GET\",code=\"101\",sandbox_namespace=\"default\"}")
            == 1.0
    })
    .await;
}

/// The handshake waits for the Sandbox.
#[tokio::test]
async fn a_websocket_wakes_a_sandbox() {
    let (chat, api) = (Chat::start().await, Api::with("Suspended", by_idleness()));
    let router = asleep_before(quiet(), &api, chat.addr).await;
    let (socket, ()) = futures::future::join(open(&router, TO_BOX), when_asked(&api, &router)).await;
    let mut socket = socket.unwrap();
    socket.send(Message::text("awake")).await.unwrap();
    assert_eq!(next(&mut socket).await.unwrap().unwrap(), Message::text("awake"));
    assert_eq!(chat.handshakes.lock().len(), 1);
}

/// D-137
#[tokio::test]
async fn an_idle_socket_outlives_the_proxy_timeout() {
    let chat = Chat::start().await;
    let timeouts = Timeouts {
        proxy: Duration::from_millis(500),
        client_idle: Duration::from_millis(500),
        head_read: Duration::from_millis(500),
        ..Timeouts::default()
    };
    let router = TestRouter::with(RouterConfig { timeouts, ..quiet() }, chat.addr).await;
    let mut socket = open(&router, TO_BOX).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    socket.send(Message::text("still here")).await.unwrap();
    assert_eq!(next(&mut socket).await.unwrap().unwrap(), Message::text("still here"));
}

/// D-138
#[tokio::test]
async fn the_origin_is_dropped_on_upgrades_and_kept_on_requests() {
    let chat = Chat::start().await;
    let router = TestRouter::with(for_pages(), chat.addr).await;
    open(&router, &[TO_BOX[0], ("origin", "https://app.example")]).await.unwrap();
    let seen = chat.handshakes.lock()[0].clone();
    assert!(!seen.contains_key("origin"));
    assert_eq!(seen["x-forwarded-for"], "127.0.0.1");
    let backend = Backend::echo().await;
    let router = TestRouter::with(for_pages(), backend.addr).await;
    router.get_with("/", &[("origin", "https://app.example")]).await;
    assert_eq!(backend.only().header("origin"), Some("https://app.example"));
}

/// D-139
#[tokio::test]
async fn a_socket_without_a_sandbox_is_refused() {
    let chat = Chat::start().await;
    let router = TestRouter::before(chat.addr).await;
    let Err(Error::Http(response)) = open(&router, &[]).await else { panic!("the handshake must fail") };
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert!(chat.handshakes.lock().is_empty());
}

/// D-140
#[tokio::test]
async fn idle_and_old_sockets_end_with_1001() {
    let chat = Chat::start().await;
    let short = Some(Duration::from_millis(300));
    let router = TestRouter::with(limited(|limits| limits.idle = short), chat.addr).await;
    let mut socket = open(&router, TO_BOX).await.unwrap();
    socket.send(Message::text("x")).await.unwrap();
    assert_eq!(close_code(&mut socket).await, 1001);
    let router = TestRouter::with(limited(|limits| limits.lifetime = short), chat.addr).await;
    let mut socket = open(&router, TO_BOX).await.unwrap();
    assert_eq!(close_code(&mut socket).await, 1001);
    eventually("the application is told too", || *chat.closes.lock() == [1001, 1001]).await;
}

/// D-140
#[tokio::test]
async fn oversized_messages_end_with_1009() {
    let chat = Chat::start().await;
    let router = TestRouter::with(limited(|limits| limits.max_message_bytes = 1000), chat.addr).await;
    let mut socket = open(&router, TO_BOX).await.unwrap();
    socket.send(Message::binary(vec![0_u8; 1000])).await.unwrap();
    assert!(next(&mut socket).await.unwrap().is_ok());
    socket.send(Message::binary(vec![0_u8; 1001])).await.unwrap();
    assert_eq!(close_code(&mut socket).await, 1009);
}

/// D-140
#[tokio::test]
async fn too_many_sockets_of_one_client_end_with_1008() {
    let chat = Chat::start().await;
    let config = RouterConfig {
        trusted_proxies: vec!["127.0.0.0/8".parse::<Cidr>().unwrap()],
        ..limited(|limits| limits.per_client = 1)
    };
    let router = TestRouter::with(config, chat.addr).await;
    let first = open(&router, TO_BOX).await.unwrap();
    let mut second = open(&router, TO_BOX).await.unwrap();
    assert_eq!(close_code(&mut second).await, 1008);
    // A trusted proxy reports the addresses of its clients.
    let mut other = open(&router, &[TO_BOX[0], ("x-forwarded-for", "6.6.6.6, 192.0.2.1, 127.0.0.9")]).await.unwrap();
    other.send(Message::text("x")).await.unwrap();
    assert_eq!(next(&mut other).await.unwrap().unwrap(), Message::text("x"));
    drop(first);
    eventually("the place is free again", || chat.handshakes.lock().len() == 2).await;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let mut third = open(&router, TO_BOX).await.unwrap();
        let _ = third.send(Message::text("x")).await;
        if matches!(next(&mut third).await, Some(Ok(Message::Text(_)))) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "a closed socket gives its place back");
    }
}

/// Other protocols can be upgraded to as well, and half-closing works through the tunnel.
#[tokio::test]
async fn any_protocol_can_be_upgraded_to() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let router = TestRouter::before(listener.local_addr().unwrap()).await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = vec![0; 4096];
        let count = stream.read(&mut head).await.unwrap();
        assert!(String::from_utf8_lossy(&head[..count]).to_lowercase().contains("upgrade: tcp"));
        stream.write_all(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: tcp\r\n\r\nearly ").await.unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        stream.write_all(format!("got {rest}").as_bytes()).await.unwrap();
    });
    let mut client = TcpStream::connect(router.addr).await.unwrap();
    let head = b"POST /attach HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";
    client.write_all(head).await.unwrap();
    client.write_all(b"ping").await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(TIMEOUT, client.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.ends_with("\r\n\r\nearly got ping"), "{answer}");
}

/// A protocol switch that the client did not request is not passed on.
#[tokio::test]
async fn an_unrequested_upgrade_is_a_bad_gateway() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let router = TestRouter::before(listener.local_addr().unwrap()).await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        stream.write_all(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: evil\r\n\r\n").await.unwrap();
        std::future::pending::<()>().await;
    });
    assert_eq!(router.get("/").await.status, StatusCode::BAD_GATEWAY);
}

/// A refusal by the application is passed on unchanged.
#[tokio::test]
async fn a_refused_handshake_passes_through() {
    let backend = Backend::answering(|_| http::Response::builder().status(403).body("no".into()).unwrap()).await;
    let router = TestRouter::before(backend.addr).await;
    let Err(Error::Http(response)) = open(&router, TO_BOX).await else { panic!("the handshake must fail") };
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
}

/// D-136 over HTTP/2 (RFC 8441): the client's side is one of several streams, the sandbox's an ordinary upgrade.
#[tokio::test]
async fn sockets_over_http2_reach_an_ordinary_application() {
    let chat = Chat::start().await;
    let router = TestRouter::with(for_pages(), chat.addr).await;
    let stream = TcpStream::connect(router.addr).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    // After the first response the router's settings, which allow extended CONNECT, have arrived.
    let probe = http::Request::get("http://r/healthz").body(Empty::<Bytes>::new()).unwrap();
    assert_eq!(sender.send_request(probe).await.unwrap().status(), StatusCode::OK);
    let connect = |protocol: &'static str| {
        http::Request::connect("http://router.example/chat?room=%2F1")
            .header("x-sandbox-id", "box")
            .header("origin", "https://app.example")
            .header("sec-websocket-protocol", "chat")
            .extension(hyper::ext::Protocol::from_static(protocol))
            .body(Empty::<Bytes>::new())
            .unwrap()
    };
    let mut response = sender.send_request(connect("websocket")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["sec-websocket-protocol"], "chat");
    assert!(!response.headers().contains_key("sec-websocket-accept") && !response.headers().contains_key("upgrade"));
    let upgraded = TokioIo::new(hyper::upgrade::on(&mut response).await.unwrap());
    let mut socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await;
    for size in [0, 126, 70_000] {
        let message = Message::binary(vec![7_u8; size]);
        socket.send(message.clone()).await.unwrap();
        let echoed = tokio::time::timeout(TIMEOUT, socket.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(echoed, message, "{size}");
    }
    let seen = chat.handshakes.lock()[0].clone();
    assert!(!seen.contains_key("origin"));
    assert_eq!(
        (&seen["upgrade"], &seen["x-forwarded-host"]),
        (&"websocket".parse().unwrap(), &"router.example".parse().unwrap())
    );
    let refused = sender.send_request(connect("connect-udp")).await.unwrap();
    assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
    socket.close(None).await.unwrap();
    eventually("the end is accounted for", || metric(&router, "sandbox_router_inflight_requests") == 0.0).await;
}
