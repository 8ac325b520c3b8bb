//! Commands through the native API: single responses, streams, WebSockets, background processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::client::{connect, head, send};
use crate::fixture::{Daemon, daemon, is_alive, is_root, read, wait_for};

const API: &str = "/sandbox/v1";

fn exec(daemon: &Daemon, request: Value) -> Value {
    let response = daemon.post(&format!("{API}/exec"), &request);
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

fn refused(daemon: &Daemon, request: Value) -> (u16, String) {
    let response = daemon.post(&format!("{API}/exec"), &request);
    (response.status, response.json()["code"].as_str().unwrap_or_default().to_owned())
}

fn events(daemon: &Daemon, request: &Value) -> Vec<Value> {
    let body = serde_json::to_vec(request).expect("JSON");
    let headers = [("accept", "application/x-ndjson"), ("content-type", "application/json")];
    let response = send(daemon.address, "POST", &format!("{API}/exec"), &headers, &body);
    assert_eq!(response.header("content-type"), Some("application/x-ndjson"), "{}", response.text());
    response.text().lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
}

fn start(daemon: &Daemon, request: Value) -> i64 {
    let response = daemon.post(&format!("{API}/processes"), &request);
    assert_eq!(response.status, 201, "{}", response.text());
    response.json()["id"].as_i64().expect("an id")
}

#[test]
fn argv_and_shell_text_run_with_environment_directory_and_input() {
    let daemon = daemon().start();
    std::fs::create_dir(daemon.base().join("sub")).expect("a directory");
    let request = json!({"argv": ["sh", "-c", "echo $WHO; pwd; cat; exit 5"], "env": {"WHO": "me"}, "cwd": "sub", "stdin": "typed"});
    let response = exec(&daemon, request);
    assert_eq!(response["stdout"], format!("me\n{}/sub\ntyped", daemon.base().display()));
    assert_eq!((&response["exitCode"], &response["timedOut"]), (&json!(5), &json!(false)));
    assert_eq!(exec(&daemon, json!({"command": "echo $((1+1)) | tr 2 3"}))["stdout"], "3\n");
    let killed = exec(&daemon, json!({"command": "kill -15 $$"}));
    assert_eq!((&killed["exitCode"], &killed["signal"]), (&json!(143), &json!(15)));
    let encoded = exec(&daemon, json!({"command": "printf '\\377\\000'", "base64": true}));
    assert_eq!(encoded["stdout"], "/wA=");
    let cut = exec(&daemon, json!({"command": "head -c 100000 /dev/zero | tr '\\0' x", "outputLimit": 2000}));
    assert_eq!(cut["stdoutBytes"], 100_000);
    assert!(cut["stdout"].as_str().expect("text").len() < 3000);
    let late = exec(&daemon, json!({"command": "echo first; sleep 30", "timeoutSeconds": 0.3}));
    assert_eq!((&late["timedOut"], &late["exitCode"], &late["stdout"]), (&json!(true), &json!(124), &json!("first\n")));
}

#[test]
fn what_cannot_run_is_explained() {
    let daemon = daemon().start();
    for (request, status, code) in [
        (json!({}), 400, "invalid"),
        (json!({"command": "x", "argv": ["y"]}), 400, "invalid"),
        (json!({"argv": ["true"], "unknown": 1}), 400, "invalid"),
        (json!({"argv": ["true"], "env": {"A=B": "x"}}), 400, "invalid"),
        (json!({"argv": ["true"], "timeoutSeconds": -1}), 400, "invalid"),
        (json!({"argv": ["a\u{0}b"]}), 400, "invalid"),
        (json!({"argv": ["nosuchprogram"]}), 404, "notFound"),
        (json!({"argv": ["true"], "cwd": "missing"}), 404, "notFound"),
        (json!({"argv": ["true"], "cwd": "../../.."}), 403, "denied"),
        (json!({"argv": ["/dev/null"]}), 403, "denied"),
        (json!({"argv": ["true"], "user": "no-such-user"}), 400, "invalid"),
    ] {
        assert_eq!(refused(&daemon, request.clone()), (status, code.to_owned()), "{request}");
    }
    assert_eq!(daemon.send("POST", &format!("{API}/exec"), b"{").status, 400);
    assert_eq!(daemon.send("DELETE", &format!("{API}/exec"), b"").status, 405);
    assert_eq!(daemon.get(&format!("{API}/nowhere")).status, 404);
}

#[test]
fn limits_and_users_apply() {
    let daemon = daemon().start();
    let response =
        exec(&daemon, json!({"command": "ulimit -n; ulimit -f", "limits": {"openFiles": 77, "fileSizeBytes": 51200}}));
    assert_eq!(response["stdout"], "77\n100\n");
    if !is_root() {
        println!("skipped the rest: changing the user needs root");
        return;
    }
    let response = exec(&daemon, json!({"command": "id -u; id -g; id -G", "user": "65534:65533", "cwd": "/"}));
    assert_eq!(response["stdout"], "65534\n65533\n65533\n", "{response}");
    let info = daemon.get(API).json();
    assert_eq!((&info["canChangeUser"], &info["uid"]), (&json!(true), &json!(0)));
}

#[test]
fn an_unprivileged_daemon_says_that_it_cannot_change_the_user() {
    if !is_root() {
        println!("skipped: needs root to drop privileges");
        return;
    }
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", crate::fixture::program().as_str()]);
    command.args(["--listen", "127.0.0.1:0", "--base-dir", "/", "--root-dir", "/"]);
    let daemon = crate::fixture::start_command(command);
    assert_eq!(exec(&daemon, json!({"command": "id -u"}))["stdout"], "65534\n");
    let response = daemon.post(&format!("{API}/exec"), &json!({"argv": ["true"], "user": "0"}));
    assert_eq!(response.status, 403);
    assert!(response.text().contains("CAP_SETUID and CAP_SETGID"), "{}", response.text());
}

#[test]
fn commands_cannot_read_the_daemons_memory() {
    let daemon = daemon().start();
    let pid = daemon.pid();
    let script = format!("cat /proc/{pid}/environ; ls -l /proc/{pid}/fd/; cat /proc/{pid}/mem");
    let mut request = json!({ "command": script, "cwd": "/" });
    if is_root() {
        request["user"] = "65534".into();
    }
    let response = exec(&daemon, request);
    assert_eq!(response["stdout"], "", "{response}");
    let inherited = exec(&daemon, json!({"command": "ls /proc/self/fd | wc -l"}));
    assert_eq!(inherited["stdout"].as_str().expect("text").trim(), "4", "three streams and the listing itself");
}

#[test]
fn a_stream_has_its_events_in_order() {
    let daemon = daemon().start();
    let seen =
        events(&daemon, &json!({"command": "echo out; sleep 0.05; echo err >&2; sleep 0.05; printf '\\377'; exit 3"}));
    assert_eq!(seen[0]["type"], "started");
    assert_eq!(seen[1], json!({"type": "stdout", "offset": 0, "text": "out\n"}));
    assert_eq!(seen[2], json!({"type": "stderr", "offset": 4, "text": "err\n"}));
    assert_eq!(seen[3], json!({"type": "stdout", "offset": 8, "base64": "/w=="}));
    assert_eq!(seen[4], json!({"type": "exit", "exitCode": 3, "timedOut": false}));
    assert_eq!(seen.len(), 5);
    let flood = events(&daemon, &json!({"command": "head -c 5000000 /dev/zero | tr '\\0' x"}));
    let total: usize = flood.iter().filter_map(|event| event["text"].as_str()).map(str::len).sum();
    assert_eq!(total, 5_000_000, "an attached stream loses nothing");
    let body = json!({"command": "echo hi"}).to_string();
    let headers = [("accept", "text/event-stream"), ("content-type", "application/json")];
    let response = send(daemon.address, "POST", &format!("{API}/exec"), &headers, body.as_bytes());
    assert!(
        response.text().contains("data: {\"type\":\"stdout\",\"offset\":0,\"text\":\"hi\\n\"}\n\n"),
        "{}",
        response.text()
    );
}

#[test]
fn a_command_ends_with_its_client_unless_detached() {
    let daemon = daemon().start();
    for detach in [false, true] {
        let body = json!({"command": "echo $$; sleep 30", "detach": detach}).to_string();
        let headers = [("accept", "application/x-ndjson"), ("content-type", "application/json")];
        let mut stream = connect(daemon.address);
        stream.write_all(&head("POST", &format!("{API}/exec"), &headers, body.len())).expect("sent");
        stream.write_all(body.as_bytes()).expect("sent");
        let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
        let line = lines.find_map(|line| line.ok().filter(|line| line.contains("\"text\""))).expect("output");
        let event: Value = serde_json::from_str(&line).expect("an event");
        let pid: u32 = event["text"].as_str().expect("text").trim().parse().expect("a number");
        stream.shutdown(std::net::Shutdown::Both).expect("closed");
        if detach {
            std::thread::sleep(Duration::from_millis(700));
            assert!(is_alive(pid));
            daemon.execute(&format!("kill {pid}"));
        }
        wait_for(|| (!is_alive(pid)).then_some(()), "the command is gone");
    }
}

#[test]
fn background_processes_are_listed_typed_into_and_read_again() {
    let daemon = daemon().start();
    let id = start(&daemon, json!({"command": "echo one; read x; echo got $x; sleep 30"}));
    let at = |rest: &str| format!("{API}/processes/{id}{rest}");
    let info =
        wait_for(|| Some(daemon.get(&at("")).json()).filter(|info| info["outputEnd"] == 4), "the first line arrives");
    assert_eq!((&info["running"], &info["outputStart"]), (&json!(true), &json!(0)));
    assert_eq!(daemon.send("POST", &at("/stdin"), b"it\n").status, 204);
    wait_for(|| (daemon.get(&at("")).json()["outputEnd"] == 11).then_some(()), "the second line arrives");
    let replay = daemon.get(&at("/output?offset=4")).text();
    assert!(replay.contains("got it") && !replay.contains("one"), "{replay}");
    let waited = daemon.get(&at("/wait?timeoutSeconds=0.1")).json();
    assert_eq!(waited["running"], true);
    assert_eq!(daemon.post(&at("/signal"), &json!({"signal": "nonsense"})).status, 400);
    assert_eq!(daemon.post(&at("/resize"), &json!({"columns": 1, "rows": 1})).status, 409);
    assert_eq!(daemon.post(&at("/signal"), &json!({"signal": "SIGTERM"})).status, 204);
    let ended = daemon.get(&at("/wait")).json();
    assert_eq!((&ended["running"], &ended["exitCode"], &ended["signal"]), (&json!(false), &json!(143), &json!(15)));
    let whole = daemon.get(&at("/output?follow=true")).text();
    assert!(whole.contains("one") && whole.contains("\"exitCode\":143"), "{whole}");
    assert_eq!(daemon.send("POST", &at("/stdin"), b"x").status, 409);
    let listed = daemon.get(&format!("{API}/processes")).json();
    assert_eq!(listed["processes"].as_array().map(Vec::len), Some(1));
    assert_eq!(daemon.send("DELETE", &at(""), b"").status, 204);
    assert_eq!(daemon.get(&at("")).status, 404);
}

#[test]
fn deleting_a_process_ends_it() {
    let daemon = daemon().start();
    let id = start(&daemon, json!({"argv": ["sleep", "60"]}));
    let pid = daemon.get(&format!("{API}/processes/{id}")).json()["pid"].as_u64().expect("a pid") as u32;
    assert_eq!(daemon.send("DELETE", &format!("{API}/processes/{id}"), b"").status, 204);
    assert!(!is_alive(pid));
}

#[test]
fn old_output_is_skipped_not_kept_forever() {
    let daemon = daemon().start();
    let id = start(&daemon, json!({"command": "head -c 3000000 /dev/zero | tr '\\0' x", "outputLimit": 65536}));
    let info = daemon.get(&format!("{API}/processes/{id}/wait")).json();
    assert_eq!(info["outputEnd"], 3_000_000);
    assert!(info["outputStart"].as_u64().expect("a number") > 2_800_000);
    let output = daemon.get(&format!("{API}/processes/{id}/output")).text();
    assert!(output.contains("\"type\":\"skipped\""), "{}", &output[..200]);
}

async fn socket(
    daemon: &Daemon,
    path: &str,
) -> tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>> {
    let url = format!("ws://{}{API}{path}", daemon.address);
    tokio_tungstenite::connect_async(url).await.expect("a WebSocket").0
}

#[tokio::test]
async fn a_terminal_over_a_websocket_can_be_typed_into_and_resized() {
    let daemon = daemon().start();
    let mut socket = socket(&daemon, "/exec").await;
    let request = json!({"argv": ["sh", "-c", "stty size; read x; stty size; echo got $x"], "terminal": {"columns": 80, "rows": 24}});
    socket.send(Message::text(request.to_string())).await.expect("sent");
    let mut seen = String::new();
    let mut resized = false;
    let mut exit = None;
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Binary(bytes) => {
                assert_eq!(bytes[0], 1);
                seen.push_str(&String::from_utf8_lossy(&bytes[1..]));
            }
            Message::Text(text) => {
                let event: Value = serde_json::from_str(&text).expect("an event");
                if event["type"] == "exit" {
                    exit = event["exitCode"].as_i64();
                }
            }
            _ => {}
        }
        if seen.contains("24 80") && !resized {
            resized = true;
            let resize = json!({"type": "resize", "columns": 120, "rows": 40});
            socket.send(Message::text(resize.to_string())).await.expect("sent");
            socket.send(Message::binary(b"\0it\n".to_vec())).await.expect("sent");
        }
    }
    assert!(seen.contains("40 120") && seen.contains("got it"), "{seen}");
    assert_eq!(exit, Some(0));
}

#[tokio::test]
async fn a_process_can_be_joined_over_a_websocket() {
    let daemon = daemon().start();
    let id = start(&daemon, json!({"argv": ["sh", "-c", "echo before; read x; echo after $x >&2"]}));
    let mut socket = socket(&daemon, &format!("/processes/{id}/attach")).await;
    socket.send(Message::text(json!({"type": "stdin", "text": "now\n"}).to_string())).await.expect("sent");
    let mut streams = [String::new(), String::new(), String::new()];
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Binary(bytes) = message {
            streams[usize::from(bytes[0])].push_str(&String::from_utf8_lossy(&bytes[1..]));
        }
    }
    assert_eq!((streams[1].as_str(), streams[2].as_str()), ("before\n", "after now\n"));
}

#[tokio::test]
async fn an_invalid_websocket_request_gets_an_error() {
    let daemon = daemon().start();
    for first in ["{", "{\"argv\":[\"nosuchprogram\"]}"] {
        let mut socket = socket(&daemon, "/exec").await;
        socket.send(Message::text(first)).await.expect("sent");
        let response = socket.next().await.expect("a response").expect("a message");
        assert!(response.to_text().expect("text").contains("\"type\":\"error\""), "{response}");
    }
    assert_eq!(daemon.get(&format!("{API}/exec")).status, 400);
}

#[test]
fn a_token_is_required_when_one_is_set() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("token");
    std::fs::write(&file, "secret\n").expect("a file");
    let daemon = daemon().flag(&format!("--token-file={}", file.display())).start();
    assert_eq!(daemon.get("/").status, 200);
    assert_eq!(daemon.get("/v1/health").status, 200);
    for path in ["/list/", "/v1/files/", API] {
        assert_eq!(daemon.get(path).status, 401, "{path}");
        let response = send(daemon.address, "GET", path, &[("authorization", "Bearer secret")], b"");
        assert_eq!(response.status, 200, "{path}");
        assert_eq!(send(daemon.address, "GET", path, &[("authorization", "Bearer wrong")], b"").status, 401);
    }
}

#[test]
fn a_unix_socket_serves_the_same() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let daemon = daemon().flag(&format!("--unix={}", path.display())).start();
    let mut stream = std::os::unix::net::UnixStream::connect(&path).expect("it listens");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a response");
    assert!(text.contains("Sandbox Runtime is active."), "{text}");
    drop(daemon);
    assert!(!path.exists());
}

#[test]
fn ports_and_usage_are_reported() {
    let daemon = daemon().start();
    let ports = daemon.get(&format!("{API}/ports")).json();
    let own = ports["ports"].as_array().expect("an array").iter().any(|port| port["port"] == daemon.address.port());
    assert!(own, "{ports}");
    let usage = daemon.get(&format!("{API}/usage")).json();
    assert!(usage["daemonMemoryBytes"].as_u64().is_some_and(|bytes| bytes > 100_000), "{usage}");
    assert!(usage["diskTotalBytes"].as_u64().is_some_and(|bytes| bytes > 0), "{usage}");
    assert!(read(format!("/proc/{}/status", daemon.pid())).contains("Threads"));
}
