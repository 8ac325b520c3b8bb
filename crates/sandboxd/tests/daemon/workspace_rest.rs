//! `/v1/files`, `/v1/health` and `/v1/metadata` of the workspace dialect.

use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::json;

use crate::client::{form, form_type, send};
use crate::fixture::{Daemon, daemon, read, wait_for};

fn code(response: &crate::client::HttpResponse) -> (u16, String) {
    assert!(response.text().ends_with("}\n"), "{}", response.text());
    (response.status, response.json()["code"].as_str().expect("a code").to_owned())
}

fn names(daemon: &Daemon) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(daemon.workspace())
        .expect("a directory")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// D-060, D-061, D-067
#[test]
fn files_are_put_and_got() {
    let daemon = daemon().start();
    let response = daemon.send("PUT", "/v1/files/hello.txt", b"hello\0");
    assert_eq!((response.status, response.body.len()), (204, 0));
    let response = daemon.get("/v1/files/hello.txt");
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/octet-stream")));
    assert_eq!((response.header("accept-ranges"), response.header("content-length")), (Some("bytes"), Some("6")));
    assert_eq!(response.body, b"hello\0");
    assert_eq!(daemon.send("PUT", "/v1/files/a/b/c/deep.txt", b"deep").status, 204);
    assert_eq!(daemon.send("PUT", "/v1/files/dir%2Fsub%2Ffile.txt", b"sub").status, 204);
    assert_eq!(read(daemon.workspace().join("a/b/c/deep.txt")), "deep");
    assert_eq!(read(daemon.workspace().join("dir/sub/file.txt")), "sub");
    let response = send(daemon.address, "GET", "/v1/files/hello.txt", &[("range", "bytes=1-2")], b"");
    assert_eq!((response.status, response.text().as_str()), (206, "el"));
    let modified = daemon.get("/v1/files/hello.txt").header("last-modified").expect("a date").to_owned();
    let response = send(daemon.address, "GET", "/v1/files/hello.txt", &[("if-modified-since", &modified)], b"");
    assert_eq!((response.status, response.body.len()), (304, 0));
}

/// D-062, D-063
#[test]
fn modes_are_set_or_refused() {
    let daemon = daemon().start();
    assert_eq!(daemon.send("PUT", "/v1/files/run.sh?mode=0755", b"x").status, 204);
    let mode = std::fs::metadata(daemon.workspace().join("run.sh")).expect("a file").permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
    for mode in ["0999", "777", "abcd", "01777"] {
        let response = daemon.send("PUT", &format!("/v1/files/x?mode={mode}"), b"x");
        assert_eq!(code(&response), (400, "INVALID_ARGUMENT".into()), "{mode}");
    }
    assert_eq!(names(&daemon), ["run.sh"]);
}

/// D-064, D-065, D-066
#[test]
fn writes_are_atomic() {
    let daemon = daemon().start();
    for content in [b"first".as_slice(), b"second"] {
        assert_eq!(daemon.send("PUT", "/v1/files/x", content).status, 204);
    }
    assert_eq!(read(daemon.workspace().join("x")), "second");
    let with_file = form("file", Some("ignored"), None, b"from a form");
    let put = |body: &[u8]| send(daemon.address, "PUT", "/v1/files/x", &[("content-type", &form_type())], body);
    assert_eq!(put(&with_file).status, 204);
    assert_eq!(read(daemon.workspace().join("x")), "from a form");
    assert_eq!(code(&put(&form("other", None, None, b"x"))), (400, "INVALID_ARGUMENT".into()));
    assert_eq!(code(&put(b"nonsense")), (400, "INVALID_ARGUMENT".into()));
    std::fs::create_dir(daemon.workspace().join("dir")).expect("a directory");
    for path in ["/v1/files/dir", "/v1/files/", "/v1/files"] {
        assert_eq!(code(&daemon.send("PUT", path, b"x")), (400, "INVALID_ARGUMENT".into()), "{path}");
    }
    assert_eq!(names(&daemon), ["dir", "x"]);
}

/// D-068, D-069, D-078
#[test]
fn directories_are_listed_by_name() {
    let daemon = daemon().start();
    std::fs::create_dir(daemon.workspace().join("sub")).expect("a directory");
    for name in ["b.txt", "a.txt"] {
        daemon.send("PUT", &format!("/v1/files/{name}?mode=0640"), b"123");
    }
    symlink("/etc/passwd", daemon.workspace().join("leaving")).expect("a link");
    symlink("nowhere", daemon.workspace().join("dangling")).expect("a link");
    symlink("a.txt", daemon.workspace().join("inside")).expect("a link");
    let response = daemon.get("/v1/files/");
    assert_eq!(response.status, 200);
    let listing = response.json();
    assert_eq!(listing["path"], "/");
    let entries = listing["entries"].as_array().expect("an array");
    let seen: Vec<_> = entries.iter().map(|entry| entry["name"].as_str().expect("a name")).collect();
    assert_eq!(seen, ["a.txt", "b.txt", "inside", "sub"]);
    assert_eq!(
        (&entries[0]["size"], &entries[0]["type"], &entries[0]["mode"]),
        (&json!(3), &json!("file"), &json!("0640"))
    );
    assert_eq!((&entries[2]["size"], &entries[3]["type"]), (&json!(3), &json!("directory")));
    let time = entries[0]["modified_at"].as_str().expect("a time");
    assert!(time.len() == 20 && time.ends_with('Z'), "{time}");
    assert_eq!(daemon.get("/v1/files/sub").json(), json!({"path": "/sub", "entries": []}));
}

/// D-070
#[test]
fn what_is_missing_is_not_found() {
    let daemon = daemon().start();
    assert_eq!(code(&daemon.get("/v1/files/missing")), (404, "NOT_FOUND".into()));
    assert_eq!(code(&daemon.get("/v1/files/missing/deeper")), (404, "NOT_FOUND".into()));
    let response = daemon.send("HEAD", "/v1/files/missing", b"");
    assert_eq!((response.status, response.body.len()), (404, 0));
    daemon.send("PUT", "/v1/files/x", b"abc");
    let response = daemon.send("HEAD", "/v1/files/x", b"");
    assert_eq!((response.status, response.header("content-length"), response.body.len()), (200, Some("3"), 0));
}

/// D-071, D-072
#[test]
fn nothing_leaves_the_root() {
    let daemon = daemon().start();
    symlink("../..", daemon.workspace().join("link")).expect("a link");
    for method in ["GET", "PUT", "DELETE"] {
        for path in ["%2E%2E/%2E%2E/etc/passwd", "..%2Fx", "a/../../x", "link/sentinel", "link/new", "link/sub/new"] {
            let response = daemon.send(method, &format!("/v1/files/{path}"), b"x");
            assert_eq!(code(&response), (403, "PERMISSION_DENIED".into()), "{method} {path}");
        }
    }
    assert_eq!(read(daemon.outside.join("sentinel")), "SENTINEL");
    assert!(!daemon.outside.join("new").exists() && !daemon.outside.join("sub").exists());
}

/// D-073
#[test]
fn absolute_paths_are_re_rooted() {
    let daemon = daemon().start();
    daemon.send("PUT", "/v1/files/x", b"x");
    let absolute = format!("/v1/files/{}/x", daemon.workspace().display());
    assert_eq!(daemon.get(&absolute).text(), "x");
    let evil = format!("/v1/files/{}-evil/x", daemon.workspace().display());
    assert_eq!(daemon.send("PUT", &evil, b"e").status, 204);
    let relative = format!("{}-evil/x", daemon.workspace().display());
    assert_eq!(read(daemon.workspace().join(relative.trim_start_matches('/'))), "e");
    assert_eq!(daemon.get("/v1/files//x").text(), "x");
}

/// D-074, D-075, D-076, D-077
#[test]
fn a_directory_with_entries_is_deleted_only_recursively() {
    let daemon = daemon().start();
    daemon.send("PUT", "/v1/files/x", b"x");
    assert_eq!(daemon.send("DELETE", "/v1/files/x", b"").status, 204);
    assert_eq!(code(&daemon.send("DELETE", "/v1/files/x", b"")), (404, "NOT_FOUND".into()));
    daemon.send("PUT", "/v1/files/dir/sub/x", b"x");
    assert_eq!(code(&daemon.send("DELETE", "/v1/files/dir", b"")), (409, "CONFLICT".into()));
    assert_eq!(code(&daemon.send("DELETE", "/v1/files/dir?recursive=banana", b"")), (400, "INVALID_ARGUMENT".into()));
    assert_eq!(daemon.send("DELETE", "/v1/files/dir?recursive=T", b"").status, 204);
    assert_eq!(names(&daemon), Vec::<String>::new());
    daemon.send("PUT", "/v1/files/dir/x", b"x");
    assert_eq!(code(&daemon.send("DELETE", "/v1/files/", b"")), (409, "CONFLICT".into()));
    assert_eq!(daemon.send("DELETE", "/v1/files/?recursive=true", b"").status, 204);
    assert!(daemon.workspace().is_dir());
    assert_eq!(names(&daemon), Vec::<String>::new());
}

#[test]
fn deleting_a_link_keeps_its_target() {
    let daemon = daemon().start();
    daemon.send("PUT", "/v1/files/target/x", b"x");
    symlink("target", daemon.workspace().join("link")).expect("a link");
    assert_eq!(daemon.send("DELETE", "/v1/files/link?recursive=true", b"").status, 204);
    assert_eq!(read(daemon.workspace().join("target/x")), "x");
}

/// D-079
#[test]
fn health_fails_when_shutdown_begins() {
    let mut daemon = daemon().start();
    let health = daemon.get("/v1/health");
    assert_eq!((health.status, &health.json()["status"]), (200, &json!("ok")));
    assert!(health.json()["uptime_seconds"].as_u64().is_some());
    std::thread::scope(|scope| {
        // A command that ignores SIGTERM keeps the shutdown waiting for the grace period.
        scope.spawn(|| {
            let body = json!({"command": "trap '' TERM; touch ready; sleep 30"}).to_string();
            send(daemon.address, "POST", "/execute", &[("content-type", "application/json")], body.as_bytes())
        });
        wait_for(|| daemon.base().join("ready").exists().then_some(()), "the command runs");
        daemon.signal(rustix::process::Signal::TERM);
        let response =
            wait_for(|| Some(daemon.get("/v1/health")).filter(|response| response.status != 200), "health turns");
        assert_eq!(code(&response), (503, "UNAVAILABLE".into()));
    });
    assert!(daemon.wait().success());
}

/// D-080
#[test]
fn metadata_shows_only_public_variables() {
    let daemon = daemon()
        .variable("SANDBOX_ID", "s-1")
        .variable("SANDBOX_API_TOKEN", "x")
        .variable("SANDBOX_SSH_KEY", "x")
        .variable("SANDBOX_AUTH_HEADER", "x")
        .variable("SANDBOX_TLS_CERT", "x")
        .variable("SANDBOX_PRIVATE_URL", "x")
        .variable("KUBERNETES_SERVICE_HOST", "x")
        .start();
    assert_eq!(daemon.get("/v1/metadata").json(), json!({"env": {"SANDBOX_ID": "s-1"}}));
}

#[test]
fn misses_are_plain_text_and_never_redirects() {
    let daemon = daemon().start();
    let response = daemon.get("/v1/nothing");
    assert_eq!((response.status, response.text().as_str()), (404, "404 page not found\n"));
    assert_eq!(daemon.get("/v1/files").status, 200);
    let response = daemon.send("POST", "/v1/files/x", b"");
    assert_eq!((response.status, response.header("allow")), (405, Some("DELETE, GET, HEAD, PUT")));
}

/// D-096
#[test]
fn bad_configurations_do_not_start() {
    for flags in [
        vec!["--rest-port=7001", "--grpc-port=7001"],
        vec!["--rest-port=0"],
        vec!["--root-dir="],
        vec!["--listen=127.0.0.1:0", "--root-dir=/dev/null"],
    ] {
        let output = std::process::Command::new(crate::fixture::program()).args(&flags).output().expect("ran");
        assert!(!output.status.success(), "{flags:?}");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("sandboxd: "), "{flags:?}");
    }
}

#[test]
fn fifos_and_devices_are_refused_at_once() {
    let daemon = daemon().start();
    let fifo = daemon.workspace().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs");
    assert!(made.success());
    assert_eq!(code(&daemon.get("/v1/files/fifo")), (403, "PERMISSION_DENIED".into()));
    assert_eq!(code(&daemon.send("PUT", "/v1/files/fifo", b"x")), (403, "PERMISSION_DENIED".into()));
}
