//! `changes diff`: a unified diff, in colour and through a pager on a terminal.

use super::{
    text::quoted,
    view::{Seen, View},
};
use crate::output::{self, visible};
use agent_sandbox_node::changes::{Kind, Tree};
use anyhow::Result;
use similar::{ChangeTag, TextDiff};
use std::{
    fmt::Write as _,
    io::{IsTerminal as _, Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

/// Larger files are only named.
const MAX_BYTES: u64 = 1 << 20;
/// Time for the comparison of one file; then a coarser diff is shown.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Lines around a change.
const CONTEXT: usize = 3;

const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const CYAN: &str = "\x1b[36m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// Prints the diff of all copies.
pub(super) fn show(views: &[View]) -> Result<()> {
    let terminal = std::io::stdout().is_terminal();
    let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut printer = Printer { terminal, colour, out: String::new() };
    for view in views {
        if views.len() > 1 {
            printer.line(BOLD, &format!("in {}", quoted(&view.copy.info.source)));
        }
        for seen in &view.seen {
            printer.change(view, seen);
        }
    }
    match terminal && !printer.out.is_empty() {
        true => page(&printer.out),
        false => output::print(&printer.out),
    }
}

struct Printer {
    /// What a sandbox wrote must not reach a terminal as it is; a file gets it unchanged.
    terminal: bool,
    colour: bool,
    out: String,
}

impl Printer {
    fn line(&mut self, style: &str, text: &str) {
        let text = if self.terminal { visible(text) } else { text.to_owned() };
        let _ = match self.colour && !style.is_empty() {
            true => writeln!(self.out, "{style}{text}{PLAIN}"),
            false => writeln!(self.out, "{text}"),
        };
    }

    fn change(&mut self, view: &View, seen: &Seen) {
        let change = &seen.change;
        let folder = |kind: Option<Kind>| kind.is_none_or(|kind| kind == Kind::Folder);
        let kinds = (change.before.map(|entry| entry.kind), change.after.map(|entry| entry.kind));
        let (a, b) = (Path::new("a").join(&change.path), Path::new("b").join(&change.path));
        self.line(BOLD, &format!("diff {} {}", quoted(&a), quoted(&b)));
        if let Some(risk) = seen.risk {
            self.line(RED, &format!("risk: {}", risk.name()));
        }
        match (change.before, change.after) {
            (None, Some(after)) => self.line(BOLD, &format!("new {} mode {:04o}", after.kind.name(), after.mode)),
            (Some(before), None) => {
                self.line(BOLD, &format!("deleted {} mode {:04o}", before.kind.name(), before.mode))
            }
            (Some(before), Some(after)) if before.kind != after.kind => {
                self.line(BOLD, &format!("{} becomes {}", before.kind.name(), after.kind.name()));
            }
            (Some(before), Some(after)) if before.mode != after.mode && after.kind != Kind::Link => {
                self.line(BOLD, &format!("old mode {:04o}", before.mode));
                self.line(BOLD, &format!("new mode {:04o}", after.mode));
            }
            _ => {}
        }
        if folder(kinds.0) && folder(kinds.1) {
            return;
        }
        let (old, new) = (content(&view.source, &change.path, kinds.0), content(&view.upper, &change.path, kinds.1));
        let name = |path: &Path, kind: Option<Kind>| match kind {
            None | Some(Kind::Folder) => "/dev/null".to_owned(),
            Some(_) => quoted(path),
        };
        let (a, b) = (name(&a, kinds.0), name(&b, kinds.1));
        match (old, new) {
            (Some(old), Some(new)) => self.unified(&old, &new, &a, &b),
            _ => self.line("", &format!("Binary files {a} and {b} differ")),
        }
    }

    fn unified(&mut self, old: &str, new: &str, a: &str, b: &str) {
        if old == new {
            return;
        }
        self.line(BOLD, &format!("--- {a}"));
        self.line(BOLD, &format!("+++ {b}"));
        let diff = TextDiff::configure().timeout(TIMEOUT).diff_lines(old, new);
        for hunk in diff.unified_diff().context_radius(CONTEXT).iter_hunks() {
            self.line(CYAN, &hunk.header().to_string());
            for change in hunk.iter_changes() {
                let (sign, style) = match change.tag() {
                    ChangeTag::Delete => ("-", RED),
                    ChangeTag::Insert => ("+", GREEN),
                    ChangeTag::Equal => (" ", ""),
                };
                let value = change.value();
                self.line(style, &format!("{sign}{}", value.strip_suffix('\n').unwrap_or(value)));
                if change.missing_newline() {
                    self.line("", "\\ No newline at end of file");
                }
            }
        }
    }
}

/// The text of a file, or the target of a link; `None` for what is not text, or too large.
fn content(tree: &Tree, path: &Path, kind: Option<Kind>) -> Option<String> {
    match kind {
        None | Some(Kind::Folder) => Some(String::new()),
        Some(Kind::Link) => tree.link(path).ok()?.into_string().ok(),
        Some(Kind::File) => {
            let mut bytes = Vec::new();
            tree.file(path).ok()?.take(MAX_BYTES + 1).read_to_end(&mut bytes).ok()?;
            let fits = u64::try_from(bytes.len()).is_ok_and(|length| length <= MAX_BYTES) && !bytes.contains(&0);
            fits.then(|| String::from_utf8(bytes).ok()).flatten()
        }
        Some(_) => None,
    }
}

/// Shows a text through `PAGER`, or `less`; without either it is printed.
fn page(text: &str) -> Result<()> {
    let chosen = std::env::var("PAGER").ok().filter(|pager| !pager.is_empty());
    let mut command = match &chosen {
        Some(pager) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", pager]);
            shell
        }
        None => {
            let mut less = Command::new("less");
            less.arg("-FRX");
            less
        }
    };
    let Ok(mut child) = command.stdin(Stdio::piped()).spawn() else { return output::print(text) };
    if let Some(mut input) = child.stdin.take() {
        // The user may leave before the end.
        let _ = input.write_all(text.as_bytes());
    }
    child.wait()?;
    Ok(())
}
