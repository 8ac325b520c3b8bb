//! Files through the native API.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::{Value, json};

use crate::client::{connect, encode, head, send};
use crate::fixture::{Daemon, daemon, read, wait_for};

const FILES: &str = "/sandbox/v1/files";

fn at(path: &str) -> String {
    format!("{FILES}?path={}", encode(path))
}

fn put(daemon: &Daemon, path: &str, content: &[u8]) {
    let response = daemon.send("PUT", &at(path), content);
    assert_eq!(response.status, 204, "{}", response.text());
}

fn operate(daemon: &Daemon, operation: &str, body: Value) -> u16 {
    daemon.post(&format!("{FILES}/{operation}"), &body).status
}

#[test]
fn files_are_written_read_and_appended_to() {
    let daemon = daemon().start();
    put(&daemon, "dir/a.txt", b"hello");
    assert_eq!(daemon.send("PUT", &format!("{}&append=true", at("dir/a.txt")), b" world").status, 204);
    assert_eq!(daemon.send("PUT", &format!("{}&append=true&mode=0600", at("new.txt")), b"new").status, 204);
    assert_eq!(daemon.get(&at("dir/a.txt")).text(), "hello world");
    let response = send(daemon.address, "GET", &at("/home/user/dir/a.txt"), &[("range", "bytes=6-")], b"");
    assert_eq!((response.status, response.text().as_str()), (206, "world"));
    let mode = std::fs::metadata(daemon.base().join("new.txt")).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(daemon.send("HEAD", &at("dir/a.txt"), b"").header("content-length"), Some("11"));
    assert_eq!(daemon.get(&at("missing")).status, 404);
    assert_eq!(daemon.get(&at("dir")).status, 409);
    assert_eq!(daemon.get(FILES).status, 400);
    assert_eq!(daemon.send("PUT", &format!("{}&mode=999", at("x")), b"").status, 400);
}

#[test]
fn replacing_keeps_the_mode_and_breaks_no_hard_link() {
    let daemon = daemon().start();
    put(&daemon, "a", b"old");
    std::fs::set_permissions(daemon.base().join("a"), std::fs::Permissions::from_mode(0o711)).expect("a mode");
    std::fs::hard_link(daemon.base().join("a"), daemon.base().join("b")).expect("a link");
    put(&daemon, "a", b"new");
    assert_eq!(read(daemon.base().join("b")), "old");
    let mode = std::fs::metadata(daemon.base().join("a")).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o711);
}

#[test]
fn stat_and_list_show_links_as_links() {
    let daemon = daemon().start();
    put(&daemon, "a.txt", b"123");
    symlink("a.txt", daemon.base().join("link")).expect("a link");
    let stat = daemon.get(&format!("{FILES}/stat?path=link")).json();
    assert_eq!(
        (&stat["type"], &stat["linkTarget"], &stat["path"]),
        (&json!("link"), &json!("a.txt"), &json!("/home/user/link"))
    );
    let stat = daemon.get(&format!("{FILES}/stat?path=link&follow=true")).json();
    assert_eq!((&stat["type"], &stat["size"], &stat["mode"]), (&json!("file"), &json!(3), &json!("0644")));
    let list = daemon.get(&format!("{FILES}/list")).json();
    let names: Vec<_> = list["entries"].as_array().expect("an array").iter().map(|entry| &entry["name"]).collect();
    assert_eq!(names, ["a.txt", "link"]);
    let list = daemon.get(&format!("{FILES}/list?limit=1")).json();
    assert_eq!((list["entries"].as_array().map(Vec::len), &list["truncated"]), (Some(1), &json!(true)));
    assert_eq!(daemon.get(&format!("{FILES}/list?path=a.txt")).status, 404);
    assert_eq!(daemon.get(&format!("{FILES}/stat?path=%2Fnowhere")).status, 404);
}

#[test]
fn directories_are_made_moved_copied_and_removed() {
    let daemon = daemon().start();
    assert_eq!(operate(&daemon, "mkdir", json!({"path": "x/y", "mode": "0750"})), 204);
    assert_eq!(operate(&daemon, "mkdir", json!({"path": "x/y"})), 204);
    put(&daemon, "x/y/file", b"content");
    symlink("file", daemon.base().join("x/y/link")).expect("a link");
    assert_eq!(operate(&daemon, "mkdir", json!({"path": "x/y/file"})), 409);
    assert_eq!(operate(&daemon, "copy", json!({"from": "x", "to": "copy"})), 204);
    assert_eq!(read(daemon.base().join("copy/y/link")), "content");
    assert_eq!(operate(&daemon, "copy", json!({"from": "x", "to": "copy"})), 409);
    assert_eq!(operate(&daemon, "move", json!({"from": "copy/y", "to": "moved/here"})), 204);
    assert_eq!(read(daemon.base().join("moved/here/file")), "content");
    put(&daemon, "other", b"other");
    assert_eq!(operate(&daemon, "move", json!({"from": "other", "to": "x/y/file"})), 409);
    assert_eq!(operate(&daemon, "move", json!({"from": "other", "to": "x/y/file", "overwrite": true})), 204);
    assert_eq!(read(daemon.base().join("x/y/file")), "other");
    assert_eq!(operate(&daemon, "chmod", json!({"path": "x/y/file", "mode": "0700"})), 204);
    assert_eq!(operate(&daemon, "chmod", json!({"path": "x/y/file"})), 400);
    assert_eq!(operate(&daemon, "move", json!({"from": "missing", "to": "y"})), 404);
    assert_eq!(daemon.send("DELETE", &at("x"), b"").status, 409);
    assert_eq!(daemon.send("DELETE", &format!("{}&recursive=true", at("x")), b"").status, 204);
    assert!(!daemon.base().join("x").exists());
}

#[test]
fn files_and_lines_are_found() {
    let daemon = daemon().start();
    put(&daemon, "src/main.rs", b"fn main() {\n    println!(\"needle\");\n}\n");
    put(&daemon, "src/deep/lib.rs", b"// Needle here\n");
    put(&daemon, "notes.txt", b"needle\n");
    put(&daemon, "binary", b"needle\0");
    let paths = |response: &Value, member: &str| -> Vec<String> {
        let items = response[member].as_array().expect("an array");
        items.iter().map(|item| item["path"].as_str().expect("a path").to_owned()).collect()
    };
    let found = daemon.get(&format!("{FILES}/glob?pattern={}", encode("**/*.rs"))).json();
    assert_eq!(paths(&found, "entries"), ["/home/user/src/deep/lib.rs", "/home/user/src/main.rs"]);
    let found = daemon.get(&format!("{FILES}/glob?pattern={}", encode("*.rs"))).json();
    assert_eq!(paths(&found, "entries"), Vec::<String>::new());
    let found = daemon.get(&format!("{FILES}/search?pattern=needle")).json();
    assert_eq!(paths(&found, "matches"), ["/home/user/notes.txt", "/home/user/src/main.rs"]);
    assert_eq!(
        (&found["matches"][1]["line"], &found["matches"][1]["text"]),
        (&json!(2), &json!("    println!(\"needle\");"))
    );
    let found = daemon.get(&format!("{FILES}/search?pattern=needle&ignoreCase=true&glob={}", encode("**/*.rs"))).json();
    assert_eq!(paths(&found, "matches").len(), 2);
    let found = daemon.get(&format!("{FILES}/search?pattern=needle&limit=1")).json();
    assert_eq!((paths(&found, "matches").len(), &found["truncated"]), (1, &json!(true)));
    for bad in ["search?pattern=%5B", "glob?pattern=%5B", "search", "search?pattern=x&limit=x"] {
        assert_eq!(daemon.get(&format!("{FILES}/{bad}")).status, 400, "{bad}");
    }
}

#[test]
fn changes_are_watched() {
    let daemon = daemon().start();
    let mut stream = connect(daemon.address);
    stream.write_all(&head("GET", &format!("{FILES}/watch?recursive=true"), &[], 0)).expect("sent");
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok).filter(|line| line.starts_with('{'));
    let mut next = || -> Value { serde_json::from_str(&lines.next().expect("a line")).expect("a change") };
    assert_eq!(next(), json!({"path": "/home/user", "change": "watching"}));
    put(&daemon, "dir/new.txt", b"x");
    let mut seen = Vec::new();
    while !seen.contains(&json!("/home/user/dir/new.txt")) {
        seen.push(next()["path"].clone());
    }
    std::fs::write(daemon.base().join("dir/new.txt"), "more").expect("written");
    let mut change = next();
    while !(change["path"] == "/home/user/dir/new.txt" && change["change"] == "modified") {
        change = next();
    }
    std::fs::remove_file(daemon.base().join("dir/new.txt")).expect("removed");
    while !(change["path"] == "/home/user/dir/new.txt" && change["change"] == "removed") {
        change = next();
    }
    assert_eq!(daemon.get(&format!("{FILES}/watch?path=missing")).status, 404);
}

#[test]
fn directories_are_transferred_as_tar() {
    let daemon = daemon().start();
    put(&daemon, "tree/a/b.txt", b"content");
    put(&daemon, "tree/big", &vec![b'x'; 3_000_000]);
    symlink("a/b.txt", daemon.base().join("tree/link")).expect("a link");
    let down = daemon.get(&format!("{FILES}/tar?path=tree"));
    assert_eq!((down.status, down.header("content-type")), (200, Some("application/x-tar")));
    let up = daemon.send("PUT", &format!("{FILES}/tar?path=other/place"), &down.body);
    assert_eq!((up.status, up.json()), (200, json!({"files": 4, "bytes": 3_000_007})));
    assert_eq!(read(daemon.base().join("other/place/link")), "content");
    assert_eq!(std::fs::read(daemon.base().join("other/place/big")).expect("a file").len(), 3_000_000);
    let broken = daemon.send("PUT", &format!("{FILES}/tar?path=x"), &[7; 1000]);
    assert_eq!(broken.status, 400, "{}", broken.text());
    assert_eq!(daemon.get(&format!("{FILES}/tar?path=missing")).status, 404);
}

#[test]
fn a_cut_upload_of_a_file_changes_nothing() {
    let daemon = daemon().start();
    put(&daemon, "kept", b"old");
    let mut stream = connect(daemon.address);
    stream.write_all(&head("PUT", &at("kept"), &[], 4_000_000)).expect("sent");
    stream.write_all(&[b'n'; 1_000_000]).expect("sent");
    drop(stream);
    let count = || std::fs::read_dir(daemon.base()).expect("a directory").count();
    wait_for(|| (count() == 1).then_some(()), "no temporary file is left");
    assert_eq!(read(daemon.base().join("kept")), "old");
}
