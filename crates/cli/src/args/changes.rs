//! Arguments of `changes`, and those with which `run` and `create` get copies of folders.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Args, Debug, Default)]
pub(crate) struct HereArgs {
    /// Start in a private copy of the current folder, at the same path; `agent-sandbox changes` shows and applies what
    /// changed
    #[arg(long)]
    pub(crate) here: bool,
    /// With --here: mount the folder itself, so that every change is made at once
    #[arg(long, requires = "here")]
    pub(crate) write: bool,
    /// Add a private copy of another folder, at the same path; its changes are never applied. May be repeated
    #[arg(long = "with", value_name = "DIR")]
    pub(crate) with: Vec<PathBuf>,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ChangesArgs {
    #[command(flatten)]
    pub(crate) shown: ChangesShowArgs,
    #[command(subcommand)]
    pub(crate) command: Option<ChangesCommand>,
}

#[derive(Args, Debug)]
pub(crate) struct ChangesShowArgs {
    /// Sandbox, or a `run` by the name that it printed; by default the newest copy of the current folder
    #[arg(value_name = "SANDBOX|RUN")]
    pub(crate) name: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ChangesCommand {
    /// List all copies of folders that have changes
    #[command(visible_alias = "ls")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the changes as a unified diff
    Diff(ChangesDiffArgs),
    /// Make the changes in the real folder
    Apply(ChangesApplyArgs),
    /// Throw the changes away
    Discard {
        /// Sandbox or `run`; by default the newest copy of the current folder
        #[arg(value_name = "SANDBOX|RUN")]
        name: Option<String>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct ChangesDiffArgs {
    #[command(flatten)]
    pub(crate) shown: ChangesShowArgs,
    /// Only this file or folder; may be repeated
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Vec<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ChangesApplyArgs {
    #[command(flatten)]
    pub(crate) shown: ChangesShowArgs,
    /// Only this file or folder; may be repeated
    #[arg(long, value_name = "PATH")]
    pub(crate) path: Vec<PathBuf>,
    /// Also apply what this machine would later run or follow: git's hooks and settings, .envrc, editors' tasks, setuid
    /// programs, links that lead out
    #[arg(long)]
    pub(crate) risky: bool,
    /// Write over files that were changed in the real folder meanwhile
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Only list what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}
