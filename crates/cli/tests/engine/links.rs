//! `url`: links to ports, over a restart of the engine and for sandboxes that sleep.

use crate::fixture::{Engine, eventually};
use crate::tenants::connect;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::Value;
use std::{os::unix::fs::PermissionsExt as _, time::Duration};

/// Sends a GET to an address below `localhost`, as a browser resolves it.
fn get(url: &str, cookie: Option<&str>) -> (StatusCode, http::HeaderMap, String) {
    let uri: http::Uri = url.parse().unwrap();
    let port = uri.port_u16().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let exchange = async {
        let mut connection = connect(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap()).await;
        let path = uri.path_and_query().unwrap().as_str();
        let mut request = Request::get(path).header("host", uri.authority().unwrap().as_str());
        if let Some(cookie) = cookie {
            request = request.header("cookie", cookie);
        }
        let response = connection.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status, parts.headers, String::from_utf8_lossy(&body).into_owned())
    };
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), exchange).await.unwrap() })
}

/// Opens a link as a browser does: first the redirect with the cookie, then the page.
fn visit(link: &str) -> (StatusCode, String) {
    let (status, headers, body) = get(link, None);
    if status != StatusCode::FOUND {
        return (status, body);
    }
    let cookie = headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let address = link.split_once('?').unwrap().0;
    let (status, _, body) = get(address, Some(&cookie));
    (status, body)
}

fn serve(engine: &Engine, words: &[&str]) {
    let program = ["--", "python3", "-m", "http.server", "3000", "--directory", "/usr/share/common-licenses"];
    engine.ok(&[&["create", "box"], words, &program].concat());
}

#[test]
fn links_are_listed_and_end_and_outlive_the_engine() {
    let Some(engine) = Engine::stopped() else { return };
    // The same port again after the restart: a link names it.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("127.0.0.1:{port}");
    let up = || engine.ok(&["up", "--detach", "--api-listen", "127.0.0.1:0", "--router-listen", &listen]);
    up();
    serve(&engine, &[]);
    let kept = engine.ok(&["url", "box", "3000"]);
    assert!(kept.starts_with("http://3000-box--default.localhost:") && kept.lines().count() == 1, "{kept}");
    eventually("the program listens", || visit(kept.trim()).0 == StatusCode::OK);
    assert!(visit(kept.trim()).1.contains("GPL-2"));
    assert!(engine.ok(&["get", "box"]).contains("Ports:       3000\n"), "{}", engine.ok(&["get", "box"]));
    let listed = engine.ok(&["list"]);
    assert!(listed.contains("PORTS") && listed.contains(" 3000 "), "{listed}");
    let ended = engine.ok(&["url", "box", "3000", "--read-only", "--ttl", "10m"]);
    let listed = engine.ok(&["url", "list"]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(listed.contains("read-only") && !listed.contains("l1."), "{listed}");
    let json: Value = serde_json::from_str(&engine.ok(&["url", "list", "-o", "json"])).unwrap();
    let id = json.as_array().unwrap().iter().find(|link| link["readOnly"] == true).unwrap()["id"].as_str().unwrap();
    assert_eq!(engine.ok(&["url", "revoke", id]), format!("link {id} revoked\n"));
    assert_eq!(visit(ended.trim()).0, StatusCode::UNAUTHORIZED);
    // Records are written in the background. Requests over a link are recorded under its id.
    eventually("the audit log has what was done with links", || {
        let records = engine.ok(&["audit", "--name", "box", "-o", "json"]);
        let records: Vec<Value> = records.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of_links = |action: &str| {
            let resource = "sandboxes.agents.x-k8s.io/links";
            records.iter().filter(|record| record["resource"] == resource && record["action"] == action).count()
        };
        let by_link = |record: &Value| record["user"].as_str().is_some_and(|user| user.starts_with("link:"));
        of_links("create") == 2 && of_links("delete") == 1 && records.iter().any(by_link)
    });
    let (_, _, unknown) = engine.fails(&["url", "revoke", id]);
    assert!(unknown.contains("url list"), "{unknown}");

    engine.ok(&["down"]);
    up();
    eventually("the program listens again", || visit(kept.trim()).0 == StatusCode::OK);
    let (status, body) = visit(ended.trim());
    assert!(status == StatusCode::UNAUTHORIZED && body.contains("revoked"), "{status} {body}");

    // A sandbox of the same name that is created later has no links. The router reads the records again within a second.
    engine.ok(&["delete", "box"]);
    serve(&engine, &[]);
    eventually("the link has ended with its sandbox", || visit(kept.trim()).0 == StatusCode::UNAUTHORIZED);
    let (status, body) = visit(kept.trim());
    assert!(status == StatusCode::UNAUTHORIZED && body.contains("deleted"), "{status} {body}");
}

#[test]
fn a_link_wakes_a_sandbox_that_sleeps() {
    let Some(engine) = Engine::start() else { return };
    serve(&engine, &["--idle", "2s"]);
    let link = engine.ok(&["url", "box", "3000"]);
    eventually("the sandbox falls asleep", || engine.ok(&["list"]).contains("Asleep"));
    eventually("the link wakes it", || visit(link.trim()).0 == StatusCode::OK);
}

#[test]
fn refusals_say_what_to_do() {
    let Some(engine) = Engine::start() else { return };
    engine.ok(&["create", "box"]);
    for (words, advice) in [
        (&["url", "box", "8888"][..], "--allow-daemon"),
        (&["url", "box", "3000", "--path"], "leave --path out"),
        (&["url", "box", "3000", "--ttl", "800h"], "720h"),
        (&["url", "none", "3000"], "none"),
    ] {
        let (_, stdout, stderr) = engine.fails(words);
        assert!(stderr.contains(advice) && stdout.is_empty(), "{words:?}: {stderr}");
    }
    assert!(engine.ok(&["url", "list"]).starts_with("no links"), "a link that was not printed does not stay");
    let (_, _, stderr) = {
        let output = engine.command(&["url", "box", "3000", "--open"]).env("PATH", "/nowhere").output().unwrap();
        (output.status, output.stdout, String::from_utf8(output.stderr).unwrap())
    };
    assert!(stderr.contains("xdg-utils"), "{stderr}");
    let daemon = engine.ok(&["url", "box", "8888", "--allow-daemon"]);
    assert_eq!(visit(daemon.trim()).0, StatusCode::OK);
}

/// The browser's arguments, which every user of the machine can read, do not contain the link.
#[test]
fn open_leads_the_browser_to_the_link() {
    let Some(engine) = Engine::start() else { return };
    engine.ok(&["create", "box"]);
    let folder = tempfile::tempdir().unwrap();
    let (program, seen) = (folder.path().join("xdg-open"), folder.path().join("seen"));
    let script = format!(
        "#!/bin/sh\necho \"$1\" > {0}\ncurl -s -o /dev/null -w '%{{redirect_url}}' \"$1\" >> {0}\n",
        seen.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let output = engine.command(&["url", "box", "3000", "--open"]).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let link = String::from_utf8(output.stdout).unwrap();
    eventually("the browser was led on", || std::fs::read_to_string(&seen).unwrap().ends_with(link.trim()));
    let seen = std::fs::read_to_string(&seen).unwrap();
    let argument = seen.lines().next().unwrap();
    assert!(argument.starts_with("http://127.0.0.1:") && !argument.contains("l1."), "{argument}");
}
