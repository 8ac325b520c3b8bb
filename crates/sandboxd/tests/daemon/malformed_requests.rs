//! Malformed and random requests: no panic, no hang, bounded memory, and the daemon still responds.

use std::io::{Read, Write};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::client::{connect, send};
use crate::fixture::{Daemon, daemon, read};

fn send_raw(daemon: &Daemon, bytes: &[u8]) {
    let mut stream = connect(daemon.address);
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut sink = [0; 4096];
    let mut total = 0;
    while let Ok(read) = stream.read(&mut sink) {
        total += read;
        if read == 0 || total > 1 << 20 {
            return;
        }
    }
}

fn targets() -> impl Strategy<Value = (String, String)> {
    let methods = prop_oneof![Just("GET"), Just("POST"), Just("PUT"), Just("DELETE"), Just("HEAD"), Just("PATCH")];
    let endpoints = prop_oneof![
        Just("/execute"),
        Just("/upload"),
        Just("/download/"),
        Just("/list/"),
        Just("/exists/"),
        Just("/v1/files/"),
        Just("/sandbox/v1/exec"),
        Just("/sandbox/v1/processes"),
        Just("/sandbox/v1/processes/1/stdin"),
        Just("/sandbox/v1/files/tar?path="),
        Just("/sandbox/v1/files/glob?pattern="),
        Just("/sandbox/v1/files/search?pattern="),
        Just("/sandbox/v1/files?path="),
        Just("/process.v1.ProcessService/Execute"),
    ];
    (methods, endpoints, "[!-~]{0,40}")
        .prop_map(|(method, endpoint, rest)| (method.to_owned(), format!("{endpoint}{}", rest.replace([' ', '#'], ""))))
}

#[test]
fn any_request_gets_an_answer() {
    let daemon = daemon().start();
    let bodies = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..600),
        "[{}\\[\\]\":,a-z0-9\\\\]{0,200}".prop_map(String::into_bytes),
        "\\{\"(command|argv|cwd)\":(\"[ -~]{0,20}\"|[0-9]{1,4}|\\[\\])\\}".prop_map(String::into_bytes),
    ];
    let types = prop_oneof![
        Just("application/json"),
        Just("multipart/form-data; boundary=b"),
        Just("multipart/form-data"),
        Just("application/grpc"),
        Just("text/plain"),
    ];
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    runner
        .run(&(targets(), bodies, types), |((method, path), body, content_type)| {
            let body = [b"--b\r\n".as_slice(), &body].concat();
            let body = if content_type.starts_with("multipart") { body } else { body[5..].to_vec() };
            // No command that runs for long: its duration is not what is tested.
            prop_assume!(!String::from_utf8_lossy(&body).contains("sleep"));
            let response = send(daemon.address, &method, &path, &[("content-type", content_type)], &body);
            prop_assert!(response.status >= 200 && response.status < 600);
            Ok(())
        })
        .expect("every request is answered");
    assert_eq!(daemon.get("/").status, 200);
}

#[test]
fn bytes_that_are_not_http_are_rejected() {
    let daemon = daemon().start();
    let mut runner = TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
    runner
        .run(&proptest::collection::vec(any::<u8>(), 0..3000), |bytes| {
            send_raw(&daemon, &bytes);
            Ok(())
        })
        .expect("nothing breaks");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for tail in [b"".as_slice(), &[0xff; 300], &[0; 300]] {
        send_raw(&daemon, &[preface.as_slice(), tail].concat());
    }
    send_raw(&daemon, &[b"GET / HTTP/1.1\r\n".as_slice(), &vec![b'a'; 2_000_000]].concat());
    send_raw(&daemon, b"POST /execute HTTP/1.1\r\ncontent-length: 18446744073709551615\r\n\r\n{");
    send_raw(&daemon, b"POST /upload HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n");
    assert_eq!(daemon.get("/").status, 200);
    let log = daemon.log.lock().expect("a log").clone();
    assert!(!log.contains("panicked"), "{log}");
    let status = read(format!("/proc/{}/status", daemon.pid()));
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(peak < 100_000, "peak memory {peak} kB");
}

#[test]
fn bodies_beyond_the_limit_are_refused_and_leave_nothing() {
    let daemon = daemon().flag("--max-body=1000").start();
    assert_eq!(daemon.upload("big", &[b'x'; 2000]).status, 413);
    assert_eq!(daemon.send("PUT", "/v1/files/big", &[b'x'; 2000]).status, 400);
    assert_eq!(daemon.send("PUT", "/sandbox/v1/files?path=big", &[b'x'; 2000]).status, 413);
    assert_eq!(std::fs::read_dir(daemon.base()).expect("a directory").count(), 0);
    assert_eq!(std::fs::read_dir(daemon.workspace()).expect("a directory").count(), 0);
    assert_eq!(daemon.send("POST", "/execute", &vec![b'x'; 5 << 20]).status, 413);
}
