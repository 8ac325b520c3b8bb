//! Code through the native API.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::client::send;
use crate::fixture::{Daemon, daemon, wait_for};

const JSON: (&str, &str) = ("content-type", "application/json");
const CODE: &str = "/sandbox/v1/code";
const CONTEXTS: &str = "/sandbox/v1/code/contexts";

/// The events of a run, without those that only say that it is alive.
fn run(daemon: &Daemon, request: &Value) -> Vec<Value> {
    let response = daemon.post(CODE, request);
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("application/x-ndjson"));
    let events = response.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect::<Vec<Value>>();
    assert_eq!(events.last().expect("an end")["type"], "end_of_execution");
    events.into_iter().filter(|event| event["type"] != "keepalive").collect()
}

fn event<'a>(events: &'a [Value], kind: &str) -> &'a Value {
    events.iter().find(|event| event["type"] == kind).unwrap_or_else(|| panic!("no {kind}: {events:?}"))
}

#[test]
fn variables_stay_and_output_results_and_errors_are_events() {
    let daemon = daemon().start();
    let first =
        run(&daemon, &json!({ "code": "import sys, os\nx = 20\nprint('out')\nprint('err', file=sys.stderr)\nx + 1" }));
    assert_eq!(event(&first, "stdout")["text"], "out\n");
    assert_eq!(event(&first, "stderr")["text"], "err\n");
    assert_eq!(
        (&event(&first, "result")["text"], &event(&first, "result")["is_main_result"]),
        (&json!("21"), &json!(true))
    );
    let second = run(&daemon, &json!({ "code": "x, os.environ['ONE_RUN'], os.getcwd()", "env": { "ONE_RUN": "1" } }));
    let base = daemon.base().display().to_string();
    assert_eq!(event(&second, "result")["text"], format!("(20, '1', '{base}')"));
    let failed = run(&daemon, &json!({ "code": "1/0" }));
    assert_eq!((&event(&failed, "error")["name"], failed.len()), (&json!("ZeroDivisionError"), 3), "{failed:?}");
    // The code is the user that commands are.
    let own = daemon.post("/sandbox/v1/exec", &json!({ "argv": ["id", "-u"] })).json();
    let uid = run(&daemon, &json!({ "code": "print(os.getuid())" }));
    let decoded = event(&uid, "stdout")["text"].as_str().expect("text").to_owned();
    assert!(own["stdout"].to_string().contains(decoded.trim()) || own["stdout"] == base64(&decoded), "{own} {decoded}");
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[test]
fn contexts_are_separate_and_can_be_restarted_and_removed() {
    let daemon = daemon().whole_root().start();
    let made = daemon.post(CONTEXTS, &json!({ "cwd": "/tmp" })).json();
    assert_eq!((&made["language"], &made["cwd"]), (&json!("python"), &json!("/tmp")));
    let id = made["id"].as_str().expect("an id").to_owned();
    let within = |code: &str| run(&daemon, &json!({ "code": code, "context": id }));
    assert_eq!(event(&within("y = 5\ny"), "result")["text"], "5");
    assert_eq!(event(&run(&daemon, &json!({ "code": "y" })), "error")["name"], "NameError");
    assert_eq!(daemon.get(CONTEXTS).json()["contexts"].as_array().expect("a list").len(), 2);
    let restart = format!("{CONTEXTS}/restart?context={id}");
    assert_eq!(send(daemon.address, "POST", &restart, &[], b"").status, 204);
    assert_eq!(event(&within("y"), "error")["name"], "NameError");
    let remove = format!("{CONTEXTS}?context={id}");
    assert_eq!(send(daemon.address, "DELETE", &remove, &[], b"").status, 204);
    let gone = send(daemon.address, "DELETE", &remove, &[], b"");
    assert_eq!((gone.status, &gone.json()["code"]), (404, &json!("notFound")), "{}", gone.text());
    for (body, status) in [
        (json!({ "code": "1", "context": id }), 404),
        (json!({ "code": "1", "env": { "A=B": "1" } }), 400),
        (json!({}), 400),
    ] {
        assert_eq!(daemon.post(CODE, &body).status, status, "{body}");
    }
    assert_eq!(daemon.post(CONTEXTS, &json!({ "language": "r" })).status, 400);
    assert_eq!(daemon.post(CONTEXTS, &json!({ "cwd": "/no/such" })).status, 400);
    assert_eq!(send(daemon.address, "DELETE", CONTEXTS, &[], b"").status, 400, "a context is named");
    let page = [JSON, ("origin", "https://page.example")];
    assert_eq!(send(daemon.address, "POST", CODE, &page, b"{\"code\":\"1\"}").status, 403);
}

/// The context stays usable, with its variables.
#[test]
fn a_client_that_leaves_interrupts_its_code() {
    let daemon = daemon().start();
    let mut stream = TcpStream::connect(daemon.address).expect("connects");
    let body = json!({ "code": "import time\nkept = 1\nprint('begun')\ntime.sleep(300)" }).to_string();
    let head = format!(
        "POST {CODE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).expect("sent");
    let mut lines = BufReader::new(stream).lines();
    assert!(lines.any(|line| line.expect("a line").contains("begun")));
    drop(lines);
    let again = wait_for(
        || {
            let events = run(&daemon, &json!({ "code": "kept" }));
            events.iter().find(|event| event["type"] == "result").cloned()
        },
        "the context runs other code",
    );
    assert_eq!(again["text"], "1");
}
