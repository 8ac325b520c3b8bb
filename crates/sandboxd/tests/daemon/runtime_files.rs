//! `/upload`, `/download`, `/list` and `/exists` of the runtime dialect.

use std::io::Write;
use std::os::unix::fs::symlink;

use serde_json::json;

use crate::client::{BOUNDARY, connect, encode, form, form_type, head, read_answer, send};
use crate::fixture::{daemon, read, wait_for};

/// D-026, D-027, D-031
#[test]
fn uploads_are_stored_with_their_parents() {
    let daemon = daemon().start();
    let response = daemon.upload("uploaded.txt", b"bytes\0\xff");
    assert_eq!(response.status, 200);
    assert_eq!(response.json(), json!({"message": "File 'uploaded.txt' uploaded successfully."}));
    assert_eq!(std::fs::read(daemon.base().join("uploaded.txt")).expect("a file"), b"bytes\0\xff");
    assert_eq!(daemon.upload("nested/dir/up.txt", b"x").status, 200);
    assert_eq!(read(daemon.base().join("nested/dir/up.txt")), "x");
    let typed = form("file", Some("typed.txt"), Some("text/plain"), b"typed");
    assert_eq!(send(daemon.address, "POST", "/upload", &[("content-type", &form_type())], &typed).status, 200);
    assert_eq!(read(daemon.base().join("typed.txt")), "typed");
}

/// D-028
#[test]
fn an_upload_that_climbs_is_denied() {
    let daemon = daemon().start();
    for mode in ["../../unsafe_upload.txt", "/../unsafe_upload.txt", "a/../../../unsafe_upload.txt"] {
        let response = daemon.upload(mode, b"x");
        assert_eq!((response.status, response.json()), (403, json!({"message": "Access denied"})), "{mode}");
    }
    assert!(!daemon.outside.join("unsafe_upload.txt").exists());
}

/// D-029
#[test]
fn a_form_without_a_file_is_unprocessable() {
    let daemon = daemon().start();
    let other = form("other", Some("x"), None, b"x");
    let response = send(daemon.address, "POST", "/upload", &[("content-type", &form_type())], &other);
    assert_eq!((response.status, response.json()["detail"][0]["loc"].clone()), (422, json!(["body", "file"])));
    let plain = form("file", None, None, b"x");
    let response = send(daemon.address, "POST", "/upload", &[("content-type", &form_type())], &plain);
    assert_eq!((response.status, response.json()["detail"][0]["type"].clone()), (422, json!("value_error")));
    assert_eq!(daemon.send("POST", "/upload", b"x").status, 422);
    let response = daemon.upload("", b"x");
    assert!(response.status >= 400, "an empty name names a directory");
    std::fs::create_dir(daemon.base().join("taken")).expect("a directory");
    let response = daemon.upload("taken", b"x");
    assert_eq!(response.status, 500);
    assert!(response.text().contains("File upload failed: [Errno 21] Is a directory"), "{}", response.text());
}

/// D-030
#[test]
fn a_chunked_upload_is_stored_completely() {
    let daemon = daemon().start();
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| number as u8).collect();
    let form = form("file", Some("big.bin"), None, &content);
    let mut stream = connect(daemon.address);
    let head = format!(
        "POST /upload HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\
         content-type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    for chunk in form.chunks(70_001) {
        stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).expect("sent");
        stream.write_all(chunk).expect("sent");
        stream.write_all(b"\r\n").expect("sent");
    }
    stream.write_all(b"0\r\n\r\n").expect("sent");
    assert_eq!(read_answer(&mut stream).status, 200);
    assert_eq!(std::fs::read(daemon.base().join("big.bin")).expect("a file"), content);
}

/// D-032
#[test]
fn an_interrupted_upload_changes_nothing() {
    let daemon = daemon().start();
    daemon.upload("kept.txt", b"old");
    let whole = form("file", Some("kept.txt"), None, &vec![b'n'; 4_000_000]);
    let mut stream = connect(daemon.address);
    stream.write_all(&head("POST", "/upload", &[("content-type", &form_type())], whole.len())).expect("sent");
    stream.write_all(&whole[..2_000_000]).expect("sent");
    let names = || -> Vec<String> {
        let entries = std::fs::read_dir(daemon.base()).expect("a directory").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    wait_for(|| (names().len() == 2).then_some(()), "the temporary file is there");
    drop(stream);
    wait_for(|| (names() == ["kept.txt"]).then_some(()), "the temporary file is gone");
    assert_eq!(read(daemon.base().join("kept.txt")), "old");
}

/// D-033
#[test]
fn downloads_are_the_exact_bytes() {
    let daemon = daemon().start();
    let content: Vec<u8> = (0..1_500_000_u32).map(|number| (number * 7) as u8).collect();
    std::fs::write(daemon.base().join("report.txt"), &content).expect("a file");
    let response = daemon.get("/download/report.txt");
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/octet-stream"));
    assert_eq!(response.header("content-length"), Some("1500000"));
    assert_eq!(response.header("accept-ranges"), Some("bytes"));
    assert_eq!(response.header("content-disposition"), Some("attachment; filename=\"report.txt\""));
    assert!(response.header("etag").is_some() && response.header("last-modified").is_some());
    assert_eq!(response.body, content);
}

/// D-034
#[test]
fn a_missing_file_or_a_directory_is_not_found() {
    let daemon = daemon().start();
    std::fs::create_dir(daemon.base().join("dir")).expect("a directory");
    for path in ["/download/missing", "/download/dir", "/download/dir/x/y", "/download/", "/download"] {
        let response = daemon.get(path);
        assert_eq!((response.status, response.json()), (404, json!({"message": "File not found"})), "{path}");
    }
}

/// D-035, D-036
#[test]
fn climbing_paths_are_denied() {
    for mode in ["natural", "strict"] {
        let daemon = daemon().flag(&format!("--mode={mode}")).start();
        for path in ["..%2F..%2Fetc%2Fpasswd", "%2F..%2Fetc%2Fpasswd", "a%2F..%2F..%2Fx", "x%00y"] {
            for endpoint in ["download", "list", "exists"] {
                let response = daemon.get(&format!("/{endpoint}/{path}"));
                assert_eq!(
                    (response.status, response.json()),
                    (403, json!({"message": "Access denied"})),
                    "{endpoint} {path}"
                );
            }
        }
    }
}

/// D-037
#[test]
fn links_that_leave_are_denied() {
    for mode in ["natural", "strict"] {
        let daemon = daemon().flag(&format!("--mode={mode}")).start();
        symlink("/etc", daemon.base().join("absolute")).expect("a link");
        symlink("../../..", daemon.base().join("relative")).expect("a link");
        for path in [
            "/download/absolute/passwd",
            "/list/absolute",
            "/exists/absolute/passwd",
            "/download/relative/sentinel",
            "/list/relative",
        ] {
            assert_eq!(daemon.get(path).status, 403, "{mode} {path}");
        }
        assert_eq!(daemon.upload("absolute/evil", b"x").status, 403);
    }
}

/// D-038, D-039, D-040, D-052
#[test]
fn listings_show_what_is_there() {
    let daemon = daemon().start();
    std::fs::write(daemon.base().join("a.txt"), "123456").expect("a file");
    std::fs::create_dir(daemon.base().join("sub")).expect("a directory");
    symlink("nowhere", daemon.base().join("dangling")).expect("a link");
    symlink("/etc/passwd", daemon.base().join("leaving")).expect("a link");
    symlink("sub", daemon.base().join("linked")).expect("a link");
    for path in ["/list/", "/list/.", "/list/%2E", "/list"] {
        let response = daemon.get(path);
        assert_eq!(response.status, 200, "{path}");
        let mut entries = response.json().as_array().expect("an array").clone();
        entries.sort_by_key(|entry| entry["name"].as_str().map(str::to_owned));
        let seen: Vec<_> = entries.iter().map(|entry| (entry["name"].as_str(), entry["type"].as_str())).collect();
        let expected = [("a.txt", "file"), ("linked", "directory"), ("sub", "directory")];
        assert_eq!(seen, expected.map(|(name, kind)| (Some(name), Some(kind))), "{path}");
        assert_eq!(entries[0]["size"], 6);
        assert!(entries[0]["mod_time"].is_f64());
    }
    for path in ["/list/a.txt", "/list/missing"] {
        let response = daemon.get(path);
        assert_eq!((response.status, response.json()), (404, json!({"message": "Path is not a directory"})), "{path}");
    }
}

/// D-041, D-042, D-043
#[test]
fn exists_echoes_the_path_it_was_given() {
    let daemon = daemon().start();
    daemon.upload("there", b"");
    for (path, echoed, exists) in [
        ("/exists/there", "there", true),
        ("/exists/absent", "absent", false),
        ("/exists/absent/deeper", "absent/deeper", false),
        ("/exists/.", ".", true),
        ("/exists/", "", true),
        ("/exists", "", true),
        ("/exists/%2Fhome%2Fuser%2Fthere", "/home/user/there", true),
        ("/exists//home/user/there", "/home/user/there", true),
    ] {
        let response = daemon.get(path);
        assert_eq!((response.status, response.json()), (200, json!({"path": echoed, "exists": exists})), "{path}");
    }
}

/// D-044, D-045
#[test]
fn strange_names_round_trip() {
    let daemon = daemon().start();
    for (sent, name) in [
        ("100%20.txt", "100%20.txt"),
        ("a %22q%22.txt", "a \"q\".txt"),
        ("ünï.txt", "ünï.txt"),
        ("a+b &c.txt", "a+b &c.txt"),
    ] {
        assert_eq!(daemon.upload(sent, name.as_bytes()).status, 200, "{name}");
        let response = daemon.get(&format!("/download/{}", encode(name)));
        assert_eq!((response.status, response.text().as_str()), (200, name));
        assert_eq!(daemon.get(&format!("/exists/{}", encode(name))).json()["exists"], true, "{name}");
        let listed = daemon.get("/list/").json();
        assert!(listed.as_array().expect("an array").iter().any(|entry| entry["name"] == name), "{listed}");
    }
}

/// D-046: the paths that each client version sends, without the clients.
#[test]
fn an_absolute_path_is_the_same_file_for_every_client() {
    let daemon = daemon().start();
    for (number, filename) in ["hello.txt", "home/user/hello.txt", "/home/user/hello.txt"].into_iter().enumerate() {
        let content = format!("version {number}");
        daemon.upload(filename, content.as_bytes());
        for path in ["%2Fhome%2Fuser%2Fhello.txt", "home%2Fuser%2Fhello.txt", "/home/user/hello.txt", "hello.txt"] {
            assert_eq!(daemon.get(&format!("/download/{path}")).text(), content, "{path}");
            assert_eq!(daemon.get(&format!("/exists/{path}")).json()["exists"], true, "{path}");
        }
        let listed = daemon.get("/list/%2Fhome%2Fuser").json();
        assert!(listed.as_array().expect("an array").iter().any(|entry| entry["name"] == "hello.txt"));
    }
    daemon.upload("flat.txt", b"flat");
    assert_eq!(daemon.get("/download/%2Fsrv%2Fdata%2Fflat.txt").text(), "flat");
    assert_eq!(daemon.get("/list/%2F").status, 200);
}

/// D-053, D-054
#[test]
fn ranges_and_heads_are_answered() {
    let daemon = daemon().start();
    daemon.upload("x", b"0123456789");
    let range = |value: &str| send(daemon.address, "GET", "/download/x", &[("range", value)], b"");
    let response = range("bytes=2-4");
    assert_eq!(
        (response.status, response.text().as_str(), response.header("content-range")),
        (206, "234", Some("bytes 2-4/10"))
    );
    assert_eq!(range("bytes=-2").text(), "89");
    assert_eq!(
        (range("bytes=10-").status, range("bytes=10-").header("content-range").map(str::to_owned)),
        (416, Some("bytes */10".into()))
    );
    let response = daemon.send("HEAD", "/download/x", b"");
    assert_eq!((response.status, response.header("content-length"), response.body.len()), (200, Some("10"), 0));
    for path in ["/", "/list/", "/exists/x"] {
        assert_eq!(
            (daemon.send("HEAD", path, b"").status, daemon.send("HEAD", path, b"").body.len()),
            (200, 0),
            "{path}"
        );
    }
}

/// A refusal that closes the connection while the client still sends is seen as a broken connection.
#[test]
fn a_refused_upload_is_read_before_its_answer() {
    let daemon = daemon().start();
    let content = vec![b'x'; 200 * 1024];
    for _ in 0..20 {
        assert_eq!(daemon.upload("../../../outside", &content).status, 403);
        let other_field = form("other", Some("x"), None, &content);
        let multipart = send(daemon.address, "POST", "/upload", &[("content-type", &form_type())], &other_field);
        assert_eq!(multipart.status, 422);
        assert_eq!(send(daemon.address, "POST", "/upload", &[("content-type", "text/plain")], &content).status, 422);
    }
}
