//! Commands with a terminal: its type, language and size arrive inside, and programs that need them work.

use crate::fixture::{Engine, Mode, in_both_modes};
use std::{
    io::Write as _,
    process::{Command, Stdio},
};

in_both_modes! {
    terminals_keep_their_type_language_and_size,
}

/// Runs a command under a pseudo-terminal of 33 rows and 77 columns, types `typed` into it, and returns what is shown.
/// `None`, with a message, where no program can make a pseudo-terminal.
pub(crate) fn on_terminal(engine: &Engine, words: &str, typed: &str) -> Option<String> {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("SKIPPED: util-linux's `script` is not here");
        return None;
    }
    let program = engine.program().display();
    let whole = format!("stty rows 33 cols 77; {program} --data-dir {} {words}", engine.data().display());
    let mut script = Command::new("script");
    script.args(["-qec", &whole, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    script.env("TERM", "screen-256color").env("COLORTERM", "truecolor").env("LANG", "C.UTF-8");
    engine.set_environment(&mut script);
    let mut child = script.spawn().unwrap();
    // Held open: when it is closed, `script` types an end-of-file character into the terminal.
    let mut typing = child.stdin.take().unwrap();
    typing.write_all(typed.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Some(String::from_utf8_lossy(&output.stdout).replace('\r', ""))
}

const INSIDE: &str = "echo $TERM $COLORTERM $LANG; stty size; command -v clear >/dev/null && clear && echo cleared";

fn terminals_keep_their_type_language_and_size(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &[]) else { return };
    engine.ok(&["create", "box"]);
    for command in ["exec -it box -- sh -c", "run -it -- sh -c"] {
        let Some(said) = on_terminal(&engine, &format!("{command} '{INSIDE}'"), "") else { return };
        assert!(said.contains("screen-256color truecolor C.UTF-8\n33 77\n"), "{command}: {said}");
        assert!(said.ends_with("cleared\n"), "{command}: {said}");
    }
    let own = on_terminal(&engine, "run -it -e TERM=vt100 -- sh -c 'echo $TERM'", "").unwrap();
    assert!(own.contains("vt100\n"), "--env wins: {own}");
    let said = on_terminal(&engine, "shell box", "echo \"$TERM:$((40+2))\"\nexit\n").unwrap();
    assert!(said.contains("(box) "), "the prompt shows the name: {said}");
    assert!(said.contains("screen-256color:42\n"), "{said}");
}

#[test]
fn q_ends_top() {
    let Some(engine) = Engine::start() else { return };
    let Some(said) = on_terminal(&engine, "top --interval 200ms", "q") else { return };
    assert!(!said.contains("error"), "{said}");
}

#[test]
fn purge_asks_on_a_terminal() {
    let Some(engine) = Engine::start_with(&["--warm", "0"]) else { return };
    let Some(said) = on_terminal(&engine, "down --purge", "n\n") else { return };
    assert!(said.contains("[y/N]") && said.contains("nothing was stopped or deleted"), "{said}");
    engine.ok(&["status"]);
    let said = on_terminal(&engine, "down --purge", "y\n").unwrap();
    assert!(said.contains("is deleted"), "{said}");
    assert!(!engine.data().exists());
}
