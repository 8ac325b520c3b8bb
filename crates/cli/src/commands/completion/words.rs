//! Decides which names the last word of an unfinished command line may be, and for which cluster.

use crate::args::GlobalArgs;
use clap::{Arg, Command};
use std::path::PathBuf;

/// Objects with names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameKind {
    /// Sandboxes and claims.
    Sandboxes,
    Pools,
    Templates,
    /// Pools and templates.
    Sources,
    Snapshots,
    Images,
}

/// The names that complete the last word, with the flags of the line that choose the cluster. `None` if the word is
/// something else.
pub(super) fn wanted(cli: &Command, global: &GlobalArgs, words: &[String]) -> Option<(NameKind, GlobalArgs)> {
    let mut line = Line { cli, command: cli, path: Vec::new(), positionals: 0, global: global.clone() };
    let (last, before) = words.split_last()?;
    let mut before = before.iter().map(String::as_str);
    while let Some(word) = before.next() {
        if word == "--" {
            return None;
        }
        let Some(flag) = line.flag(word) else {
            line.add(word);
            continue;
        };
        if !flag.get_action().takes_values() {
            continue;
        }
        let value = match word.split_once('=') {
            Some((_, value)) => Some(value),
            // bash makes a word of each `=`.
            None => before.next().and_then(|next| if next == "=" { before.next() } else { Some(next) }),
        };
        match value {
            Some(value) => line.set(flag.get_id().as_str(), value),
            None => return Some((of_flag(flag.get_id().as_str())?, line.global)),
        }
    }
    if last.starts_with('-') {
        return None;
    }
    Some((of_positional(&line.path, line.positionals)?, line.global))
}

/// What the words before the last one say.
struct Line<'a> {
    cli: &'a Command,
    command: &'a Command,
    /// Names of the command and its subcommand.
    path: Vec<&'a str>,
    /// Number of words that are neither commands nor flags.
    positionals: usize,
    global: GlobalArgs,
}

impl<'a> Line<'a> {
    /// The flag that a word is.
    fn flag(&self, word: &str) -> Option<&'a Arg> {
        let mut known = self.command.get_arguments().chain(self.cli.get_arguments());
        match word.strip_prefix("--") {
            Some(long) => {
                let long = long.split_once('=').map_or(long, |(long, _)| long);
                known.find(|arg| arg.get_long() == Some(long))
            }
            None => {
                let short = word.strip_prefix('-')?.chars().next_back()?;
                known.find(|arg| arg.get_short() == Some(short))
            }
        }
    }

    /// A word that is no known flag.
    fn add(&mut self, word: &str) {
        match self.command.find_subcommand(word) {
            Some(command) if self.positionals == 0 => {
                self.path.push(command.get_name());
                self.command = command;
            }
            _ if word.starts_with('-') => {}
            _ => self.positionals += 1,
        }
    }

    fn set(&mut self, flag: &str, value: &str) {
        let own = value.to_owned();
        match flag {
            "kubeconfig" => self.global.kubeconfig = Some(own),
            "context" => self.global.context = Some(own),
            "namespace" => self.global.namespace = Some(own),
            "data_dir" => self.global.data_dir = Some(PathBuf::from(own)),
            _ => {}
        }
    }
}

fn of_flag(flag: &str) -> Option<NameKind> {
    match flag {
        "image" => Some(NameKind::Images),
        "template" => Some(NameKind::Templates),
        "snapshot" => Some(NameKind::Snapshots),
        _ => None,
    }
}

fn of_positional(path: &[&str], index: usize) -> Option<NameKind> {
    use NameKind::{Images, Pools, Sandboxes, Snapshots, Sources, Templates};
    match (path, index) {
        (["cp" | "suspend" | "resume" | "keep-alive" | "delete"], _) => Some(Sandboxes),
        (["exec" | "shell" | "get" | "logs" | "history" | "changes" | "port-forward" | "url"], 0)
        | (["fork" | "rollback"] | ["snapshot", "create" | "list"] | ["egress" | "changes", _], 0) => Some(Sandboxes),
        (["rollback"], 1) | (["snapshot", "delete"], _) => Some(Snapshots),
        (["claim"], 0) => Some(Sources),
        (["pool", "scale" | "delete"], 0) => Some(Pools),
        (["template", "delete"], 0) => Some(Templates),
        (["image", "remove"], _) | (["image", "pull"], 0) => Some(Images),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory as _;

    fn complete(line: &str) -> Option<(NameKind, GlobalArgs)> {
        let global = GlobalArgs { kubeconfig: None, context: None, namespace: None, data_dir: None, verbose: 0 };
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        wanted(&Cli::command(), &global, &words)
    }

    #[test]
    fn each_word_has_its_kind_of_names() {
        use NameKind::{Images, Pools, Sandboxes, Snapshots, Sources, Templates};
        for (line, kind) in [
            ("exec ", Some(Sandboxes)),
            ("exec -it -w /usr b", Some(Sandboxes)),
            ("exec box ", None),
            ("exec box -- l", None),
            ("exec --", None),
            ("stop a ", Some(Sandboxes)),
            ("rm -f a b", Some(Sandboxes)),
            ("cp file box", Some(Sandboxes)),
            ("fork ", Some(Sandboxes)),
            ("fork box ", None),
            ("rollback box ", Some(Snapshots)),
            ("snapshot create ", Some(Sandboxes)),
            ("snapshot rm a ", Some(Snapshots)),
            ("snapshot ", None),
            ("url ", Some(Sandboxes)),
            ("url revoke ", None),
            ("changes ", Some(Sandboxes)),
            ("changes apply ", Some(Sandboxes)),
            ("egress log ", Some(Sandboxes)),
            ("claim ", Some(Sources)),
            ("pool scale ", Some(Pools)),
            ("pool create ", None),
            ("pool create p --template ", Some(Templates)),
            ("create box --template t", Some(Templates)),
            ("create --image = x", Some(Images)),
            ("create --snapshot ", Some(Snapshots)),
            ("create ", None),
            ("run --image ", Some(Images)),
            ("image rm ", Some(Images)),
            ("template rm ", Some(Templates)),
            ("--namespace ", None),
            ("e", None),
        ] {
            assert_eq!(complete(line).map(|(kind, _)| kind), kind, "{line}");
        }
    }

    #[test]
    fn flags_of_the_line_choose_the_cluster() {
        let (_, global) = complete("--data-dir /d -n = other exec --kubeconfig=/k --context c b").unwrap();
        assert_eq!((global.namespace.as_deref(), global.context.as_deref()), (Some("other"), Some("c")));
        assert_eq!((global.kubeconfig.as_deref(), global.data_dir), (Some("/k"), Some("/d".into())));
    }
}
