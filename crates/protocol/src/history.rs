//! The history of a sandbox: commands that have ended, with their exit codes, times and output.

use serde::{Deserialize, Serialize};

use crate::capture::Capture;

/// Number of bytes kept of each output stream of one command: the first and the last half.
pub const OUTPUT_LIMIT: usize = 32 * 1024;

/// Number of bytes kept of a command line.
const COMMAND_LIMIT: usize = 4096;

/// `$0` of the shell in which `agent-sandbox exec` sets variables, folder and user of a command. The command follows
/// `--`, the folder and the user.
pub const EXEC_WRAPPER: &str = "agent-sandbox-exec";
/// `$0` of the script of `agent-sandbox shell`.
pub const SHELL_WRAPPER: &str = "agent-sandbox-shell";

/// A command that has ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Counts the sandbox's commands from 1.
    #[serde(default)]
    pub id: i32,
    pub argv: Vec<String>,
    /// 128 + N when signal N ended the command, 124 when it timed out.
    pub exit_code: i32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed_out: bool,
    /// RFC 3339.
    pub started_at: String,
    pub duration_ms: u64,
    /// Bytes that the command wrote.
    #[serde(default)]
    pub stdout_bytes: u64,
    #[serde(default)]
    pub stderr_bytes: u64,
    /// What is kept of the output; absent in lists. A terminal's output is all in `stdout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
}

/// Response of `GET /sandbox/v1/history`, oldest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct History {
    pub entries: Vec<Entry>,
}

impl Entry {
    /// An entry for a command that starts. `started_at` is RFC 3339.
    pub fn started(argv: &[String], started_at: String) -> Self {
        Self { argv: recorded_command(argv), started_at, ..Self::default() }
    }

    /// Adds what is kept of the output.
    pub fn with_output(mut self, stdout: &Capture, stderr: &Capture) -> Self {
        let text = |capture: &Capture| {
            let bytes = capture.excerpt(OUTPUT_LIMIT).into_bytes();
            (capture.total(), Some(String::from_utf8_lossy(&bytes).into_owned()))
        };
        (self.stdout_bytes, self.stdout) = text(stdout);
        (self.stderr_bytes, self.stderr) = text(stderr);
        self
    }

    /// The command as a line for people: shell text as it was given, other words quoted where a shell needs it.
    pub fn command_line(&self) -> String {
        match self.argv.as_slice() {
            [shell, flag, text] if flag == "-c" && is_shell(shell) => text.clone(),
            words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
        }
    }

    /// Number of bytes that the entry takes in memory, about.
    pub fn size(&self) -> usize {
        let words: usize = self.argv.iter().map(String::len).sum();
        let output = [&self.stdout, &self.stderr].into_iter().flatten().map(String::len).sum::<usize>();
        words + output + size_of::<Self>()
    }
}

/// The command that a user asked for, without the shell that `agent-sandbox exec` put around it, and not longer than
/// the limit.
fn recorded_command(argv: &[String]) -> Vec<String> {
    let command = match argv.get(3).map(String::as_str) {
        Some(EXEC_WRAPPER) => argv.iter().position(|word| word == "--").and_then(|end| argv.get(end + 3..)),
        Some(SHELL_WRAPPER) => return vec!["shell".to_owned()],
        _ => None,
    };
    match command {
        Some(command) => recorded_command(command),
        None => shortened(argv),
    }
}

fn shortened(argv: &[String]) -> Vec<String> {
    let mut room = COMMAND_LIMIT;
    let mut words = Vec::new();
    for word in argv {
        if word.len() > room {
            words.push(format!("{}…", &word[..word.floor_char_boundary(room)]));
            break;
        }
        room -= word.len();
        words.push(word.clone());
    }
    words
}

fn is_shell(program: &str) -> bool {
    matches!(program.rsplit('/').next(), Some("sh" | "bash" | "dash" | "zsh" | "ash"))
}

fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,@%+".contains(&byte) || byte >= 0x80;
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn line(argv: &[&str]) -> String {
        Entry::started(&words(argv), String::new()).command_line()
    }

    #[test]
    fn the_line_is_what_the_user_asked_for() {
        assert_eq!(line(&["ls", "-la", "a b", "it's"]), r"ls -la 'a b' 'it'\''s'");
        assert_eq!(line(&["/bin/sh", "-c", "echo hi | wc"]), "echo hi | wc");
        assert_eq!(line(&["grep", "-c", "x"]), "grep -c x");
        let wrapped =
            ["/bin/sh", "-c", "script", EXEC_WRAPPER, "80x24", "TERM=xterm", "--", "/tmp", "", "ls", "--", "x"];
        assert_eq!(line(&wrapped), "ls -- x");
        assert_eq!(line(&["/bin/sh", "-c", "script", SHELL_WRAPPER]), "shell");
        let both = ["/bin/sh", "-c", "s", EXEC_WRAPPER, "", "--", "", "", "/bin/sh", "-c", "s", SHELL_WRAPPER];
        assert_eq!(line(&both), "shell");
    }

    #[test]
    fn long_commands_are_cut() {
        let entry = Entry::started(&words(&["echo", &"ä".repeat(4096), "more"]), String::new());
        assert_eq!(entry.argv.len(), 2);
        assert!(entry.argv[1].ends_with('…') && entry.size() < COMMAND_LIMIT + 1024);
    }
}
