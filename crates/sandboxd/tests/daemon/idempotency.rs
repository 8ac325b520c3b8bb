//! Idempotency keys: a repeated request gets the first result and its command never runs twice, not even across a
//! restart.

use std::process::Command;

use serde_json::{Value, json};

use crate::client::{HttpResponse, send};
use crate::fixture::{Daemon, daemon, read, start_command, wait_for};

fn exec(daemon: &Daemon, key: &str, boot: &str, request: &Value) -> HttpResponse {
    let headers = [("content-type", "application/json"), ("idempotency-key", key), ("sandbox-boot-id", boot)];
    send(daemon.address, "POST", "/sandbox/v1/exec", &headers, request.to_string().as_bytes())
}

fn boot_id(daemon: &Daemon) -> String {
    daemon.get("/sandbox/v1").json()["bootId"].as_str().expect("an id").to_owned()
}

#[test]
fn a_retry_gets_the_first_result() {
    let daemon = daemon().start();
    let boot = boot_id(&daemon);
    let request = json!({"command": "echo run >> count; sleep 0.3; echo done"});
    let responses: Vec<HttpResponse> = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..5).map(|_| scope.spawn(|| exec(&daemon, "step-1", &boot, &request))).collect();
        tries.into_iter().map(|attempt| attempt.join().expect("a response")).collect()
    });
    for response in &responses {
        assert_eq!((response.status, &response.body), (200, &responses[0].body));
    }
    assert_eq!(exec(&daemon, "step-1", &boot, &request).body, responses[0].body);
    assert_eq!(read(daemon.base().join("count")), "run\n");
    let other = exec(&daemon, "step-1", &boot, &json!({"command": "echo other"}));
    assert_eq!((other.status, other.json()["code"].clone()), (409, json!("conflict")));
    let without =
        send(daemon.address, "POST", "/sandbox/v1/exec", &[("idempotency-key", "x")], b"{\"command\":\"true\"}");
    assert_eq!(without.status, 400);
}

#[test]
fn a_disconnected_client_can_fetch_the_result_later() {
    use std::io::Write;
    let daemon = daemon().start();
    let boot = boot_id(&daemon);
    let request = json!({"command": "echo run >> count; while [ ! -e go ]; do sleep 0.02; done; echo late"});
    let body = request.to_string();
    let headers = [("content-type", "application/json"), ("idempotency-key", "k"), ("sandbox-boot-id", boot.as_str())];
    let mut stream = crate::client::connect(daemon.address);
    stream.write_all(&crate::client::head("POST", "/sandbox/v1/exec", &headers, body.len())).expect("sent");
    stream.write_all(body.as_bytes()).expect("sent");
    wait_for(|| daemon.base().join("count").exists().then_some(()), "the command runs");
    drop(stream);
    std::fs::write(daemon.base().join("go"), "").expect("a file");
    assert_eq!(exec(&daemon, "k", &boot, &request).json()["stdout"], "late\n");
    assert_eq!(read(daemon.base().join("count")), "run\n");
}

#[test]
fn background_processes_start_once_per_key() {
    let daemon = daemon().start();
    let boot = boot_id(&daemon);
    let headers = [("content-type", "application/json"), ("idempotency-key", "p"), ("sandbox-boot-id", boot.as_str())];
    let body = json!({"argv": ["sleep", "20"]}).to_string();
    let start = || send(daemon.address, "POST", "/sandbox/v1/processes", &headers, body.as_bytes());
    let (first, second) = (start(), start());
    assert_eq!((first.status, &first.body), (201, &second.body));
    assert_eq!(daemon.get("/sandbox/v1/processes").json()["processes"].as_array().map(Vec::len), Some(1));
}

/// The daemon is killed while a command runs, and restarted, repeatedly; the file that the command appends to counts
/// the runs.
#[test]
fn no_command_with_a_key_runs_twice_across_a_kill() {
    let directory = tempfile::tempdir().expect("a directory");
    let count = directory.path().join("count");
    let start = || {
        let mut command = Command::new(crate::fixture::program());
        command
            .args(["--listen", "127.0.0.1:0", "--base-dir"])
            .arg(directory.path())
            .arg("--root-dir")
            .arg(directory.path());
        start_command(command)
    };
    let lines = || std::fs::read_to_string(&count).unwrap_or_default().lines().count();
    for round in 1..=5 {
        let key = format!("step-{round}");
        let request = json!({"command": "echo $$ >> count; sleep 20"});
        let mut first = start();
        let boot = boot_id(&first);
        std::thread::scope(|scope| {
            let address = first.address;
            let (key, boot, request) = (&key, &boot, &request);
            scope.spawn(move || {
                let headers = [("idempotency-key", key.as_str()), ("sandbox-boot-id", boot.as_str())];
                let mut stream = crate::client::connect(address);
                let body = request.to_string();
                use std::io::{Read, Write};
                let sent = crate::client::head("POST", "/sandbox/v1/exec", &headers, body.len());
                let _ = stream.write_all(&sent).and_then(|()| stream.write_all(body.as_bytes()));
                let _ = stream.read_to_end(&mut Vec::new());
            });
            wait_for(|| (lines() == round).then_some(()), "the command runs");
            first.process.kill().expect("killed");
            first.process.wait().expect("ended");
        });
        let second = start();
        let retried = exec(&second, &key, &boot, &request);
        assert_eq!((retried.status, retried.json()["code"].clone()), (409, json!("outcomeUnknown")));
        assert_eq!(lines(), round, "nothing ran twice");
        let group: i32 = read(&count).lines().last().and_then(|line| line.parse().ok()).expect("a number");
        let group = rustix::process::Pid::from_raw(group).expect("a number above 0");
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("the orphan is ended");
    }
}
