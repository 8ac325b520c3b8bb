//! The dialect of E2B's sandboxes, as its clients see it on the wire.

use serde_json::{Value, json};

use crate::client::{HttpResponse, form, form_type, send};
use crate::fixture::{Daemon, daemon, wait_for};

const JSON: (&str, &str) = ("content-type", "application/json");
const STREAM: (&str, &str) = ("content-type", "application/connect+json");

fn start() -> Daemon {
    daemon().flag("--envd-listen").flag("127.0.0.1:0").whole_root().start()
}

fn unary(daemon: &Daemon, call: &str, headers: &[(&str, &str)], message: &Value) -> HttpResponse {
    let headers: Vec<_> = [JSON].into_iter().chain(headers.iter().copied()).collect();
    send(daemon.port("Envd"), "POST", call, &headers, message.to_string().as_bytes())
}

fn frame(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    let length = u32::try_from(text.len()).expect("short").to_be_bytes();
    [&[0][..], &length, text.as_bytes()].concat()
}

/// Sends one message and returns every message of the response, with its flags.
fn stream(daemon: &Daemon, call: &str, headers: &[(&str, &str)], message: &Value) -> Vec<(u8, Value)> {
    let headers: Vec<_> = [STREAM].into_iter().chain(headers.iter().copied()).collect();
    let response = send(daemon.port("Envd"), "POST", call, &headers, &frame(message));
    assert_eq!(response.status, 200, "{}", response.text());
    frames(&response.body)
}

fn frames(mut bytes: &[u8]) -> Vec<(u8, Value)> {
    let mut frames = Vec::new();
    while let [flags, a, b, c, d, rest @ ..] = bytes {
        let (message, after) = rest.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize);
        frames.push((*flags, serde_json::from_slice(message).expect("JSON")));
        bytes = after;
    }
    frames
}

fn shell(text: &str) -> Value {
    json!({ "process": { "cmd": "/bin/sh", "args": ["-c", text] }, "stdin": false })
}

/// E-070, E-072, E-076, E-080, E-082, E-083
#[test]
fn a_process_is_a_stream_of_start_output_end_and_the_last_frame() {
    let daemon = start();
    let ping = [("keepalive-ping-interval", "1")];
    let frames = stream(&daemon, "/process.Process/Start", &ping, &shell("echo hi; sleep 2.5; exit 3"));
    let events: Vec<&Value> = frames.iter().map(|(_, message)| &message["event"]).collect();
    assert!(events[0]["start"]["pid"].is_u64(), "{frames:?}");
    assert_eq!(events[1], &json!({ "data": { "stdout": "aGkK" } }));
    assert_eq!(events[2], &json!({ "keepalive": {} }));
    let end = json!({ "exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3" });
    assert_eq!(events[events.len() - 2]["end"], end);
    assert_eq!(frames.last(), Some(&(2, json!({}))));
}

/// E-071, E-126
#[test]
fn errors_are_where_clients_look_for_them() {
    let daemon = start();
    let stat = unary(&daemon, "/filesystem.Filesystem/Stat", &[], &json!({ "path": "/no/such/file" }));
    assert_eq!((stat.status, stat.json()["code"].as_str()), (404, Some("not_found")));
    let frames = stream(&daemon, "/process.Process/Connect", &[], &json!({ "process": { "pid": 4_000_000 } }));
    assert_eq!(frames.len(), 1);
    assert_eq!((frames[0].0, &frames[0].1["error"]["code"]), (2, &json!("not_found")));
    let unknown = unary(&daemon, "/process.Process/Freeze", &[], &json!({}));
    assert_eq!((unknown.status, unknown.json()["code"].as_str()), (501, Some("unimplemented")));
    let binary =
        send(daemon.port("Envd"), "POST", "/process.Process/List", &[("content-type", "application/proto")], b"");
    assert_eq!((binary.status, binary.header("accept-post")), (415, Some("application/json")));
    for garbage in [&b"{"[..], b"[]", b"\xff"] {
        let response = send(daemon.port("Envd"), "POST", "/process.Process/SendInput", &[JSON], garbage);
        assert_eq!(response.json()["code"], "invalid_argument");
    }
}

/// E-074, E-104
#[test]
fn with_an_access_token_nothing_but_health_is_served_without_it() {
    let daemon = start();
    let envd = daemon.port("Envd");
    let list = |headers: &[(&str, &str)]| unary(&daemon, "/process.Process/List", headers, &json!({})).status;
    assert_eq!(list(&[]), 200, "control: no token is set");
    let init = |headers: &[(&str, &str)], body: &Value| {
        send(envd, "POST", "/init", headers, body.to_string().as_bytes()).status
    };
    let (right, wrong) = (("x-access-token", "secret"), ("x-access-token", "guess"));
    assert_eq!(init(&[], &json!({ "accessToken": "secret", "envVars": { "A": "1" } })), 204);
    assert_eq!((list(&[]), list(&[wrong]), list(&[right])), (401, 401, 200));
    assert_eq!(init(&[], &json!({ "accessToken": "mine" })), 401, "a process of the sandbox cannot replace it");
    assert_eq!(init(&[right], &json!({ "envVars": { "B": "2" } })), 204);
    assert_eq!(init(&[right], &json!({ "envVars": { "B=": "2" } })), 400);
    for path in ["/files?path=/etc/passwd", "/metrics", "/envs", "/nothing"] {
        let response = send(envd, "GET", path, &[], b"");
        assert_eq!((response.status, response.json()["code"].as_u64()), (401, Some(401)), "{path}");
    }
    assert_eq!(send(envd, "GET", "/health", &[], b"").status, 204);
    assert_eq!(send(envd, "GET", "/envs", &[right], b"").json(), json!({ "A": "1", "B": "2" }));
    let metrics = send(envd, "GET", "/metrics", &[right], b"").json();
    for name in ["ts", "cpu_count", "mem_total", "mem_used", "mem_total_mib", "disk_used", "disk_total"] {
        assert!(metrics[name].as_u64().is_some_and(|value| value > 0), "{name}: {metrics}");
    }
    assert!(metrics["cpu_used_pct"].is_number() && metrics["mem_cache"].is_number(), "{metrics}");
}

/// E-074: the daemon's token protects the port until an access token is set.
#[test]
fn the_daemons_own_token_is_needed_to_set_another() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "daemon secret\n").expect("written");
    let path = file.path().display().to_string();
    let flags = ["--envd-listen", "127.0.0.1:0", "--token-file", &path];
    let daemon = flags.iter().fold(daemon(), |setup, flag| setup.flag(flag)).start();
    let envd = daemon.port("Envd");
    let list = |headers: &[(&str, &str)]| unary(&daemon, "/process.Process/List", headers, &json!({})).status;
    let bearer = ("authorization", "Bearer daemon secret");
    assert_eq!((list(&[]), list(&[bearer])), (401, 200));
    let body = br#"{"accessToken":"secret"}"#;
    assert_eq!(send(envd, "POST", "/init", &[], body).status, 401);
    assert_eq!(send(envd, "POST", "/init", &[bearer], body).status, 204);
    assert_eq!(list(&[("x-access-token", "secret")]), 200);
    assert_eq!(
        send(envd, "POST", "/init", &[("x-access-token", "secret")], b"{}").status,
        401,
        "clients know this one"
    );
}

/// E-011
#[test]
fn pages_need_a_token() {
    let daemon = start();
    let envd = daemon.port("Envd");
    let page = ("origin", "https://page.example");
    let asks = [page, ("access-control-request-method", "POST"), ("access-control-request-headers", "x-access-token")];
    assert_eq!(unary(&daemon, "/process.Process/List", &[page], &json!({})).status, 403);
    let rebound = ("host", "rebound.example");
    assert_eq!(unary(&daemon, "/process.Process/List", &[rebound], &json!({})).status, 421);
    assert_eq!(send(envd, "OPTIONS", "/process.Process/List", &asks, b"").status, 403);
    assert_eq!(send(envd, "POST", "/init", &[], br#"{"accessToken":"secret"}"#).status, 204);
    let preflight = send(envd, "OPTIONS", "/process.Process/List", &asks, b"");
    assert_eq!(preflight.header("access-control-allow-origin"), Some("*"));
    assert_eq!(preflight.header("access-control-allow-headers"), Some("x-access-token"));
    let allowed = unary(&daemon, "/process.Process/List", &[page, ("x-access-token", "secret")], &json!({}));
    assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (200, Some("*")));
    let refused = unary(&daemon, "/process.Process/List", &[page], &json!({}));
    assert_eq!(refused.status, 401);
}

/// E-100, E-101
#[test]
fn uploads_and_downloads_have_exact_answers() {
    let daemon = start();
    let envd = daemon.port("Envd");
    let file = daemon.base().join("a file").display().to_string();
    let query = format!("/files?path={}", file.replace(' ', "+"));
    let put = |headers: &[(&str, &str)], body: &[u8]| send(envd, "POST", &query, headers, body);
    let written = put(&[("content-type", &form_type())], &form("file", Some("ignored"), None, b"0123456789"));
    assert_eq!(written.json(), json!([{ "name": "a file", "path": file, "type": "file" }]));
    let whole = send(envd, "GET", &query, &[("accept-encoding", "gzip, deflate")], b"");
    assert_eq!((whole.text().as_str(), whole.header("content-length")), ("0123456789", Some("10")));
    assert_eq!(whole.header("content-disposition"), Some("inline; filename=\"a file\""));
    let part = send(envd, "GET", &query, &[("range", "bytes=-3")], b"");
    assert_eq!((part.status, part.text().as_str()), (206, "789"));
    let etag = whole.header("etag").expect("a tag").to_owned();
    assert_eq!(send(envd, "GET", &query, &[("if-none-match", &etag)], b"").status, 304);
    assert_eq!(put(&[("content-type", "text/plain")], b"x").status, 400);
    assert_eq!(put(&[("content-type", "application/octet-stream"), ("content-encoding", "br")], b"x").status, 400);
    assert_eq!(put(&[("content-type", "application/octet-stream"), ("content-encoding", "gzip")], b"x").status, 400);
    let two = [form("file", Some("/tmp/x"), None, b"1"), form("file", Some("/tmp/x"), None, b"2")].concat();
    let two = String::from_utf8(two).expect("text").replacen("--\r\n--", "\r\n--", 1);
    assert_eq!(put(&[("content-type", &form_type())], two.as_bytes()).status, 400, "the same path twice");
    let part = form("other", Some("x"), None, b"1");
    assert_eq!(send(envd, "POST", "/files", &[("content-type", &form_type())], &part).status, 400);
    let directory = format!("/files?path={}", daemon.base().display());
    assert_eq!(send(envd, "GET", &directory, &[], b"").status, 400);
    assert_eq!(send(envd, "GET", "/files?path=/no/such", &[], b"").json()["code"], 404);
}

/// E-075: the time limit of the call is the lifetime of the process.
#[test]
fn the_time_limit_of_a_start_ends_the_process() {
    let daemon = start();
    let limit = [("connect-timeout-ms", "300")];
    let frames = stream(&daemon, "/process.Process/Start", &limit, &shell("sleep 300 & sleep 300"));
    let last = frames.last().expect("an end");
    assert_eq!((last.0, &last.1["error"]["code"]), (2, &json!("deadline_exceeded")));
    let none = || {
        let list = unary(&daemon, "/process.Process/List", &[], &json!({})).json();
        list["processes"].as_array().is_some_and(Vec::is_empty).then_some(())
    };
    wait_for(none, "the process is gone");
}

/// E-004, E-120
#[test]
fn the_port_in_the_header_wins_and_a_closed_one_is_reported() {
    let daemon = start();
    let health = |port: &str| send(daemon.port("Envd"), "GET", "/health", &[("e2b-sandbox-port", port)], b"");
    assert_eq!(health("49983").status, 204);
    let closed = health("3000");
    assert_eq!((closed.status, closed.json()["code"].as_u64()), (502, Some(502)));
    assert!(closed.text().contains("port is not open"), "{}", closed.text());
    assert_eq!(daemon.get("/files?path=/etc/passwd").status, 404, "other ports do not speak this dialect");
}

/// E-080: every dialect sees the same processes.
#[test]
fn processes_of_other_dialects_are_listed_and_killed() {
    let daemon = start();
    let started = daemon.post("/sandbox/v1/processes", &json!({ "argv": ["sleep", "300"] })).json();
    let list = unary(&daemon, "/process.Process/List", &[], &json!({})).json();
    let config = json!({ "cmd": "sleep", "args": ["300"], "envs": {} });
    assert_eq!(list["processes"], json!([{ "config": config, "pid": started["pid"] }]));
    let selector = json!({ "process": { "pid": started["pid"] }, "signal": "SIGNAL_SIGKILL" });
    assert_eq!(unary(&daemon, "/process.Process/SendSignal", &[], &selector).status, 200);
    let ended = || {
        let now = daemon.get(&format!("/sandbox/v1/processes/{}", started["id"])).json();
        (now["signal"] == 9).then_some(())
    };
    wait_for(ended, "the signal ends it");
}
