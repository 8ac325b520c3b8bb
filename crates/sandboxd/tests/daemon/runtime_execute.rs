//! `/` and `/execute` of the runtime dialect.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::{connect, head, send};
use crate::fixture::{daemon, is_alive, read, wait_for};

/// D-001
#[test]
fn health_is_the_exact_text() {
    let daemon = daemon().start();
    let response = daemon.get("/");
    assert_eq!(
        (response.status, response.text().as_str()),
        (200, r#"{"status":"ok","message":"Sandbox Runtime is active."}"#)
    );
    assert_eq!(response.header("content-type"), Some("application/json"));
}

/// D-002, D-013
#[test]
fn a_command_answers_with_its_streams_and_status() {
    let daemon = daemon().start();
    let response = daemon.execute("echo 'hello world'");
    assert_eq!(response, json!({"stdout": "hello world\n", "stderr": "", "exit_code": 0, "timed_out": false}));
    let response = daemon.execute("echo out; echo err >&2; exit 7");
    assert_eq!(response, json!({"stdout": "out\n", "stderr": "err\n", "exit_code": 7, "timed_out": false}));
}

/// D-003
#[test]
fn commands_start_in_the_base_directory() {
    let daemon = daemon().start();
    assert_eq!(daemon.execute("pwd")["stdout"], format!("{}\n", daemon.base().display()));
}

/// D-004
#[test]
fn a_blank_base_directory_means_the_default() {
    let daemon = daemon().default_base().variable("SANDBOX_BASE_DIR", "  ").start();
    let usual = ["/home/user", "/app"].into_iter().find(|path| std::path::Path::new(path).is_dir());
    let here = std::env::current_dir().expect("a directory").display().to_string();
    assert_eq!(daemon.execute("pwd")["stdout"], format!("{}\n", usual.unwrap_or(&here)));
}

/// D-005, D-007
#[test]
fn the_server_limit_ends_a_command() {
    let daemon = daemon().variable("SANDBOX_EXEC_TIMEOUT_SECONDS", "1").start();
    let started = Instant::now();
    let response = daemon.execute("echo partial; sleep 30");
    assert!((Duration::from_secs(1)..Duration::from_secs(8)).contains(&started.elapsed()));
    assert_eq!(
        (&response["stdout"], &response["exit_code"], &response["timed_out"]),
        (&json!("partial\n"), &json!(124), &json!(true))
    );
    let stderr = response["stderr"].as_str().expect("text");
    assert!(stderr.ends_with("Failed to execute command: Command timed out after 1 seconds"), "{stderr}");
}

/// D-006
#[test]
fn an_unusable_limit_is_ignored() {
    for value in ["not-a-number", "0", "-3", "nan", "inf"] {
        let daemon = daemon().variable("SANDBOX_EXEC_TIMEOUT_SECONDS", value).start();
        assert_eq!(daemon.execute("sleep 0.1; echo done")["stdout"], "done\n", "{value}");
    }
}

/// D-008
#[test]
fn a_timed_out_commands_whole_group_is_gone() {
    let daemon = daemon().start();
    let marker = daemon.base().join("pids");
    let command = format!("trap '' TERM; (trap '' TERM; echo $$ > {0}; sleep 60) & sleep 60", marker.display());
    let response = daemon.post("/execute", &json!({"command": command, "timeout_seconds": 0.5})).json();
    assert_eq!(response["timed_out"], true);
    let leader: u32 = read(&marker).trim().parse().expect("a number");
    wait_for(|| (!group_alive(leader)).then_some(()), "the group is gone");
}

fn group_alive(group: u32) -> bool {
    std::fs::read_dir("/proc").expect("proc").flatten().any(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect::<Vec<_>>());
        fields.is_some_and(|fields| fields.get(2) == Some(&group.to_string().as_str()) && fields[0] != "Z")
    })
}

/// D-009
#[test]
fn bad_syntax_is_a_launch_failure_and_exit_2_is_not() {
    let daemon = daemon().start();
    for command in ["echo 'unterminated", "echo hi\nif true; then"] {
        let response = daemon.execute(command);
        assert_eq!(response["exit_code"], 1, "{response}");
        assert!(response["stderr"].as_str().expect("text").contains("Failed to execute command"), "{response}");
    }
    assert_eq!(
        daemon.execute("echo fine >&2; exit 2"),
        json!({"stdout": "", "stderr": "fine\n", "exit_code": 2, "timed_out": false})
    );
    let response = daemon.execute("");
    assert_eq!(response["exit_code"], 0);
}

/// D-010, D-011
#[test]
fn requests_are_validated_like_the_original() {
    let daemon = daemon().start();
    let response = daemon.post("/execute", &json!({"cmd": "x"}));
    assert_eq!(response.status, 422);
    assert_eq!(response.json()["detail"][0]["loc"], json!(["body", "command"]));
    assert_eq!(response.json()["detail"][0]["type"], "missing");
    let response = daemon.post("/execute", &json!({"command": "echo ok", "unknown": [1, {}]}));
    assert_eq!((response.status, response.json()["stdout"].clone()), (200, json!("ok\n")));
    for (body, kind, content_type) in [
        ("{", "json_invalid", "application/json"),
        ("[]", "model_attributes_type", "application/json"),
        ("{\"command\":\"x\"}", "model_attributes_type", "text/plain"),
        ("{\"command\":5}", "string_type", "application/json"),
    ] {
        let response = send(daemon.address, "POST", "/execute", &[("content-type", content_type)], body.as_bytes());
        assert_eq!((response.status, response.json()["detail"][0]["type"].as_str()), (422, Some(kind)), "{body}");
    }
    let response = daemon.get("/execute");
    assert_eq!((response.status, response.header("allow")), (405, Some("POST")));
    assert_eq!(response.json(), json!({"detail": "Method Not Allowed"}));
    assert_eq!(daemon.get("/nowhere").json(), json!({"detail": "Not Found"}));
}

/// D-012
#[test]
fn the_callers_limit_counts() {
    let daemon = daemon().start();
    let started = Instant::now();
    let response = daemon.post("/execute", &json!({"command": "sleep 30", "timeout_seconds": 1.0})).json();
    assert!(started.elapsed() < Duration::from_secs(8));
    assert_eq!(response["timed_out"], true);
}

/// D-014
#[test]
fn the_servers_limit_wins_over_a_longer_one() {
    let daemon = daemon().flag("--exec-timeout=500ms").start();
    let response = daemon.post("/execute", &json!({"command": "sleep 30", "timeout_seconds": 1000})).json();
    assert_eq!(response["timed_out"], true);
}

/// D-017
#[test]
fn commands_are_shell_text() {
    let daemon = daemon().start();
    std::fs::write(daemon.base().join("a.txt"), "").expect("a file");
    std::fs::write(daemon.base().join("b.txt"), "").expect("a file");
    let home = std::env::var("HOME").unwrap_or_else(|_| daemon.base().display().to_string());
    for (command, stdout) in [
        ("printf a | wc -c | tr -d ' '", "1\n".to_owned()),
        ("echo $HOME", format!("{home}\n")),
        ("ls *.txt", "a.txt\nb.txt\n".to_owned()),
        ("for i in 1 2; do echo $i; done", "1\n2\n".to_owned()),
        ("cd / && pwd", "/\n".to_owned()),
        ("cat <<E\nhere\nE", "here\n".to_owned()),
    ] {
        assert_eq!(daemon.execute(command)["stdout"], stdout, "{command}");
    }
    let response = daemon.execute("nosuchprogram");
    assert_eq!(response["exit_code"], 127);
}

/// D-018
#[test]
fn argv_mode_knows_no_operators() {
    let daemon = daemon().flag("--exec-mode=argv").start();
    assert_eq!(daemon.execute("echo x > f")["stdout"], "x > f\n");
    assert!(!daemon.base().join("f").exists());
    for (command, problem) in [
        ("nosuchprogram", "[Errno 2] No such file or directory: 'nosuchprogram'"),
        ("", "list index out of range"),
        ("echo 'x", "No closing quotation"),
    ] {
        let response = daemon.execute(command);
        assert_eq!(response["stderr"], format!("Failed to execute command: {problem}"), "{command}");
        assert_eq!(response["exit_code"], 1);
    }
}

/// D-019
#[test]
fn death_by_signal_is_137_naturally_and_minus_9_strictly() {
    let natural = daemon().start();
    assert_eq!(natural.execute("kill -9 $$")["exit_code"], 137);
    let strict = daemon().flag("--mode=strict").start();
    assert_eq!(strict.execute("sh -c 'kill -9 $$'")["exit_code"], -9);
    let response = strict.post("/execute", &json!({"command": "sleep 30", "timeout_seconds": 0.3})).json();
    assert_eq!(response["exit_code"], 1);
    assert!(
        response["stderr"].as_str().expect("text").contains("Command '['sleep', '30']' timed out after 0.3 seconds"),
        "{response}"
    );
}

/// D-020, D-021
#[test]
fn output_survives_strange_bytes() {
    let daemon = daemon().start();
    let response = daemon.execute("printf 'a\\377b\\r\\nc'; echo problem >&2; exit 4");
    assert_eq!(
        response,
        json!({"stdout": "a\u{fffd}b\r\nc", "stderr": "problem\n", "exit_code": 4, "timed_out": false})
    );
}

/// D-022
#[test]
fn a_flood_of_output_is_cut_and_memory_stays_bounded() {
    let daemon = daemon().start();
    for command in ["head -c 100000000 /dev/zero", "yes | head -c 100000000; yes e | head -c 100000000 >&2"] {
        let response = daemon.post("/execute", &json!({ "command": command }));
        assert!(response.body.len() < 16 << 20, "{}", response.body.len());
        let stdout = response.json()["stdout"].as_str().expect("text").to_owned();
        assert!(stdout.contains("bytes of output left out"));
    }
    let peak = peak_memory(daemon.pid());
    assert!(peak < 200 << 20, "peak memory {peak}");
}

fn peak_memory(pid: u32) -> u64 {
    let status = read(format!("/proc/{pid}/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// D-023
#[test]
fn a_background_process_that_holds_stdout_does_not_delay_the_response() {
    let daemon = daemon().start();
    let started = Instant::now();
    let response = daemon.execute("sleep 30 & echo $!");
    assert!(started.elapsed() < Duration::from_secs(6));
    let pid: u32 = response["stdout"].as_str().expect("text").trim().parse().expect("a number");
    assert!(is_alive(pid), "the background process lives on");
    daemon.execute(&format!("kill {pid}"));
}

/// D-024
#[test]
fn a_running_command_does_not_block_other_requests() {
    let daemon = daemon().start();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| daemon.execute("while [ ! -e stop ]; do sleep 0.02; done; echo stopped"));
        let started = Instant::now();
        assert_eq!(daemon.get("/").status, 200);
        assert_eq!(daemon.get("/list/").status, 200);
        assert!(started.elapsed() < Duration::from_secs(5));
        assert!(!running.is_finished());
        std::fs::write(daemon.base().join("stop"), "").expect("a file");
        assert_eq!(running.join().expect("a response")["stdout"], "stopped\n");
    });
}

/// D-025
#[test]
fn a_client_that_leaves_ends_its_command() {
    use std::io::Write;
    let daemon = daemon().start();
    let body = json!({"command": "echo $$ > started; sleep 60 & sleep 60"}).to_string();
    let mut stream = connect(daemon.address);
    stream.write_all(&head("POST", "/execute", &[("content-type", "application/json")], body.len())).expect("sent");
    stream.write_all(body.as_bytes()).expect("sent");
    let group: u32 = wait_for(
        || std::fs::read_to_string(daemon.base().join("started")).ok()?.trim().parse().ok(),
        "the command runs",
    );
    assert!(group_alive(group));
    drop(stream);
    wait_for(|| (!group_alive(group)).then_some(()), "the group is gone");
}

#[test]
fn too_many_commands_are_answered_not_queued() {
    let daemon = daemon().flag("--max-processes=1").start();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| daemon.execute("touch running; while [ ! -e stop ]; do sleep 0.02; done"));
        wait_for(|| daemon.base().join("running").exists().then_some(()), "the first runs");
        assert_eq!(daemon.post("/execute", &json!({"command": "true"})).status, 503);
        std::fs::write(daemon.base().join("stop"), "").expect("a file");
        assert_eq!(first.join().expect("a response")["exit_code"], 0);
    });
}
