//! `changes`: what sandboxes changed in their copies of folders. Works on the files of the engine's data folder, as the
//! user who runs it: no API leads to the real folders.

mod apply;
mod diff;
mod find;
mod text;
mod view;

use crate::{
    args::{ChangesArgs, ChangesCommand, GlobalArgs},
    output,
};
use agent_sandbox_engine::DataDir;
use anyhow::{Context as _, Result, bail};
use std::process::ExitCode;

pub(crate) use view::summarise;

pub(crate) fn changes(global: &GlobalArgs, args: ChangesArgs) -> Result<ExitCode> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    let find = |name: Option<&str>| find::one(&data, global.namespace.as_deref(), name);
    match args.command {
        None => {
            let group = find(args.shown.name.as_deref())?;
            let views = view::read(&group, &[])?;
            match args.shown.json {
                true => output::print(&view::json(&group, &views)?)?,
                false => output::print(&view::table(&views))?,
            }
        }
        Some(ChangesCommand::List { json }) => list(&data, json)?,
        Some(ChangesCommand::Diff(args)) => {
            let group = find(args.shown.name.as_deref())?;
            let views = view::read(&group, &args.path)?;
            match args.shown.json {
                true => output::print(&view::json(&group, &views)?)?,
                false => diff::show(&views)?,
            }
        }
        Some(ChangesCommand::Apply(args)) => {
            let group = find(args.shown.name.as_deref())?;
            return apply::apply(&group, &args);
        }
        Some(ChangesCommand::Discard { name }) => discard(&find(name.as_deref())?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(data: &DataDir, json: bool) -> Result<()> {
    let mut table = output::Table::new(&["NAME", "FOLDER", "ADDED", "CHANGED", "DELETED"]);
    let mut values = Vec::new();
    for group in find::all(data)? {
        for view in view::read(&group, &[])? {
            let [added, changed, deleted] = view.counts();
            let folder = view.copy.info.source.display().to_string();
            values.push(serde_json::json!({
                "name": group.name, "folder": folder, "added": added, "changed": changed, "deleted": deleted
            }));
            let numbers = [added, changed, deleted].map(|count| count.to_string());
            table.row([group.name.clone(), text::quoted(&view.copy.info.source)].into_iter().chain(numbers).collect());
        }
    }
    match (json, values.is_empty()) {
        (true, _) => output::print(&format!("{}\n", serde_json::to_string_pretty(&values)?)),
        (false, true) => output::print("no copies of folders\n"),
        (false, false) => output::print(&table.render()),
    }
}

/// Throws away all changes of a sandbox or run.
fn discard(group: &find::Group) -> Result<()> {
    let mut locks = Vec::new();
    for copy in &group.copies {
        match copy.lock_unused().context("cannot lock the copy")? {
            Some(lock) => locks.push(lock),
            None if group.is_run => bail!("{} still runs", group.name),
            None => bail!(
                "sandbox {0} runs with its copy of {1}; stop it first: agent-sandbox suspend {0}",
                group.name,
                copy.info.source.display()
            ),
        }
    }
    remove(group)?;
    output::print(&format!("changes of {} discarded\n", group.name))
}

/// Removes a run's copies, and empties those of a sandbox.
fn remove(group: &find::Group) -> Result<()> {
    if group.is_run {
        return agent_sandbox_node::kernel::remove_data(&group.folder).context("cannot remove the changes");
    }
    for copy in &group.copies {
        copy.clear().with_context(|| format!("cannot remove the changes of {}", copy.info.source.display()))?;
    }
    Ok(())
}
