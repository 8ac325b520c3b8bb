//! The attacker is a web page in the browser of a user whose machine reaches the daemon.

use crate::client::{HttpResponse, form, form_type, send};
use crate::fixture::{Daemon, daemon};

const COMMAND: &[u8] = br#"{"command":"touch pwned"}"#;
const JSON: (&str, &str) = ("content-type", "application/json");
const FOREIGN: (&str, &str) = ("origin", "https://evil.example");
const REBOUND: (&str, &str) = ("host", "evil.example:8888");

fn post(daemon: &Daemon, path: &str, headers: &[(&str, &str)], body: &[u8]) -> HttpResponse {
    send(daemon.address, "POST", path, headers, body)
}

fn nothing_happened(daemon: &Daemon) {
    let files: Vec<_> = std::fs::read_dir(daemon.base()).expect("the base").collect();
    assert!(files.is_empty(), "{files:?}");
}

#[test]
fn a_rebinding_page_gets_421_from_every_dialect() {
    let daemon = daemon().start();
    for (method, path) in [
        ("POST", "/execute"),
        ("GET", "/list/."),
        ("POST", "/sandbox/v1/exec"),
        ("GET", "/sandbox/v1"),
        ("GET", "/v1/files?path=."),
    ] {
        let response = send(daemon.address, method, path, &[REBOUND, JSON], COMMAND);
        assert_eq!(response.status, 421, "{method} {path}: {}", response.text());
        assert!(response.text().contains("--allowed-host"), "{}", response.text());
    }
    for host in
        ["[::1]evil.example", "localhost:evil.example", "localhost.evil.example", "box.default.svc.evil.example"]
    {
        assert_eq!(post(&daemon, "/execute", &[("host", host), JSON], COMMAND).status, 421, "{host}");
    }
    nothing_happened(&daemon);
}

#[test]
fn pages_of_other_origins_cannot_send_what_needs_no_preflight() {
    let daemon = daemon().start();
    let upload = form("file", Some("pwned"), None, b"x");
    let form_type = form_type();
    let multipart = ("content-type", form_type.as_str());
    let plain = ("content-type", "text/plain;x=json");
    let cross_site = ("sec-fetch-site", "cross-site");
    for (path, headers, body) in [
        ("/execute", &[FOREIGN, plain][..], COMMAND),
        ("/execute", &[FOREIGN, JSON], COMMAND),
        // A body without a media type: a page sends a Blob this way.
        ("/execute", &[FOREIGN], COMMAND),
        ("/execute", &[("origin", "null")], COMMAND),
        ("/execute", &[cross_site], COMMAND),
        ("/upload", &[FOREIGN, multipart], &upload),
        ("/upload", &[cross_site, multipart], &upload),
        ("/sandbox/v1/exec", &[FOREIGN, plain], COMMAND),
        ("/sandbox/v1/processes", &[FOREIGN], COMMAND),
    ] {
        let response = post(&daemon, path, headers, body);
        assert_eq!(response.status, 403, "{path} {headers:?}: {}", response.text());
    }
    nothing_happened(&daemon);
}

/// Refused without a word about the page, too: not every browser sends one.
#[test]
fn forms_are_no_json() {
    let daemon = daemon().start();
    for kind in ["text/plain;x=json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=json"] {
        let kind = [("content-type", kind)];
        assert_eq!(post(&daemon, "/execute", &kind, COMMAND).status, 422, "{kind:?}");
        for path in ["/sandbox/v1/exec", "/sandbox/v1/processes", "/sandbox/v1/files/mkdir"] {
            let response = post(&daemon, path, &kind, COMMAND);
            assert_eq!(response.status, 400, "{path} {kind:?}");
            assert!(response.text().contains("application/json"), "{}", response.text());
        }
    }
    nothing_happened(&daemon);
}

#[test]
fn a_page_cannot_open_a_websocket() {
    let daemon = daemon().start();
    let upgrade = [
        ("connection", "close, Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("host", "localhost:8888"),
    ];
    let with = |origin| [&upgrade[..], &[("origin", origin)]].concat();
    let foreign = send(daemon.address, "GET", "/sandbox/v1/exec", &with("http://localhost:3000"), b"");
    assert_eq!(foreign.status, 403, "{}", foreign.text());
}

/// D-198
#[test]
fn clients_that_are_no_browsers_are_served_by_every_name_of_a_cluster() {
    let daemon = daemon().start();
    for host in [
        "10.0.0.7:8888",
        "[fd00::7]:8888",
        "localhost:40123",
        "8888-box--default.localhost",
        "box.default.svc.cluster.local:8888",
        "sandbox",
    ] {
        let response = post(&daemon, "/execute", &[("host", host)], br#"{"command":"true"}"#);
        assert_eq!(response.status, 200, "{host}: {}", response.text());
    }
    // A page that the daemon itself serves, directly and through a router.
    for own in [
        &[("host", "localhost:8888"), ("origin", "http://localhost:8888")][..],
        &[("host", "10.0.0.7:8888"), ("origin", "https://router.example"), ("x-forwarded-host", "router.example")],
    ] {
        assert_eq!(
            post(&daemon, "/execute", &[own, &[JSON]].concat(), br#"{"command":"true"}"#).status,
            200,
            "{own:?}"
        );
    }
    // Probes learn only that the daemon lives.
    assert_eq!(send(daemon.address, "GET", "/", &[REBOUND], b"").status, 200);
}

#[test]
fn names_and_pages_can_be_allowed() {
    let daemon = daemon()
        .flag("--allowed-host=*.sandboxes.example")
        .variable("SANDBOX_ALLOWED_ORIGINS", "https://app.example")
        .start();
    let host = ("host", "a.sandboxes.example");
    let page = ("origin", "https://app.example");
    assert_eq!(post(&daemon, "/execute", &[host, page, JSON], br#"{"command":"true"}"#).status, 200);
    assert_eq!(post(&daemon, "/execute", &[host, FOREIGN, JSON], COMMAND).status, 403);
    assert_eq!(post(&daemon, "/execute", &[REBOUND, page, JSON], COMMAND).status, 421);
}

/// A page does not know the token: whoever sends it may use any name.
#[test]
fn a_token_stands_for_the_other_checks() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("token");
    std::fs::write(&file, "secret").expect("a file");
    let daemon = daemon().flag(&format!("--token-file={}", file.display())).start();
    let token = ("authorization", "Bearer secret");
    assert_eq!(post(&daemon, "/execute", &[REBOUND, FOREIGN, JSON, token], br#"{"command":"true"}"#).status, 200);
    assert_eq!(post(&daemon, "/execute", &[REBOUND, FOREIGN, JSON], COMMAND).status, 401);
    nothing_happened(&daemon);
}
