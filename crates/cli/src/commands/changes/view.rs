//! The changes of a copy with everything that is shown about them: risks and conflicts.

use super::{
    find::{self, Group},
    text::quoted,
};
use crate::commands::here::GIT;
use agent_sandbox_engine::DataDir;
use agent_sandbox_node::changes::{Change, Copy, Kind, Moved, Risk, Tree, What, conflicts::Base, risks::Risks};
use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// Maximum number of lines of a list for people.
const MAX_LINES: usize = 200;

/// A change, and what is to be said about it.
pub(super) struct Seen {
    pub(super) change: Change,
    pub(super) risk: Option<Risk>,
    pub(super) moved: Option<Moved>,
}

/// A copy, compared with the real folder.
pub(super) struct View {
    pub(super) copy: Copy,
    pub(super) source: Tree,
    pub(super) upper: Tree,
    pub(super) base: Base,
    pub(super) seen: Vec<Seen>,
    pub(super) unreadable: Vec<(PathBuf, std::io::Error)>,
}

impl View {
    fn read(copy: &Copy) -> Result<Self> {
        let failed = || format!("cannot compare the copy of {}", copy.info.source.display());
        let (source, upper) = (copy.source()?, copy.upper_tree().with_context(failed)?);
        let diff = copy.diff().with_context(failed)?;
        let base = copy.base().with_context(failed)?;
        let risks = Risks::new(copy.info.volume == GIT);
        let mut found = Vec::new();
        for change in &diff.changes {
            let is_link = change.after.is_some_and(|after| after.kind == Kind::Link);
            let link = is_link.then(|| upper.link(&change.path).ok()).flatten();
            let risk = risks.of(change, link.as_deref());
            let now = source.entry(&change.path).with_context(failed)?;
            found.push((risk, base.moved(&source, &change.path, now.as_ref())));
        }
        let seen = diff.changes.into_iter().zip(found);
        let seen = seen.map(|(change, (risk, moved))| Seen { change, risk, moved }).collect();
        Ok(Self { copy: copy.clone(), source, upper, base, seen, unreadable: diff.unreadable })
    }

    /// Numbers of added, changed and deleted paths.
    pub(super) fn counts(&self) -> [usize; 3] {
        let count = |what: What| self.seen.iter().filter(|seen| seen.change.what == what).count();
        [count(What::Added), count(What::Changed), count(What::Deleted)]
    }

    /// Keeps only what is at or below one of the paths, which are absolute.
    fn keep(&mut self, paths: &[PathBuf]) {
        let source = self.copy.info.source.clone();
        let below = |path: &Path| paths.iter().any(|kept| source.join(path).starts_with(kept));
        self.seen.retain(|seen| below(&seen.change.path));
        self.unreadable.retain(|(path, _)| below(path));
    }
}

/// Compares every copy of a group; with paths, only what is at or below them.
pub(super) fn read(group: &Group, paths: &[PathBuf]) -> Result<Vec<View>> {
    let mut views = group.copies.iter().map(View::read).collect::<Result<Vec<_>>>()?;
    if paths.is_empty() {
        return Ok(views);
    }
    let here = group.copies.first().map(|copy| copy.info.source.clone()).unwrap_or_default();
    let current = std::env::current_dir().unwrap_or_default();
    // Paths are relative to the current folder, as everywhere, or to the copied one when that is elsewhere.
    let base = if current.starts_with(&here) { current } else { here };
    let wanted: Vec<PathBuf> = paths.iter().map(|path| tidy(&base.join(path))).collect();
    views.iter_mut().for_each(|view| view.keep(&wanted));
    for (path, wanted) in paths.iter().zip(&wanted) {
        let known = |view: &View| {
            let source = &view.copy.info.source;
            view.seen.iter().any(|seen| source.join(&seen.change.path).starts_with(wanted))
        };
        if !views.iter().any(known) {
            bail!("nothing has changed at {}", quoted(path));
        }
    }
    Ok(views)
}

/// Removes `.` and `..` from a path by its text alone.
fn tidy(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            std::path::Component::ParentDir => drop(out.pop()),
            std::path::Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

fn letter(what: What) -> &'static str {
    match what {
        What::Added => "added",
        What::Changed => "changed",
        What::Deleted => "deleted",
    }
}

/// A line of a list: a change, or a whole folder of changes of the same kind.
struct Line<'a> {
    seen: &'a Seen,
    more: usize,
}

/// Folds what is in an added or deleted folder into one line.
fn fold<'a>(all: impl Iterator<Item = &'a Seen>) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = Vec::new();
    for seen in all {
        let within = lines.last_mut().filter(|line| {
            let top = &line.seen.change;
            top.what == seen.change.what && top.what != What::Changed && seen.change.path.starts_with(&top.path)
        });
        match within {
            Some(line) => line.more += 1,
            None => lines.push(Line { seen, more: 0 }),
        }
    }
    lines
}

/// Lists changes: deletions first.
pub(super) fn lines<'a>(all: impl Iterator<Item = &'a Seen> + Clone) -> String {
    let deleted = all.clone().filter(|seen| seen.change.what == What::Deleted);
    let others = all.filter(|seen| seen.change.what != What::Deleted);
    let folded: Vec<Line<'_>> = fold(deleted).into_iter().chain(fold(others)).collect();
    let mut out = String::new();
    for Line { seen, more } in folded.iter().take(MAX_LINES) {
        let entry = seen.change.after.or(seen.change.before);
        let slash = if entry.is_some_and(|entry| entry.kind == Kind::Folder) { "/" } else { "" };
        let more = if *more > 0 { format!(" and {more} in it") } else { String::new() };
        let risk = seen.risk.map(|risk| format!("  ({})", risk.name())).unwrap_or_default();
        let moved = seen.moved.map(|moved| format!("  ({} in the folder meanwhile)", moved.name())).unwrap_or_default();
        let _ =
            writeln!(out, "  {:<9}{}{slash}{more}{risk}{moved}", letter(seen.change.what), quoted(&seen.change.path));
    }
    if folded.len() > MAX_LINES {
        let _ = writeln!(out, "  … and {} more; --json lists all", folded.len() - MAX_LINES);
    }
    out
}

fn count_text([added, changed, deleted]: [usize; 3]) -> String {
    format!("{added} added, {changed} changed, {deleted} deleted")
}

/// What people see of all copies.
pub(super) fn table(views: &[View]) -> String {
    let mut out = String::new();
    for view in views {
        let _ = writeln!(out, "{}: {}", quoted(&view.copy.info.source), count_text(view.counts()));
        out += &lines(view.seen.iter().filter(|seen| seen.risk.is_none()));
        if view.seen.iter().any(|seen| seen.risk.is_some()) {
            out += "this machine would later run or follow (applied only with --risky):\n";
            out += &lines(view.seen.iter().filter(|seen| seen.risk.is_some()));
        }
        for (path, error) in &view.unreadable {
            let _ = writeln!(out, "  unreadable {}: {error}", quoted(path));
        }
    }
    out
}

/// What programs see.
pub(super) fn json(group: &Group, views: &[View]) -> Result<String> {
    let folders: Vec<Value> = views.iter().map(folder_json).collect();
    let kind = if group.is_run { "run" } else { "sandbox" };
    Ok(format!("{}\n", serde_json::to_string_pretty(&json!({"name": group.name, "kind": kind, "folders": folders}))?))
}

fn folder_json(view: &View) -> Value {
    let changes: Vec<Value> = view.seen.iter().map(change_json).collect();
    let unreadable: Vec<Value> = view
        .unreadable
        .iter()
        .map(|(path, error)| json!({"path": path.to_string_lossy(), "error": error.to_string()}))
        .collect();
    json!({"folder": view.copy.info.source, "changes": changes, "unreadable": unreadable})
}

fn change_json(seen: &Seen) -> Value {
    let Seen { change, risk, moved } = seen;
    let mut fields: BTreeMap<&str, Value> = BTreeMap::new();
    fields.insert("path", json!(change.path.to_string_lossy()));
    if change.path.to_str().is_none() {
        use base64::Engine as _;
        let bytes = change.path.as_os_str().as_bytes();
        fields.insert("pathBase64", json!(base64::engine::general_purpose::STANDARD.encode(bytes)));
    }
    fields.insert("change", json!(letter(change.what)));
    if let Some(entry) = change.after.or(change.before) {
        fields.insert("kind", json!(entry.kind.name()));
        fields.insert("mode", json!(format!("{:04o}", entry.mode)));
        fields.insert("size", json!(entry.size));
    }
    if let Some(other) = &change.same_as {
        fields.insert("sameAs", json!(other.to_string_lossy()));
    }
    if let Some(risk) = risk {
        fields.insert("risk", json!(risk.name()));
    }
    if let Some(moved) = moved {
        fields.insert("conflict", json!(moved.name()));
    }
    json!(fields)
}

/// Prints on stderr what a `run` changed. Removes its copies if it changed nothing.
pub(crate) fn summarise(data: &DataDir, name: &str) -> Result<()> {
    let folder = data.copies().join(name);
    let group = find::all(data)?.into_iter().find(|group| group.is_run && group.name == name);
    let views = group.as_ref().map(|group| read(group, &[])).transpose()?.unwrap_or_default();
    let changed: Vec<&View> =
        views.iter().filter(|view| !view.seen.is_empty() || !view.unreadable.is_empty()).collect();
    if changed.is_empty() {
        if let Some(view) = views.first() {
            eprintln!("no changes in {}", quoted(&view.copy.info.source));
        }
        return agent_sandbox_node::kernel::remove_data(&folder).context("cannot remove the copy of the folder");
    }
    for view in changed {
        let risky = view.seen.iter().filter(|seen| seen.risk.is_some()).count();
        let risky = if risky > 0 { format!("; {risky} of them this machine would later run") } else { String::new() };
        eprintln!("changes in a copy of {}: {}{risky}", quoted(&view.copy.info.source), count_text(view.counts()));
    }
    eprintln!("  see them:    agent-sandbox changes diff {name}");
    eprintln!("  make them:   agent-sandbox changes apply {name}");
    eprintln!("  drop them:   agent-sandbox changes discard {name}");
    Ok(())
}
