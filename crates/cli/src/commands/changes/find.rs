//! Finds the copies of a sandbox or of a `run` in the data folder.

use agent_sandbox_engine::DataDir;
use agent_sandbox_node::changes::Copy;
use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};

/// The copies of one sandbox or one run.
pub(super) struct Group {
    /// The sandbox, or the name that `run` printed.
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) is_run: bool,
    /// The folder that holds the copies.
    pub(super) folder: PathBuf,
    pub(super) copies: Vec<Copy>,
}

/// All groups with copies that are not private.
pub(super) fn all(data: &DataDir) -> Result<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    for (base, is_run) in [(data.layers(), false), (data.copies(), true)] {
        let found = Copy::find(&base).with_context(|| format!("cannot read {}", base.display()))?;
        for copy in found.into_iter().filter(|copy| !copy.info.private) {
            let folder = copy.folder.parent().unwrap_or(&base).to_owned();
            match groups.iter_mut().find(|group| group.folder == folder) {
                Some(group) => group.copies.push(copy),
                None => {
                    let run = || folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    let name = if is_run { run() } else { copy.info.pod.clone() };
                    let namespace = copy.info.namespace.clone();
                    groups.push(Group { name, namespace, is_run, folder, copies: vec![copy] });
                }
            }
        }
    }
    // The folder that the user started in comes first.
    groups.iter_mut().for_each(|group| group.copies.sort_by_key(|copy| copy.info.volume != "here"));
    Ok(groups)
}

/// The group of this name; without a name, the newest with a copy of the current folder or of one above it.
pub(super) fn one(data: &DataDir, namespace: Option<&str>, name: Option<&str>) -> Result<Group> {
    let groups = all(data)?;
    match name {
        Some(name) => by_name(groups, namespace, name),
        None => by_folder(groups, &std::env::current_dir().context("cannot find the current folder")?),
    }
}

fn by_name(groups: Vec<Group>, namespace: Option<&str>, name: &str) -> Result<Group> {
    let in_namespace = |group: &Group| group.is_run || namespace.is_none_or(|wanted| wanted == group.namespace);
    let mut found: Vec<Group> = groups.into_iter().filter(|group| group.name == name && in_namespace(group)).collect();
    match (found.pop(), found.is_empty()) {
        (Some(group), true) => Ok(group),
        (Some(_), false) => {
            bail!("several namespaces have a sandbox {name} with copies of folders; choose one with -n")
        }
        (None, _) => bail!(
            "{name} has no copy of a folder here\n  all copies:   agent-sandbox changes list\n  a new one:    agent-sandbox run --here -- COMMAND, or create NAME --here"
        ),
    }
}

fn by_folder(groups: Vec<Group>, here: &Path) -> Result<Group> {
    let has_it = |group: &Group| group.copies.iter().any(|copy| here.starts_with(&copy.info.source));
    let began = |group: &Group| group.copies.iter().map(|copy| copy.info.began).max();
    match groups.into_iter().filter(has_it).max_by_key(began) {
        Some(group) => Ok(group),
        None => bail!(
            "no sandbox has a copy of {} with changes\n  all copies:   agent-sandbox changes list",
            here.display()
        ),
    }
}
