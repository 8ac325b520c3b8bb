//! `changes apply`.

use super::{
    find::Group,
    remove,
    text::quoted,
    view::{self, Seen, View},
};
use crate::{args::ChangesApplyArgs, output};
use agent_sandbox_node::changes::{self, Applied, Change, apply::ApplyOptions};
use anyhow::{Context as _, Result, bail};
use std::process::ExitCode;

pub(super) fn apply(group: &Group, args: &ChangesApplyArgs) -> Result<ExitCode> {
    let _locks = lock(group)?;
    let mut views = view::read(group, &args.path)?;
    let chosen = |seen: &&Seen| args.risky || seen.risk.is_none();
    if args.shown.json && args.dry_run {
        output::print(&view::json(group, &views)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let conflicts = views.iter().flat_map(|view| view.seen.iter().filter(chosen)).filter(|seen| seen.moved.is_some());
    if !args.overwrite && conflicts.clone().next().is_some() {
        let list = view::lines(conflicts);
        bail!(
            "nothing was applied: these were changed in the real folder, too, since the sandbox began\n{list}\
             apply others with --path, or write over these with --overwrite"
        );
    }
    let mut failed = 0;
    for view in &mut views {
        failed += apply_view(view, args)?;
    }
    if args.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    // A run's copies are of no use when everything is applied.
    let left = view::read(group, &[])?.iter().any(|view| !view.seen.is_empty() || !view.unreadable.is_empty());
    if group.is_run && !left && group.copies.iter().all(|copy| matches!(copy.lock_unused(), Ok(Some(_)))) {
        remove(group)?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Keeps other commands from applying the same changes.
fn lock(group: &Group) -> Result<Vec<std::fs::File>> {
    let lock = |copy: &changes::Copy| match copy.lock_description().context("cannot lock the copy")? {
        Some(lock) => Ok(lock),
        None => bail!("another command is applying the changes of {}", group.name),
    };
    group.copies.iter().map(lock).collect()
}

/// Applies the changes of one copy, and says what was done; returns the number of those that failed.
fn apply_view(view: &mut View, args: &ChangesApplyArgs) -> Result<usize> {
    let chosen = |seen: &&Seen| args.risky || seen.risk.is_none();
    let source = quoted(&view.copy.info.source);
    if view.seen.is_empty() {
        return Ok(0);
    }
    let would = if args.dry_run { "would apply" } else { "applying" };
    let listed = view::lines(view.seen.iter().filter(chosen));
    if !listed.is_empty() {
        output::print(&format!("{would} to {source}:\n{listed}"))?;
    }
    let left_out = view.seen.iter().filter(|seen| !chosen(seen));
    if left_out.clone().next().is_some() {
        let list = view::lines(left_out);
        output::print(&format!(
            "left out, because this machine would later run or follow it (--risky applies it):\n{list}"
        ))?;
    }
    for (path, error) in &view.unreadable {
        eprintln!("warning: {}: {error}; what is in it is not applied", quoted(path));
    }
    if args.dry_run {
        return Ok(0);
    }
    let options = ApplyOptions { keep_special_bits: args.risky, overwrite: args.overwrite };
    let changes: Vec<&Change> = view.seen.iter().filter(chosen).map(|seen| &seen.change).collect();
    let journal = view.copy.begin_journal(&view.base);
    view.base.note_in(journal.context("cannot begin to record what is applied")?);
    let applied = changes::apply(&view.source, &view.upper, &mut view.base, &changes, options);
    if let Some(record) = view.base.record() {
        view.copy.write_record(record).context("cannot record what was applied")?;
    }
    let failed: Vec<&Applied> = applied.iter().filter(|one| one.outcome.is_err()).collect();
    for one in &failed {
        if let Err(error) = &one.outcome {
            eprintln!("error: {}: {error}", quoted(&one.path));
        }
    }
    let done = applied.len() - failed.len();
    output::print(&format!("{done} of {} changes applied to {source}\n", applied.len()))?;
    Ok(failed.len())
}
