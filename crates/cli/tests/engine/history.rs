//! `history`: commands of every client, with exit code, time and output, also after a suspend.

use crate::fixture::{Engine, Mode, eventually, in_both_modes};
use crate::terminals::on_terminal;
use serde_json::Value;
use std::process::Stdio;

in_both_modes! {
    shells_and_commands_that_lost_their_reader_are_recorded,
}

fn entries(engine: &Engine) -> Vec<Value> {
    serde_json::from_str(&engine.ok(&["history", "box", "-o", "json"])).unwrap()
}

#[test]
fn past_commands_are_listed_with_exit_code_time_and_output() {
    let Some(engine) = Engine::start_with(&["--warm", "0"]) else { return };
    engine.ok(&["create", "box"]);
    assert_eq!(engine.ok(&["history", "box"]), "ID   AGE   TOOK   EXIT   COMMAND\n");
    engine.ok(&["exec", "box", "--", "echo", "first words"]);
    engine.fails(&["exec", "-e", "A=b", "-w", "/usr", "box", "--", "sh", "-c", "echo $A $PWD; echo bad >&2; exit 3"]);
    engine.fails(&["exec", "box", "--", "no-such-program"]);
    let list = engine.ok(&["history", "box"]);
    let lines: Vec<Vec<&str>> = list.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 3, "{list}");
    assert_eq!((lines[0][0], lines[0][3], lines[0][4..].join(" ").as_str()), ("1", "0", "echo 'first words'"));
    let script = "echo $A $PWD; echo bad >&2; exit 3";
    assert_eq!((lines[1][3], lines[1][4..].join(" ").as_str()), ("3", script), "{list}");
    assert_eq!((lines[2][3], lines[2][4]), ("127", "no-such-program"));
    let output = engine.run(&["history", "box", "2"]);
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"b /usr\n"[..], &b"bad\n"[..]));
    assert_eq!(engine.ok(&["history", "box", "--tail", "1", "-o", "name"]), "3\n");
    let (_, _, said) = engine.fails(&["history", "box", "77"]);
    assert!(said.contains("no command 77"), "{said}");

    engine.ok(&["suspend", "box"]);
    let (_, _, said) = engine.fails(&["history", "box"]);
    assert!(said.contains("suspended"), "{said}");
    engine.ok(&["resume", "box"]);
    engine.ok(&["exec", "box", "true"]);
    let ids: Vec<Value> = entries(&engine).iter().map(|entry| entry["id"].clone()).collect();
    assert_eq!(ids, [1, 2, 3, 4], "suspend keeps the history");
    assert_eq!(engine.ok(&["history", "box", "1"]), "first words\n");
}

/// A shell is one entry with what its terminal showed. A command whose reader has gone is one, too.
fn shells_and_commands_that_lost_their_reader_are_recorded(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    engine.ok(&["create", "box"]);
    let Some(_) = on_terminal(&engine, "shell box", "echo sum-$((40+2))\nexit\n") else { return };
    let mut yes = engine.command(&["exec", "box", "yes"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(yes.stdout.take());
    yes.wait().unwrap();
    eventually("both are recorded", || entries(&engine).len() == 2);
    let list = entries(&engine);
    assert_eq!((&list[0]["argv"][0], &list[0]["exitCode"]), (&Value::from("shell"), &Value::from(0)), "{list:?}");
    assert!(engine.ok(&["history", "box", "1"]).contains("sum-42"));
    assert_eq!(list[1]["exitCode"], 137);
    let kept = engine.ok(&["history", "box", "2"]);
    assert!(kept.starts_with("y\ny\n") && kept.len() < 40_000, "{}", kept.len());
}
