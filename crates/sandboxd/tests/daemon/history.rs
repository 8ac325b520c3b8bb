//! The history of commands: every dialect is recorded, the output is kept, and a restart continues it.

use serde_json::{Value, json};

use crate::client::send;
use crate::fixture::{Daemon, daemon, wait_for};

fn entries(daemon: &Daemon) -> Vec<Value> {
    daemon.get("/sandbox/v1/history").json()["entries"].as_array().expect("a list").clone()
}

#[test]
fn commands_of_every_kind_are_recorded_with_exit_code_time_and_output() {
    let daemon = daemon().start();
    daemon.execute("echo one; echo problem >&2; exit 3");
    daemon.post("/sandbox/v1/exec", &json!({"argv": ["printf", "%s", "two words"]}));
    let headers = [("content-type", "application/json"), ("accept", "application/x-ndjson")];
    send(daemon.address, "POST", "/sandbox/v1/exec", &headers, br#"{"command":"echo three"}"#);
    daemon.post("/sandbox/v1/exec", &json!({"argv": ["no-such-program"]}));
    daemon.post("/sandbox/v1/exec", &json!({"command": "sleep 9", "timeoutSeconds": 0.1}));
    let list = entries(&daemon);
    let found: Vec<_> = list.iter().map(|entry| (entry["id"].clone(), entry["exitCode"].clone())).collect();
    assert_eq!(found, [(1, 3), (2, 0), (3, 0), (4, 127), (5, 124)].map(|(id, code)| (json!(id), json!(code))));
    assert!(list.iter().all(|entry| entry.get("stdout").is_none()), "lists have no output");
    assert!(list[4]["durationMs"].as_u64().expect("a time") >= 100, "{}", list[4]);
    assert_eq!(list[1]["argv"], json!(["printf", "%s", "two words"]));
    let first = daemon.get("/sandbox/v1/history/1").json();
    assert_eq!((&first["stdout"], &first["stderr"]), (&json!("one\n"), &json!("problem\n")));
    assert_eq!(daemon.get("/sandbox/v1/history/3").json()["stdout"], "three\n");
    assert_eq!(daemon.get("/sandbox/v1/history?limit=2").json()["entries"][0]["id"], 4);
    assert_eq!(daemon.get("/sandbox/v1/history/99").status, 404);
}

#[test]
fn long_output_keeps_both_ends() {
    let daemon = daemon().start();
    daemon.execute("echo begin; head -c 200000 /dev/zero | tr '\\0' x; echo; echo end");
    let entry = daemon.get("/sandbox/v1/history/1").json();
    let text = entry["stdout"].as_str().expect("text");
    assert!(text.starts_with("begin\n") && text.ends_with("end\n") && text.contains("left out"), "{}", text.len());
    assert!(text.len() < 40_000, "{}", text.len());
    assert_eq!(entry["stdoutBytes"], 200_011);
}

#[test]
fn a_command_whose_client_leaves_is_recorded_too() {
    use std::io::Write;
    let daemon = daemon().start();
    let body = br#"{"command":"touch begun; sleep 30"}"#;
    let mut stream = crate::client::connect(daemon.address);
    let headers = [("content-type", "application/json")];
    stream.write_all(&crate::client::head("POST", "/sandbox/v1/exec", &headers, body.len())).expect("sent");
    stream.write_all(body).expect("sent");
    wait_for(|| daemon.base().join("begun").exists().then_some(()), "the command runs");
    drop(stream);
    let entry = wait_for(|| entries(&daemon).first().cloned(), "the command is recorded");
    assert_eq!(entry["exitCode"], 143);
}

#[test]
fn commands_that_ran_beside_the_daemon_can_be_added_within_limits() {
    let daemon = daemon().start();
    let add = |entry: Value| daemon.post("/sandbox/v1/history", &entry).status;
    let time = "2026-01-02T03:04:05Z";
    assert_eq!(add(json!({"argv": ["ls"], "exitCode": 0, "startedAt": time, "durationMs": 5, "stdout": "a\n"})), 204);
    assert_eq!(daemon.get("/sandbox/v1/history/1").json()["stdout"], "a\n");
    let large = "x".repeat(200_000);
    assert_eq!(add(json!({"argv": ["ls"], "exitCode": 0, "startedAt": time, "durationMs": 5, "stdout": large})), 400);
    assert_eq!(add(json!({"argv": ["ls"], "exitCode": 0, "startedAt": large, "durationMs": 5})), 400);
    assert_eq!(add(json!({"argv": [large], "exitCode": 0, "startedAt": time, "durationMs": 5})), 204);
    assert!(daemon.get("/sandbox/v1/history/2").body.len() < 10_000);
}

#[test]
fn the_file_outlives_the_daemon() {
    let folder = tempfile::tempdir().expect("a folder");
    let flag = format!("--history-file={}", folder.path().join("state/history").display());
    let mut first = daemon().flag(&flag).start();
    first.execute("echo kept");
    first.signal(rustix::process::Signal::TERM);
    first.wait();
    let second = daemon().flag(&flag).start();
    second.execute("true");
    let list = entries(&second);
    assert_eq!(list.iter().map(|entry| entry["id"].clone()).collect::<Vec<_>>(), [json!(1), json!(2)]);
    assert_eq!(second.get("/sandbox/v1/history/1").json()["stdout"], "kept\n");
}
