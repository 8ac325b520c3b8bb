//! Commands start the engine when none runs, and such an engine ends when it is not used.

use crate::fixture::{Engine, Mode, eventually, in_both_modes};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// A command with an engine that ends after three seconds without use.
fn command(engine: &Engine, words: &[&str]) -> Command {
    let mut command = engine.command(words);
    command.env("AGENT_SANDBOX_IDLE_TIMEOUT", "3s");
    command
}

fn ok(engine: &Engine, words: &[&str]) -> Output {
    let output = command(engine, words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}{}", engine.log());
    output
}

in_both_modes! {
    commands_start_an_engine_that_ends_when_unused,
    a_connected_client_keeps_the_engine,
    claim_shell_and_mcp_start_the_engine,
    commands_about_existing_sandboxes_start_the_engine,
    up_makes_an_engine_stay_that_a_command_started,
}

/// Longer than an engine without use stays.
const LONGER: Duration = Duration::from_secs(6);

/// Watches the state file: a command would be a client.
fn stays(engine: &Engine, why: &str) {
    let until = Instant::now() + LONGER;
    while Instant::now() < until {
        assert!(runs(engine), "{why}: {}", engine.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn runs(engine: &Engine) -> bool {
    engine.data().join("up.json").exists()
}

fn commands_start_an_engine_that_ends_when_unused(mode: Mode) {
    let Some(engine) = Engine::stopped_as(mode) else { return };
    let (code, _, said) = engine.fails(&["exec", "a", "true"]);
    assert!(code == 1 && said.contains("no engine runs on this machine"), "nothing could be found: {said}");
    // Both find no engine: one of them starts it.
    let start = |name: &str| {
        let mut command = command(&engine, &["create", name]);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let finish = |child: Child| {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}{}", engine.log());
        String::from_utf8(output.stderr).unwrap()
    };
    let (first, second) = (start("a"), start("b"));
    let said = finish(first) + &finish(second);
    assert_eq!(said.matches("note: started the engine on this machine").count(), 1, "{said}");
    ok(&engine, &["exec", "a", "sh", "-c", "echo kept > file"]);
    ok(&engine, &["create", "busy", "--", "sleep", "1000"]);
    stays(&engine, "a process in a sandbox keeps the engine");
    ok(&engine, &["delete", "busy"]);
    eventually("the engine ends", || !runs(&engine));
    assert!(engine.log().contains("nobody uses this engine"), "{}", engine.log());
    // The next command starts it again, waits for the one that ends and for the sandbox, and finds the files.
    let output = ok(&engine, &["exec", "a", "cat", "file"]);
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("note: started the engine"), "{output:?}");
    assert_eq!(output.stdout, b"kept\n");
}

fn a_connected_client_keeps_the_engine(mode: Mode) {
    let Some(engine) = Engine::stopped_as(mode) else { return };
    ok(&engine, &["create", "box"]);
    let mut watch = command(&engine, &["list", "--watch"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("box ")), "the client is connected");
    stays(&engine, "a client that is connected keeps the engine");
    assert_eq!(watch.try_wait().unwrap(), None);
    watch.kill().unwrap();
    watch.wait().unwrap();
    eventually("the engine ends", || !runs(&engine));
}

/// Commands that name a sandbox or list objects start an engine that was used before; those about the engine do not.
fn commands_about_existing_sandboxes_start_the_engine(mode: Mode) {
    const NOTE: &str = "note: started the engine on this machine";
    let Some(engine) = Engine::stopped_as(mode) else { return };
    let (_, _, said) = engine.fails(&["list"]);
    assert!(said.contains("no engine runs on this machine"), "nothing could be listed: {said}");
    ok(&engine, &["create", "box"]);
    ok(&engine, &["exec", "box", "sh", "-c", "echo kept > file"]);
    for words in [["status"], ["top"]] {
        engine.ok(&["down"]);
        engine.fails(&words);
        assert!(!runs(&engine), "{words:?} starts no engine");
    }
    let commands: [&[&str]; 9] = [
        &["list"],
        &["get", "box"],
        &["logs", "box"],
        &["history", "box"],
        &["cp", "box:file", "-"],
        &["template", "list"],
        &["suspend", "box"],
        &["resume", "box"],
        &["delete", "box"],
    ];
    for words in commands {
        engine.ok(&["down"]);
        let output = ok(&engine, words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.matches(NOTE).count(), 1, "{words:?}: {output:?}");
        assert!(words[0] != "cp" || output.stdout == b"kept\n", "{output:?}");
    }
}

/// `up --detach` is how a user keeps an engine that a command started.
fn up_makes_an_engine_stay_that_a_command_started(mode: Mode) {
    let Some(engine) = Engine::stopped_as(mode) else { return };
    // Also one that a command is just starting.
    let mut creating =
        command(&engine, &["create", "first"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let up = engine.run(&["up", "--detach", "--router-listen", "127.0.0.1:0"]);
    assert!(up.status.success(), "{up:?}{}", engine.log());
    // It may still be connected to the engine that was replaced.
    creating.kill().unwrap();
    creating.wait().unwrap();
    engine.ok(&["down"]);
    ok(&engine, &["create", "box"]);
    let of_process = ["exec", "box", "stat", "-c", "%Y", "/proc/1"];
    let (first, started) = (engine.pid(), engine.ok(&of_process));
    let up = engine.run(&["up", "--detach", "--router-listen", "127.0.0.1:0"]);
    let said = String::from_utf8(up.stderr).unwrap();
    assert!(up.status.success() && said.contains("continue with one that stays"), "{said}{}", engine.log());
    assert_ne!(engine.pid(), first);
    assert_eq!(engine.ok(&of_process), started, "the sandbox was not stopped");
    stays(&engine, "it does not end when it is not used");
    let folder = std::fs::read_link(format!("/proc/{}/cwd", engine.pid())).unwrap();
    assert_eq!(folder, std::path::Path::new("/"), "it keeps no folder in use");
    let (_, _, said) = engine.fails(&["up", "--detach"]);
    assert!(said.contains("the engine already runs here"), "{said}");
}

/// Every command with which a day begins starts the engine, and says so once.
fn claim_shell_and_mcp_start_the_engine(mode: Mode) {
    const NOTE: &str = "note: started the engine on this machine";
    let Some(engine) = Engine::stopped_as(mode) else { return };
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let output = command(&engine, &["claim", "python-sandbox-template", "--name", "mine"]).output().unwrap();
    assert!(output.status.success() && said(&output).matches(NOTE).count() == 1, "{output:?}");
    engine.ok(&["down"]);
    // The claim's sandbox is started again, and the shell waits for no terminal.
    let output = ok(&engine, &["shell", "mine"]);
    assert_eq!(said(&output).matches(NOTE).count(), 1, "{output:?}");
    engine.ok(&["down"]);
    let mut mcp = command(&engine, &["mcp"]);
    let mut server = mcp.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
    let mut input = server.stdin.take().unwrap();
    writeln!(input, "{hello}").unwrap();
    let answer = BufReader::new(server.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(answer.contains("serverInfo"), "{answer}");
    assert!(engine.data().join("up.json").exists(), "{}", engine.log());
    drop(input);
    let output = server.wait_with_output().unwrap();
    assert_eq!(said(&output).matches(NOTE).count(), 1, "{output:?}");
}
