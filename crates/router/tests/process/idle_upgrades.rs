//! Thousands of idle upgraded connections cost little memory.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::child::*;

/// 200 MB for 5,000 connections, as promised; fewer get a proportional share beyond what the process needs anyway.
const BASE_KIB: u64 = 20 * 1024;
const PER_UPGRADE_KIB: u64 = (200 * 1024 - BASE_KIB) / 5000;

#[tokio::test]
async fn idle_upgrades_are_cheap() {
    let count = if std::env::var_os("AGENT_SANDBOX_SOAK").is_some() { 5000 } else { 1000 };
    let (_, hard) = {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        (limit.current, limit.maximum)
    };
    let needed = 2 * count + 200;
    if hard.is_some_and(|hard| hard < needed) {
        eprintln!("skipped: {needed} descriptors are needed, {hard:?} allowed");
        return;
    }
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: hard.or(Some(65_536)), maximum: hard },
    )
    .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 2048];
            let _ = stream.read(&mut head).await.unwrap();
            stream.write_all(b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n").await.unwrap();
            open.push(stream);
        }
    });
    let port = free_port();
    let bind = format!("--http-bind-address=127.0.0.1:{port}");
    let router = RouterProcess::start(&[
        &bind,
        "--metrics-bind-address=",
        "--health-probe-bind-address=",
        "--max-requests-per-sandbox=0",
    ]);
    router.wait_ready().await;
    let head = format!(
        "GET / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\nX-Sandbox-Pod-IP: 127.0.0.1\r\nX-Sandbox-Port: {backend}\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    let mut open = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(local(port)).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        tokio::time::timeout(TIMEOUT, stream.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 101");
        open.push(stream);
    }
    let (used, allowed) = (router.resident_kib(), BASE_KIB + PER_UPGRADE_KIB * count);
    eprintln!("{count} idle upgrades: {used} KiB resident");
    assert!(used <= allowed, "{count} upgrades take {used} KiB, allowed are {allowed}");
}
