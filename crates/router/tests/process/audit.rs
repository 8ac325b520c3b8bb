//! The audit log of a router as it runs on a cluster: a file of records, which no other user can read.

use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::child::*;

const TOKEN: &str = "the-only-token";
/// A port of sandboxd, by which the router knows that paths have the meaning that they have there.
const DAEMON: u16 = 8888;

#[tokio::test]
async fn a_router_writes_commands_files_ports_and_refusals_to_its_audit_log() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(file("redact"), "ticket-[0-9]+\n").unwrap();
    // An address of loopback that no other test uses, for the port that tells the router who answers there.
    let [high, low] = u16::try_from(std::process::id() % 0x10000).unwrap().to_be_bytes();
    let pod = Ipv4Addr::new(127, 88, high, low);
    answering(TcpListener::bind((pod, DAEMON)).await.unwrap());
    let program = TcpListener::bind((pod, 0)).await.unwrap();
    let port = program.local_addr().unwrap().port();
    answering(program);
    let http = free_port();
    let arguments = [
        format!("--http-bind-address=127.0.0.1:{http}"),
        "--metrics-bind-address=".to_owned(),
        "--health-probe-bind-address=".to_owned(),
        "--authz-mode=static-token".to_owned(),
        format!("--authz-static-token={TOKEN}"),
        format!("--audit-log={}", file("audit.jsonl")),
        format!("--audit-redact-file={}", file("redact")),
    ];
    let mut router = RouterProcess::start(&arguments.each_ref().map(String::as_str));
    router.wait_ready().await;
    let command = r#"{"command":"close ticket-7 --password=hunter2"}"#;
    let padded = format!(r#"{{"x":"{}","command":"echo hidden"}}"#, "A".repeat(300_000));
    let own = format!("Authorization: Bearer {TOKEN}\r\n");
    let send = async |credential: &str, port: u16, target: &str, body: &str| {
        let request = format!(
            "{target} HTTP/1.1\r\nHost: r\r\nConnection: close\r\n{credential}X-Sandbox-Namespace: team\r\n\
             X-Sandbox-ID: box\r\nX-Sandbox-Pod-IP: {pod}\r\nX-Sandbox-Port: {port}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(local(http)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(TIMEOUT, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    for (credential, port, target, body, expected) in [
        (own.as_str(), DAEMON, "POST /execute", command, 200),
        (&own, DAEMON, "POST /execute", r#"{"command":"true","command":"echo last"}"#, 200),
        (&own, DAEMON, "POST /execute", &padded, 200),
        (&own, DAEMON, "POST /sandbox/v1/code/", r#"{"code":"print(6)"}"#, 200),
        (&own, DAEMON, "PUT /v1/files/home/user/note", "text", 200),
        (&own, DAEMON, "DELETE /sandbox/v1/files?path=/harmless&p%61th=/etc/a+b", "", 200),
        (&own, DAEMON, "POST /sandbox/v1/files/move", r#"{"from":"/a","to":"/etc/b","path":"/c"}"#, 200),
        (&own, port, "GET /index.html?key=hidden", "", 200),
        (&own, port, "GET /second", "", 200),
        ("", DAEMON, "POST /execute", command, 401),
    ] {
        assert_eq!(send(credential, port, target, body).await, expected, "{target}");
    }
    // The log is complete once the router has ended.
    router.terminate();
    assert_eq!(router.ended().await.code(), Some(0));

    let mode = std::fs::metadata(file("audit.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = std::fs::read_to_string(file("audit.jsonl")).unwrap();
    assert!(!text.contains("hunter2") && !text.contains("ticket-7") && !text.contains(TOKEN), "{text}");
    assert!(!text.contains("key=hidden"), "{text}");
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = json!(["close [redacted] --password=[redacted]"]);
    let too_large = "the command is not recorded: the body is larger than 16384 bytes";
    let expected = [
        json!({"action": "exec", "decision": "allow", "argv": said, "port": DAEMON}),
        json!({"action": "exec", "decision": "allow", "argv": ["echo last"], "port": DAEMON}),
        json!({"action": "exec", "decision": "allow", "argv": null, "reason": too_large}),
        json!({"action": "exec", "decision": "allow", "argv": ["print(6)"], "port": DAEMON}),
        json!({"action": "write-file", "decision": "allow", "path": "/home/user/note", "port": DAEMON}),
        json!({"action": "write-file", "decision": "allow", "path": "/etc/a b", "port": DAEMON}),
        json!({"action": "write-file", "decision": "allow", "path": "/a -> /etc/b", "port": DAEMON}),
        json!({"action": "port", "decision": "allow", "port": port, "request": "GET /index.html"}),
        json!({"action": "exec", "decision": "deny", "argv": null, "status": 401}),
    ];
    assert_eq!(records.len(), expected.len(), "{text}");
    for (record, expected) in records.iter().zip(&expected) {
        for (member, value) in expected.as_object().unwrap() {
            assert_eq!(&record[member], value, "{member} of {record}");
        }
        assert_eq!(["source", "client"].map(|member| &record[member]), ["router", "127.0.0.1"], "{record}");
        if record["decision"] == "allow" {
            let sandbox = ["namespace", "name", "resource"].map(|member| &record[member]);
            assert_eq!(sandbox, ["team", "box", "sandboxes.agents.x-k8s.io"], "{record}");
        }
        assert!(record["time"].as_str().unwrap().ends_with('Z'), "{record}");
    }
}

/// Answers every request with 200, once it has arrived.
fn answering(listener: TcpListener) {
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !is_complete(&request) && stream.read_buf(&mut request).await.unwrap() > 0 {}
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
        }
    });
}

fn is_complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    body.len() >= length.unwrap_or(0)
}
