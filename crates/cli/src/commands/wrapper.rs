//! Wraps a command for `exec` and `shell`: the Kubernetes API can run a command in a container, but cannot set its
//! environment, working directory or time limit. A shell inside the sandbox sets them and then executes the command.

use crate::terminal;
use agent_sandbox_client::history::{EXEC_WRAPPER, SHELL_WRAPPER};

/// Sets the terminal's size, exports the variables up to `--`, enters the folder, and executes the command as the user.
/// The size also arrives over the connection, but perhaps only after the command has asked for it.
const SCRIPT: &str = r#"[ -z "$1" ] || stty rows "${1#*x}" cols "${1%x*}" 2>/dev/null; shift
while [ "$1" != -- ]; do export "$1"; shift; done; shift
[ -z "$1" ] || cd -- "$1" || exit 126; shift
if [ -z "$1" ] || [ "$1" = "$(id -u)" ] || [ "$1" = "$(id -un 2>/dev/null)" ]; then shift; exec "$@"; fi
if [ "$(id -u)" != 0 ]; then
  echo "cannot run as $1: commands in this sandbox run as user $(id -u), who may not change that" >&2; exit 126
fi
agent_sandbox_user=$1; shift
agent_sandbox_group=$(id -g "$agent_sandbox_user" 2>/dev/null) || agent_sandbox_group=$agent_sandbox_user
exec setpriv --reuid "$agent_sandbox_user" --regid "$agent_sandbox_group" --clear-groups -- "$@""#;

/// Starts bash where it is installed, else sh. bash reads its start-up files, which set a prompt, before the first
/// PROMPT_COMMAND.
const SHELL: &str = r#"if command -v bash >/dev/null 2>&1; then
  export PROMPT_COMMAND='PS1="($AGENT_SANDBOX_NAME) $PS1"; unset PROMPT_COMMAND'; exec bash
fi
export PS1="($AGENT_SANDBOX_NAME) \$ "; exec sh"#;

/// What a command runs with, besides what its container has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Surroundings {
    pub(crate) env: Vec<(String, String)>,
    /// Columns and rows of the terminal.
    pub(crate) size: Option<(u16, u16)>,
    pub(crate) working_dir: Option<String>,
    /// Name or id.
    pub(crate) user: Option<String>,
}

impl Surroundings {
    /// Those of a command with a terminal: this terminal's type, language and size.
    pub(crate) fn of_terminal() -> Self {
        let env = terminal::environment(|name| std::env::var(name).ok());
        Self { env, size: terminal::size(), ..Self::default() }
    }

    /// The command to run in the sandbox. Without surroundings it is the command itself, which then needs no shell.
    pub(crate) fn wrap(&self, command: &[String]) -> Vec<String> {
        if *self == Self::default() {
            return command.to_vec();
        }
        let size = self.size.map(|(columns, rows)| format!("{columns}x{rows}")).unwrap_or_default();
        let variables = self.env.iter().map(|(name, value)| format!("{name}={value}"));
        let start = ["/bin/sh", "-c", SCRIPT, EXEC_WRAPPER].map(str::to_owned).into_iter();
        let (folder, user) = (self.working_dir.clone().unwrap_or_default(), self.user.clone().unwrap_or_default());
        let end = ["--".to_owned(), folder, user];
        start.chain([size]).chain(variables).chain(end).chain(command.iter().cloned()).collect()
    }
}

/// The command of `shell`, whose prompt shows the sandbox's name.
pub(crate) fn shell(name: &str) -> Vec<String> {
    let script = format!("AGENT_SANDBOX_NAME={name}; export AGENT_SANDBOX_NAME\n{SHELL}");
    vec!["/bin/sh".to_owned(), "-c".to_owned(), script, SHELL_WRAPPER.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn run(surroundings: &Surroundings, command: &[&str]) -> String {
        let words = surroundings.wrap(&command.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        let output = Command::new(&words[0]).args(&words[1..]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn values_and_arguments_arrive_unchanged() {
        let odd = "a b'c\"d$HOME`x`\\ --";
        let surroundings = Surroundings { env: vec![("ODD".to_owned(), odd.to_owned())], ..Surroundings::default() };
        assert_eq!(
            run(&surroundings, &["sh", "-c", "printf '%s|' \"$ODD\" \"$@\"", "sh", odd, "--"]),
            format!("{odd}|{odd}|--|")
        );
    }

    #[test]
    fn a_command_starts_in_the_folder_as_the_user() {
        let inside = |folder: &str| Surroundings { working_dir: Some(folder.to_owned()), ..Surroundings::default() };
        assert_eq!(run(&inside("/usr/bin"), &["pwd"]), "/usr/bin\n");
        assert_eq!(run(&inside("/no/such/folder"), &["pwd"]), "");
        let own = String::from_utf8(Command::new("id").arg("-u").output().unwrap().stdout).unwrap();
        let as_user = |user: &str| Surroundings { user: Some(user.to_owned()), ..Surroundings::default() };
        assert_eq!(run(&as_user(own.trim()), &["id", "-u"]), own);
        let other = if own.trim() == "0" { "65534\n" } else { "" };
        assert_eq!(run(&as_user("65534"), &["id", "-u"]), other, "only root may change it");
    }

    #[test]
    fn a_command_without_surroundings_needs_no_shell() {
        assert_eq!(Surroundings::default().wrap(&["ls".to_owned()]), ["ls"]);
    }
}
