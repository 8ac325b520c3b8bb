//! Tests of each kind of check, against real sockets on loopback.

use std::convert::Infallible;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::kubelet::fake_runtime::FakeRuntime;

fn target(runtime: &Arc<FakeRuntime>) -> CheckTarget {
    CheckTarget {
        runtime: Arc::<FakeRuntime>::clone(runtime),
        pod: "u".into(),
        container: "a".into(),
        ip: Some(IpAddr::from([127, 0, 0, 1])),
    }
}

fn check(probe: Value) -> Result<Check, String> {
    let container: Container =
        serde_json::from_value(json!({"name": "a", "ports": [{"name": "web", "containerPort": 8080}]})).unwrap();
    Check::of_probe(&serde_json::from_value(probe).unwrap(), &container)
}

const SECOND: Duration = Duration::from_secs(1);

/// Starts a server that responds to every request with this status; returns its port.
async fn serve(status: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service =
                hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| async move {
                    let status = if request.uri().path() == "/missing" { 404 } else { status };
                    Ok::<_, Infallible>(http::Response::builder().status(status).body(Empty::<Bytes>::new()).unwrap())
                });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    port
}

#[test]
fn handlers_are_read_with_names_and_defaults() {
    assert_eq!(
        check(json!({"httpGet": {"port": "web", "path": "health"}})),
        Ok(Check::Http { port: 8080, path: "/health".into(), tls: false, headers: vec![] })
    );
    assert_eq!(check(json!({"tcpSocket": {"port": 5}})), Ok(Check::Tcp { port: 5 }));
    assert_eq!(check(json!({"grpc": {"port": 7, "service": "s"}})), Ok(Check::Grpc { port: 7, service: "s".into() }));
    assert_eq!(check(json!({"exec": {"command": ["true"]}})), Ok(Check::Exec { command: vec!["true".into()] }));
    for bad in
        [json!({}), json!({"tcpSocket": {"port": "none"}}), json!({"tcpSocket": {"port": 70000}}), json!({"exec": {}})]
    {
        assert!(check(bad.clone()).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn http_passes_from_200_to_399() {
    let runtime = FakeRuntime::new();
    let at = target(&runtime);
    for (status, passes) in [(200, true), (204, true), (302, true), (400, false), (503, false)] {
        let port = serve(status).await;
        let check = Check::Http { port, path: "/".into(), tls: false, headers: vec![("x".into(), "y".into())] };
        assert_eq!(check.attempt(&at, SECOND).await.is_ok(), passes, "{status}");
    }
    let port = serve(200).await;
    let missing = Check::Http { port, path: "/missing".into(), tls: false, headers: vec![] };
    assert_eq!(missing.attempt(&at, SECOND).await.unwrap_err().message, "HTTP probe failed with statuscode: 404");
}

#[tokio::test]
async fn tcp_passes_when_the_port_is_open_and_reports_refused_connections() {
    let runtime = FakeRuntime::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let check = Check::Tcp { port };
    assert_eq!(check.attempt(&target(&runtime), SECOND).await, Ok(()));
    drop(listener);
    assert!(check.attempt(&target(&runtime), SECOND).await.unwrap_err().refused);
}

#[tokio::test]
async fn a_silent_server_times_out() {
    let runtime = FakeRuntime::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let check = Check::Http { port, path: "/".into(), tls: false, headers: vec![] };
    let failure = check.attempt(&target(&runtime), Duration::from_millis(50)).await.unwrap_err();
    assert!(failure.message.contains("timed out") && !failure.refused, "{failure:?}");
}

#[tokio::test]
async fn a_command_passes_by_its_exit_code() {
    let runtime = FakeRuntime::new();
    runtime.exec_code("good", 0);
    runtime.exec_code("bad", 3);
    let run = |name: &str| Check::Exec { command: vec![name.to_owned()] };
    assert_eq!(run("good").attempt(&target(&runtime), SECOND).await, Ok(()));
    assert_eq!(run("bad").attempt(&target(&runtime), SECOND).await.unwrap_err().message, "command exited with 3");
}

#[tokio::test]
async fn grpc_health_is_spoken_over_http2() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper::service::service_fn(|request: hyper::Request<hyper::body::Incoming>| async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let serving = body.ends_with(b"up");
                let message = Bytes::from(vec![0, 0, 0, 0, 2, 0x08, if serving { 1 } else { 2 }]);
                let response = http::Response::builder().header("content-type", "application/grpc");
                Ok::<_, Infallible>(response.body(Full::new(message)).unwrap())
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    let runtime = FakeRuntime::new();
    let health = |service: &str| Check::Grpc { port, service: service.into() };
    assert_eq!(health("up").attempt(&target(&runtime), SECOND).await, Ok(()));
    assert!(health("down").attempt(&target(&runtime), SECOND).await.unwrap_err().message.contains("unhealthy"));
}
