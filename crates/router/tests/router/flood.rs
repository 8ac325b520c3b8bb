//! A client that opens connections and sends nothing, at a listener with limits for each peer.

use std::time::Duration;

use agent_sandbox_router::{AuthzConfig, Limits, Modes, RouterConfig, StaticToken};
use http::{Request, StatusCode};
use http_body_util::Full;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::support::*;

const LIMIT: usize = 16;

/// Sixteen connections, with a quarter kept for other peers.
async fn limited(authz: AuthzConfig) -> (TestRouter, Backend) {
    let backend = Backend::echo().await;
    let limits = Limits { connections: LIMIT, per_peer: true, ..Limits::default() };
    let router = TestRouter::with(RouterConfig { limits, authz, ..quiet() }, backend.addr).await;
    (router, backend)
}

#[tokio::test]
async fn requests_are_answered_at_once_during_a_flood_of_idle_connections() {
    let (router, _backend) = limited(AuthzConfig::AllowAll).await;
    let used = TcpStream::connect(router.addr).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(used);
    let (mut used, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let request = || {
        let head = Request::get("/").header("host", "r").header("x-sandbox-id", "box");
        head.body(Full::<bytes::Bytes>::default()).unwrap()
    };
    assert_eq!(used.send_request(request()).await.unwrap().status(), StatusCode::OK);
    let mut idle = Vec::new();
    for _ in 0..4 * LIMIT {
        idle.push(TcpStream::connect(router.addr).await.unwrap());
        if idle.len() % LIMIT == 0 {
            assert_eq!(router.get("/").await.status, StatusCode::OK, "with {} idle connections", idle.len());
        }
    }
    used.ready().await.expect("a connection with an admitted request stays open");
    assert_eq!(used.send_request(request()).await.unwrap().status(), StatusCode::OK);
    let closed = tokio::time::timeout(TIMEOUT, idle[0].read(&mut [0; 1])).await.expect("the oldest one is closed");
    assert!(matches!(closed, Ok(0) | Err(_)));
}

/// Requests without a credential keep no place: their connections give way as idle ones do.
#[tokio::test]
async fn refused_requests_do_not_count_as_use() {
    let authz = AuthzConfig::AnyOf(Modes { static_token: Some(StaticToken("secret".to_owned())), ..Modes::default() });
    let (router, _backend) = limited(authz).await;
    let mut refused = Vec::new();
    for _ in 0..2 * LIMIT {
        let io = hyper_util::rt::TokioIo::new(TcpStream::connect(router.addr).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let head = Request::get("/").header("host", "r").header("x-sandbox-id", "box");
        let response = sender.send_request(head.body(Full::<bytes::Bytes>::default()).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        refused.push(sender);
    }
    let reply = router.get_with("/", &[("authorization", "Bearer secret")]).await;
    assert_eq!(reply.status, StatusCode::OK);
    let gone = async {
        while refused[0].ready().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, gone).await.expect("the oldest refused client is closed");
}
