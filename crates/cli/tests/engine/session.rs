//! A day at the terminal, typed into tmux: create a sandbox, open a shell, edit with vim, install with pip, test with
//! pytest, pipe into head, and look at the history.

use crate::fixture::{Engine, Mode, eventually, in_both_modes};
use std::process::{Command, Stdio};

in_both_modes! {
    a_session_from_create_to_history,
    a_running_command_follows_the_size_of_the_terminal,
}

/// A tmux server of the test's own, which ends with it.
struct Terminal {
    socket: std::path::PathBuf,
}

impl Terminal {
    /// A shell in a terminal of 100 columns and 30 rows. `None` without tmux.
    fn open(engine: &Engine) -> Option<Self> {
        let terminal = Self { socket: engine.folder.path().join("tmux") };
        if Command::new("tmux").arg("-V").output().is_err() {
            skip("tmux is not here");
            return None;
        }
        let session = ["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "env PS1='outside$ ' sh"];
        // The server keeps the environment of the command that starts it.
        let mut command = terminal.command(&session);
        engine.set_environment(&mut command);
        command.status().unwrap();
        terminal.shows("outside$");
        Some(terminal)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).args(words).env_remove("TMUX").stdin(Stdio::null());
        command
    }

    fn tmux(&self, words: &[&str]) -> String {
        String::from_utf8_lossy(&self.command(words).output().unwrap().stdout).into_owned()
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-J"])
    }

    fn shows(&self, text: &str) {
        eventually(&format!("the terminal shows {text:?}"), || {
            let screen = self.screen();
            if !screen.contains(text) {
                // Shown only if the test fails.
                eprintln!("{screen}");
            }
            screen.contains(text)
        });
    }

    /// Types a line on a cleared screen, and waits for `text`.
    fn line(&self, line: &str, text: &str) {
        self.tmux(&["send-keys", "-R", ";", "clear-history"]);
        self.tmux(&["send-keys", "-l", line]);
        self.tmux(&["send-keys", "Enter"]);
        self.shows(text);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// Says what is missing; where everything has to be tested, that fails.
fn skip(why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{why}");
    eprintln!("SKIPPED: {why}");
}

fn a_running_command_follows_the_size_of_the_terminal(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    let Some(terminal) = Terminal::open(&engine) else { return };
    let program = format!("{} --data-dir {}", engine.program().display(), engine.data().display());
    terminal.line(&format!("alias box='{program}'; echo set-$((40+2))"), "set-42");
    terminal.line("box create box; echo code-$?", "code-0");
    let script = "trap 'echo now $(stty size)' WINCH; echo begun-$((40+2)); while :; do sleep 0.1; done";
    for (width, command) in [("111", "box exec -it box"), ("122", "box run -it")] {
        terminal.line(&format!("{command} -- bash -c \"{}\"", script.replace('$', "\\$")), "begun-42");
        terminal.tmux(&["resize-window", "-x", width, "-y", "40"]);
        terminal.shows(&format!(" {width}"));
        terminal.tmux(&["send-keys", "C-c"]);
        terminal.shows("outside$");
    }
}

fn a_session_from_create_to_history(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    let Some(terminal) = Terminal::open(&engine) else { return };
    let program = format!("{} --data-dir {}", engine.program().display(), engine.data().display());
    terminal.line(&format!("alias box='{program}'; echo set-$((40+2))"), "set-42");
    terminal.line("box create box; echo code-$?", "code-0");
    let has = |words: &[&str]| engine.run(&[&["exec", "box", "--"], words].concat()).status.success();
    if !has(&["sh", "-c", "command -v vim && command -v pip"]) {
        return skip("this host has no vim, or no pip of a Python below /usr");
    }
    // What a package index would serve; sandboxes of this test have no network.
    let wheels = engine.folder.path().join("wheels");
    let download = Command::new("python3").args(["-m", "pip", "download", "-q", "pytest", "-d"]).arg(&wheels).output();
    if !download.is_ok_and(|output| output.status.success()) {
        return skip("pip cannot download pytest here");
    }
    engine.ok(&["cp", wheels.to_str().unwrap(), "box:wheels"]);

    terminal.line("box shell box", "(box)");
    terminal.line("vim test_sum.py", "test_sum.py");
    terminal.tmux(&["send-keys", "i"]);
    terminal.shows("INSERT");
    terminal.tmux(&["send-keys", "-l", "def test_sum():"]);
    terminal.tmux(&["send-keys", "Enter"]);
    terminal.tmux(&["send-keys", "-l", "    assert 40 + 2 == 42"]);
    terminal.tmux(&["send-keys", "Escape"]);
    terminal.line(":wq", "(box)");
    terminal.line("pip install --no-index --find-links wheels pytest; echo code-$?", "code-0");
    terminal.line("pytest -q; echo code-$?", "code-0");
    terminal.shows("1 passed");
    terminal.line("yes | head -1; echo code-$?", "code-0");
    terminal.line("exit", "outside$");
    terminal.line("box exec box -- yes | head -1; echo piped-$((40+2))", "piped-42");
    terminal.line("box history box", "shell");
    eventually("the pipe's command is in the history", || {
        engine.ok(&["history", "box"]).lines().last().is_some_and(|line| line.ends_with("yes"))
    });
}
